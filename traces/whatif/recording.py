"""The facts of a stored run that a replay needs: its output, and where the drafter was right.

Whether a drafter agrees with the target after a prefix depends on the acceptance rule, not on the
method that asks it. So a draft that the run tested is tested again with the same result, whatever
drafts it; under another rule its result is drawn from the recorded p and q (`rules.py`). At an
untested position (a bonus token, or one decoded plainly) agreement is drawn at the acceptance rate
that the run had at this place of a draft. The output's tokens are the seed of all draws.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING
from zlib import crc32

from specscope.engine.errors import UsageError
from specscope.engine.sampling.draws import Draws, Key
from specscope.traces.imported import NO_TOKEN, UNKNOWN_TEXT, Counts, origin, shown_text
from specscope.traces.places import slots_of
from specscope.traces.whatif.rules import Rule, Way, recorded_way

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from specscope.engine.trace.events import Commit, Decision
    from specscope.engine.trace.trace import Trace

LEAST = 10
"""Tests that a place of a draft needs for a rate of its own."""
MOST_ROUNDS = 256
"""Verifications replayed of a run that is a sum of many requests."""


@dataclass(frozen=True, slots=True)
class Output:
    """One sequence of a recording. Indices count the tokens of the output from 0."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    """Token ids of the output; `NO_TOKEN` for an unknown one."""
    texts: tuple[str, ...]
    agrees: tuple[bool, ...]
    """For each index, whether the drafter drafts the token of the output."""
    tests: Mapping[int, Decision]
    """The recorded test of each index that has one: of siblings, the first."""
    ended: bool


@dataclass(frozen=True, slots=True)
class Recording:
    """A stored run as a script for other runs."""

    trace: Trace
    outputs: tuple[Output, ...]
    rates: Rates
    notes: tuple[str, ...]
    old: Way | None = None
    """How the run drafted and tested; None at temperature 0."""
    new: Way | None = None
    """How the replay does."""

    @property
    def name(self) -> str:
        return f"run {self.trace.header.run_id}"

    @property
    def has_ranks(self) -> bool:
        """Whether the drafter's next choices are known wherever a draft was tested."""
        tests = [test for output in self.outputs for test in output.tests.values()]
        return self.old is None and all(len(test.top_q) > 1 for test in tests)

    @property
    def has_ids(self) -> bool:
        return all(output.prompt and NO_TOKEN not in output.tokens for output in self.outputs)


@dataclass(frozen=True, slots=True)
class Rates:
    """Acceptance rates of tested drafts by place; place 1 follows the committed prefix."""

    tested: Counter[int]
    accepted: Counter[int]

    @classmethod
    def of(cls, tests: Iterable[tuple[int, bool]]) -> Rates:
        rows = list(tests)
        return cls(Counter(place for place, _ in rows), Counter(place for place, yes in rows if yes))

    @property
    def known(self) -> bool:
        return self.tested.total() > 0

    @property
    def overall(self) -> float:
        return self.accepted.total() / max(1, self.tested.total())

    def at(self, place: int) -> float:
        """Return the rate of a place, of the nearest one before it with enough tests, or of all."""
        nearest = next((k for k in range(place, 0, -1) if self.tested[k] >= LEAST), 0)
        return self.accepted[nearest] / self.tested[nearest] if nearest else self.overall


def longest_draft(trace: Trace) -> int:
    found = origin(trace.header)
    counted = found.counts.gamma or len(found.counts.histogram) - 1 if found and found.counts else 0
    return max((r.drafted for r in trace.rounds), default=counted)


def read(trace: Trace, way: Way | None = None) -> Recording:
    """Return the recording of a stored run; it is replayed as recorded unless `way` is given."""
    found, name = origin(trace.header), f"run {trace.header.run_id}"
    if trace.footer is None:
        raise UsageError(f"{name} is still in progress; wait until it has ended")
    if found is not None and found.counts is not None:
        return _of_counts(trace, found.counts)
    commits = _by_sequence(trace)
    missing = [i for i in range(max(1, len(trace.header.prompts))) if not commits.get(i)]
    if missing:
        raise UsageError(f"sequence {missing[0]} of {name} has no tokens; choose a run that got further")
    old = recorded_way(trace)
    new = way if old else None
    tests = {s: _tests(trace, s, rows) for s, rows in commits.items()}
    agreed = _agreed(trace, commits, tests, old, new or old)
    rates = Rates.of((place, agreed[s][i]) for s, row in tests.items() for i, (place, _) in row.items())
    outputs = tuple(
        _output(trace, s, rows, {i: d for i, (_, d) in tests[s].items()}, agreed[s], rates)
        for s, rows in commits.items()
    )
    return Recording(trace, outputs, rates, tuple(_notes(outputs)), old, new or old)


def _by_sequence(trace: Trace) -> dict[int, list[Commit]]:
    rows: dict[int, list[Commit]] = {}
    for commit in sorted(trace.commits, key=lambda c: (c.sequence, c.position)):
        rows.setdefault(commit.sequence, []).append(commit)
    return rows


