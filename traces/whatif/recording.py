"""The facts of a stored run that a replay needs: its output, and where the drafter was right.

Whether a drafter agrees with the target after a prefix depends on the acceptance rule, not on the
method that asks it. So a draft that the run tested is tested again with the same result, whatever
drafts it; under another rule its result is drawn from the recorded p and q (`rules.py`). At an
untested position (a bonus token, one that was copied or decoded plainly) agreement is drawn at the
rate that `rates.py` finds for it. The output's tokens are the seed of all draws.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING
from zlib import crc32

from specscope.engine.errors import UsageError
from specscope.engine.sampling.draws import Draws, Key
from specscope.traces.facts.imported import NO_TOKEN, UNKNOWN_TEXT, Counts, origin, shown_text
from specscope.traces.facts.joined import decisions_of_output, joined
from specscope.traces.facts.places import slots_of
from specscope.traces.whatif.ranks import Ranked, drawn_choices, guesses, next_choices
from specscope.traces.whatif.rates import RecordedRates, TestedDraft
from specscope.traces.whatif.rules import Rule, Way, recorded_way

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

    from specscope.engine.trace.events import Commit, Decision, Top
    from specscope.engine.trace.trace import Trace

MOST_ROUNDS = 256
"""Verifications replayed of a run that is a sum of many requests."""


@dataclass(frozen=True, slots=True)
class RecordedOutput:
    """One sequence of a recording. Indices count the tokens of the output from 0."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    """Token ids of the output; `NO_TOKEN` for an unknown one."""
    texts: tuple[str, ...]
    target: tuple[int, ...]
    """`tokens`, and those after the end that the run's last round decided, too."""
    agrees: tuple[bool, ...]
    """For each index of `target`, whether the drafter drafts this token."""
    known: Set[int]
    """Indices at which that is no draw at a rate."""
    tests: Mapping[int, Decision]
    """The recorded test of each index that has one: of siblings, the first."""
    choices: Mapping[int, Top]
    """The drafter's next choices after its draft, at the indices for which they are known or drawn;
    `NO_TOKEN` for any other token."""
    ended: bool


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A stored run as a script for other runs."""

    trace: Trace
    outputs: tuple[RecordedOutput, ...]
    rates: RecordedRates
    notes: tuple[str, ...]
    own: bool = False
    """Whether the replay drafts and tests as the run did because its settings are the same."""
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
        if self.own and self.trace.forks:
            return True
        tests = [test for output in self.outputs for test in output.tests.values()]
        return self.old is None and bool(tests) and all(len(test.top_q) > 1 for test in tests)

    @property
    def has_ids(self) -> bool:
        return all(output.prompt and NO_TOKEN not in output.tokens for output in self.outputs)


def longest_draft(trace: Trace) -> int:
    found = origin(trace.header)
    counted = found.counts.gamma or len(found.counts.histogram) - 1 if found and found.counts else 0
    return max((r.drafted for r in trace.rounds), default=counted)


def read(trace: Trace, way: Way | None = None) -> RecordedRun:
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
    new = (way or old) if old else None
    texts = [_Text.of(trace, rows) for rows in commits.values()]
    agreed = _agreed(trace, texts, old, new)
    wrong = [one for text, right in zip(texts, agreed, strict=True) for one in text.wrong(right)]
    own, guessed = way is None, [guesses(trace, text.rows) for text in texts]
    if own or not trace.header.sampling.get("temperature"):  # a guess is what a draft there would be
        for text, right, found in zip(texts, agreed, guessed, strict=True):
            plain = {i: top for i, top in found.items() if i not in right}
            right |= {i: top[0][0] == text.tokens[i] for i, top in plain.items()}
            found |= {i: top[1:] for i, top in plain.items()}
    rates = RecordedRates.of(
        TestedDraft(text.place(i), right[i], text.p(i))
        for text, right in zip(texts, agreed, strict=True)
        for i in right
    )
    outputs = [
        _output(trace, text, right, rates, _choices(text, found, own=own), wrong)
        for text, right, found in zip(texts, agreed, guessed, strict=True)
    ]
    return RecordedRun(trace, tuple(outputs), rates, tuple(_notes(outputs)), own, old, new)


def _choices(text: _Text, guessed: Mapping[int, Top], *, own: bool) -> dict[int, Top]:
    """Return index -> the drafter's next choices; own settings repeat the guesses."""
    tested = {i: next_choices(d) for i, (_, d) in text.tests.items()}
    return tested | {i: top for i, top in guessed.items() if own or len(top) > len(tested.get(i, ()))}


def _by_sequence(trace: Trace) -> dict[int, list[Commit]]:
    rows: dict[int, list[Commit]] = {}
    for commit in sorted(trace.commits, key=lambda c: (c.sequence, c.position)):
        rows.setdefault(commit.sequence, []).append(commit)
    return rows


