"""What the recording decided of a replay, what was drawn, and the notes that say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from specscope.engine.methods import METHODS
from specscope.engine.sampling.draws import TOP
from specscope.traces.facts.places import has_trees
from specscope.traces.whatif.rules import FIRST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specscope.engine.trace.events import Decision, Header
    from specscope.engine.trace.trace import Trace
    from specscope.traces.whatif.recording import RecordedRun
    from specscope.traces.whatif.script import Script


class Outcome(NamedTuple):
    """How far a recording decided a replay."""

    decided: int
    drawn: int
    """Tests of drafts that were drawn, from the recorded p and q or at the recorded rates."""
    differs: int | None
    """Index of the first token that a real run would draw anew; None if there is none."""
    notes: tuple[str, ...]


def unchanged(trace: Trace, *, same: bool) -> Outcome:
    """Return the outcome of a replay with the recorded rows, with `same` also their times."""
    if same:
        notes = ["Nothing is changed: the rows and times are those of the run."]
    else:
        notes = [
            "Forwards, rounds and tokens are the recorded ones; only their times are those of the cluster."
        ]
        if names := trace.header.environment.get("open"):
            notes.append(f"Not planned anew: {', '.join(names)}.")
    return Outcome(sum(map(_is_test, trace.decisions)), 0, None, tuple(notes))


def outcome(script: Script, replay: Trace) -> Outcome:
    """Return the outcome of a replay that drafted again.

    A draft without a drafter's span is copied, and the text decides about it. On tokens that a real
    run would draw anew, nothing is decided.
    """
    recording = script.recording
    same = _same_text(recording, replay)
    decided, tests, untested = 0, [d for d in replay.decisions if _is_test(d)], 0
    for d in tests:
        output, end = recording.outputs[d.sequence], same[d.sequence]
        index = d.position - len(output.prompt)
        copied, tested = d.draft_span < 0, index in output.known
        known = copied or (tested and recording.old == recording.new)
        decided += known and (end is None or index < end)
        untested += not (copied or tested)
    differs = min((i for i in same if i is not None), default=None)
    notes = (*_assumed(recording, replay, differs), *_drawn(script, replay, untested))
    return Outcome(decided, len(tests) - decided, differs, notes)


def _same_text(recording: RecordedRun, replay: Trace) -> list[int | None]:
    """Return the index of the first token of each output that a real run would draw anew, or None.

    A token has the same draws if both runs test a draft for it by rule 1, or neither does.
    """
    ratio = [
        {
            (d.sequence, d.position - len(recording.outputs[d.sequence].prompt))
            for d in trace.decisions
            if _is_test(d) and rule(d) == "ratio"
        }
        for trace, rule in (
            (recording.trace, lambda d: d.rule),
            (replay, lambda d: recording.new.rule if recording.new and d.draft_span >= 0 else FIRST),
        )
    ]
    changed = ratio[0] ^ ratio[1]
    return [
        min((i for s, i in changed if s == number and i < len(output.tokens)), default=None)
        for number, output in enumerate(recording.outputs)
    ]


def _is_test(d: Decision) -> bool:
    return d.node >= 0 and d.outcome in ("accepted", "rejected")


def _assumed(recording: RecordedRun, replay: Trace, differs: int | None) -> Iterator[str]:
    if differs is not None:
        yield (
            f"A real run would draw another text from token {differs + 1} on: the recorded text is one sample, and so "
            "are the outcomes of its drafts."
        )
    was, now = recording.trace.header.config, replay.header.config
    if recording.trace.header.method == replay.header.method and (
        anew := [n for n in recording.trace.header.environment.get("open", ()) if was.get(n) != now.get(n)]
    ):
        yield f"Planned anew: {', '.join(f'{n} {now.get(n)} (recorded {was.get(n)})' for n in anew)}."
    if replay.parts and not recording.trace.parts:
        yield "A layer-parallel drafter drafts worse than the recorded one; its drafts are taken as recorded."


def _drawn(script: Script, replay: Trace, untested: int) -> Iterator[str]:
    recording = script.recording
    if recording.old != recording.new:
        yield (
            "The acceptance rule or the drafting is another one: agreement is drawn from the recorded p and q."
        )
    if untested:
        yield (
            f"Drawn at the recorded rates: {untested} tests, of tokens for which the run tested no draft of its drafter."
        )
    if bounds(replay.header) and script.drawn:
        yield f"Drawn from the recorded q: how sure the drafter is of {len(script.drawn)} tokens."
    if has_trees(replay.decisions) or (replay.forks and not recording.own):
        yield (
            f"The drafter's next choices are known where the run tested a draft, at most {TOP - 1}; "
            "elsewhere they are drawn from those."
        )


def bounds(header: Header) -> list[str]:
    """Return the settings that end a replay's drafts at an uncertain token."""
    settings = METHODS[header.method].settings()
    return [s.name for s in settings if s.role in ("cut", "doubt") and header.config.get(s.name)]
