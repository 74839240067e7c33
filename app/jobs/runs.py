"""A run as the page requests it (`RunRequest`) and watches it (`LiveRun`)."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from specscope.engine.checkpoints.progress import Progress
from specscope.engine.errors import ModelError, PairError, RunCancelled, SpecScopeError, UsageError
from specscope.engine.methods import METHODS
from specscope.engine.servers.address import ServerError
from specscope.engine.trace.events import Event, Footer, Header
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.database.live import LiveLog
from specscope.traces.facts.imported import with_unknown
from specscope.traces.judge.race import median_first

if TYPE_CHECKING:
    from specscope.engine.cluster.prompts import Prompt
    from specscope.engine.run.serving import Load

State = Literal["queued", "downloading", "loading", "running", "done", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run: prompts, method, settings, models and place."""

    method: str
    """Key of the method; empty to load the models only, or with a server."""
    prompt: Prompt
    """Text, or chat messages with role and content."""
    further: tuple[Prompt, ...] = ()
    """More prompts for the same run, for methods that decode batches."""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    runtime: str = "local-process"
    address: str | None = None
    """With the runtime `ray`, the head of the cluster; None for one of this machine alone."""
    profile: str | None = None
    profile_pair: str | None = None
    pair: str = "bundled"
    target: str | None = None
    """Directory or hub id; replaces the pair."""
    drafter: tuple[str, ...] = ()
    """Directories or hub ids, the first drafter first."""
    head: tuple[str, ...] = ()
    """Directories of drafting heads; a method uses the first of its kind."""
    group: str = ""
    server: str = ""
    """Address of a running server, which decodes with models of its own."""
    remote: bool = False
    """Whether it may be on another machine."""
    key: str | None = field(default=None, repr=False)
    """The server's key; None for that of the environment."""
    probabilities: bool = False
    """Whether the server is asked for p of the tokens."""
    load: Load | None = None
    """None if all prompts begin at once."""

    @property
    def decodes(self) -> bool:
        """Whether it is more than loading the models."""
        return bool(self.method or self.server)

    @property
    def title(self) -> str:
        """Its name before its header is known."""
        return METHODS[self.method].title if self.method else self.server

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models: a bundled pair, directories, GGUF files, short names or hub ids."""
        return () if self.server else (self.target or self.pair, *self.drafter)

    @property
    def place(self) -> tuple[tuple[str, str | tuple[str, ...] | None], ...]:
        """The arguments of `specscope.open`: requests with the same ones share a cluster."""
        names = ("pair", "target", "drafter", "head", "runtime", "address", "profile", "profile_pair")
        return tuple((name, getattr(self, name)) for name in names)


class LiveRun:
    """State, events and result of a run; safe to use from any thread.

    `name` is shown until the header names the method: that of the method, or of the file that
    another process writes.
    """

    def __init__(self, request: RunRequest, leave: Callable[[LiveRun], None], name: str = "") -> None:
        self.request = request
        self.name = name or request.title
        self.ticket = uuid.uuid4().hex[:12]
        """Id of the request; it exists before the run id."""
        self.run_id = ""
        """Id of the trace; empty until the run has begun."""
        self.state: State = "queued"
        self.position = 0
        """Place in the queue: 1 is next; 0 outside the queue."""
        self.progress: Progress | None = None
        """Progress of the download of its models; None without a download."""
        self.note = ""
        """What a run of another process waits for, or what became of it; else empty."""
        self.error = ""
        self.cause: BaseException | None = None
        self.stopped = threading.Event()
        self.settled = 0
        """How often its events were replaced by those of a whole trace."""
        self._log = LiveLog()
        self._leave = leave
        self._lock = threading.RLock()
        self._ended = threading.Event()

    @property
    def refused(self) -> bool:
        """Whether it never began because of an input; the page shows the error at Run."""
        wrong = UsageError | ModelError | PairError | ServerError
        return not self.run_id and isinstance(self.cause, wrong)

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def since(self, cursor: int) -> tuple[Sequence[Event], int]:
        return self._log.since(cursor)

    def trace(self) -> Trace | None:
        events, _ = self._log.since(0)
        if not events:
            return None
        trace = Trace.of(events)
        if self.ended:
            trace.footer = self._footer(trace)
        return with_unknown(trace)

    def result(self) -> Trace:
        """Return the trace of a run that has ended; raise the error of a failed or stopped one."""
        trace = self.trace()
        if self.state == "cancelled":
            raise RunCancelled("the run was stopped")
        if self.state == "failed" or trace is None:
            raise self.cause if isinstance(self.cause, SpecScopeError) else SpecScopeError(self.error)
        return trace

    def _footer(self, trace: Trace) -> Footer:
        status = "cancelled" if self.state == "cancelled" else "failed"
        if trace.footer is None:
            return trace.new_footer(status, self.error)
        if self.state == "failed" and trace.footer.status != "failed":
            return replace(trace.footer, status="failed", error=self.error)
        return trace.footer

    def cancel(self) -> None:
        """Stop the run: within one forward while it runs, at once before that."""
        self.stopped.set()
        self._leave(self)
        with self._lock:
            if self.state != "running":
                self.end("cancelled")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended; return False after `timeout` seconds."""
        return self._ended.wait(timeout)

    def append(self, event: Event) -> None:
        if isinstance(event, Header):
            self.run_id = event.run_id
        self._log.append(event)

    def settle(self, trace: Trace) -> None:
        """Take the events of a whole trace in place of those that were appended."""
        log = LiveLog()
        for event in trace.events():
            log.append(event)
        self._log, self.run_id = log, trace.header.run_id
        self.settled += 1

    def enter(self, state: State) -> bool:
        """Enter a state that is not final; return False if the run has ended."""
        with self._lock:
            if not self.ended:
                self.state, self.position = state, 0
            return not self.ended

    def show(self, progress: Progress) -> None:
        with self._lock:
            if self.enter("downloading"):
                self.progress = progress

    def end(self, state: State, cause: BaseException | None = None) -> None:
        """End the run in `state`; only the first call counts."""
        with self._lock:
            if not self.ended:
                self.state, self.cause, self.position = state, cause, 0
                self.error = one_line(cause) if cause else ""
                self._log.close()
                self._ended.set()


