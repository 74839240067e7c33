"""Files that were stored and could not be opened, or kept a server busy."""

from __future__ import annotations

import gzip
import json
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from specscope.app.notebook.shown import figures_table
from specscope.app.routes import MAX_UPLOAD
from specscope.app.service import Service
from specscope.engine.errors import UsageError
from specscope.engine.runtimes.virtual import VirtualTime
from specscope.engine.trace.events import SCHEMA, Decision, Device, Footer, Forked, Span
from specscope.engine.trace.jsonl import to_json
from specscope.engine.trace.ranges import MOST_TIME
from specscope.engine.trace.trace import Trace
from specscope.traces.export.perfetto import to_perfetto
from specscope.traces.imports import reading
from specscope.traces.imports.reading import read_traces
from specscope.traces.metrics import measure
from specscope.traces.store import Store
from specscope.traces.view.document import view_model
from specscope.traces.waiting import lanes
from specscope.traces.whatif.replay import Change, what_if
from specscope.traces.whatif.rules import processed
from tests.app.fakes import FakeOpen
from tests.security.opened import Opener, bounded
from tests.traces.samples import sample_trace

MS = 1_000_000


def imported(trace: Trace, folder: Path, **fields: object) -> Trace:
    """Return a trace as an import reads it, with other fields of its header."""
    rows = [json.loads(to_json(event)) for event in trace.events()]
    rows[0] |= fields
    (folder / "file.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return read_traces(folder / "file.jsonl").traces[0]


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
    store.delete([run.header.run_id for run in store.runs(limit=100)[0]])
    assert store.runs()[1] == 0


def test_a_notebooks_table_has_texts_and_no_markup():
    table = figures_table(["<b>", "x"], [["<i>", '"&']])
    assert "&lt;b&gt;" in table
    assert "&lt;i&gt;" in table
    assert "<b>" not in table
    assert "<i>" not in table
    assert "&quot;&amp;" in table


@pytest.mark.parametrize(
    "run_id", ["", "a,b", "a~b", "a;b", "a b", "a/b", "..", "-x", "a\nb", "a?b", "%2c", "x" * 101, "é\u2028"]
)
def test_an_id_that_cannot_be_opened_is_refused(tmp_path, run_id):
    with pytest.raises(UsageError, match=r"run_id of a header is .*; expected 1 to 100 letters") as caught:
        imported(sample_trace("pearl"), tmp_path, run_id=run_id)
    assert "\n" not in str(caught.value)
    trace = sample_trace("pearl")
    trace.header = replace(trace.header, run_id=run_id)
    with Store(tmp_path / "traces.db") as store, pytest.raises(UsageError, match="cannot be stored"):
        store.insert(trace)


@pytest.mark.parametrize("run_id", ["a.b-c_d", "déjà", "猫", "__proto__", "0"])
def test_other_ids_are_opened(tmp_path, opener, run_id):
    opener.service.store.insert(imported(sample_trace("pearl"), tmp_path, run_id=run_id))
    opener.open(run_id, replay=False)


@pytest.mark.parametrize(
    ("pair", "profile"),
    [("mine", "8xA100"), ("mine", "own"), ("", "own.toml"), ("constructor", "pearl-4xA100")],
)
def test_a_run_of_an_own_profile_is_opened_whatever_its_name(tmp_path, opener, pair, profile):
    environment = {"pair": "p", "profile_pair": pair}
    trace = imported(sample_trace("pearl"), tmp_path, profile=profile, environment=environment)
    opener.service.store.insert(trace)
    opener.open(trace.header.run_id, replay=False)
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


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"open": 5}, "environment.open"),
        ({"open": ["gamma"]}, "environment.open"),
        ({"head": ["x"]}, "environment.head"),
        ({"load": {"batch": 2**40}}, "environment.load.batch"),
        ({"planned": {"speedup": "nan"}}, "environment.planned.speedup"),
        ({"clocks": {"gpu0\n": {"offset_ns": 2**62}}}, "environment.clocks"),
        ({"recorded": {"start_ns": "now"}}, "environment.recorded.start_ns"),
        ({"whatif": []}, "environment.whatif"),
        ({"settings": [0] * 50_001}, "at most 50000 plain values"),
    ],
)
def test_facts_of_another_form_are_refused(tmp_path, environment, place):
    with pytest.raises(UsageError) as caught:
        imported(sample_trace("pearl"), tmp_path, environment=environment)
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("devices", ["", "others"])
def test_a_device_has_a_name_of_its_own(tmp_path, devices):
    trace = sample_trace("shared")
    header = json.loads(to_json(trace.header))["devices"]
    with pytest.raises(UsageError, match="a device has the name"):
        imported(trace, tmp_path, devices=[{**header[0], "name": devices}])


