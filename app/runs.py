"""One run as the page asks for it and sees it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from engine.errors import SpecScopeError
from engine.trace.events import Event, Footer, Header
from engine.trace.trace import Trace
from engine.types import Limits, Sampling
from traces.live import LiveLog

if TYPE_CHECKING:
    from engine.cluster.prompts import Prompt
    from engine.model.hub import Progress

State = Literal["queued", "downloading", "loading", "running", "done", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run: what to decode, how, and where."""

    method: str
    """Key of the method; empty to do no more than load the models."""
    prompt: Prompt
    """Text, or chat messages with role and content."""
    further: tuple[Prompt, ...] = ()
    """Decoded in the same run, by a method for batches."""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    runtime: str = "local-process"
    profile: str | None = None
    """Latency profile of a virtual cluster."""
    profile_pair: str | None = None
    pair: str = "bundled"
    target: str | None = None
    """Directory or hub id; replaces the pair."""
    drafter: tuple[str, ...] = ()
    """Directories or hub ids, the first drafter first."""
    head: tuple[str, ...] = ()
    """Directories of drafting heads; a method takes the first of its kind."""
    group: str = ""
    """Runs of one comparison share this."""

    @property
    def models(self) -> tuple[str, ...]:
        """What names the models: directories, GGUF files, short names or hub ids. A bundled pair is none of these."""
        return (self.target or self.pair, *self.drafter)

    @property
    def place(self) -> tuple[tuple[str, str | tuple[str, ...] | None], ...]:
        """The arguments of `engine.open`: requests with the same ones share a cluster."""
        names = ("pair", "target", "drafter", "head", "runtime", "profile", "profile_pair")
        return tuple((name, getattr(self, name)) for name in names)


class LiveRun:
    """One run as the page sees it; safe to use from any thread."""

    def __init__(self, request: RunRequest, leave: Callable[[LiveRun], None]) -> None:
        self.request = request
        self.ticket = uuid.uuid4().hex[:12]
        """Names the run from the moment it is asked for."""
        self.run_id = ""
        """Names its trace; empty until the run has begun."""
        self.state: State = "queued"
        self.position = 0
        """Place in the queue: 1 is the next one; 0 once it left the queue."""
        self.progress: Progress | None = None
        """How far the download of its models is; None without a download."""
        self.error = ""
        """Why it failed, in one line."""
        self.cause: BaseException | None = None
        self.stopped = threading.Event()
        """Set when the person asked for the end."""
        self._log = LiveLog()
        self._leave = leave
        self._lock = threading.RLock()
        self._ended = threading.Event()

    @property
    def ended(self) -> bool:
        """Whether its state is final."""
        return self._ended.is_set()

    def since(self, cursor: int) -> tuple[Sequence[Event], int]:
        """Return the events from `cursor` on, and the cursor to ask with next."""
        return self._log.since(cursor)

    def trace(self) -> Trace | None:
        """Return what is known of the run; None before its header."""
        events, _ = self._log.since(0)
        if not events:
            return None
        trace = Trace.of(events)
        if self.ended:
            trace.footer = self._footer(trace)
        return trace

    def _footer(self, trace: Trace) -> Footer:
        """Return the trace's footer, or what it must be when the engine could not tell how the run ended."""
        status = "cancelled" if self.state == "cancelled" else "failed"
        if trace.footer is None:
            return trace.new_footer(status, self.error)
        if self.state == "failed" and trace.footer.status != "failed":
            return replace(trace.footer, status="failed", error=self.error)
        return trace.footer

    def cancel(self) -> None:
        """Ask for the end: at once while it waits, downloads or loads, within one forward while it runs."""
        self.stopped.set()
        self._leave(self)
        with self._lock:
            if self.state != "running":
                self.end("cancelled")

    def wait(self, timeout: float | None = None) -> bool:
        """Return True once it ended, False when `timeout` seconds passed first."""
        return self._ended.wait(timeout)

    def append(self, event: Event) -> None:
        """Take one event of the engine."""
        if isinstance(event, Header):
            self.run_id = event.run_id
        self._log.append(event)

    def enter(self, state: State) -> bool:
        """Go on to `queued`, `loading` or `running`; False when it ended meanwhile."""
        with self._lock:
            if not self.ended:
                self.state, self.position = state, 0
            return not self.ended

    def show(self, progress: Progress) -> None:
        """Take how far the download of its models is."""
        with self._lock:
            if self.enter("downloading"):
                self.progress = progress

    def end(self, state: State, cause: BaseException | None = None) -> None:
        """Make `state` final; the first call wins."""
        with self._lock:
            if not self.ended:
                self.state, self.cause, self.position = state, cause, 0
                self.error = one_line(cause) if cause else ""
                self._log.close()
                self._ended.set()


def one_line(error: BaseException) -> str:
    """Return what to tell a person of an error: its own words if it is one of ours, else its type as well."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if isinstance(error, SpecScopeError) else f"{type(error).__name__}: {text}"
