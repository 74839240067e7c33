"""Random windows of counts: every sentence agrees with the counts, and unknown is never zero."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from specscope.engine.errors import UsageError
from specscope.engine.trace.events import Window
from specscope.engine.trace.trace import Trace
from specscope.traces.export.perfetto import to_perfetto
from specscope.traces.export.sets import lines
from specscope.traces.facts.checks import check
from specscope.traces.facts.counted import whole_windows
from specscope.traces.facts.metrics import measure
from specscope.traces.imports.logs.windows import Printed, trace_of
from specscope.traces.imports.reading import read_traces
from specscope.traces.judge.health import health
from specscope.traces.lengths.basis import GivenTimes
from specscope.traces.lengths.best import best_length
from specscope.traces.sets.compared import sets_of
from specscope.traces.sets.members import members_of
from specscope.traces.view.counts import line
from specscope.traces.view.document import view_model
from tests.traces.printed import PRINTED, written

SOME = settings(max_examples=100, deadline=None)
NO_NUMBER = re.compile(r"\b(?:nan|inf|None)\b")
counts = st.none() | st.sampled_from([0, 0, 1, 2, 16, 40, 200, 1000])
times = st.none() | st.integers(0, 10**10)


@st.composite
def windows(draw: st.DrawFn, after: int) -> Window:
    """Return a window whose places, where they are known, fit its counts."""
    start, drafts = after + draw(st.integers(0, 5 * 10**9)), draw(counts)
    drafted, accepted, places = draw(counts), draw(counts), ()
    if draw(st.integers(0, 3)):
        kept = list[int]()
        for _ in range(draw(st.integers(1, 4))):
            kept.append(draw(st.integers(0, min([drafts or 0, *kept]))))
        kept = kept if draw(st.booleans()) else [0] * len(kept)
        drafted, accepted = None if drafts is None else drafts * len(kept), sum(kept)
        places = draw(st.sampled_from([(), tuple(kept)]))
    return Window(
        start=start,
        end=start + draw(st.sampled_from([0, 10**6, 10**9, 10**10])),
        drafter=draw(st.sampled_from(["", "", "", "a", "b"])),
        label=draw(st.sampled_from(["", "w1", "w2", "x · y"])),
        steps=draw(counts),
        drafts=drafts,
        drafted=drafted,
        accepted=accepted if accepted is None or drafted is None else min(accepted, drafted),
        places=places,
        tokens=draw(counts),
        busy=draw(times),
        drafting=draw(times),
        running=draw(st.none() | st.floats(0, 100)),
    )


@st.composite
def counted(draw: st.DrawFn) -> Trace:
    rows, after = list[Window](), 0
    for _ in range(draw(st.integers(1, 8))):
        rows.append(draw(windows(after)))
        after = rows[-1].end
    engine = draw(st.sampled_from(["vLLM", "llama.cpp", "SGLang", "TensorRT-LLM"]))
    return trace_of(Printed(engine, "", rows), f"a log of {engine}")


def texts(found: Any) -> Iterator[str]:
    """Yield the texts in plain values, which have no number that is none."""
    json.dumps(found, allow_nan=False)
    for one in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from texts(one)
    if isinstance(found, str):
        yield found


def whole_and_sound(trace: Trace) -> None:
    """Check every sentence and figure of a trace with windows."""
    check(trace)
    rows, found = whole_windows(trace.windows), measure(trace)
    for name, of in (
        *(("drafted", "drafted"), ("accepted", "accepted")),
        *(("tokens", "tokens"), ("target_forwards", "steps")),
    ):
        told = [getattr(row, of) for row in rows]
        assert getattr(found, name) == (None if None in told or not told else sum(told))
    shares = [found.acceptance_rate, found.acceptance_rate_tested]
    shares += [share for slot in found.per_position for share in (slot.unconditional, slot.conditional)]
    assert all(0 <= share <= 1 for share in shares if share is not None)
    parts = (found.accepted, found.rejected, found.discarded)
    assert None in parts or (min(parts) >= 0 and sum(parts) == found.drafted)
    _sentence_is_true(health(trace), rows)
    (run,) = view_model([trace])["runs"]
    told = [text for part in ("verdict", "figures") for text in texts(run[part])]
    told += [line(row).removeprefix(row.label) for row in trace.windows]
    assert not [text for text in told if NO_NUMBER.search(text)]
    assert all(
        int(share) <= 100 for text in told[-len(trace.windows) :] for share in re.findall(r"(\d+)%", text)
    )
    for given_times in (GivenTimes(), GivenTimes(c=0.1), GivenTimes(c=0.1, row=0.05)):
        with suppress(UsageError):
            _lengths_are_possible(best_length(trace, given=given_times))
    with suppress(UsageError):
        json.dumps(to_perfetto(trace), allow_nan=False)


def _sentence_is_true(note: str, rows: list[Window]) -> None:
    """Check the numbers of a note against the windows, or against some in a row."""
    if few := re.match(r"Of (\d+) drafts, (\d+) tokens? in all", note):
        sums = (sum(row.drafts or 0 for row in rows), sum(row.accepted or 0 for row in rows))
        assert tuple(map(int, few.groups())) == sums
    elif note:
        said = re.search(r"0 (?:of (\d+) drafted tokens|tokens of (\d+) drafts) were accepted", note)
        assert said, note
        name, number = ("drafted", said[1]) if said[1] else ("drafts", said[2])
        parts = (rows[i:j] for i in range(len(rows)) for j in range(i + 1, len(rows) + 1))
        none = [
            [getattr(row, name) for row in part] for part in parts if not any(r.accepted != 0 for r in part)
        ]
        assert int(number) in [sum(part) for part in none if None not in part]
        assert int(number) > 0


def _lengths_are_possible(best: Any) -> None:
    json.dumps(best.to_dict(), allow_nan=False)
    assert not NO_NUMBER.search(best.sentence)
    for one in best.lengths:
        assert 1 - 1e-9 <= one.tokens <= one.length + 1 + 1e-9
        assert one.low is None or one.high is None or 0 <= one.low <= one.high + 1e-9


@SOME
@given(counted())
def test_what_is_told_of_any_windows_is_true(trace):
    whole_and_sound(trace)


@SOME
@given(st.lists(counted(), min_size=1, max_size=4), st.booleans())
def test_sets_of_any_windows(traces, apart):
    groups = [list(members_of([trace])) for trace in traces] if apart else [list(members_of(traces))]
    found = sets_of(groups)
    assert not [text for text in (*texts(found), *lines(found)) if NO_NUMBER.search(text)]
    for one in found["sets"]:
        whole = one["whole"]
        assert all(whole[name] is None or 0 <= whole[name] <= 1 for name in ("rate", "mean_rate"))
        for mean in (whole["length"], whole["mean"]):
            low, value, high = (mean[name] for name in ("low", "value", "high"))
            assert value is None or value >= 1
            assert low is None or 1 - 1e-9 <= low <= value + 1e-9 <= high + 2e-9


NUMBER = re.compile(r"\d+(?:\.\d+)?")
OTHERS = ["0", "1", "7", "0.5", "2.500", "100", "99999", "-1", "1e9", "nan", "inf", "", "123456789012"]


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """Return what an engine printed with other numbers, and perhaps a line at another place."""
    text = (PRINTED / draw(st.sampled_from(sorted(path.name for path in PRINTED.iterdir())))).read_text()
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from([*NUMBER.finditer(text)][:400]))
        text = text[: place.start()] + draw(st.sampled_from(OTHERS)) + text[place.end() :]
    rows = text.split("\n")
    moved = rows.pop(draw(st.integers(0, len(rows) - 1)))
    if draw(st.booleans()):
        rows.insert(draw(st.integers(0, len(rows))), moved)
    return draw(st.sampled_from([text, "\n".join(rows)]))


@SOME
@given(damaged())
def test_other_numbers_in_what_an_engine_printed_are_read_or_refused(text):
    try:
        found = read_traces(written(text)).traces
    except UsageError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    for trace in found:
        if trace.windows:
            whole_and_sound(trace)
        json.dumps(view_model([trace]), allow_nan=False)
    json.dumps(sets_of([list(members_of(found))]), allow_nan=False)
