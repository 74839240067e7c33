"""Ray actors as workers: one actor per device of a node.

A call's reply has two values: the answer, which comes to this process, and large data, which stays
in the object store; its reference is passed with the job that needs the data.
An actor that dies fails its jobs with `WorkerDied`, which names device and node. Ray reports a dead
process at once; a node that vanished or a worker that hangs is found by `check`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast

from specscope.engine.environment import release
from specscope.engine.errors import SpecScopeError, WorkerDied, one_line
from specscope.engine.runtimes.process import Setup
from specscope.engine.worker.jobs import (
    CONTROL,
    Connect,
    Drop,
    Fan,
    Import,
    Job,
    Judge,
    JudgeAll,
    Link,
    LoadModel,
    Preparation,
    Propose,
    Reply,
    Score,
    Stamp,
)
from specscope.engine.worker.worker import Pump

CONNECT_S = 2.0
START_S = 120.0
"""Seconds for the start of an actor: its node may be busy."""
LATE = 2
"""Checks without an answer after which a node is called."""
SILENT = 7
"""Checks without an answer after which a worker is given up."""
SLOW = LoadModel | Connect | Link
"""Jobs that may take long."""
SILENT_LONG = 60
"""The same while it has one of these."""
TRIPS = 16
"""Round trips of one comparison of clocks."""

Row: TypeAlias = tuple[str, int]
"""A row of q: the name of the worker that wrote it, and the row's number."""
Located: TypeAlias = Sequence[tuple[Row, int, int]]
"""(row of q, number of an array, index in the array) of each row that a job reads."""