def test_a_run_without_devices_or_with_the_latest_times_is_opened(tmp_path, opener):
    bare = replace(sample_trace("pearl"), spans=[], occupancy=[], decisions=[])
    opener.service.store.insert(imported(bare, tmp_path, devices=[], run_id="bare"))
    late = sample_trace("pearl")
    late.spans[-1] = replace(late.spans[-1], end=MOST_TIME)
    late.commits[-1] = replace(late.commits[-1], time=MOST_TIME)
    opener.service.store.insert(imported(late, tmp_path, run_id="late"))
    for run_id in ("bare", "late"):
        opener.open(run_id, replay=False)


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
    return Trace(replace(header, devices=named), spans, footer=Footer("done", ("",), ("",), 10**10))


def span(number: int, device: str, start: int, length: int) -> Span:
    return Span(number, device, "verify", start, start + length, "target", 1 + number, 0, 1, 0, "done")


def test_spans_that_all_overlap_take_no_quadratic_time():
    trace = many(2, [span(i, "gpu1", 20 * MS + i, 10**9) for i in range(30_000)])
    with bounded("overlapping spans"):
        assert lanes(trace.spans) == [*range(30_000)]
        assert view_model([trace])["runs"][0]["tracks"][0]["lanes"] == 30_000
        to_perfetto(trace)


def test_lanes_are_the_first_free_ones():
    times = [(0, 10), (1, 3), (2, 12), (3, 4), (10, 11), (10, 20), (12, 13)]
    spans = [span(i, "gpu1", start, end - start) for i, (start, end) in enumerate(times)]
    assert lanes(spans) == [0, 1, 2, 1, 0, 1, 0]


def test_many_devices_are_refused_or_shown_in_bounded_time(tmp_path):
    with pytest.raises(UsageError, match="1025 devices; at most 1024"):
        imported(many(1025, []), tmp_path)
    trace = many(1000, [span(i, f"gpu{i % 1000}", 20 * MS + 1000 * i, 50_000) for i in range(5000)])
    with bounded("many devices"):
        measure(trace)
        with pytest.raises(UsageError, match="5000 spans on 1000 devices, too many to show at once"):
            view_model([trace])


def test_a_draft_of_many_nodes_takes_no_quadratic_time():
    trace = sample_trace("speculative")
    fate = (None, None, None, "", "discarded", -1, -1)
    trace.decisions = [Decision(1, 0, i, i - 1, 5 + i, 7, *fate) for i in range(20_000)]
    with bounded("a long draft"):
        view_model([trace])


def test_a_round_of_too_many_branches_is_refused(tmp_path):
    trace = sample_trace("speculative")
    trace.forks = [Forked(1, 0, 0, 7, 0.5, 3, taken=False)] * 4097
    with pytest.raises(UsageError, match="step 1 has 4097 branches; at most 4096"):
        imported(trace, tmp_path)


def test_own_files_have_a_largest_unpacked_size_and_number_of_values(tmp_path, monkeypatch):
    file = tmp_path / "bomb.jsonl.gz"
    header = to_json(sample_trace("pearl").header).encode()
    file.write_bytes(gzip.compress(header + b"\n" + b" " * (MAX_UPLOAD + 1), 1))
    with pytest.raises(UsageError, match=f"unpacked it has more than {MAX_UPLOAD} bytes"):
        read_traces(file, MAX_UPLOAD)
    monkeypatch.setattr(reading, "MOST_TRACE_VALUES", 1000)
    file.write_bytes(header + b"\n" + b'{"event":"piece","token":1,"text":"x"}\n' * 500)
    with pytest.raises(UsageError, match="at most 1000 are read"):
        read_traces(file)


def test_a_header_of_many_settings_is_refused_soon(tmp_path):
    header = json.loads(to_json(sample_trace("pearl").header))
    header["config"] = {"a": [[]] * 500_000}
    (tmp_path / "big.jsonl").write_text(json.dumps(header))
    begun = time.process_time()
    with pytest.raises(UsageError, match=r"config of a header is .* at most 50000 plain values"):
        read_traces(tmp_path / "big.jsonl")
    assert time.process_time() - begun < 10


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


@pytest.mark.parametrize("schema", [SCHEMA + 1, 2**40, 0, -1, 1.0, "6", None, True, [6], {}])
def test_a_schema_of_the_future_or_of_another_type_is_refused(tmp_path, schema):
    message = "please update" if type(schema) is int and schema > SCHEMA else "schema of a header is"
    with pytest.raises(UsageError, match=message):
        imported(sample_trace("pearl"), tmp_path, schema=schema)
