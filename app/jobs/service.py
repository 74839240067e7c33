"""The service between page and engine: a queue of runs, one open cluster, recent and stored runs.

Runs that share the machine's devices would distort each other's times, so one run executes at a
time and the others wait in order of arrival. Virtual runs compute on the same cores and queue too.
A run whose models must be downloaded enters the queue after the download (`app/jobs/downloads.py`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specscope.app.jobs.downloads import Downloads, Resolve
from specscope.app.jobs.recordings import Follower, Recordings
from specscope.app.jobs.runs import LiveRun, RunRequest
from specscope.engine.checkpoints import catalog
from specscope.engine.checkpoints.sources import resolve
from specscope.engine.errors import OutOfMemory, UsageError
from specscope.engine.servers.address import ServerError
from specscope.engine.servers.session import connect
from specscope.engine.trace.events import Event
from specscope.engine.trace.trace import Trace
from specscope.traces.database.store import Store

if TYPE_CHECKING:
    from specscope.engine.cluster.prompts import Prompt

KEPT_RUNS = 64
"""Ended runs that are kept in memory; older ones are read from the database."""
MOST_HELD = 128
"""Traces that are kept in memory and are not stored, such as replays."""


class OpenCluster(Protocol):
    """An open cluster as the service uses it; `specscope.open` returns one."""

    def run(self, method: str, *prompts: Prompt, **settings: Any) -> Trace: ...

    def close(self) -> None: ...


OpenCluster = Callable[..., OpenCluster]


def open_cluster(**place: Any) -> OpenCluster:
    """Return `specscope.open(**place)`; the first call imports torch, which takes seconds."""
    import specscope

    return specscope.open(**place)


class Service:
    """Execute requests one at a time and store every trace, in memory only without a database."""

    def __init__(
        self,
        database: Path | None,
        open_cluster: OpenCluster = open_cluster,
        *,
        find_model: Resolve = resolve,
        recordings: Recordings | None = None,
    ) -> None:
        self.store = Store(database) if database is not None else None
        self.follower = Follower(recordings or Recordings(), self.store, self._admit)
        self._open = open_cluster
        self._cluster: tuple[object, OpenCluster] | None = None
        self._runs: OrderedDict[str, LiveRun] = OrderedDict()
        self._held: OrderedDict[str, Trace] = OrderedDict()
        self._queue: deque[LiveRun] = deque()
        self._changed = threading.Condition()
        self._downloads = Downloads(self._enqueue, find_model)
        self._preparing = False
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="specscope-runs", daemon=True)
        self._thread.start()

    def start(self, request: RunRequest) -> LiveRun:
        run = LiveRun(request, self._leave)
        with self._changed:
            if self._closing:
                raise UsageError("SpecScope is shutting down; start it again to run more")
            if not self._downloads.take(run):
                self._enqueue([run])
            self._runs[run.ticket] = run
        return run

    def _admit(self, run: LiveRun) -> None:
        """Show a run that another process executes."""
        with self._changed:
            self._forget()
            self._runs[run.ticket] = run

    def _enqueue(self, runs: Sequence[LiveRun]) -> None:
        with self._changed:
            for run in runs:
                # A run that waits for nothing but the models shows `loading`.
                if run.enter("loading" if self._preparing and not self._queue else "queued"):
                    self._queue.append(run)
            self._number()
            self._changed.notify()

    def download_of(self, name: str) -> LiveRun | None:
        with self._changed:
            return next(iter(self._waiting_for(name)), None)

    def stop_download(self, name: str) -> None:
        """Cancel all runs that wait for the download of a model, and so the download."""
        with self._changed:
            runs = self._waiting_for(name)
        for run in runs:
            run.cancel()

    def _waiting_for(self, name: str) -> list[LiveRun]:
        downloading = (run for run in self._runs.values() if run.state == "downloading")
        return [run for run in downloading if name in run.request.models]

    def remove(self, name: str) -> int:
        """Delete a model of the catalog; return its size in bytes.

        The bundled pair takes its place on the workers, which would otherwise keep the deleted
        files open.
        """
        with self._changed:
            users = [run for run in self._runs.values() if not run.ended and name in run.request.models]
            if any(run.request.decodes for run in users):
                raise UsageError(f"a run uses {name}; stop it first, or wait until it has ended")
            size = catalog.remove(name)
        for run in users:  # they only load the model
            run.cancel()
        self.start(RunRequest(method="", prompt=""))
        return size

    def find(self, ticket: str) -> LiveRun | None:
        with self._changed:
            same = (run for run in reversed(self._runs.values()) if run.run_id == ticket)
            return self._runs.get(ticket) or next(same, None)

    def race(self, group: str) -> list[LiveRun]:
        with self._changed:
            return [run for run in self._runs.values() if group and run.request.group == group]

    def trace(self, name: str) -> Trace | None:
        """Return the live or stored trace of a ticket or run id; None for an unknown one."""
        run = self.find(name)
        if run is not None:
            return run.trace()
        if (held := self._held.get(name)) is not None:
            return held
        return self.store.load(name) if self.store is not None else None

    def hold(self, traces: Sequence[Trace]) -> None:
        """Keep traces in memory that are not stored, the newest `MOST_HELD` of them."""
        with self._changed:
            self._held.update({trace.header.run_id: trace for trace in traces})
            while len(self._held) > MOST_HELD:
                self._held.popitem(last=False)

    def close(self) -> None:
        """Cancel all runs, end the workers and write all events to the database."""
        with self._changed:
            self._closing = True
            runs = list(self._runs.values())
            self._changed.notify()
        for run in runs:
            run.cancel()
        self.follower.close()
        self._downloads.close()
        self._thread.join()
        if self.store is not None:
            self.store.close()

    def _leave(self, run: LiveRun) -> None:
        self._downloads.leave(run)
        with self._changed:
            with suppress(ValueError):
                self._queue.remove(run)
            self._number()

    def _number(self) -> None:
        for position, run in enumerate(self._queue, 1):
            if run.state == "queued":
                run.position = position

    def _work(self) -> None:
        while (run := self._next()) is not None:
            try:
                self._execute(run)
            except BaseException as error:  # noqa: BLE001 - the next run must still work
                run.end("failed", error)
                if not isinstance(error, UsageError | OutOfMemory):
                    self._drop()
        self._drop()

    def _next(self) -> LiveRun | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            self._forget()
            if not self._queue:
                return None
            run = self._queue.popleft()
            self._preparing = not run.request.decodes
            self._number()
            return run

    def _forget(self) -> None:
        ended = [ticket for ticket, run in self._runs.items() if run.ended]
        for ticket in ended[: max(0, len(ended) - KEPT_RUNS)]:
            del self._runs[ticket]

    def _execute(self, run: LiveRun) -> None:
        request = run.request
        if request.server:
            self._ask(run)
            return
        if not run.enter("loading"):
            return
        cluster = self._cluster_for(request)
        if not run.enter("running"):
            return
        if not request.method:
            run.end("done")
            return
        more = {"load": request.load} if request.load else {}
        with self._listening(run) as listen:
            same = {name: getattr(request, name) for name in ("config", "sampling", "limits", "group")}
            prompts, watched = (request.prompt, *request.further), {"listener": listen, "cancel": run.stopped}
            trace = cluster.run(request.method, *prompts, **same, **watched, **more)
        run.end("cancelled" if trace.status == "cancelled" else "done")

    @contextmanager
    def _listening(self, run: LiveRun) -> Generator[Callable[[Event], None]]:
        """Yield what shows and stores the events of a run."""
        with self.store.listening() if self.store else nullcontext() as record:

            def listen(event: Event) -> None:
                run.append(event)
                if record is not None:
                    record(event)

            yield listen

    def _ask(self, run: LiveRun) -> None:
        """Send a run's prompts to its server; the models that were open leave it the machine."""
        request = run.request
        self._drop()
        server = connect(request.server, key=request.key, remote=request.remote)
        if not run.enter("running"):
            return
        with self._listening(run) as listen:
            same = {name: getattr(request, name) for name in ("sampling", "limits", "probabilities", "group")}
            trace = server.run(request.prompt, *request.further, **same, listener=listen, cancel=run.stopped)
        run.settle(trace)
        if self.store is not None:
            self.store.replace(trace)
        if trace.status == "failed" and trace.footer is not None:
            raise ServerError(trace.footer.error)
        run.end("cancelled" if trace.status == "cancelled" else "done")

    def _cluster_for(self, request: RunRequest) -> OpenCluster:
        if self._cluster is None or self._cluster[0] != request.place:
            self._drop()
            self._cluster = request.place, self._open(**dict(request.place), download=False)
        return self._cluster[1]

    def _drop(self) -> None:
        """Close the open cluster; ignore errors of a broken one."""
        if self._cluster is not None:
            cluster, self._cluster = self._cluster[1], None
            with suppress(Exception):
                cluster.close()