def reachable(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True


class NodeClock(NamedTuple):
    """How a node's clock relates to this process's, in nanoseconds."""

    offset: int = 0
    """The node's clock minus this one."""
    uncertainty: int = 0
    """The offset is wrong by at most this."""

    def local(self, reply: Reply) -> Reply:
        if not self.offset:
            return reply
        judged = reply.judged and reply.judged._replace(stamps=self._here(reply.judged.stamps))
        return reply._replace(stamps=self._here(reply.stamps), judged=judged)

    def _here(self, stamps: Sequence[Stamp]) -> tuple[Stamp, ...]:
        return tuple(stamp.read(lambda time: time - self.offset) for stamp in stamps)


def compare(there: Callable[[], int], here: Callable[[], int] = time.perf_counter_ns) -> NodeClock:
    """Return the offset of a clock, read by `there` over a network, from the one read by `here`.

    The clock was read at some moment of the round trip. The middle of the fastest trip is wrong by
    half of that trip at most.
    """
    trips = [(here(), there(), here()) for _ in range(TRIPS)]
    sent, read, back = min(trips, key=lambda trip: trip[2] - trip[0])
    return NodeClock(read - (sent + back) // 2, (back - sent + 1) // 2)


@dataclass
class RayNode:
    """A node of a Ray cluster. All workers on it share its clock."""

    id: str
    name: str
    """Its name in labels and messages: `node 2 (10.0.0.7)`; empty if it is the only node."""
    address: str
    port: int
    """TCP port of its raylet, the process that starts its workers."""
    own: bool
    total: Mapping[str, float] = field(default_factory=dict[str, float])
    """Its resources by Ray's names."""
    free: Mapping[str, float] = field(default_factory=dict[str, float])
    """What nobody has reserved; a session's own reservations are not in it."""
    clock: NodeClock = field(default_factory=NodeClock)

    def answers(self) -> bool:
        return reachable(self.address, self.port)


class References:
    """Where the rows of q of a cluster's workers are.

    The reference of an old row goes when the row is leased again.
    """

    def __init__(self) -> None:
        self.session = secrets.token_hex(16)
        """A name that nobody can guess; the ranks of a split model find each other by it."""
        self._rows: dict[Row, tuple[Any, int]] = {}

    def put(self, name: str, job: Job, reference: Any) -> None:
        """Remember the reference to the rows of q that a worker's drafting job wrote."""
        for index, row in enumerate(written_rows(job)):
            self._rows[name, row] = reference, index

    def pack(self, job: Any) -> tuple[Any, Located, list[Any]]:
        """Return a job without its large data, the rows of q that it reads, and the references."""
        rows = {row: self._rows[row] for row in read_rows(job)}
        references = list(dict.fromkeys(reference for reference, _ in rows.values()))
        located = tuple((row, references.index(ref), index) for row, (ref, index) in rows.items())
        data = bytes_of(job)
        if data is None or isinstance(data, bytes):
            return job, located, references
        return with_bytes(job, ...), located, [*references, data]


def read_rows(job: Any) -> Iterator[Row]:
    """Yield each row of q that a job reads, once."""
    judges = (job,) if isinstance(job, Judge) else job.judges if isinstance(job, Score | JudgeAll) else ()
    tokens = (token for judge in judges for token in judge.draft.tokens)
    yield from dict.fromkeys((token.q.buffer, token.q.row) for token in tokens if token.q is not None)


class RayWorker(Pump):
    """A worker that is an actor; `references` is shared by the cluster's workers.

    `reserved`: the placement group and bundle of its device, for people.
    """

    def __init__(
        self, setup: Setup, node: RayNode, references: References, actor: Any, reserved: str = ""
    ) -> None:
        super().__init__(setup.name, setup.device)
        self.node = node
        self.reserved = reserved
        self._references = references
        self._ended: WorkerDied | None = None
        self._ping: Future[int] | None = None
        self._late = 0
        self._closed = False
        self._actor = actor
        self._started: Future[tuple[int, str]] = self.ask(_introduce)

    @property
    def ended(self) -> bool:
        return self._ended is not None

    def prepare(self, job: Preparation) -> Callable[[], Reply]:
        if isinstance(job, Link):  # its path is one of this machine
            job = replace(job, path=f"{self._references.session} {job.group}")
        wait = super().prepare(job)

        def take() -> Reply:
            self._wait_for_start()
            return wait()

        return take

    def _wait_for_start(self) -> None:
        if self.pid:
            return
        try:
            pid, found = self._started.result(timeout=START_S)
        except TimeoutError:
            raise SpecScopeError(
                f"the worker on {self._place} did not start in {START_S:g} s; its node may be overloaded, or its "
                "disk slow: Ray's logs on the node show more"
            ) from None
        except Exception as error:  # noqa: BLE001 - Ray's own errors
            raise self._death(cause(error)) from None
        self.pid = pid
        if found != (own := release("specscope")):
            where = self.node.name or "the node"
            raise SpecScopeError(
                f"{where} has SpecScope {found}, this machine {own}: install one version on both"
            )

    def ask(self, function: Callable[[], Any]) -> Future[Any]:
        """Call a function in the worker's process, beside its jobs; returns its future result."""
        return self._actor.call.options(concurrency_group="beside").remote(function).future()

    def answer(self, function: Callable[[], Any], within_s: float = SILENT_LONG) -> Any:
        """Call a function in the worker's process once it has started, and wait for the result."""
        self._wait_for_start()
        try:
            return self.ask(function).result(timeout=within_s)
        except Exception as error:  # noqa: BLE001 - Ray's own errors
            raise self._death(cause(error)) from None

    def align(self) -> None:
        """Compare the clock of its node with this process's."""
        if not self.node.own:
            self.node.clock = compare(lambda: self.answer(time.perf_counter_ns, SILENT))

    def _stop(self, number: int) -> None:
        if number in self._owed and self._ended is None:
            self._actor.stop.options(concurrency_group="beside").remote(number)

    def _post(self, number: int, job: Job, drops: Sequence[Drop]) -> None:
        """Send a job; its answer is a reply or error with a reference to large data."""
        if self._ended is not None:
            self._answer(number, self._ended)
            return
        group = {"concurrency_group": "control"} if self._is_control(job) else {}
        packed, rows, references = self._references.pack(job)
        handle = self._actor.handle.options(num_returns=2, **group)
        value, data = handle.remote(number, packed, rows, tuple(drops), *references)
        value.future().add_done_callback(partial(self._receive, number, data))

    def _is_control(self, job: Job) -> bool:
        forwards = [each for each, _ in self._owed.values() if isinstance(each, Score)]
        return isinstance(job, CONTROL) and not (
            isinstance(job, Judge) and any(0 <= job.scores - f.scores < len(f.prefixes) for f in forwards)
        )

    def _receive(self, number: int, data: Any, value: Future[Any]) -> None:
        """Deliver an answer; Ray calls this in a thread of its own."""
        error = value.exception()
        if error is not None:  # in another thread: finding the cause takes time, and Ray waits here
            threading.Thread(target=lambda: self._end(cause(error)), daemon=True).start()
            return
        self._answer(number, (value.result(), data))

    def _take(self, number: int) -> Reply:
        job = self._owed[number][0]
        value, data = cast("tuple[Any, Any]", super()._take(number))
        if isinstance(value, BaseException):
            raise value
        self._references.put(self.name, job, data)
        return self.node.clock.local(value._replace(value=data) if value.value is ... else value)

    def check(self) -> None:
        """Ask an actor that owes a reply for a sign of life. Call it once a second.

        It counts calls and compares no clocks: a laptop that slept raises no alarm.
        """
        owed = self._unanswered
        if not self.pid or not owed or self._ended is not None:
            self._ping, self._late = None, 0
        elif self._ping is None or self._ping.done():
            self._ping, self._late = self.ask(os.getpid), 0
        else:
            self._late += 1
            if self._late >= LATE and not self.node.answers():
                self._end("")
            elif self._late >= (SILENT_LONG if any(isinstance(job, SLOW) for job in owed) else SILENT):
                self.kill(f"did not answer for {self._late} s")

    def kill(self, why: str) -> None:
        """Kill the actor, from any thread. Its jobs fail with `WorkerDied` and this reason."""
        self._end(f"{why} and was killed")
        self._kill()

    def lose(self, why: str) -> None:
        """Fail its jobs with `WorkerDied` and this reason; the actor cannot be reached."""
        self._end(why)
        self._closed = True

    def close(self) -> None:
        """Kill the actor: it has no state to save."""
        self._ended = self._ended or self._death("was closed", look=False)
        self._kill()
        self._closed = True

    def _kill(self) -> None:
        import ray

        if not self._closed and ray.is_initialized():  # otherwise Ray would start a cluster
            with contextlib.suppress(ValueError):  # the actor is gone
                ray.kill(self._actor)

    def _end(self, how: str) -> None:
        """Fail all jobs, once."""
        self._ended = self._ended or self._death(how)
        self._fail(self._ended)

    def _death(self, how: str, *, look: bool = True) -> WorkerDied:
        if look and not self.node.answers():
            how = f"is gone: {self.node.name or 'its node'} does not answer"
        return self._died(how or "ended")


def _introduce() -> tuple[int, str]:
    """Return a worker's process id and release."""
    return os.getpid(), release("specscope")


def cause(error: BaseException) -> str:
    """Return in a few words what Ray reports of a call that failed."""
    from ray import exceptions

    if isinstance(error, exceptions.ActorUnavailableError):
        return "cannot be reached"
    if isinstance(error, exceptions.ActorDiedError) and "creation task" in str(error):
        last = one_line(str(error).rstrip().splitlines()[-1])
        missing = "; install SpecScope with the extra ray on its node" if "No module named" in last else ""
        return f"cannot start ({last}){missing}"
    if isinstance(error, exceptions.ActorDiedError):
        return "died"
    if isinstance(error, exceptions.ObjectLostError):
        return "lost the data of another worker that died"
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"failed ({text[:200]})"


def written_rows(job: Job) -> list[int]:
    """Return the rows of q that a drafting job may write, in order."""
    if not isinstance(job, Propose | Fan) or not job.sampled:
        return []
    return [row for rows in job.rows for row in rows]


def bytes_of(job: Any) -> Any:
    if isinstance(job, Import):
        return job.data
    stage = getattr(job, "stage", None)
    return None if stage is None else stage.states


def with_bytes(job: Any, data: Any) -> Any:
    if isinstance(job, Import):
        return replace(job, data=data)
    return replace(job, stage=job.stage._replace(states=data))
