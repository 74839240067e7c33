"""The difference of two runs: by token, by time, and by the work and waits of each device.

A device works or waits at every moment of decoding. So the changes of its kinds of work and of its
reasons to wait sum exactly to the difference of the two decoding times: its waterfall.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import asdict, dataclass
from itertools import zip_longest
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple

from specscope.engine.errors import UsageError
from specscope.traces.facts import fates, waiting
from specscope.traces.facts.comparable import conditions, differences
from specscope.traces.facts.imported import NO_TOKEN, is_foreign, is_timed
from specscope.traces.facts.joined import joined
from specscope.traces.judge.audit import TIE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specscope.engine.trace.events import Commit, Device, Top
    from specscope.engine.trace.trace import Trace

NEAR = 0.25
"""Difference of two logits up to which the rounding of bfloat16 may decide."""
TINY = 1e-6
"""Least probability that is told from 0."""
MOMENTS = 10
"""Moments of the longer run at which both runs are compared."""


_WAITS = {
    "draft": "waits for the drafter",
    "verify": "waits for the target",
    "communication": "waits for data to be moved",
    "queue": "waits for its turn",
    "host": "waits for the host",
}


@dataclass(frozen=True, slots=True)
class WaterfallStep:
    """One step of a waterfall: a kind of work, or a reason to wait. Times are nanoseconds."""

    what: str
    wait: bool
    first: int
    second: int

    @property
    def label(self) -> str:
        return _WAITS[self.what] if self.wait else self.what

    @property
    def change(self) -> int:
        return self.second - self.first


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The steps of two devices with the same role, one of each run."""

    role: str
    devices: tuple[str, str]
    steps: tuple[WaterfallStep, ...]
    """Work first, then waits; the changes sum to the difference of the decoding times."""


class Candidate(NamedTuple):
    """A token with its probability."""

    token: int
    text: str
    p: float

    @property
    def name(self) -> str:
        return named(self.token, self.text)


def named(token: int | None, text: str) -> str:
    """Return a token's text and id, as far as they are known."""
    known = "" if token in (None, NO_TOKEN) else f"{token}"
    return f"{text!r} ({known})" if text and known else known or repr(text)


@dataclass(frozen=True, slots=True)
class Side:
    """A run at the first token that differs."""

    token: int | None
    """None after the run's last token."""
    text: str
    origin: str
    p: Sequence[Candidate]
    q: Sequence[Candidate]

    @property
    def name(self) -> str:
        return named(self.token, self.text)

    def lead(self, other: int | None) -> float | None:
        """Return how far the token's logit of the target is above another's; None if unknown."""
        chances: dict[int | None, float] = {candidate.token: candidate.p for candidate in self.p}
        mine, theirs = chances.get(self.token), chances.get(other)
        return log(mine / theirs) if mine and theirs else None

    @property
    def least_lead(self) -> float:
        """How far it is at least above that of a token of unknown p, which is not in the list."""
        chances = [candidate.p for candidate in self.p]
        mine = next((c.p for c in self.p if c.token == self.token), 0.0)
        return log(mine / max(min(*chances, 1 - sum(chances)), TINY)) if mine else 0.0


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first token of a sequence that is not the same."""

    sequence: int
    index: int
    sides: tuple[Side, Side]
    greedy: bool
    """Whether both runs are of temperature 0: then only rounding may part them."""

    @property
    def sentence(self) -> str:
        """Whether it is a tie of the target's two best tokens; empty above temperature 0."""
        first, second = self.sides
        leads = [lead for lead in (first.lead(second.token), second.lead(first.token)) if lead is not None]
        if not self.greedy or None in (first.token, second.token):
            return ""
        least = sum(max(0.0, side.least_lead) for side in self.sides)
        if not leads and least <= NEAR:
            return "Whether it is a tie is unknown: neither run has the target's p of both tokens."
        for name, side in zip(("first", "second"), self.sides, strict=True):
            best = max(side.p, key=lambda one: one.p, default=None)
            if best and -(side.lead(best.token) or 0.0) > TIE:
                return f"Not a tie: by its own p, the target of the {name} run prefers {best.name}."
        gap, bound = (sum(leads), "") if leads else (least, "at least ")
        apart = f"the target's logits of the two tokens would have to move by {bound}{abs(gap):.2g}"
        if gap <= TIE:
            return f"A tie: {apart}, so rounding alone decides."
        if gap <= NEAR:
            return (
                f"Perhaps a tie: {apart}; at 16 to 32, bfloat16 has steps of 0.125, float32 far smaller ones."
            )
        return f"Not a tie: {apart}, which rounding does not do."