@dataclass(frozen=True, slots=True)
class _Text:
    """The rows of one sequence, by index of the output."""

    rows: list[Commit]
    begun: Mapping[int, int]
    """Step -> the index of its first token."""
    own: Mapping[int, Decision]
    """The decision of each token, also of tokens after the end that the last round decided."""
    tokens: tuple[int, ...]
    """Those of the output and after it."""
    tests: Mapping[int, tuple[int, Decision]]
    """(place, the first test) of each index at which a draft of the drafter was tested."""

    @classmethod
    def of(cls, trace: Trace, rows: list[Commit]) -> _Text:
        start, sequence = rows[0].position, rows[0].sequence
        decided = decisions_of_output(trace).items()
        own = {place - start: d for (i, place), d in decided if i == sequence and place >= start}
        tokens = [c.token for c in rows]
        while (after := own.get(len(tokens))) and after.token != NO_TOKEN:
            tokens.append(after.token)
        begun = {c.step: i for i, c in reversed([*enumerate(rows)])}
        return cls(rows, begun, own, tuple(tokens), _tests(trace, rows[0], len(tokens)))

    def place(self, index: int) -> int:
        """Return the place in a draft, from 1, that a token has or would have."""
        if index in self.tests:
            return self.tests[index][0]
        return index - self.begun[self.rows[min(index, len(self.rows) - 1)].step] + 1

    def p(self, index: int) -> float | None:
        return self.own[index].p if index in self.own else None

    def wrong(self, agreed: Mapping[int, bool]) -> Iterator[Ranked]:
        for i, (_, d) in self.tests.items():
            if not agreed[i] and (top := next_choices(d)):
                yield self.tokens[i], top

    @property
    def draws(self) -> Draws:
        return Draws(crc32(repr([c.token for c in self.rows]).encode()), self.rows[0].sequence)


def _tests(trace: Trace, first: Commit, size: int) -> dict[int, tuple[int, Decision]]:
    """Return the tests of a `_Text` from its first token on.

    A draft without a drafter's span was copied from the text, except in imported runs.
    """
    imported = origin(trace.header) is not None
    tests: dict[int, tuple[int, Decision]] = {}
    for (sequence, _), one in sorted(joined(trace).items(), key=lambda item: item[0]):
        before = one.start - 1
        for d in one.nodes.values() if sequence == first.sequence else ():
            index = d.position - first.position
            tested = d.outcome in ("accepted", "rejected") and 0 <= index < size
            if tested and (imported or d.draft_span >= 0):
                tests.setdefault(index, (d.position - before, d))
    return tests


def _agreed(trace: Trace, texts: Sequence[_Text], old: Way | None, new: Way | None) -> list[dict[int, bool]]:
    """Return for each text index with a test -> whether the drafter drafts the output's token."""
    agreed = [{i: agrees(d, text.tokens[i]) for i, (_, d) in text.tests.items()} for text in texts]
    if old is None or new is None or old == new:
        return agreed
    pairs = [{i: (d, text.own[i]) for i, (_, d) in text.tests.items() if i in text.own} for text in texts]
    rule = Rule(old, new, trace.header.sampling, [pair for found in pairs for pair in found.values()])
    for text, found, right in zip(texts, pairs, agreed, strict=True):
        for i, pair in found.items():
            if (chance := rule.chance(*pair)) is not None:
                right[i] = text.draws.below(Key(i, "accept"), chance)
    return agreed


def agrees(test: Decision, token: int) -> bool:
    return test.outcome == "accepted" if test.token == NO_TOKEN else test.token == token


def _output(
    trace: Trace,
    text: _Text,
    agreed: Mapping[int, bool],
    rates: RecordedRates,
    choices: dict[int, Top],
    wrong: Sequence[Ranked],
) -> RecordedOutput:
    """Return a sequence; `choices` are known ones, and drawn ones are added."""
    header, footer, rows = trace.header, trace.footer, text.rows
    sequence, draws = rows[0].sequence, text.draws
    reason = footer.reasons[sequence] if footer and sequence < len(footer.reasons) else ""
    right = [
        agreed[i] if i in agreed else draws.below(Key(i, "accept"), rates.at(text.place(i), text.p(i)))
        for i in range(len(text.tokens))
    ]
    for i, token in enumerate(text.tokens):
        if not right[i] and i not in choices:
            choices[i] = drawn_choices(token, wrong, draws, i)
    full = reason == "length" and len(rows) == header.limits.get("max_new_tokens")
    return RecordedOutput(
        prompt=header.prompt_ids[sequence] if sequence < len(header.prompt_ids) else (),
        tokens=text.tokens[: len(rows)],
        texts=tuple(shown_text(header, c) for c in rows),
        target=text.tokens,
        agrees=tuple(right),
        known=agreed.keys(),
        tests={i: d for i, (_, d) in text.tests.items()},
        choices=choices,
        ended=not full,
    )


def _of_counts(trace: Trace, counts: Counts) -> RecordedRun:
    """Return a recording of counts: its verifications in a drawn order."""
    top = counts.gamma or len(counts.histogram) - 1
    if top < 1 or not counts.steps:
        raise UsageError(f"run {trace.header.run_id} counts no drafts; import a file that does")
    slots = slots_of(counts.histogram, top)
    rates = RecordedRates(
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
    tokens, texts = (NO_TOKEN,) * size, (f"{UNKNOWN_TEXT} ",) * size
    output = RecordedOutput((), tokens, texts, tokens, tuple(right), set(), {}, {}, ended=True)
    order_note = "The file counts verifications without their order: the order is drawn."
    part = f"Of {counts.steps:,} verifications, {MOST_ROUNDS} are drawn." if not few else ""
    length = (
        "" if counts.gamma else f"The draft length is unknown: {top} is assumed, the most accepted tokens."
    )
    notes = (order_note, part, length, *_notes((output,)))
    return RecordedRun(trace, (output,), rates, tuple(filter(None, notes)))


def _notes(outputs: Iterable[RecordedOutput]) -> Iterator[str]:
    rows = list(outputs)
    if not all(o.prompt for o in rows):
        yield "The prompt is unknown: its length is taken as one token."
    if any(NO_TOKEN in o.tokens for o in rows):
        yield "The token ids are unknown: nothing can be copied from the text."
