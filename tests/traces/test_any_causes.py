"""Causes that a verdict names of any recorded loop: their numbers are those of its rows."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specscope
from specscope.engine.errors import UsageError
from specscope.engine.trace.events import DRAFTS
from specscope.engine.trace.trace import Trace
from specscope.traces.facts import waiting
from specscope.traces.facts.metrics import measure
from specscope.traces.judge.causes import by_drafter, slow
from specscope.traces.view.document import view_model
from tests.traces.samples import MS, read_file

SOME = settings(max_examples=60, deadline=None)
_FOLDER = tempfile.TemporaryDirectory()
KINDS = ("draft", "draft", "glue", "branch", "sample", "communicate", "other", "prefill", "calibrate")


class Step(NamedTuple):
    """Work before a verification, its time, and for each sequence (drafted, accepted)."""

    work: list[tuple[str, str, int]]
    """(kind, device, milliseconds)."""
    verify: int
    rounds: list[tuple[int, int] | None]


def steps(sequences: int, devices: Sequence[str], most: int) -> st.SearchStrategy[list[Step]]:
    work = st.tuples(st.sampled_from(KINDS), st.sampled_from(devices), st.integers(0, 30))
    one = st.none() | st.tuples(st.integers(0, most), st.integers(0, 4))
    rounds = st.lists(one, min_size=sequences, max_size=sequences)
    return st.lists(
        st.builds(Step, st.lists(work, max_size=4), st.integers(0, 20), rounds), min_size=1, max_size=8
    )


def recorded(played: list[Step], drafters: Sequence[str], method: str = "mine") -> Trace:
    """Record steps of a batch; what a device cannot do is left out."""
    path, now = Path(_FOLDER.name, "run.jsonl"), 0
    path.unlink(missing_ok=True)
    devices = dict.fromkeys(drafters, "drafter") | {"t": "target"}
    with specscope.record(path, devices=devices, method=method) as rec:
        for _ in played[0].rounds:
            rec.prompt(ids=[1])
        rec.start(0)
        for step in played:
            for kind, device, length in step.work:
                with suppress(UsageError):
                    rec.add(kind, now, now + length * MS, device, rows=1)
                    now += length * MS
            rows = sum(1 + one[0] for one in step.rounds if one)
            rec.add("verify", now, now + step.verify * MS, "t", rows=rows)
            now += step.verify * MS
            for sequence, one in enumerate(step.rounds):
                if one:
                    ids, accepted = list(range(2, 2 + one[0])), min(one)
                    rec.round(ids, accepted, [*ids[:accepted], 99], sequence=sequence, time=now)
    return read_file(path)


def verdicts(*traces: Trace) -> str:
    runs = view_model(list(traces))["runs"]
    return " ".join(one for run in runs for one in run["verdict"].values() if isinstance(one, str))


@st.composite
def several(draw: st.DrawFn) -> tuple[list[Step], list[str]]:
    """Return steps and the drafters; writing the file is the test's, as it may take long."""
    drafters = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
    return draw(steps(draw(st.integers(1, 3)), [*drafters, "t"], 4)), drafters


@SOME
@given(several())
def test_each_drafter_has_its_own_drafts_and_times(case):
    trace = recorded(*case)
    text, places = by_drafter(trace), {span.id: span.device for span in trace.spans}
    rows = re.findall(
        r"(\w) ([\d,]+) of ([\d,]+) tested tokens(?: \((\d+) %\))?, (\S+) ms of drafting each", text
    )
    assert len(rows) == text.count(" tested tokens")
    drafted = {place: Counter[str]() for place in places.values()}
    for d in trace.decisions:
        if d.draft_span >= 0:
            drafted[places[d.draft_span]][d.outcome] += 1
    assert [row[0] for row in rows] in ([], sorted(name for name, found in drafted.items() if found))
    for name, accepted, tested, share, each in rows:
        found = drafted[name]
        assert int(accepted) == found["accepted"]
        assert int(tested) == found["accepted"] + found["rejected"]
        assert share == (f"{100 * int(accepted) / int(tested):.0f}" if int(tested) else "")
        time = sum(s.end - s.start for s in trace.spans if s.device == name and s.kind in DRAFTS)
        assert float(each.replace(",", "")) == pytest.approx(time / MS / found.total(), rel=6e-3)
    assert not re.search(r"\b(?:nan|inf|None)\b", verdicts(trace))


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Step], list[Step], float, float]:
    """Return a batch, plain decoding of as many sequences or of one, a speed-up and its most."""
    sequences = draw(st.integers(1, 4))
    mine = draw(steps(sequences, ["d", "t"], 4))
    plain = draw(steps(draw(st.sampled_from([sequences, 1])), ["t"], 0))
    speedup = draw(st.floats(0.05, 1.5))
    return mine, plain, speedup, speedup * draw(st.floats(1, 1.5))


@SOME
@given(batches())
def test_the_parts_of_a_slow_batch_are_its_time_per_target_forward(case):
    mine, theirs, speedup, most = case
    trace, plain = recorded(mine, ["d"]), recorded(theirs, [], "autoregressive")
    metrics = measure(trace)
    text = slow(trace, metrics, plain, speedup, most)
    assert not re.search(r"\b(?:nan|inf|None)\b|-\d", text + verdicts(plain, trace))
    if metrics.tokens_per_target_forward is None:
        assert text == ""
        return
    whole, parts = re.match(
        r"A target forward takes the time of (\S+) plain (?:tokens|forwards): (.*?) in which no model works\.",
        text,
    ).groups()
    unit = measure(plain).tokens_per_target_forward or 1.0
    assert float(whole) == pytest.approx(metrics.tokens_per_target_forward / unit / speedup, abs=0.0051)
    numbers = [float(one) for one in re.findall(r"(?:^|, )(\d+\.\d\d)", parts)]
    begin, end = waiting.decode_window(trace)
    assert sum(numbers) == pytest.approx(float(whole) if end > begin else 0, abs=0.0051 * (len(numbers) + 4))
    forwards = [s for s in waiting.forwards(trace) if waiting.side(s) == "target" and s.outcome == "done"]
    if rows := re.search(r"for its (\S+) rows", parts):
        assert float(rows[1]) == pytest.approx(fmean(s.rows for s in forwards), abs=0.051)
    if "Most of the loss is waiting for the drafter" in text:
        assert "waiting for drafts" in parts
    assert all(int(share) <= 100 for share in re.findall(r"(\d+) %", text))
