"""Attacks on the importer: files that are not traces, wrong types, mutations of a valid file."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specscope.engine.errors import UsageError, shown
from specscope.engine.trace.jsonl import to_json
from specscope.engine.trace.trace import Trace
from specscope.traces.database.store import Store
from specscope.traces.export.perfetto import to_perfetto
from specscope.traces.imports import reading
from specscope.traces.imports.reading import read_traces
from specscope.traces.view.document import view_model
from tests.security.commands import command
from tests.security.odd import refusal
from tests.traces.samples import read_file, sample_trace

LINES = tuple(to_json(event) for event in sample_trace("llma").events())
EVENTS = tuple({json.loads(line)["event"]: 0 for line in LINES})


def changed(event: str, footer: bool = True, **fields: object) -> list[str]:
    """Return the lines of a sample in which the first event of a kind has other fields."""
    lines = list(LINES if footer else LINES[:-1])
    at = next(i for i, line in enumerate(lines) if json.loads(line)["event"] == event)
    lines[at] = json.dumps({**json.loads(lines[at]), **fields})
    return lines


@pytest.fixture
def imported(tmp_path):
    """Return a function that imports a file, and checks that a refused one makes no database."""

    def attempt(content: bytes):
        file, db = tmp_path / "attack.jsonl", tmp_path / "traces.db"
        file.write_bytes(content)
        done = command("import", str(file), "--db", str(db))
        assert db.exists() == (done.code == 0)
        return done

    return attempt


DEVICE = {"name": [], "role": "target", "label": "", "kind": ""}
FIELDS = {
    "header prompts": (5, ["a", 5]),
    "header prompt_ids": ([["x"]],),
    "header devices": (5, ["gpu0"], [{}], [DEVICE], [{"x" * 5000: 1}]),
    "header schema": ("x", None),
    "header lossless": ("yes",),
    "header config": ({"a": 10**4000},),
    "header limits": (
        {"eos": 2},
        {"eos": ["2"]},
        {"eos": [True]},
        {"max_new_tokens": [8]},
        {"max_new_tokens": None},
    ),
    "header environment": (
        *({"clocks": clocks} for clocks in ([-1], {"gpu0": None}, {"gpu0": {"uncertainty_ns": "1"}})),
        {"profile_pair": []},
    ),
    "span end": ("x", 10**4000),
    "span device": ({},),
    "span kind": ([],),
    "commit text": (5,),
    "piece token": ({},),
    "piece text": ("\ud800",),
    "decision p": (10**400,),
    "decision top_p": ([[1]],),
    "occupancy busy": ("x",),
}
"""Event and field -> wrong values."""


@pytest.mark.parametrize("footer", [True, False], ids=["", "without a footer"])
@pytest.mark.parametrize(
    ("place", "value"), [(place, value) for place, values in FIELDS.items() for value in values], ids=shown
)
def test_a_field_of_the_wrong_type_is_named(imported, place, value, footer):
    event, field = place.split()
    done = imported("\n".join(changed(event, footer, **{field: value})).encode())
    assert done.failed(2, "is not a SpecScope trace: ")
    assert len(done.err) < 400
    assert event in done.err or "device" in done.err


CLOSED = ("span.model", "span.outcome", "round.mode", "decision.rule", "commit.origin")


@pytest.mark.parametrize("place", CLOSED)
def test_a_text_outside_its_closed_set_is_bad_input(imported, place):
    event, field = place.split(".")
    done = imported("\n".join(changed(event, **{field: "dance"})).encode())
    assert done.failed(2, f"{field} of a {event} is 'dance'; it must be one of ")


DEEP = b'{"a":' * 900 + b"1" + b"}" * 900
NO_TRACES = (
    *(b"", b"\n\n", b"[" * 100_000, b"9" * 5000, b"\xff\xfe\x00", b"\x00" * 1000, b"{}", b"null"),
    *(b'{"event":["header"]}', b'{"event":"span"}', b'{"event":' + b"[" * 900 + b"]" * 900 + b"}"),
    *(b'{"event":"header","config":' + DEEP + b"}", b'{"' + b"x" * 5000 + b'":1,"event":"span"}'),
    *(LINES[1].encode(), "\n".join([LINES[0], LINES[0]]).encode()),
    "\n".join(changed("header", config=json.loads('{"a":' * 40 + "1" + "}" * 40))).encode(),
)


@pytest.mark.parametrize("content", NO_TRACES, ids=range(len(NO_TRACES)))
def test_a_file_that_is_not_a_trace_is_one_line(imported, content):
    done = imported(content)
    assert done.failed(2, "is not a SpecScope trace: ") or done.failed(2, "cannot import")


def test_a_raw_line_separator_of_unicode_in_a_text_is_kept(imported):
    lines = changed("commit", text="a")
    lines = [line.replace('"text": "a"', '"text": "a\u2028\u2029\x85b"') for line in lines]
    assert imported("\r\n".join(lines).encode()).code == 0


ODD = (None, True, -1, 2**63, 10**30, 0.5, "", "x" * 3000, [], {}, [[]], {"a": []}, ["a"], "\ud800")
odd = st.sampled_from(ODD)
plain = odd | st.integers(-3, 99) | st.text(max_size=4)


@st.composite
def attacks(draw):
    """Return the bytes of a sample's file, changed in one to three places."""
    lines = [line.encode() for line in LINES]
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.sampled_from([0, 1, len(lines) - 1]) | st.integers(0, len(lines) - 1))
        way = draw(st.sampled_from(["field", "field", "field", "drop", "twice", "cut", "bytes", "event"]))
        try:
            row = json.loads(lines[at])
        except ValueError:
            continue
        match way:
            case "field":
                name = draw(st.sampled_from(sorted(row)))
                lines[at] = json.dumps({**row, name: draw(plain)}).encode()
            case "drop":
                del lines[at]
            case "twice":
                lines.insert(at, lines[at])
            case "cut":
                lines[at] = lines[at][: draw(st.integers(0, 40))]
            case "bytes":
                lines[at] = lines[at][:9] + draw(st.binary(max_size=4)) + lines[at][9:]
            case _:
                lines[at] = json.dumps({**row, "event": draw(st.sampled_from(EVENTS))}).encode()
    return b"\n".join(lines)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    with Store(folder / "traces.db") as store:
        store.insert(sample_trace("pearl"))
        yield folder / "attack.jsonl", store


