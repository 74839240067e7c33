"""Spans of a recording: devices and their order in time, and which span drafted which token."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

from specscope.engine.errors import UsageError, shown
from specscope.engine.trace.events import DRAFTS, NO_DEVICES, SCORES, Device, SpanKind
from specscope.engine.trace.given import choice, text

if TYPE_CHECKING:
    from specscope.engine.trace.stream import Marks, Stream

KINDS: tuple[str, ...] = get_args(SpanKind)
ROLES = ("drafter", "target", "drafter+target")
MOST_DRAFTS = 4096
"""Spans of a sequence that wait for the round of their tokens; older ones are forgotten."""
_SIDES: dict[str, str] = {**dict.fromkeys(DRAFTS, "drafter"), **dict.fromkeys(SCORES, "target")}


class Track(NamedTuple):
    """What all spans of one kind on one device share."""

    kind: str
    device: str
    model: str
    """The side, `drafter` or `target`."""
    base: int
    """The device's clock at the run's start."""
    drafts: bool
    scores: bool
    text: str
    """The part of the span's line."""
    stream: Stream | None
    """The CUDA stream whose events are the times; None for the host's clock."""


NO_TRACK = Track("", "", "", 0, drafts=False, scores=False, text="", stream=None)
"""Of a recording that is switched off."""


class OpenSpan:
    """A span that has begun. As a context manager it ends with its block.

    `rows` and `context` may be set until it ends.
    """

    __slots__ = (
        "_finish",
        "context",
        "end",
        "id",
        "marks",
        "outcome",
        "rows",
        "sequence",
        "start",
        "step",
        "track",
    )

    def __init__(
        self,
        finish: Callable[[OpenSpan, str], None],
        number: int,
        track: Track,
        step: int,
        sequence: int,
        rows: int,
        context: int,
    ) -> None:
        self._finish, self.id, self.track, self.step = finish, number, track, step
        self.sequence, self.rows, self.context = sequence, rows, context
        self.start = self.end = -1
        """Nanoseconds since the run's start; -1 until they are known."""
        self.marks: Marks | None = None
        self.outcome = "done"

    def __enter__(self) -> OpenSpan:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._finish(self, "done")
            return
        with suppress(UsageError):  # the block's own error is the one to see
            self._finish(self, "cancelled")

    def __repr__(self) -> str:
        return f"the {self.track.kind} {self.id} on {self.track.device}"

    @property
    def line(self) -> bytes:
        """The span as a line of JSONL; ValueError or TypeError if a number is not whole."""
        return (
            f'{{"event":"span","id":{self.id},{self.track.text},"start":{self.start:d},"end":{self.end:d},'
            f'"step":{self.step},"sequence":{self.sequence:d},"rows":{self.rows:d},'
            f'"context":{self.context:d},"outcome":"{self.outcome}"}}\n'
        ).encode()


def devices_of(devices: Any) -> tuple[Device, ...]:
    """Return the devices of name -> role, or of roles; UsageError without a target."""
    if isinstance(devices, str) or not isinstance(devices, Iterable):
        name = devices if isinstance(devices, str) else "cuda:0"
        raise UsageError(
            f"devices is {shown(devices)}; give name -> role, such as {{{name!r}: 'drafter+target'}}"
        )
    given: Any = devices
    roles = dict[str, str]()
    for name, role in given.items() if isinstance(devices, Mapping) else ((role, role) for role in given):
        label = text("the name of a device", name)
        if label in NO_DEVICES:
            raise UsageError(f"a device is named {shown(label)}, which names no device; give another name")
        roles[label] = choice(f"the role of device {shown(name)}", role, ROLES)
    if not any("target" in role for role in roles.values()):
        raise UsageError(f"no device of {shown(dict(roles))} has the role target; name the target's device")
    return tuple(
        Device(name, role, name if name == role else f"{name} · {role}", _kind(name))
        for name, role in roles.items()
    )


def _kind(name: str) -> str:
    return "cuda" if name.startswith(("cuda", "gpu")) else "cpu"


