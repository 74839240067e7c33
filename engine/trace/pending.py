"""Spans of a recording that wait for their end, or for their CUDA events."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from specscope.engine.trace.work import OpenSpan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from specscope.engine.trace.stream import Marks, Stream


class Pending:
    """Open spans, ended ones whose events may not have passed, and the streams of their devices."""

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        self.streams = streams
        self.open = set[OpenSpan]()
        self._waiting: list[tuple[OpenSpan, Marks]] = []

    def ends(self, work: OpenSpan) -> bool:
        """Take an open span; return False for another one."""
        if not isinstance(cast("object", work), OpenSpan) or work not in self.open:
            return False
        self.open.discard(work)
        return True

    def forget(self) -> None:
        """Forget all spans, in a forked child: they are its parent's."""
        self.open.clear()
        self._waiting.clear()

    def align(self) -> dict[str, dict[str, int]]:
        """Compare all streams with the host's clock; return the errors as the header has them."""
        return {name: {"uncertainty_ns": stream.align()} for name, stream in self.streams.items()}

    def add(self, work: OpenSpan, marks: Marks) -> None:
        self._waiting.append((work, marks))

    def passed(self, *, wait: bool) -> Iterator[OpenSpan]:
        """Yield the spans whose events have passed, or all of them; each then has its times."""
        for item in [*self._waiting]:
            work, marks = item
            if wait or marks.passed():
                self._waiting.remove(item)
                start, end = marks.times()
                work.start, work.end = start - work.track.base, end - work.track.base
                yield work
        if not self._waiting:
            for stream in self.streams.values():
                stream.renew()

    def left(self) -> str:
        """Return a message about the open spans; empty without one."""
        if not self.open:
            return ""
        first, others = min(self.open, key=lambda work: work.start), len(self.open) - 1
        return (
            f"the {first.track.kind} on {first.track.device} at {first.start / 1e6:.3f} ms has not ended"
            f"{f', nor have {others} others' if others else ''}; use `with rec.span(...)`, or rec.end(span)"
        )
