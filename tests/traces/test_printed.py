"""What engines print: every form in which people post it, with the numbers that follow from it."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from specscope.engine.errors import UsageError
from specscope.traces.database.store import Store
from specscope.traces.export.perfetto import to_perfetto
from specscope.traces.export.tables import usual_table, write_csv
from specscope.traces.facts.counted import figures, whole_windows
from specscope.traces.facts.imported import Counts, origin
from specscope.traces.facts.metrics import measure
from specscope.traces.imports.reading import read_traces
from specscope.traces.judge.health import health
from specscope.traces.view.document import view_model
from specscope.traces.whatif.replay import Change, what_if
from tests.traces.printed import FOLDER, PRINTED, windows, written
from tests.traces.samples import routed, sample_trace

WHOLE: dict[str, dict[str, Any]] = {
    "01-llama-server.log": {"tokens": 312, "target_forwards": 140, "drafted": 420, "accepted": 170, "acceptance_length": 2.214},
    "01b-llama-server-old.log": {"tokens": 200, "target_forwards": 139, "drafted": 320, "accepted": 60, "acceptance_length": 4.0},
    "01c-llama-server-new.log": {"tokens": 100, "target_forwards": 24, "drafted": 86, "accepted": 74, "acceptance_length": 4.083, "tokens_per_second": 15.567},
    "02-llama-server-response.json": {"tokens": 211, "target_forwards": 90, "drafted": 270, "accepted": 120, "tpot_ms": 12.571},
    "03-llama-metrics.prom": {"tokens": None, "drafted": 420, "accepted": 170, "acceptance_length": 2.214},
    "04-vllm.log": {"drafted": 2312, "accepted": 730, "acceptance_length": 2.263, "tokens_per_second": 43.53, "target_forwards": None},
    "05-vllm-metrics-after.prom": {"drafted": 20000, "accepted": 10500, "acceptance_length": 3.1, "tokens_per_second": None},
    "07-sglang.log": {"tokens": 121, "target_forwards": 120, "accepted": 1, "drafted": None, "tokens_per_second": 42.11},
    "11-spec-bench-sps.jsonl": {"tokens": 30, "target_forwards": 9, "acceptance_length": 3.333, "tokens_per_second": 27.78, "drafted": None},
    "11-spec-bench-vanilla.jsonl": {"tokens": 30, "target_forwards": 30, "drafted": 0, "tokens_per_second": 33.33},
    "12-eagle-answers.jsonl": {"tokens": 20, "target_forwards": 7, "tokens_per_target_forward": 2.857},
    "18-vllm-offline.txt": {"tokens": 15500, "drafted": 20000, "accepted": 10500, "acceptance_length": 3.1},
    "aiperf-summary.json": {"tokens": 31, "drafted": 44, "accepted": 20, "acceptance_length": 2.818, "target_forwards": None},
    "llama-speculative.txt": {"tokens": 120, "drafted": 96, "accepted": 72, "acceptance_length": None, "target_forwards": None, "tokens_per_second": 50.0},
    "lmstudio.json": {"tokens": 37, "target_forwards": 21, "drafted": 19, "accepted": 15, "acceptance_length": None, "tokens_per_second": 94.737},
    "mlx-timings.json": {"tokens": 112, "target_forwards": 30, "drafted": 90, "accepted": 81, "acceptance_length": 3.7, "tpot_ms": 10.09},
    "sglang-generate.json": {"tokens": 12, "target_forwards": 5, "drafted": 15, "accepted": 6, "acceptance_length": 2.2},
    "tensorrt-iterations.json": {"target_forwards": 4, "drafted": 9, "accepted": 5, "acceptance_length": 2.667, "tokens": None},
    "vllm-bench.json": {"tokens": 1000, "drafted": 1200, "accepted": 600, "acceptance_length": 2.5, "tokens_per_second": 200.0},
    "vllm-bench.txt": {"tokens": 10000, "drafted": 12000, "accepted": 6000, "acceptance_length": 2.5, "tokens_per_second": 500.0, "target_forwards": None},
    "39-mtp-bench.txt": {"tokens": 384, "drafted": 309, "accepted": 226, "target_forwards": 156, "tokens_per_second": 12.45},
}  # fmt: skip
"""File -> figures over all its windows; None is unknown."""
PLACES = {
    "01-llama-server.log": ([0.657, 0.379, 0.179], [0.657, 0.576, 0.472]),
    "05-vllm-metrics-after.prom": ([0.844, 0.6, 0.386, 0.27], [0.844, 0.711, 0.643, 0.699]),
    "18-vllm-offline.txt": ([0.84, 0.6, 0.39, 0.27], [0.84, 0.714, 0.65, 0.692]),
    "vllm-bench.json": ([0.75, 0.5, 0.25], [0.75, 0.667, 0.5]),
    "vllm-bench.txt": ([0.75, 0.5, 0.25], [0.75, 0.667, 0.5]),
    "sglang-generate.json": ([0.8, 0.4, 0.0], [0.8, 0.5, 0.0]),
    "aiperf-summary.json": ([0.818, 0.545, 0.364, 0.091], [0.818, 0.667, 0.667, 0.25]),
    "11-spec-bench-sps.jsonl": ([1.0, 0.778, 0.333, 0.222], [1.0, 0.778, 0.429, 0.667]),
}
"""File -> acceptance by place, of all drafts and of those that reach it."""


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_has_the_figures_that_follow_from_it(name):
    (trace,) = read_traces(PRINTED / name).traces
    found = measure(trace).to_dict()
    assert {key: found[key] for key in WHOLE[name]} == pytest.approx(WHOLE[name], abs=0.005)
    by_place = [(one["unconditional"], one["conditional"]) for one in found["per_position"]]
    if name in PLACES:
        assert list(zip(*by_place, strict=True)) == [pytest.approx(rates, abs=1e-3) for rates in PLACES[name]]
    unknown = origin(trace.header).figures
    assert not unknown & {key for key, value in WHOLE[name].items() if value is not None}
    assert {key for key, value in WHOLE[name].items() if value is None} <= unknown


def test_counts_by_place_are_replayed_like_those_of_a_profile():
    """The same 5,000 drafts as counters and as a profile of Model Optimizer."""
    (trace,) = read_traces(PRINTED / "05-vllm-metrics-after.prom").traces
    assert origin(trace.header).counts == Counts((780, 1220, 1070, 580, 1350), 20000, 4)
    (log,) = read_traces(PRINTED / "01-llama-server.log").traces
    found = what_if(log, Change(profile="pearl-4xA100", method="speculative"))
    assert len(found.replay.commits) > 300


def test_requests_of_a_llama_log_are_windows_with_times():
    first, second = windows("01-llama-server.log")
    assert (first.label, first.steps, first.drafts, first.drafted, first.accepted) == (
        "task 0",
        90,
        90,
        270,
        120,
    )
    assert first.places == (64, 38, 18)
    assert (first.busy, first.drafting) == (2640_000_000, 810_124_000)
    assert first.end - first.start == first.busy
    # its statistics line has the totals of both: the difference is its own
    assert (second.drafts, second.drafted, second.accepted, second.drafting) == (50, 150, 50, 450_063_000)
    assert second.end - first.end == pytest.approx(2.5067e9, abs=1e6)


def test_several_drafters_of_a_request_have_windows_of_their_own():
    lines = (PRINTED / "01b-llama-server-old.log").read_text().splitlines()
    other = lines[-1].replace("draft-simple", "ngram-mod").replace("= 320", "= 100").replace("= 60", "= 10")
    text = "\n".join([*lines, other]).replace("60 accepted / 320", "70 accepted / 420")
    text = text.replace("60 accepted /   320", "70 accepted / 420")
    (trace,) = read_traces(written(text)).traces
    found = {row.drafter: (row.drafted, row.accepted) for row in trace.windows}
    assert found == {"": (420, 70), "draft-simple": (320, 60), "ngram-mod": (100, 10)}
    assert figures(trace.windows)["drafted"] == 420


def test_windows_of_a_vllm_log_tell_when_nothing_was_accepted():
    found = windows("04-vllm.log")
    assert [row.drafts for row in found] == [188, 180, 210]
    assert [row.label for row in found] == ["09:03:44", "09:03:54", "09:04:04"]
    assert [round(row.start / 1e9) for row in found] == [0, 10, 20]
    (trace,) = read_traces(PRINTED / "04-vllm.log").traces
    assert health(trace) == (
        "From 09:03:54 to 09:04:04, 0 of 840 drafted tokens were accepted; of those of the other windows, 50 % were."
    )


def test_a_log_in_which_drafts_bring_nothing_says_so():
    (trace,) = read_traces(PRINTED / "07-sglang.log").traces
    assert health(trace) == "Of 120 drafts, 1 token in all were accepted: they bring nothing."
    (none,) = read_traces(written((PRINTED / "07-sglang.log").read_text().replace("1.03", "1.00"))).traces
    assert health(none) == "In all windows, 0 tokens of 120 drafts were accepted."


def test_lines_of_several_servers_are_runs_of_their_own():
    found = read_traces(PRINTED / "two-llama-servers.log").traces
    assert [(t.header.title, measure(t).drafted, measure(t).accepted) for t in found] == [
        ("llama.cpp · draft-simple · llama-draft.err", 104, 98),
        ("llama.cpp · ngram-simple · llama-ngram.err", 32, 16),
    ]


def test_two_texts_of_counters_in_a_file_are_what_is_between():
    after = (PRINTED / "05-vllm-metrics-after.prom").read_text()
    before = after.replace("5000.0", "4000.0").replace("20000.0", "16000.0").replace("10500.0", "9000.0")
    (trace,) = read_traces(written(before + after)).traces
    found = measure(trace)
    assert (found.drafted, found.accepted, found.acceptance_length) == (4000, 1500, 2.5)
    earlier = PRINTED.with_name("printed") / "05-vllm-metrics-after.prom"
    (same,) = read_traces(written(after.replace("20000.0", "20400.0")), since=earlier).traces
    assert (measure(same).drafted, measure(same).accepted) == (400, 0)
    with pytest.raises(UsageError, match=r"lower in text 2 than in text 1.*give the earlier one"):
        read_traces(written(before), since=earlier)
    with pytest.raises(UsageError, match="not two texts of /metrics"):
        read_traces(PRINTED / "03-llama-metrics.prom", since=earlier)
    both = after + (PRINTED / "03-llama-metrics.prom").read_text()
    assert [measure(t).drafted for t in read_traces(written(both)).traces] == [20000, 420]
    lines = [line for line in after.splitlines() if "num_draft_tokens" not in line]
    with pytest.raises(UsageError, match="without counters of drafts"):
        read_traces(written("\n".join(lines)))


STREAMS = {
    "llama-draft-completion-t0.8": (24, 20, 17, True),
    "llama-draft-chat-t0": (9, 8, 8, True),
    "vllm-pair-chat-t0": (40, 36, 30, True),
    "vllm-smol-completion-t0.8": (24, 34, 4, True),
}


@pytest.mark.parametrize("form", ["with times", "lines", "wrapped"])
@pytest.mark.parametrize("name", STREAMS)
def test_a_recorded_stream_has_its_steps(name, form):
    """As a client with a clock keeps it, as `curl -N` does, and as a proxy wraps its events."""
    text = (FOLDER / "servers" / f"{name}.jsonl").read_text()
    lines = [json.loads(row)["raw"] for row in text.splitlines()]
    if form == "lines":
        text = "\n\n".join(lines)
    elif form == "wrapped":
        text = "\n".join(
            line.replace("data: {", 'data: {"data": {', 1) + "}" if line.startswith("data: {") else line
            for line in lines
        )
    (trace,) = read_traces(written(text)).traces
    found, (tokens, drafted, accepted, _) = measure(trace), STREAMS[name]
    assert (found.tokens, found.drafted, found.accepted) == (tokens, drafted, accepted)
    timed = form == "with times" or name.startswith("llama")  # its events have times of their own
    assert (found.tokens_per_second is not None) == timed
    view_model([trace])


def test_streams_tell_no_more_than_their_events():
    """Several answers, ids or counters that are missing, several choices."""
    vllm, llama = (
        [json.loads(row)["raw"] for row in (FOLDER / "servers" / f"{name}.jsonl").read_text().splitlines()]
        for name in ("vllm-pair-chat-t0", "llama-draft-completion-t0")
    )

    def told(lines: list[str], change: Callable[[dict[str, Any]], Any] | None = None) -> list[Any]:
        rows = [json.loads(line[6:]) if line.startswith("data: {") else {} for line in lines]
        for row in filter(None, rows):
            change and change(row)
        text = "\n\n".join(f"data: {json.dumps(row)}" for row in rows if row)
        found = map(measure, read_traces(written(text)).traces)
        return [(one.tokens, one.drafted, one.accepted) for one in found]

    def without(name: str, *, last: bool = True) -> Callable[[dict[str, Any]], Any]:
        def change(row: dict[str, Any]) -> None:
            for part in (row, *row.get("choices", ())):
                if last or not row.get("stop"):
                    part.pop(name, None)

        return change

    for lines, expected in ((llama, (20, 16, 16)), (vllm, (40, 36, 30))):
        events = [line for line in lines if line.startswith("data: {")]
        assert told([*events[:3], *events[5:]]) == [expected], "an event is missing: the totals are right"
    noted = "\n".join(["< HTTP/1.1 200 OK", "Here it is:", *vllm])
    assert [measure(trace).drafted for trace in read_traces(written(noted)).traces] == [36]
    both = [
        json.dumps({"meta_info": {"id": name, "spec_verify_ct": n, "completion_tokens": 3 * n}})
        for name in "ab"
        for n in (1, 4)
    ]
    answers = read_traces(written("\n\n".join(f"data: {row}" for row in both))).traces
    assert [[row.drafts for row in trace.windows] for trace in answers] == [[4], [4]]
    assert told(vllm + llama) == [(40, 36, 30), (20, 16, 16)]
    assert told(vllm, without("token_ids")) == [(40, 36, 30)]
    assert told(vllm, without("metrics")) == [(40, None, None)]
    (trace,) = read_traces(written("\n\n".join(vllm[:9]))).traces
    assert "no counts: vLLM sends them with --per-request" in view_model([trace])["runs"][0]["note"]
    assert told(llama, without("timings", last=False)) == [(20, 16, 16)]
    with pytest.raises(UsageError, match="a recorded stream without counts"):
        told(llama, without("timings"))
    with pytest.raises(UsageError, match="several choices; ask with n = 1"):
        told(vllm, lambda row: [choice.update(index=1) for choice in row.get("choices", ())])
    (trace,) = read_traces(written("HTTP/1.1 200 OK\r\ndate: x\r\n\r\n" + "\n\n".join(vllm))).traces
    assert measure(trace).drafted == 36


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "in data": lambda row: {"data": row},
    "beside its request": lambda row: {"request": {"messages": []}, "response": row, "seconds": 1},
    "in a batch": lambda row: {"id": "b", "response": {"status_code": 200, "body": row}, "error": None},
    "in a list": lambda row: {"responses": [row]},
}


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_a_wrapped_answer_is_the_answer(wrapper):
    row = json.loads((PRINTED / "mlx-timings.json").read_text())
    (trace,) = read_traces(written(json.dumps(WRAPPED[wrapper](row)))).traces
    assert measure(trace).drafted == 90


def test_windows_are_stored_shown_and_exported(tmp_path):
    (trace,) = read_traces(PRINTED / "01-llama-server.log").traces
    with Store(tmp_path / "traces.db") as store:
        store.insert(trace)
        loaded = store.load(trace.header.run_id)
    assert loaded.windows == trace.windows
    (run,) = view_model([loaded])["runs"]
    assert [(row["label"], row["length"], row["drafting"]) for row in run["counts"]] == [
        ("task 0", pytest.approx(2.333, abs=1e-3), pytest.approx(9.0, abs=0.01)),
        ("task 91", 2.0, pytest.approx(9.0, abs=0.01)),
    ]
    assert not run["timed"]


def test_lists_tables_and_counters_of_windows_have_what_is_known(tmp_path):
    named = {
        name: read_traces(PRINTED / name).traces[0]
        for name in ("01-llama-server.log", "two-llama-servers.log", "02-llama-server-response.json")
    }
    with Store(tmp_path / "traces.db") as store:
        store.insert(*named.values())
        listed = {one.header.run_id: (one.tokens, one.tokens_per_second) for one in store.runs()[0]}
        assert [one.header.run_id for one in store.runs("tokens:>300")[0]] == [
            named["01-llama-server.log"].header.run_id
        ]
    for trace in named.values():
        found = measure(trace)
        assert listed[trace.header.run_id] == (found.tokens, pytest.approx(found.tokens_per_second))
    assert listed[named["two-llama-servers.log"].header.run_id] == (None, None), "unknown is no zero"
    trace = named["01-llama-server.log"]
    text = io.StringIO()
    write_csv(trace, usual_table(trace), text)
    rows = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert [(row["label"], row["places"], row["running"]) for row in rows] == [
        ("task 0", "64 38 18", ""),
        ("task 91", "28 15 7", ""),
    ]
    counters = [event for event in to_perfetto(trace)["traceEvents"] if event["ph"] == "C"]
    shares = [event["args"]["value"] for event in counters if event["name"] == "accepted / drafted"]
    assert shares == [120 / 270, 0, 50 / 150, 0], "0 where there is no window"
    with pytest.raises(UsageError, match="has no times, so it has no timeline"):
        to_perfetto(read_traces(PRINTED / "05-vllm-metrics-after.prom").traces[0])


@pytest.mark.parametrize(("version", "lacking"), [(8, ("window", "routed")), (9, ("routed",))])
def test_a_database_of_a_version_before_gets_what_it_lacks(tmp_path, version, lacking):
    import sqlite3

    path = tmp_path / "traces.db"
    (trace,) = read_traces(PRINTED / "04-vllm.log").traces
    experts = routed(sample_trace())
    Store(path).close()
    with sqlite3.connect(path) as old:
        for table in lacking:
            old.execute(f"DROP TABLE {table}")
        old.execute(f"PRAGMA user_version={version}")
    with Store(path, readonly=True) as store:
        assert store.runs()[1] == 0
    with Store(path) as store:
        store.insert(trace, experts)
        assert len(store.load(trace.header.run_id).windows) == 3
        assert store.load(experts.header.run_id).routed == experts.routed


def test_any_cut_and_any_change_of_a_byte_is_read_or_refused(tmp_path):
    """Engines are killed and disks are full: what is left is read, or refused in words."""
    chance, file = random.Random(41), tmp_path / "cut"
    for name in WHOLE:
        content = (PRINTED / name).read_bytes()
        for _ in range(12):
            damaged = bytearray(
                content[: chance.randrange(len(content))] if chance.random() < 0.5 else content
            )
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            file.write_bytes(damaged)
            try:
                for trace in read_traces(file).traces:
                    measure(trace)
                    health(trace)
                    figures(whole_windows(trace.windows))
            except UsageError:
                pass


FORMS: dict[str, Any] = {
    "timings": {"timings": {"predicted_n": 9, "predicted_ms": 1.0, "draft_n": 4, "draft_n_accepted": 2, "draft_rounds": 2}},
    "answer": {"choices": [{"new_tokens": [9], "wall_time": [0.1], "accept_lengths": [3, 1]}], "category": "a"},
    "steps": {"choices": [{"new_tokens": [9], "wall_time": [0.1], "idxs": [3]}]},
    "summary": {"pooled_spec_decode_acceptance_histogram": {"0": 1, "2": 3}, "total_draft_tokens": {"avg": 12.0}},
    "meta": {"meta_info": {"spec_verify_ct": 3, "completion_tokens": 7, "e2e_latency": 1.0, "spec_accept_histogram": [1, 1, 1]}},
    "bench": {
        "duration": 1.0, "spec_decode_acceptance_rate": 50.0, "spec_decode_num_drafts": 5, "spec_decode_draft_tokens": 10,
        "spec_decode_accepted_tokens": 9, "spec_decode_per_position_acceptance_rates": [1.0, 0.8], "total_output_tokens": 14,
    },
    "iteration": {"iter": 1, "iterLatencyMS": 5.0, "specDecodingStats": {"numDraftTokens": 4, "numAcceptedTokens": 2}},
}  # fmt: skip
"""A row of each form of JSON, by the fields that engines document."""
ODD: list[Any] = [None, True, -1, 2**64, 1e300, "x", [], {}, [None], [-1], [2**64], [0.5] * 2000, {"a": 1}]


@pytest.mark.parametrize("name", FORMS)
def test_any_value_in_a_row_is_read_or_refused_in_words(name):
    read_traces(written(json.dumps(FORMS[name])))
    for changed in _changed(FORMS[name]):
        try:
            for trace in read_traces(written(json.dumps(changed))).traces:
                measure(trace)
                health(trace)
        except UsageError:
            pass


def _changed(value: Any) -> Iterator[Any]:
    """Yield copies of a value in which one part is an odd one."""
    yield from ODD
    if isinstance(value, dict):
        yield from ({**value, key: inner} for key in value for inner in _changed(value[key]))
    elif isinstance(value, list) and value:
        yield from ([inner, *value[1:]] for inner in _changed(value[0]))


SENSE: dict[str, tuple[dict[str, Any], str | tuple[Any, ...]]] = {
    "no verification accepts nothing": ({"meta_info": {"spec_verify_ct": 0, "completion_tokens": 7}}, (0, 0, None)),
    "two choices": ({"choices": [{"meta_info": {"spec_verify_ct": 3}}] * 2}, "2 choices with counts; ask with n = 1"),
    "a negative time": ({"meta_info": {"spec_verify_ct": 3, "e2e_latency": -1.0}}, "a time is -1 s"),
    "without the rejected ones": ({"accepted": 15, "ignored": 1, "total": 20}, (None, 15, 19)),
    "without the ignored ones": ({"accepted": 15, "total": 20}, (None, 15, None)),
    "none": ({"accepted": 0, "rejected": 0, "ignored": 0, "total": 0}, (0, 0, 0)),
    "a sum that is another": ({"accepted": 5, "rejected": 3, "ignored": 0, "total": 9}, "9 draft tokens are not 5 accepted"),
    "too many ignored": ({"accepted": 5, "ignored": 30, "total": 9}, "9 draft tokens are not 5 accepted"),
}  # fmt: skip
"""Row, or counts of LM Studio -> (drafts, accepted, drafted), or the refusal."""


@pytest.mark.parametrize("name", SENSE)
def test_counts_that_make_no_sense_are_refused_and_unknown_ones_are_unknown(name):
    row, expected = SENSE[name]
    if "accepted" in row:
        stats = {f"{key}_draft_tokens_count": value for key, value in row.items()}
        row = {"choices": [{}], "usage": {"completion_tokens": 37}, "stats": stats}
    if isinstance(expected, str):
        with pytest.raises(UsageError, match=expected):
            read_traces(written(json.dumps(row)))
    else:
        (trace,) = read_traces(written(json.dumps(row))).traces
        (window,) = trace.windows
        assert (window.drafts, window.accepted, window.drafted) == expected


def test_each_summary_of_a_text_is_a_window():
    first = (PRINTED / "vllm-bench.txt").read_text()
    for changed, places in (
        (first[:-100], ()),
        ("\n".join(f"c-1  | {line}" for line in first.split("\n")), (3000, 2000, 1000)),
    ):
        (row,) = read_traces(written(changed)).traces[0].windows
        assert (row.drafts, row.accepted, row.places) == (4000, 6000, places)
    second = first.replace("6000", "3000").replace("20.00", "40.00").replace("Position 0", "Position 3")
    (trace,) = read_traces(written(first + "sweep: 2 of 2\n" + second)).traces
    assert [(row.drafts, row.accepted, row.places) for row in trace.windows] == [
        (4000, 6000, (3000, 2000, 1000)),
        (4000, 3000, ()),
    ]
    assert [(row.start / 1e9, row.end / 1e9) for row in trace.windows] == [(0, 20), (20, 60)]


def test_documented_rows_have_their_counts():
    (bench,) = read_traces(written(json.dumps(FORMS["bench"]))).traces
    found = measure(bench)
    assert (found.drafted, found.accepted, found.acceptance_length, found.tokens) == (10, 9, 2.8, 14)
    (meta,) = read_traces(written(json.dumps(FORMS["meta"]))).traces
    assert meta.windows[0].places == (2, 1)


HUGE = {
    "a count": "draft acceptance = 0.5 (  1 accepted / 99999999999999999999 generated)",
    "digits": "draft acceptance = 0.5 (  1 accepted / " + "9" * 5000 + " generated)",
    "places": "draft acceptance = 0.5 (  1 accepted / 2 generated), mean acceptance length = 2.0, acceptance rate per position = ("
    + ", ".join(["0.5"] * 5000) + ")",
}  # fmt: skip


@pytest.mark.parametrize("name", HUGE)
def test_huge_numbers_are_refused_or_left_out(name):
    try:
        (trace,) = read_traces(written(f"{HUGE[name]}\n")).traces
    except UsageError as error:
        assert "expected at most" in str(error) or "are cut" in str(error)  # noqa: PT017
    else:
        assert trace.windows[0].places == ()
