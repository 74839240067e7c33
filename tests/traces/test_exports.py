import csv
import io
import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given

from specscope.engine.errors import UsageError
from specscope.engine.trace.events import Chain, Copied, Decision, Forecast, Forked, Pooled, Span
from specscope.engine.trace.jsonl import to_json, write_jsonl
from specscope.engine.trace.trace import Trace
from specscope.traces.export.perfetto import to_perfetto, write_perfetto
from specscope.traces.export.tables import write_csv
from specscope.traces.facts.metrics import measure
from tests.traces import strategies
from tests.traces.samples import KINDS, read_file, sample_trace, with_header


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.jsonl"


def write_file(trace, path):
    with path.open("w", encoding="utf-8") as file:
        write_jsonl(trace, file)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("export") / "trace.jsonl"


@strategies.few
@given(strategies.traces())
def test_a_trace_comes_back_from_jsonl_exactly(file, trace):
    write_file(trace, file)
    before = file.read_bytes()
    loaded = read_file(file)
    assert loaded == trace
    write_file(loaded, file)
    assert file.read_bytes() == before


def test_a_file_cut_short_is_an_incomplete_run(path):
    write_file(sample_trace(), path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    assert read_file(path).status == "incomplete"
    assert read_file(path).text == sample_trace().text


def edited(line, **fields):
    return json.dumps({**json.loads(line), **fields})


@pytest.mark.parametrize(
    ("number", "edit", "message"),
    [
        (0, lambda x: edited(x, schema=99), "schema 99.*please update"),
        (0, lambda x: edited(x, prompts=["a", "b"]), "token ids of 1 prompts, but 2 prompts"),
        (0, lambda x: edited(x, devices=json.loads(x)["devices"] * 2), "two devices have the same name"),
        (1, lambda x: x[:-9], "line 2: "),
        (1, lambda x: x + "\n" + to_json(sample_trace().header), "this file holds a second one"),
        (1, lambda x: edited(x, shoe=42), "line 2: a piece has no field shoe"),
        (-1, lambda x: edited(x, texts=["a", "b"]), "the footer has more texts"),
        ("span", lambda x: edited(x, device="gpu9"), "device 'gpu9' is not among"),
        ("span", lambda x: edited(x, end=0, start=5), "lasts from 5 to 0"),
        ("span", lambda x: edited(x, sequence=1), "sequence 1 is not among the header's 1 prompts"),
        ("span", lambda x: edited(x, id=3), "two spans have the same id"),
        ("decision", lambda x: x[:-1] + ',"u":1e999}', "u of a decision is inf"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(path, number, edit, message):
    lines = [to_json(e) for e in sample_trace().events()]
    if isinstance(number, str):
        number = max(i for i, line in enumerate(lines) if line.startswith(f'{{"event":"{number}"'))
    lines[number] = edit(lines[number])
    path.write_text("\n".join(lines))
    with pytest.raises(UsageError, match=message) as caught:
        read_file(path)
    assert str(caught.value).startswith(f"{path} is not a SpecScope trace: ")
    assert "\n" not in str(caught.value)


COPY = {"step": 1, "sequence": 0, "document": 0, "start": 5, "match": 2, "length": 4}
CHAIN = {"step": 1, "sequence": 0, "position": 9, "asked": 4, "drafted": 2, "stop": "end", "span": 3}
POOL = {"step": 1, "sequence": 0, "model": "target", "window": (), "tried": (), "gained": (), "size": 3}
FORK = {"step": 1, "sequence": 0, "place": 2, "token": 7, "q": 0.25, "length": 3, "taken": False}
FORECAST = {
    "step": 1,
    "sequence": 0,
    "tree": "own",
    "match": 2,
    "occurrences": 3,
    "score": 1.5,
    "drafter": None,
}


@pytest.mark.parametrize(
    ("kind", "usual", "fields", "message"),
    [
        (Copied, COPY, {"document": 3}, "document 3 of a copy is not in the trace"),
        (Copied, COPY, {"start": 1}, "a copy has start 1, match 2 and length 4"),
        (Copied, COPY, {"sequence": 1}, "sequence 1 is not among the header's 1 prompts"),
        (Pooled, POOL, {"sequence": 1}, "sequence 1 is not among the header's 1 prompts"),
        (Pooled, POOL, {"window": (("a",),)}, "window of a pooled is"),
        (Pooled, POOL, {"model": "nobody"}, "'nobody'; it must be one of target, drafter"),
        (Pooled, POOL, {"tried": ((),)}, "an n-gram without tokens"),
        (Forked, FORK, {"taken": 1}, "taken of a forked is 1"),
        (Forked, FORK, {"sequence": 3}, "sequence 3 is not among the header's 1 prompts"),
        (Forecast, FORECAST, {"sequence": 3}, "sequence 3 is not among the header's 1 prompts"),
        (Chain, CHAIN, {"sequence": 1}, "sequence 1 is not among the header's 1 prompts"),
        (Chain, CHAIN, {"drafted": 5}, "a draft of 5 tokens was asked for 4"),
    ],
)
def test_an_invalid_row_is_refused(path, kind, usual, fields, message):
    trace = sample_trace("llma")
    trace.copies, trace.pooled = [], []
    trace.add(kind(**{**usual, **fields}))
    write_file(trace, path)
    with pytest.raises(UsageError, match=message):
        read_file(path)


def test_a_file_of_schema_1_is_read(path):
    old = with_header(sample_trace("pearl"), schema=1)
    write_file(old, path)
    assert read_file(path) == old


def test_files_that_cannot_be_used(path):
    with pytest.raises(UsageError, match=r"cannot read .*: No such file"):
        read_file(path)
    write_file(sample_trace(), path)
    with pytest.raises(UsageError, match="the limit is 1000"):
        read_file(path, max_bytes=1000)


def table(trace, name):
    text = io.StringIO(newline="")
    write_csv(trace, name, text)
    return list(csv.DictReader(io.StringIO(text.getvalue(), newline="")))


def test_tables_hold_every_row():
    trace, found = sample_trace("pearl"), measure(sample_trace("pearl"))
    spans, decisions, tokens, rounds, (figures,) = (
        table(trace, name) for name in ("spans", "decisions", "tokens", "rounds", "figures")
    )
    assert [int(r["id"]) for r in spans] == [s.id for s in trace.spans]
    assert [int(r["nanoseconds"]) for r in spans] == [s.end - s.start for s in trace.spans]
    assert [r["text"] for r in decisions] == [trace.pieces[d.token] for d in trace.decisions]
    assert "".join(r["text"] for r in tokens) == trace.text
    accepted = next(r for r in tokens if r["origin"] == "accepted")
    assert (accepted["rule"], float(accepted["p"]) > 0) == ("ratio", True)
    assert [(r["mode"], int(r["accepted"])) for r in rounds] == [(r.mode, r.accepted) for r in trace.rounds]
    assert int(figures["accepted"]) == found.accepted
    assert float(figures["tokens_per_second"]) == found.tokens_per_second
    assert not {"waiting", "per_position", "occupancy"} & figures.keys()


def test_the_table_of_copies_has_the_accepted_tokens_of_each():
    trace = sample_trace("llma")
    rows, accepted = table(trace, "copies"), {r.step: r.accepted for r in trace.rounds}
    assert [int(r["start"]) for r in rows] == [c.start for c in trace.copies]
    assert [int(r["accepted"]) for r in rows] == [accepted[c.step] for c in trace.copies]
    first = [d for d in trace.decisions if d.step == trace.copies[0].step and d.node >= 0]
    assert rows[0]["text"] == "".join(trace.pieces[d.token] for d in first)


def test_an_empty_table_has_its_header_line():
    text = io.StringIO()
    write_csv(Trace(sample_trace().header), "tokens", text)
    assert text.getvalue().startswith("step,sequence,position,token,origin,text,time,p,q,u,rule\n")
    with pytest.raises(
        UsageError, match="no table 'pets'; choose one of tokens, decisions, rounds, copies, "
    ):
        write_csv(sample_trace(), "pets", text)


def test_no_cell_is_a_formula():
    trace = sample_trace()
    trace.commits = [
        replace(trace.commits[0], text=t) for t in ("=1+1", "+1", "-1", "@x", "\tx", "fine = yes", "a,b\n")
    ]
    texts = [r["text"] for r in table(trace, "tokens")]
    assert texts == ["'=1+1", "'+1", "'-1", "'@x", "'\tx", "fine = yes", "a,b\n"]
    negative = {r["draft_span"] for r in table(sample_trace(), "decisions") if r["node"] == "-1"}
    assert negative == {"-1"}, "numbers stay numbers"


def nanoseconds(microseconds):
    return round(microseconds * 1000)


def well_formed(trace):
    """Check what Perfetto needs, and return its events by phase."""
    events = json.loads(json.dumps(to_perfetto(trace), allow_nan=False))["traceEvents"]
    phases = defaultdict(list)
    for event in events:
        phases[event["ph"]].append(event)
    assert set(phases) <= {"M", "X", "C", "s", "f"}
    slices = defaultdict(list)
    for e in phases["X"]:
        start = nanoseconds(e["ts"])
        slices[e["pid"], e["tid"]].append((start, start + nanoseconds(e["dur"])))
    for lane in slices.values():
        lane.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(lane)), "spans of one lane overlap"
    named = {(e["pid"], e.get("tid")) for e in phases["M"]}
    assert all(place in named for place in slices)
    ends = {e["id"]: e for e in phases["f"]}
    assert len(ends) == len(phases["s"]) == len(phases["f"])
    for start in phases["s"]:
        assert start["ts"] <= ends[start["id"]]["ts"]
    for arrow in (*phases["s"], *phases["f"]):
        at = nanoseconds(arrow["ts"])
        assert any(a <= at < b for a, b in slices[arrow["pid"], arrow["tid"]]), "an arrow hangs in the air"
    times = [e["ts"] for e in events if "ts" in e]
    assert times == sorted(times)
    return phases


@pytest.mark.parametrize("kind", KINDS)
def test_perfetto_shows_a_sample(kind):
    trace = sample_trace(kind)
    phases = well_formed(trace)
    assert len(phases["X"]) == len(trace.spans)
    pairs = {(d.draft_span, d.verify_span) for d in trace.decisions}
    assert len(phases["s"]) == sum(min(pair) >= 0 for pair in pairs)
    labels = [e["args"]["name"] for e in phases["M"] if e["name"] == "process_name"]
    assert labels == [d.label for d in trace.header.devices]
    assert {e["name"] for e in phases["C"]} - {"power"} == {"works", "measured load", "memory"}
    watts = [e["args"]["watts"] for e in phases["C"] if e["name"] == "power"]
    assert watts == [o.power for o in trace.occupancy if o.power is not None]
    text = io.StringIO()
    write_perfetto(trace, text)
    assert json.loads(text.getvalue())["otherData"]["clock"] == "virtual · sample-2xGPU"


@strategies.many
@given(strategies.work())
def test_perfetto_takes_any_spans(trace):
    for i, draft in enumerate(trace.spans):
        verify = trace.spans[-1 - i].id
        trace.add(Decision(1, 0, 0, -1, 0, 1, None, None, None, "", "accepted", draft.id, verify))
    well_formed(trace)


def test_overlapping_spans_of_a_device_get_lanes():
    trace = sample_trace()
    trace.spans = [
        Span(i, "gpu0", "draft", start, end, "drafter", 1, 0, 1, 0, "cancelled")
        for i, (start, end) in enumerate([(0, 10), (5, 20), (10, 15), (16, 30)])
    ]
    phases = well_formed(trace)
    assert [e["tid"] for e in sorted(phases["X"], key=lambda e: e["args"]["span"])] == [1, 2, 1, 1]
    assert phases["X"][0]["name"] == "draft (cancelled)"