class Devices:
    """The devices of a recording: what may run where, and that each does one thing at a time.

    Args:
        devices: Those of the header.
        bases: Each one's clock at the run's start.
        streams: Those whose times are CUDA events.
    """

    def __init__(
        self, devices: Sequence[Device], bases: Mapping[str, int], streams: Mapping[str, Stream]
    ) -> None:
        self._roles = {device.name: device.role for device in devices}
        self._bases, self._streams = bases, streams
        self._tracks: dict[tuple[str, str | None, str | None], Track] = {}
        self._last: dict[str, OpenSpan] = {}

    def track(self, kind: str, device: str | None, model: str | None) -> Track:
        """Return the track of a span; without `device`, the only device with a role for this kind.

        UsageError if there is none, or several.
        """
        try:
            found = self._tracks.get((kind, device, model))
        except TypeError:  # a list is in no table
            found = None
        if found is None:
            found = self._tracks[kind, device, model] = self._track(kind, device, model)
        return found

    def _track(self, kind: str, device: str | None, model: str | None) -> Track:
        choice("the kind of a span", kind, KINDS)
        if model is not None:
            choice("the model of a span", model, ROLES[:2])
        side = model or _SIDES.get(kind)
        if device is None:
            fits = [name for name, role in self._roles.items() if (side or "target") in role]
            if len(fits) > 1:
                raise UsageError(f"a {kind} may be on {', '.join(fits)}; give device=, one of these")
            device = fits[0] if fits else next(iter(self._roles))
        if not isinstance(cast("object", device), str) or device not in self._roles:
            raise UsageError(f"device {shown(device)} is not among {self._names}; name it in devices=")
        role = self._roles[device]
        side = side or ("drafter" if role == "drafter" else "target")
        if side not in role:
            raise UsageError(
                f"a {kind} is work of the {side}, but device {shown(device)} has the role {role}; "
                "give it drafter+target in devices=, or name another device"
            )
        text = json.dumps({"device": device, "kind": kind, "model": side}, separators=(",", ":"))[1:-1]
        kinds = kind in DRAFTS, kind in SCORES
        return Track(kind, device, side, self._bases[device], *kinds, text, self._streams.get(device))

    @property
    def _names(self) -> str:
        return ", ".join(self._roles)

    def ended(self, work: OpenSpan) -> None:
        """Check a span's times; UsageError if it overlaps the span before it on its device."""
        kind, device = work.track.kind, work.track.device
        if not 0 <= work.start <= work.end:
            raise UsageError(
                f"a {kind} on {device} lasts from {work.start} to {work.end} ns since the recording's start; "
                "give times of time.perf_counter_ns(), the start first"
            )
        last = self._last.get(device)
        if last is not None and work.start < last.end:
            raise UsageError(
                f"a {kind} on {device} starts at {work.start / 1e6:.3f} ms, but the {last.track.kind} there ends "
                f"at {last.end / 1e6:.3f} ms; end it before, or give each stream a device of its own"
            )
        self._last[device] = work


def _latest(spans: Iterable[OpenSpan] = ()) -> deque[OpenSpan]:
    return deque(spans, MOST_DRAFTS)


class Claims:
    """Which spans drafted the tokens of a round, and which one verified them."""

    def __init__(self) -> None:
        self._drafts: defaultdict[int, deque[OpenSpan]] = defaultdict(_latest)
        """Ended drafting spans by sequence that no round has claimed."""
        self._scoring: dict[int, OpenSpan] = {}
        self._claimed: dict[int, OpenSpan] = {}
        self._void: dict[int, int] = {}
        """Sequence -> its last token of the target's own: earlier drafts continue another text."""

    def began(self, verification: OpenSpan) -> None:
        self._scoring[verification.sequence] = verification

    def ended(self, work: OpenSpan, sequences: int) -> None:
        if work.outcome == "done":
            for sequence in range(sequences) if work.sequence < 0 else (work.sequence,):
                self._drafts[sequence].append(work)

    def scoring(self, sequence: int) -> OpenSpan | None:
        """Return the last verification that began, unless an earlier round was its."""
        both = (self._scoring.get(sequence), self._scoring.get(-1))
        begun = [work for work in both if work is not None and work.id >= 0]
        last = max(begun, key=lambda work: work.id, default=None)
        if last is None or last is self._claimed.get(sequence):
            return None
        self._claimed[sequence] = last
        return last

    def forget(self, sequence: int, ids: Sequence[int]) -> None:
        """Take spans that a round names itself, and those that no round can claim any more."""
        void = self._void.get(sequence, -1)
        self._take(sequence, lambda work: work.id not in ids and work.start >= void)

    def drafting(
        self, sequence: int, levels: Sequence[int], before: int, *, ahead: bool = False
    ) -> list[int]:
        """Return the span id of each drafted token, and forget the spans; -1 for an unknown one.

        The spans are those of the sequence that ended by `before` and began after its last token
        of the target's own. As many spans as tokens, or as levels of a tree, are one each;
        otherwise the tokens are split evenly. `levels` are those of the tokens, from 0. With
        `ahead` the first tokens of a draft are judged while it grows: they are one span each, and
        later spans stay for the next round.
        """
        void = self._void.get(sequence, -1)
        taken = self._take(sequence, lambda work: work.start >= void and work.end > before)
        ready = [work for work in taken if work.start >= void]
        if ahead:
            self._drafts[sequence].extendleft(reversed(ready[len(levels) :]))
            del ready[len(levels) :]
        ids, depth = [work.id for work in ready], max(levels, default=-1) + 1
        if not ids:
            return [-1] * len(levels)
        if len(ids) == depth:
            return [ids[level] for level in levels]
        return [ids[i * len(ids) // len(levels)] for i in range(len(levels))]

    def _take(self, sequence: int, kept: Callable[[OpenSpan], bool]) -> list[OpenSpan]:
        """Take the spans that are not kept; threads may add spans meanwhile."""
        spans = self._drafts[sequence]
        taken = [spans.popleft() for _ in range(len(spans))]
        spans.extendleft(reversed([work for work in taken if kept(work)]))
        return [work for work in taken if not kept(work)]

    def restart(self, sequence: int, time: int) -> None:
        self._void[sequence] = time
