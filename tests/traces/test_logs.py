"""Logs of engines: in all forms of their lines, with noise around them, cut and mixed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from specscope.engine.errors import UsageError
from specscope.engine.trace.events import Window
from specscope.traces.facts.metrics import measure
from specscope.traces.imports.reading import read_traces
from tests.traces.printed import PRINTED, windows, written

NOISE = {
    "colours": lambda text: "\n".join(f"\x1b[32m{line}\x1b[0m" for line in text.split("\n")),
    "a container's name": lambda text: "\n".join(f"vllm-1  | {line}" for line in text.split("\n")),
    "line ends of Windows": lambda text: text.replace("\n", "\r\n"),
    "other lines between": lambda text: text.replace(
        "\n", "\nINFO: 127.0.0.1 - POST /v1/completions 200 OK\n"
    ),
    "a cut last line": lambda text: text + text.split("\n")[-2][:60],
    "bytes that are no text": lambda text: text + "\udcff",
    "times of docker": lambda text: _before(text, lambda i: f"2026-08-06T09:03:{i % 60:02}.{i:09}Z "),
    "times of compose": lambda text: _before(text, lambda i: f"vllm-1  | 2026-08-06T09:03:{i % 60:02}.1Z "),
    "journald": lambda text: _before(text, lambda i: f"Aug 06 09:03:{i % 60:02} host vllm[123]: "),
    "kubectl": lambda text: _before(text, lambda i: f"[pod/a-1/main] 2026-08-06T09:03:{i % 60:02}.1Z "),
    "containerd": lambda text: _before(text, lambda i: f"2026-08-06T09:03:{i % 60:02}.1Z stderr F "),
    "dates": lambda text: _before(text, lambda i: f"26/08/06 09:03:{i % 60:02} "),
    "seconds since 1970": lambda text: _before(text, lambda i: f"1786000{i:03}.25 "),
    "grep": lambda text: _before(text, lambda i: f"engine.log:{i}:"),
    "loguru": lambda text: _before(text, lambda i: f"2026-08-06 09:03:{i % 60:02}.1 | INFO | a.b:log:{i} - "),
    "processes": lambda text: _before(text, lambda i: f"Aug 06 09:03:{i % 60:02} host vllm[{100 + i}]: "),
    "numbers of lines": lambda text: _before(text, lambda i: f"{i + 1:5d}\t"),
    "milliseconds since 1970": lambda text: _before(text, lambda i: f"{1786000000123 + i} "),
    "rows of docker": lambda text: "\n".join(json.dumps({"log": f"\x1b[32m{x}\n"}) for x in text.split("\n")),
    "UTF-16": lambda text: ("\ufeff" + text).encode("utf-16-le").decode("latin-1"),
    "a line of a megabyte": lambda text: "x" * 2**20 + "\n" + text,
}


def _before(text: str, prefix: Callable[[int], str]) -> str:
    return "\n".join(prefix(i) + line for i, line in enumerate(text.split("\n")))


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("name", ["01-llama-server.log", "04-vllm.log", "07-sglang.log"])
def test_noise_around_the_lines_changes_no_count(name, noise):
    changed = NOISE[noise]((PRINTED / name).read_text())
    content = changed.encode("latin-1") if noise == "UTF-16" else changed
    (trace,) = read_traces(written(content)).traces
    counts = [(row.drafted, row.accepted, row.tokens) for row in trace.windows]
    assert counts == [(row.drafted, row.accepted, row.tokens) for row in windows(name)]


SLOW = {
    "digits before a time": "1" * 4000 + " statistics draft-mtp: #calls",
    "the beginning of a line again and again": "Decode batch #running-req: 1, accept len: 1, " * 80,
    "rates without an end": "#acc rate/pos = (0.1, " * 180 + "statistics",
    "SpecDecoding": "SpecDecoding metrics: Mean acceptance length: 1.0, Accepted throughput: 1.0 tokens/s, "
    * 40,
}


@pytest.mark.parametrize("name", SLOW)
def test_lines_made_for_searches_that_take_long_are_read_like_others(name):
    good = (PRINTED / "01-llama-server.log").read_text()
    (trace,) = read_traces(written(f"{SLOW[name]}\n" * 500 + good)).traces
    assert measure(trace).drafted == 420


def test_a_log_that_begins_or_ends_anywhere_has_no_other_counts():
    for name in ("01-llama-server.log", "01b-llama-server-old.log", "04-vllm.log", "07-sglang.log"):
        content = (PRINTED / name).read_text()
        all_of_it = [_counts(row) for row in windows(name)]
        for place in range(0, len(content), 37):
            for part in (content[:place], content[place:]):
                try:
                    found = read_traces(written(part)).traces
                except UsageError:
                    continue
                for row in (row for trace in found for row in trace.windows):
                    if row.label != "since the server's start":
                        assert any(_fits(_counts(row), whole) for whole in all_of_it), (name, place, row)


def _counts(row: Window) -> tuple[Any, ...]:
    return row.drafts, row.drafted, row.accepted, row.places, row.tokens


def _fits(part: tuple[Any, ...], whole: tuple[Any, ...]) -> bool:
    return all(a in (None, ()) or a == b for a, b in zip(part, whole, strict=True))


def test_logs_of_several_engines_and_processes_in_one_file_are_runs_of_their_own():
    vllm = (PRINTED / "04-vllm.log").read_text()
    other = vllm.replace("pid=1)", "pid=2)").replace("Accepted: 353", "Accepted: 153")
    mixed = "\n".join("\n".join(pair) for pair in zip(vllm.split("\n"), other.split("\n"), strict=True))
    texts = [
        mixed,
        *((PRINTED / name).read_text() for name in ("01-llama-server.log", "01b-llama-server-old.log")),
    ]
    found = [
        (t.header.title, measure(t).drafted, measure(t).accepted)
        for t in read_traces(written("".join(texts))).traces
    ]
    assert found == [
        ("llama.cpp · draft-mtp + draft-simple", 740, 230),
        ("vLLM · pid 1", 2312, 730),
        ("vLLM · pid 2", 2312, 530),
    ]


def test_one_line_of_each_of_several_pods_is_a_run_of_its_own():
    line = (PRINTED / "04-vllm.log").read_text().split("\n")[1].partition(") ")[2]
    for name in ("vllm-{}  | ", "(Worker pid=7, ip=10.0.{}.1) "):
        found = read_traces(written("\n".join(name.format(i) + line for i in range(4)))).traces
        assert [measure(trace).drafted for trace in found] == [752] * 4


def test_rows_of_json_tell_who_wrote_them():
    line = (PRINTED / "04-vllm.log").read_text().split("\n")[1]
    rows = [
        {"log": line, "kubernetes": {"pod_name": "a"}},
        {"MESSAGE": line, "_SYSTEMD_UNIT": "b.service", "_PID": 7},
        {"log": line, "kubernetes": "c", "container_name": ["d"]},
    ]
    found = read_traces(written("\n".join(map(json.dumps, rows)))).traces
    assert [(t.header.title, measure(t).drafted) for t in found] == [
        ("vLLM · a", 752),
        ("vLLM · b.service", 752),
        ("vLLM", 752),
    ]


def test_settings_of_sglang_are_those_of_the_pod_itself():
    line = "Decode batch, #running-req: 1, accept len: 2.50, gen throughput (token/s): 40.0, #queue-req: 0"
    texts = [f"{pod} | [2026-06-10 15:25:25 TP0] {what}" for pod, what in (
        ("pod-1", "server_args=ServerArgs(decode_log_interval=10)"), ("pod-10", line), ("pod-1", line)
    )]  # fmt: skip
    found = read_traces(written("\n".join(texts))).traces
    assert {t.header.title: t.windows[0].steps for t in found} == {
        "SGLang · pod-1 TP0": 10,
        "SGLang · pod-10 TP0": 40,
    }


def test_what_differs_in_each_line_is_no_name_of_a_server():
    for name in ("04-vllm.log", "07-sglang.log"):
        text = _before((PRINTED / name).read_text() * 20, lambda i: f"[req-{i:x}] ")
        (trace,) = read_traces(written(text)).traces
        assert len(trace.windows) == 60


def test_engines_of_one_vllm_are_told_apart_by_the_line_above():
    first = (PRINTED / "04-vllm.log").read_text()
    second = first.replace("Engine 000", "Engine 001")
    found = read_traces(written(first + second)).traces
    assert [(t.header.title, measure(t).drafted) for t in found] == [
        ("vLLM", 2312),
        ("vLLM · engine 1", 2312),
    ]


def test_engines_that_one_line_of_vllm_aggregates_have_their_tokens():
    text = (PRINTED / "04-vllm.log").read_text().replace("Engine 000", "2 Engines Aggregated")
    (trace,) = read_traces(written(text)).traces
    assert [row.tokens for row in trace.windows] == [row.tokens for row in windows("04-vllm.log")]


def test_a_line_of_vllm_without_a_length_tells_no_tokens():
    lines = (PRINTED / "04-vllm.log").read_text().split("\n")[:2]
    text = "\n".join(line.partition("] ")[2] for line in lines)
    (trace,) = read_traces(written(re.sub(r"(Accepted|Drafted) throughput: [^,]*, ", "", text))).traces
    assert (trace.windows[0].drafted, trace.windows[0].tokens) == (752, None)


def test_tokens_of_vllm_are_those_of_an_interval_also_after_a_pause():
    """As vLLM 0.32 printed it; a line about the engine ends each activity."""
    engine = "INFO 11-27 20:{} [loggers.py:335] Engine 000: Avg prompt throughput: 2.0 tokens/s, Avg generation throughput: {} tokens/s, Running: 0 reqs\n"
    drafts = "INFO 11-27 20:{} [metrics.py:120] SpecDecoding metrics: Mean acceptance length: {}, Accepted throughput: 1.00 tokens/s, Drafted throughput: {} tokens/s, Accepted: {} tokens, Drafted: {} tokens\n"
    first = engine.format("21:01", 11.7) + drafts.format("21:01", 2.79, 7.74, 75, 168)
    next_one = engine.format("21:11", 12.8) + drafts.format("21:11", 4.68, 11.2, 103, 112)
    late = engine.format("22:21", 47.7) + drafts.format("22:21", 2.94, 9.54, 324, 668)
    idle = engine.format("21:21", 0.0)
    for text, tokens, seconds in (
        (first + next_one + idle + late, [117, 128, 477], [10, 10, 10]),
        (first + idle + late, [None, None], [21.7, 70]),
        (next_one + idle + late, [128, 477], [10, 10]),
    ):
        (trace,) = read_traces(written(text)).traces
        assert [row.tokens for row in trace.windows] == tokens
        assert [(row.end - row.start) / 1e9 for row in trace.windows] == pytest.approx(seconds, abs=0.05)


VLLM_LINES = {
    "of version 0.8": ("Draft acceptance rate: 57.1%, Accepted: 40 tokens, Drafted: 70 tokens", None, ()),
    "of version 0.10": ("Draft acceptance rate: 50.0%, Mean acceptance length: 2.50, Accepted: 60 tokens, Drafted: 120 tokens, Per-position acceptance rate: 0.750, 0.500, 0.250", 40, (30, 20, 10)),
    "cut after the rates": ("Mean acceptance length: 2.50, Accepted throughput: 6.00 tokens/s, Drafted throughput: 12.00 tokens/s, Accepted: 60 tokens, Drafted: 120 tokens, Per-position acceptance rate: 0.750, 0.500, 0.250, Avg Dra", 40, (30, 20, 10)),
    "cut within the rates": ("Mean acceptance length: 2.50, Accepted throughput: 6.00 tokens/s, Drafted throughput: 12.00 tokens/s, Accepted: 60 tokens, Drafted: 120 tokens, Per-position acceptance rate: 0.750, 0.50", 40, ()),
    "of few accepted": ("Mean acceptance length: 1.01, Accepted throughput: 0.10 tokens/s, Drafted throughput: 30.10 tokens/s, Accepted: 1 tokens, Drafted: 301 tokens, Per-position acceptance rate: 0.010, 0.000, Avg Draft acceptance rate: 0.3%", None, ()),
}  # fmt: skip


@pytest.mark.parametrize("name", VLLM_LINES)
def test_lines_of_vllm_in_all_forms(name):
    line, drafts, places = VLLM_LINES[name]
    (trace,) = read_traces(
        written(f"INFO 08-06 09:03:44 [metrics.py:1] SpecDecoding metrics: {line}\n")
    ).traces
    (row,) = trace.windows
    assert (row.drafts, row.places) == (drafts, places)


def test_a_log_of_vllm_goes_on_after_the_end_of_a_month_and_a_year():
    line = "SpecDecoding metrics: Accepted throughput: 6.00 tokens/s, Drafted throughput: 12.00 tokens/s, Accepted: 60 tokens, Drafted: 120 tokens"
    for first, second in (("09-30 23:59:55", "10-01 00:00:05"), ("12-31 23:59:55", "01-01 00:00:05")):
        (trace,) = read_traces(written(f"INFO {first} [m] {line}\nINFO {second} [m] {line}\n")).traces
        assert [row.end / 1e9 for row in trace.windows] == [10, 20]


SGLANG_RATES = {
    "with the own token, until spring 2026": ([(2.4, 0.6), (2.0, 0.5)], 3),
    "without it": ([(2.5, 0.5), (1.75, 0.25)], 3),
    "that fit both": ([(2.5, 0.5)], None),
    "that fit none": ([(2.5, 0.9)], None),
}


@pytest.mark.parametrize("name", SGLANG_RATES)
def test_drafted_tokens_of_sglang_follow_from_its_rate_by_either_definition(name):
    averages, drafted = SGLANG_RATES[name]
    lines = [
        f"[2026-06-10 15:25:{i}0] Decode batch, #running-req: 1, accept len: {length:.2f}, accept rate: {rate:.2f}, gen throughput (token/s): 40.0, #queue-req: 0"
        for i, (length, rate) in enumerate(averages)
    ]
    (trace,) = read_traces(written("\n".join(lines))).traces
    assert [row.drafted for row in trace.windows] == [drafted and 40 * drafted] * len(averages)
    told = "server_args=ServerArgs(decode_log_interval=10, speculative_num_draft_tokens=5)"
    (trace,) = read_traces(written("\n".join([told, *(line.partition("] ")[2] for line in lines)]))).traces
    assert [(row.steps, row.drafted) for row in trace.windows] == [(10, 40)] * len(averages)


@pytest.mark.parametrize("name", ["mtp", "eagle3", "dflash", "ngram"])
def test_the_title_of_a_run_says_what_drafts_as_the_engine_calls_it(name):
    """vLLM and SGLang print it at their start, in another process of the same container."""
    vllm, sglang = ((PRINTED / log).read_text().splitlines() for log in ("04-vllm.log", "07-sglang.log"))
    begun = f"model='m', speculative_config=SpeculativeConfig(method='{name}', model='d', num_spec_tokens=3)"
    first = f"(EngineCore pid=9) INFO 08-06 09:03:00 [core.py:109] Initializing a V1 LLM engine: {begun}, x=1"
    assert title_of([*vllm]) == "vLLM"
    assert title_of([first, *vllm]) == f"vLLM · {name}"
    assert title_of([first.replace(f"'{name}'", "None"), *vllm]) == "vLLM"
    told = "[2026-06-10 15:20:00] server_args=ServerArgs(decode_log_interval=40, speculative_algorithm={})"
    assert title_of([told.format(f"'{name.upper()}'"), *sglang]) == f"SGLang · {name.upper()}"
    assert title_of([told.format(None), *sglang]) == "SGLang"


def title_of(lines: list[str]) -> str:
    (trace,) = read_traces(written("\n".join(lines))).traces
    return trace.header.title


def test_settings_of_sglang_are_read_from_its_long_line():
    """It has some 400 settings."""
    told = f"server_args=ServerArgs({'x=1, ' * 4000}decode_log_interval=10, speculative_num_draft_tokens=5)"
    line = "Decode batch, #running-req: 1, accept len: 2.50, gen throughput (token/s): 40.0, #queue-req: 0"
    (trace,) = read_traces(written(f"{told}\n{line}\n")).traces
    assert (trace.windows[0].steps, trace.windows[0].drafted) == (10, 40)


def test_statistics_of_llama_in_all_forms():
    """Without numbers of calls, of drafts that were not verified, and rates of many requests."""
    line = "draft acceptance = 0.5 ( 50 accepted / 100 generated), mean len = 2.25\n"
    totals = "statistics {}, #gen drafts = {}, #acc drafts = 9, #gen tokens = {}, #acc tokens = {}{}\n"
    rates = ", #mean acc len = 2.25, #acc rate/pos = (0.750, 0.500)"

    def told(*rows: str) -> list[tuple[Any, ...]]:
        (trace,) = read_traces(written("".join(rows))).traces
        return [(row.drafter, row.drafts, row.drafted, row.places) for row in trace.windows]

    assert told(line, totals.format("ngram_mod: #calls = 15", 42, 100, 50, "")) == [("", 42, 100, ())]
    calls = totals.format("draft: #calls(b,g,a) = 1 50 40", 42, 100, 50, rates)
    assert told(line, calls) == [("", 42, 100, (30, 20))], "rates are those of the calls of accept"
    ignored = totals.format("draft: #calls(b,g,a) = 1 50 40", 50, 120, 50, rates)
    assert told(line, ignored) == [("", 40, 100, ())], "drafts that were not verified: by the mean length"
    many = totals.format("draft: #calls(b,g,a) = 9 900 800", 800, 2000, 1000, rates)
    later = totals.format("draft: #calls(b,g,a) = 10 940 840", 840, 2100, 1050, rates)
    assert told(line, many, line, later)[1] == ("", 40, 100, ()), "of 800 drafts, rounded: not those of 40"


@pytest.mark.parametrize("rates", ["2.000, 0.500", "0.750, 0.000"])
def test_places_that_do_not_fit_the_counts_are_unknown(rates):
    text = (
        f"draft acceptance = 0.5 ( 50 accepted / 100 generated), mean len = 2.25, acc per pos = ({rates})\n"
    )
    (trace,) = read_traces(written(text)).traces
    (row,) = trace.windows
    assert (row.drafts, row.drafted, row.accepted, row.places) == (40, 100, 50, ())


def test_totals_of_llama_that_are_not_of_the_request_are_left_out():
    """The first totals of a log have all requests before it."""
    totals = "statistics draft-mtp: #calls(b,g,a) = 9 99 9, #gen drafts = {}, #acc drafts = 9, #gen tokens = {}, #acc tokens = {}, dur(b,g,a) = 0.1, 5.0, 0.1 ms"
    line = "slot print_timing: id 0 | task 7 | draft acceptance = 0.5 ( {} accepted / {} generated)\n"
    found = {}
    for name, printed, counted in (
        ("before", (50, 100), (900, 1800, 700)),
        ("whole", (50, 100), (40, 100, 50)),
        ("cut", (50, 50), (40, 100, 50)),
    ):
        (trace,) = read_traces(written(line.format(*printed) + totals.format(*counted))).traces
        (row,) = trace.windows
        found[name] = row.drafts, row.drafted, row.accepted, row.drafting
    assert found == {
        "before": (None, 100, 50, None),
        "whole": (40, 100, 50, 5_200_000),
        "cut": (40, 100, 50, 5_200_000),
    }