@dataclass(frozen=True, slots=True)
class Diff:
    """The difference of two runs; `second - first` throughout."""

    runs: tuple[str, str]
    not_comparable: tuple[str, ...]
    """Conditions that differ, so that a ratio of the two speeds means nothing."""
    tokens: tuple[int, int]
    decode: tuple[int, int]
    waterfalls: tuple[Waterfall, ...]
    by_token: tuple[tuple[int, int], ...]
    """Of each token of the first sequence that both have: nanoseconds of decoding until then."""
    by_time: tuple[tuple[int, int, int], ...]
    """(nanoseconds of decoding, tokens of the first run until then, of the second)."""
    first_difference: FirstDifference | None
    """None if the texts are the same, or their ids are unknown."""
    prefilled: tuple[int, int]
    """Tokens that a forward of the prefill decided: its time is not in the difference."""

    @property
    def notes(self) -> list[str]:
        """Sentences about work that the difference leaves out."""
        return [
            f"Not in the difference: the prefill of the {order} run, which decided {n} token{'s' if n > 1 else ''}."
            for order, n in zip(("first", "second"), self.prefilled, strict=True)
            if n
        ]

    @property
    def difference(self) -> int:
        """Nanoseconds that the second run decoded longer."""
        return self.decode[1] - self.decode[0]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; times are in milliseconds."""

        def steps(waterfall: Waterfall) -> list[dict[str, Any]]:
            return [
                {
                    "what": s.what,
                    "wait": s.wait,
                    "first_ms": s.first / 1e6,
                    "second_ms": s.second / 1e6,
                    "change_ns": s.change,
                }
                for s in waterfall.steps
            ]

        return {
            "runs": list(self.runs),
            "comparable": not self.not_comparable,
            "not_comparable": list(self.not_comparable),
            "tokens": list(self.tokens),
            "decode_ms": [time / 1e6 for time in self.decode],
            "difference_ns": self.difference,
            "waterfalls": [
                {"role": w.role, "devices": list(w.devices), "steps": steps(w)} for w in self.waterfalls
            ],
            "by_token_ms": [[time / 1e6 for time in pair] for pair in self.by_token],
            "by_time": [[time / 1e6, *counts] for time, *counts in self.by_time],
            "first_difference": _plain(self.first_difference) if self.first_difference else None,
        }


def _plain(found: FirstDifference) -> dict[str, Any]:
    sides = [
        {**asdict(side), "p": [c._asdict() for c in side.p], "q": [c._asdict() for c in side.q]}
        for side in found.sides
    ]
    return {**asdict(found), "sides": sides, "sentence": found.sentence}


def diff(first: Trace, second: Trace) -> Diff:
    """Return the difference of two runs; UsageError if one is in progress or has no times."""
    for trace in (first, second):
        if trace.footer is None:
            raise UsageError(f"run {trace.header.run_id} is still in progress; wait until it has ended")
        if not is_timed(trace.header):
            raise UsageError(
                f"run {trace.header.run_id} has no times: its file holds none; replay it with `specscope whatif`"
            )
    windows = [waiting.decode_window(trace) for trace in (first, second)]
    begun = [(trace.commits, start) for trace, (start, _) in zip((first, second), windows, strict=True)]
    until = [[c.time - start for c in commits] for commits, start in begun]
    own = [[c.time - start for c in commits if c.sequence == 0] for commits, start in begun]
    foreign = is_foreign(first.header) or is_foreign(second.header)
    longest = max(end - start for start, end in windows)
    moments = [longest * (i + 1) // MOMENTS for i in range(MOMENTS)]
    return Diff(
        (first.header.run_id, second.header.run_id),
        ("engine",) if foreign else tuple(differences(conditions([first]), conditions([second]))),
        (len(first.commits), len(second.commits)),
        (windows[0][1] - windows[0][0], windows[1][1] - windows[1][0]),
        tuple(_waterfalls(first, second)),
        tuple(zip(*own, strict=False)),
        tuple((t, bisect_right(sorted(until[0]), t), bisect_right(sorted(until[1]), t)) for t in moments),
        _first_difference(first, second),
        (fates.prefilled(first, before=True), fates.prefilled(second, before=True)),
    )


def _waterfalls(first: Trace, second: Trace) -> list[Waterfall]:
    """Return the waterfall of each pair of devices with the same role, the target's first.

    Devices without a counterpart are left out, such as the drafter of one run only.
    """
    parts = [_parts(first), _parts(second)]
    paired = list[Waterfall]()
    for role in ("target", "drafter"):
        devices = [_with_role(trace, role) for trace in (first, second)]
        for mine, theirs in zip(*devices, strict=False):
            known = {*parts[0][mine.name], *parts[1][theirs.name]}
            steps = (
                WaterfallStep(
                    what,
                    wait,
                    parts[0][mine.name].get((wait, what), 0),
                    parts[1][theirs.name].get((wait, what), 0),
                )
                for wait, what in sorted(known)
            )
            paired.append(Waterfall(role, (mine.label, theirs.label), tuple(steps)))
    return paired


def _with_role(trace: Trace, role: str) -> list[Device]:
    """Return the devices of a role; a device with both models counts as the target's."""
    names = {"target": ("target", "drafter+target"), "drafter": ("drafter",)}[role]
    return [d for d in trace.header.devices if d.role in names]


