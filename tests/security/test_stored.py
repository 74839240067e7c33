"""Files that were stored and could not be opened, or kept a server busy; every number replaced."""

from __future__ import annotations

import itertools
import json
import time
from contextlib import closing
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

import specscope
from specscope.app.jobs.service import Service
from specscope.app.render.table import figures_table
from specscope.engine.errors import UsageError
from specscope.engine.runtimes.virtual import VirtualTime
from specscope.engine.trace.events import SCHEMA, Decision, Device, Footer, Forked, Span
from specscope.engine.trace.jsonl import to_json
from specscope.engine.trace.ranges import MOST_TIME, MOST_TOKENS
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.database.store import Store
from specscope.traces.export.perfetto import to_perfetto
from specscope.traces.facts.intervals import lanes
from specscope.traces.facts.metrics import measure
from specscope.traces.imports import reading
from specscope.traces.imports.reading import read_traces
from specscope.traces.view.document import view_model
from specscope.traces.whatif.replay import Change, what_if
from specscope.traces.whatif.rules import processed
from tests.app.fakes import FakeOpen
from tests.security.odd import changed, places, refusal
from tests.security.opened import Opener, bounded
from tests.traces.samples import sample_trace
from tests.traces.test_imported import FILES, NAMES

MS = 1_000_000


def imported(trace: Trace, folder: Path, **fields: object) -> Trace:
    """Return a trace as an import reads it, with other fields of its header."""
    rows = [json.loads(to_json(event)) for event in trace.events()]
    rows[0] |= fields
    (folder / "file.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return read_traces(folder / "file.jsonl").traces[0]


def stored(opener: Opener, trace: Trace, folder: Path, **fields: object) -> Trace:
    """Import and store a trace, and open it in every way."""
    read = imported(trace, folder, **fields)
    opener.service.store.insert(read)
    opener.open(read.header.run_id, replay=False)
    return read


@pytest.fixture(scope="module")
def opening(tmp_path_factory):
    service = Service(tmp_path_factory.mktemp("stored") / "traces.db", FakeOpen())
    yield Opener(service)
    service.close()


@pytest.fixture
def opener(opening):
    """Return what opens the runs of a database, which is empty before and after each test."""
    yield opening
    store = opening.service.store
    while runs := store.runs(limit=100)[0]:
        assert store.delete([run.header.run_id for run in runs]) == len(runs)


def test_a_notebooks_table_has_texts_and_no_markup():
    table = figures_table(["<b>", "x"], [["<i>", '"&']])
    assert all(shown in table for shown in ("&lt;b&gt;", "&lt;i&gt;", "&quot;&amp;"))
    assert not any(tag in table for tag in ("<b>", "<i>"))


BAD_IDS = ("", "a,b", "a~b", "a;b", "a b", "a/b", "..", "-x", "a\nb", "a?b", "%2c", "x" * 101, "é\u2028")
FACTS = {
    "environment.open": ({"open": 5}, {"open": ["gamma"]}),
    "environment.head": ({"head": ["x"]},),
    "environment.load.batch": ({"load": {"batch": 2**40}},),
    "environment.planned.speedup": ({"planned": {"speedup": "nan"}},),
    "environment.clocks": ({"clocks": {"gpu0\n": {"offset_ns": 2**62}}},),
    "environment.recorded.start_ns": ({"recorded": {"start_ns": "now"}},),
    "environment.whatif": ({"whatif": []},),
    "at most 50000 plain values": ({"settings": [0] * 50_001},),
}
SHARED = json.loads(to_json(sample_trace("shared").header))["devices"][0]
REFUSED = [
    *(({"run_id": name}, "; expected 1 to 100 letters") for name in BAD_IDS),
    *(({"environment": value}, place) for place, values in FACTS.items() for value in values),
    *(({"devices": [{**SHARED, "name": name}]}, "a device has the name") for name in ("", "others")),
    *(({"schema": schema}, "please update") for schema in (SCHEMA + 1, 2**40)),
    *(({"schema": schema}, "schema of a header is") for schema in (0, -1, 1.0, "6", None, True, [6], {})),
]
"""Other fields of a header, and the refusal."""


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_a_header_of_another_form_is_refused_in_one_line(tmp_path, fields, message):
    kind = "shared" if "devices" in fields else "pearl"
    with pytest.raises(UsageError) as caught:
        imported(sample_trace(kind), tmp_path, **fields)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_run_whose_id_cannot_be_opened_is_not_stored(tmp_path):
    trace = sample_trace("pearl")
    with Store(tmp_path / "traces.db") as store:
        for run_id in BAD_IDS:
            trace.header = replace(trace.header, run_id=run_id)
            with pytest.raises(UsageError, match="cannot be stored"):
                store.insert(trace)


@pytest.mark.parametrize("run_id", ["a.b-c_d", "déjà", "猫", "__proto__", "0"])
def test_other_ids_are_opened(tmp_path, opener, run_id):
    stored(opener, sample_trace("pearl"), tmp_path, run_id=run_id)


@pytest.mark.parametrize("names", ["mine 8xA100", "mine own", " own.toml", "constructor pearl-4xA100"])
def test_a_run_of_an_own_profile_is_opened_whatever_its_name(tmp_path, opener, names):
    pair, profile = names.split(" ")
    environment = {"pair": "p", "profile_pair": pair}
    trace = stored(opener, sample_trace("pearl"), tmp_path, profile=profile, environment=environment)
    with pytest.raises(UsageError, match=r"name a cluster|has no pair"):
        what_if(trace, Change())


def test_a_what_if_reads_no_profile_that_a_trace_names(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text("secret")
    trace = imported(sample_trace("pearl"), tmp_path, profile=str(own))
    with pytest.raises(UsageError, match="name a cluster") as caught:
        what_if(trace, Change())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-3, 1.0, 1e9])