class Lane:
    """The runs of one pane: the passes of a method with its settings, in the order they run."""

    def __init__(self, runs: Sequence[LiveRun]) -> None:
        self.runs = tuple(runs)

    @property
    def request(self) -> RunRequest:
        return self.runs[0].request

    @property
    def number(self) -> int:
        """The pass that is shown, from 0: the first that has not ended, else the last one."""
        return next((i for i, run in enumerate(self.runs) if not run.ended), len(self.runs) - 1)

    @property
    def current(self) -> LiveRun:
        return self.runs[self.number]

    @property
    def name(self) -> str:
        """The name of the runs that have begun, for a viewer; empty before the first has."""
        return "~".join(run.run_id for run in self.runs if run.run_id)

    def trace(self) -> Trace | None:
        found = [trace for run in self.runs if (trace := run.trace()) is not None]
        return median_first(found)[0] if found else None


def lanes_of(runs: Iterable[LiveRun]) -> list[Lane]:
    """Return the lanes of a race's runs, in the order of their first passes."""
    lanes: list[list[LiveRun]] = []
    for run in runs:
        mine = next((lane for lane in lanes if lane[0].request == run.request), None)
        if mine is None:
            lanes.append([run])
        else:
            mine.append(run)
    return [Lane(lane) for lane in lanes]


def one_line(error: BaseException) -> str:
    """Return an error as one line; errors that are not SpecScope's get their type as prefix."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if isinstance(error, SpecScopeError) else f"{type(error).__name__}: {text}"