def _parts(trace: Trace) -> dict[str, dict[tuple[bool, str], int]]:
    """Return the nanoseconds of each device by (whether it waits, kind of work or reason)."""
    parts = {
        device: {(False, kind): time for kind, time in kinds.items()}
        for device, kinds in waiting.work(trace).items()
    }
    for wait in waiting.timeline(trace).waits:
        times = parts[wait.device]
        times[True, wait.reason] = times.get((True, wait.reason), 0) + wait.end - wait.start
    return parts


def _first_difference(first: Trace, second: Trace) -> FirstDifference | None:
    count = max(len(first.header.prompts), len(second.header.prompts))
    greedy = all(trace.header.sampling.get("temperature") == 0 for trace in (first, second))
    for sequence in range(count):
        rows = [[c for c in trace.commits if c.sequence == sequence] for trace in (first, second)]
        for index, (mine, theirs) in enumerate(zip_longest(*rows)):
            ids = (mine.token if mine else None, theirs.token if theirs else None)
            if NO_TOKEN in ids:
                break
            if ids[0] != ids[1]:
                sides = (_side(first, mine), _side(second, theirs))
                return FirstDifference(sequence, index, sides, greedy)
    return None


def _side(trace: Trace, commit: Commit | None) -> Side:
    if commit is None:
        return Side(None, "", "", (), ())
    decisions = [d for d in joined(trace).of(commit).decisions if d.position == commit.position]
    kept = next((d for d in decisions if d.outcome not in ("rejected", "discarded")), None)
    p = _known(kept.top_p, kept.token, kept.p) if kept else ()
    q = next((known for d in decisions if (known := _known(d.top_q, d.token, d.q))), ())
    text = trace.pieces.get(commit.token, commit.text)
    return Side(commit.token, text, commit.origin, _named(p, trace.pieces), _named(q, trace.pieces))


def _known(top: Top, token: int, probability: float | None) -> Top:
    """Return the most probable tokens, and the decided one, if its chance is known."""
    return top if probability is None or token in dict(top) else (*top, (token, probability))


def _named(top: Top, pieces: Mapping[int, str]) -> list[Candidate]:
    return [Candidate(token, pieces.get(token, ""), probability) for token, probability in top]