@pytest.mark.parametrize("top_p", [1e-30, 0.5, 1.0, None])
@pytest.mark.parametrize("top_k", [-1, 0, 1, None])
def test_probabilities_are_processed_at_any_temperature(temperature, top_p, top_k):
    sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    for top in (((7, 0.6), (8, 0.2), (9, 0.1)), ((1, 1.0), (2, 0.0)), ((1, 0.5), (2, 5e-324)), ((1, 0.0),)):
        found = dict(processed(top, sampling))
        assert 1 in found or 7 in found
        assert all(0 <= share <= 1.001 for share in found.values())
    if temperature < 1e-2:
        assert processed(((7, 0.6), (8, 0.2)), sampling) == ((7, 1.0),)


def test_a_what_if_of_a_tiny_temperature_is_made(tmp_path):
    sampling = {"temperature": 1e-30, "top_k": 0, "top_p": 0.5, "seed": 1}
    trace = imported(sample_trace("speculative"), tmp_path, sampling=sampling)
    change = Change("pearl-4xA100", method="speculative", config={"drafts": "greedy"})
    assert what_if(trace, change).replay.commits


def test_a_run_without_devices_or_with_the_latest_times_is_opened(tmp_path, opener):
    bare = replace(sample_trace("pearl"), spans=[], occupancy=[], decisions=[])
    stored(opener, bare, tmp_path, devices=[], run_id="bare")
    late = sample_trace("pearl")
    late.spans[-1] = replace(late.spans[-1], end=MOST_TIME)
    late.commits[-1] = replace(late.commits[-1], time=MOST_TIME)
    stored(opener, late, tmp_path, run_id="late")