@settings(max_examples=60, deadline=None, derandomize=True)
@given(attacks())
def test_a_changed_file_is_refused_in_one_line_or_stored_completely(place, content):
    file, store = place
    file.write_bytes(content)
    read = list[Trace]()
    why = refusal(lambda: read.append(read_file(file)), UsageError)
    why += refusal(lambda: store.insert(*read), UsageError) if read else ""
    assert len(why) < 600
    if why:
        return
    (trace,) = read
    run_id = trace.header.run_id
    try:
        assert run_id in [row.header.run_id for row in store.runs()[0]]
        assert store.load(run_id) == trace
        json.dumps(view_model([store.load(run_id)]), allow_nan=False)
        json.dumps(to_perfetto(trace), allow_nan=False)
    finally:
        assert store.delete([run_id]) == 1
    assert [row.header.run_id for row in store.runs()[0]] == ["sample-pearl"]


def test_a_trace_of_many_prompts_without_a_footer_is_read_fast(tmp_path):
    trace = sample_trace("autoregressive")
    many = 50_000
    header = replace(trace.header, prompts=("",) * many, prompt_ids=((),) * many)
    cut = Trace(header, spans=trace.spans, commits=trace.commits * 400)
    cut.close_incomplete()
    assert len(cut.footer.texts) == many


FOREIGN = {
    path.name: path.read_text(encoding="utf-8")
    for path in sorted((Path(__file__).parents[1] / "traces" / "imported").glob("*.json*"))
}


@st.composite
def foreign_attacks(draw):
    """Return an example of another engine's file whose first value has one field changed."""
    text = FOREIGN[draw(st.sampled_from(sorted(FOREIGN)))]
    try:
        row, rest = json.loads(text), []
    except ValueError:  # rows
        first, *rest = text.splitlines()
        row = json.loads(first)
    place, key = row, draw(st.sampled_from(sorted(row)))
    while isinstance(place[key], dict | list) and place[key] and draw(st.integers(0, 4)):
        place = place[key]
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
    place[key] = draw(plain)
    return "\n".join([json.dumps(row), *rest]).encode()


@settings(max_examples=150, deadline=None)
@given(content=foreign_attacks())
def test_files_of_other_engines_are_read_or_refused_in_one_line(place, content):
    file, _ = place
    file.write_bytes(content)
    read = list[Trace]()
    refusal(lambda: read.extend(read_traces(file).traces), UsageError)
    for trace in read:
        json.dumps(view_model([trace]), allow_nan=False)
        "\n".join(map(to_json, trace.events())).encode()


@contextmanager
def less_memory(most: int, message: str):
    """Check that a block is refused with a message before it has allocated `most` bytes."""
    tracemalloc.start()
    with pytest.raises(UsageError, match=message):
        yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < most


@pytest.mark.parametrize("start", [b"[", (LINES[0] + "\n").encode()], ids=["another engine's", "own"])
def test_a_gzip_bomb_is_refused_while_it_is_unpacked(tmp_path, monkeypatch, start):
    monkeypatch.setattr(reading, "MAX_BYTES", 2**20)
    file = tmp_path / "bomb"
    file.write_bytes(gzip.compress(start + b"0," * 2**24 + b"0]"))
    with less_memory(8 * 2**20, "unpacked it has more than 1048576 bytes"):
        read_traces(file, 2**20)


MANY = {"one list": b"[" + b"[]," * 3_100_000 + b"[]]", "lines": b'{"a":[[],[],[]]}\n' * 900_000}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", MANY)
def test_a_file_of_many_values_is_refused_before_they_are_read(tmp_path, form, packed):
    file = tmp_path / "many"
    file.write_bytes(gzip.compress(MANY[form], 1) if packed else MANY[form])
    with less_memory(2**27, "values; at most 6000000 are read"):  # reading them takes about 2**29
        read_traces(file, 2**25)