def _tests(trace: Trace, sequence: int, rows: list[Commit]) -> dict[int, tuple[int, Decision]]:
    """Return index -> (place, decision) of each tested draft of a drafter; the first test counts.

    A draft without a drafter's span was copied from the text, except in imported runs.
    """
    imported, start = origin(trace.header) is not None, rows[0].position
    drafts = [d for d in trace.decisions if d.sequence == sequence and d.node >= 0]
    first: dict[int, int] = {}
    for d in drafts:
        first[d.step] = min(d.position, first.get(d.step, d.position))
    tests: dict[int, tuple[int, Decision]] = {}
    for d in sorted(drafts, key=lambda d: (d.step, d.node)):
        tested = d.outcome in ("accepted", "rejected") and 0 <= d.position - start < len(rows)
        if tested and (imported or d.draft_span >= 0):
            tests.setdefault(d.position - start, (d.position - first[d.step] + 1, d))
    return tests


def agrees(test: Decision, commit: Commit) -> bool:
    return test.outcome == "accepted" if test.token == NO_TOKEN else test.token == commit.token


def _agreed(
    trace: Trace,
    commits: Mapping[int, list[Commit]],
    tests: Mapping[int, dict[int, tuple[int, Decision]]],
    old: Way | None,
    new: Way | None,
) -> dict[int, dict[int, bool]]:
    """Return sequence -> index with a test -> whether the drafter drafts the output's token."""
    agreed = {s: {i: agrees(d, commits[s][i]) for i, (_, d) in row.items()} for s, row in tests.items()}
    if old is None or new is None or old == new:
        return agreed
    own = {
        (d.sequence, d.position): d
        for d in trace.decisions
        if d.outcome == "accepted" or (d.node < 0 and d.outcome != "discarded")
    }
    pairs = {
        (s, i): (d, own[s, d.position])
        for s, row in tests.items()
        for i, (_, d) in row.items()
        if (s, d.position) in own
    }
    rule, draws = (
        Rule(old, new, trace.header.sampling, pairs.values()),
        {s: _draws(rows) for s, rows in commits.items()},
    )
    for (s, i), pair in pairs.items():
        if (chance := rule.chance(*pair)) is not None:
            agreed[s][i] = draws[s].below(Key(i, "accept"), chance)
    return agreed


def _draws(rows: Sequence[Commit]) -> Draws:
    return Draws(crc32(repr([c.token for c in rows]).encode()), rows[0].sequence)


def _output(
    trace: Trace,
    sequence: int,
    rows: list[Commit],
    tests: dict[int, Decision],
    agreed: Mapping[int, bool],
    rates: Rates,
) -> Output:
    header, footer = trace.header, trace.footer
    reason = footer.reasons[sequence] if footer and sequence < len(footer.reasons) else ""
    draws = _draws(rows)
    begun: dict[int, int] = {}
    for i, commit in enumerate(rows):
        begun.setdefault(commit.step, i)
    right = (
        agreed[i] if i in tests else draws.below(Key(i, "accept"), rates.at(i - begun[commit.step] + 1))
        for i, commit in enumerate(rows)
    )
    full = reason == "length" and len(rows) == header.limits.get("max_new_tokens")
    return Output(
        prompt=header.prompt_ids[sequence] if sequence < len(header.prompt_ids) else (),
        tokens=tuple(c.token for c in rows),
        texts=tuple(shown_text(header, c) for c in rows),
        agrees=tuple(right),
        tests=tests,
        ended=not full,
    )


def _of_counts(trace: Trace, counts: Counts) -> Recording:
    """Return a recording of counts: its verifications in a drawn order."""
    top = counts.gamma or len(counts.histogram) - 1
    if top < 1 or not counts.steps:
        raise UsageError(f"run {trace.header.run_id} counts no drafts; import a file that does")
    slots = slots_of(counts.histogram, top)
    rates = Rates(
        Counter({s.slot: s.tested for s in slots}), Counter({s.slot: s.accepted or 0 for s in slots})
    )
    order, few = Random(trace.header.run_id), counts.steps <= MOST_ROUNDS
    if few:
        lengths = [a for a, times in enumerate(counts.histogram) for _ in range(times)]
        order.shuffle(lengths)
    else:
        lengths = order.choices(range(len(counts.histogram)), counts.histogram, k=MOST_ROUNDS)
    draws, right = Draws(0, 0), list[bool]()

    def draw(place: int) -> bool:
        return draws.below(Key(len(right), "accept"), rates.at(place))

    right.append(draw(1))
    for accepted in lengths:
        right += [True] * accepted
        right.append(accepted == top and draw(top + 1))
    right = right[: counts.tokens or len(right)]
    size = len(right)
    output = Output((), (NO_TOKEN,) * size, (f"{UNKNOWN_TEXT} ",) * size, tuple(right), {}, ended=True)
    order_note = "The file counts verifications without their order: the order is drawn."
    part = f"Of {counts.steps:,} verifications, {MOST_ROUNDS} are drawn." if not few else ""
    length = (
        "" if counts.gamma else f"The draft length is unknown: {top} is assumed, the most accepted tokens."
    )
    notes = (order_note, part, length, *_notes((output,)))
    return Recording(trace, (output,), rates, tuple(filter(None, notes)))


def _notes(outputs: Iterable[Output]) -> Iterator[str]:
    rows = list(outputs)
    if not all(o.prompt for o in rows):
        yield "The prompt is unknown: its length is taken as one token."
    if any(NO_TOKEN in o.tokens for o in rows):
        yield "The token ids are unknown: nothing can be copied from the text."