def test_a_virtual_run_ends_before_times_that_cannot_be_stored():
    with closing(VirtualTime()) as clock:
        clock.call_at(MOST_TIME // 1000, lambda: None)
        clock.select()
        clock.call_at(MOST_TIME // 1000 + 1, lambda: None)
        with pytest.raises(UsageError, match="more than 1000000000 s of virtual time"):
            clock.select()


def many(devices: int, spans: list[Span]) -> Trace:
    header = sample_trace("speculative").header
    roles = ("drafter", "target")
    named = tuple(Device(f"gpu{i}", roles[i % 2], f"GPU {i}", "virtual") for i in range(devices))
    return Trace(replace(header, devices=named), spans=spans, footer=Footer("done", ("",), ("",), 10**10))


def span(number: int, device: str, start: int, length: int) -> Span:
    return Span(number, device, "verify", start, start + length, "target", 1 + number, 0, 1, 0, "done")


def test_spans_that_all_overlap_take_no_quadratic_time():
    trace = many(2, [span(i, "gpu1", 20 * MS + i, 10**9) for i in range(30_000)])
    with bounded("overlapping spans"):
        assert lanes((s.start, s.end) for s in trace.spans) == [*range(30_000)]
        assert view_model([trace])["runs"][0]["tracks"][0]["lanes"] == 30_000
        to_perfetto(trace)


def test_many_devices_are_shown_in_bounded_time():
    trace = many(1000, [span(i, f"gpu{i % 1000}", 20 * MS + 1000 * i, 50_000) for i in range(5000)])
    with bounded("many devices"):
        measure(trace)
        with pytest.raises(UsageError, match="5000 spans on 1000 devices, too many to show its waits"):
            view_model([trace])


def test_a_draft_of_many_nodes_takes_no_quadratic_time():
    trace = sample_trace("speculative")
    fate = (None, None, None, "", "discarded", -1, -1)
    trace.decisions = [Decision(1, 0, i, i - 1, 5 + i, 7, *fate) for i in range(20_000)]
    with bounded("a long draft"):
        view_model([trace])


def test_too_many_devices_branches_and_settings_are_refused_soon(tmp_path):
    trace = sample_trace("speculative")
    trace.forks = [Forked(1, 0, 0, 7, 0.5, 3, taken=False)] * 4097
    begun = time.process_time()
    for given, fields, message in (
        (many(1025, []), {}, "1025 devices; at most 1024"),
        (trace, {}, "step 1 has 4097 branches; at most 4096"),
        (
            sample_trace(),
            {"config": {"a": [[]] * 100_000}},
            "config of a header is .* at most 50000 plain values",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            imported(given, tmp_path, **fields)
    assert time.process_time() - begun < 10


def test_own_files_have_a_largest_number_of_values(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_TRACE_VALUES", 1000)
    header = to_json(sample_trace("pearl").header)
    (tmp_path / "many.jsonl").write_text(header + "\n" + '{"event":"piece","token":1,"text":"x"}\n' * 500)
    with pytest.raises(UsageError, match="at most 1000 are read"):
        read_traces(tmp_path / "many.jsonl")


@pytest.mark.parametrize("schema", [*range(1, SCHEMA + 1)])
def test_files_of_all_earlier_schemas_are_opened(tmp_path, opener, schema):
    trace = sample_trace("speculative")
    rows = [json.loads(to_json(event)) for event in trace.events()]
    if schema < 4:
        del rows[0]["lossless"]
    for row in rows if schema < 2 else ():
        for field in ("cells", "rank", "power"):
            row.pop(field, None)
    rows[0]["schema"] = schema
    (tmp_path / "old.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (read,) = read_traces(tmp_path / "old.jsonl").traces
    opener.service.store.insert(read)
    opener.open(read.header.run_id, replay=False)
    assert measure(read) == measure(trace) or schema < 2


VALUES = (
    *(2**40, 2**62, 2**70, 2**53 - 1, MOST_TOKENS, MOST_TIME, 1000, 0, -1),
    *(1.5, 1e-30, float("nan"), float("inf"), "x", [1], None),
)
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("pearl", "ssd", "hybrid", "lookahead", "llma", "assisted")},
    "sampled": ("speculative", {"sampling": Sampling(0.8, seed=3)}),
    "fuzzy": ("easyspec", {}),
    "load": ("speculative", {"load": specscope.Load((0.0, 0.1), 2)}),
}
"""Method and settings of virtual runs that together have every kind of row."""


@pytest.fixture(scope="module")
def files() -> dict[str, list[Any]]:
    """Return the JSON values of a file of each form by name: one per line."""
    rows: dict[str, list[Any]] = {}
    with specscope.open(runtime="virtual", profile="pearl-4xA100") as cluster:
        for name, (method, settings) in RUNS.items():
            prompts = ("One two three one two", "Hello") if "load" in settings else ("One two three one two",)
            trace = cluster.run(method, *prompts, limits=Limits(6), **settings)
            rows[name] = [json.loads(to_json(event)) for event in trace.events()]
    for name in NAMES:
        text = (FILES / name).read_text()
        rows[name] = [*map(json.loads, text.splitlines())] if name.endswith("l") else [json.loads(text)]
        trace = read_traces(FILES / name).traces[0]
        rows[f"{name} as a trace"] = [json.loads(to_json(event)) for event in trace.events()]
    return rows


def numbers_of(rows: list[Any]) -> dict[str, tuple[int, tuple[Any, ...]]]:
    """Return name -> (row, path) of each number; of those in lists and equal rows, two."""
    found: dict[str, tuple[int, tuple[Any, ...]]] = {}
    for number, row in enumerate(rows):
        kind = row.get("event", "") if isinstance(row, dict) else ""
        for path in places(row):
            value = reduce(getitem, path, row)
            if isinstance(value, int | float) and not isinstance(value, bool):
                name = f"{kind}.{'.'.join('#' if isinstance(key, int) else key for key in path)}"
                found.setdefault(f"first {name}", (number, path))
                found[f"last {name}"] = (number, path)
    return found


FORMS = [*RUNS, *NAMES, *(f"{name} as a trace" for name in NAMES)]
_fresh = itertools.count()


def is_own(form: str) -> bool:
    return form in RUNS or form.endswith("as a trace")


@pytest.fixture(scope="module")
def numbers(files) -> dict[str, dict[str, tuple[int, tuple[Any, ...]]]]:
    """Return form -> numbers to replace: each field of a trace in the first one that has it."""
    known, chosen = set[str](), {}
    for form in FORMS:
        found = numbers_of(files[form])
        assert len(found) > 5
        chosen[form] = {name: place for name, place in found.items() if name not in known or not is_own(form)}
        known |= {*found} if is_own(form) else set()
    return chosen


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_a_number_of_a_file_is_refused_or_the_run_opens(files, numbers, opener, tmp_path, form, value):
    file, opened = tmp_path / "file.jsonl", 0
    for name, (number, path) in numbers[form].items():
        rows = list(files[form])
        rows[number] = changed(rows[number], path, value)
        if is_own(form):
            rows[0] = {**rows[0], "run_id": f"run-{next(_fresh)}"}
        file.write_text("\n".join(map(json.dumps, rows)))
        with bounded(f"{form}: {name} is {value}"):
            traces = list[Trace]()
            why = refusal(lambda traces=traces: traces.extend(read_traces(file).traces), UsageError)
            assert len(why) < 600
            if traces:
                opener.service.store.insert_missing(*traces[:1])
                opener.open(traces[0].header.run_id, replay=opened % 10 == 0)
                opened += 1
