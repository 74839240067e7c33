"""A fake cluster without models: it answers with fixed words, at a given speed, or fails."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from specscope.engine.methods import METHODS
from specscope.engine.trace.events import Commit, Decision, Device, Footer, Header, Piece, Round, Span
from specscope.engine.trace.trace import Trace

WORDS = ("Once", " upon", " a", " time", ",", " a", " keeper", " lit", " the", " lamp", ".")
MS = 1_000_000
DEVICES = (
    Device("cpu:0", "drafter", "CPU core 0 · drafter", "cpu"),
    Device("cpu:1", "target", "CPU core 1 · target", "cpu"),
)
_ids = itertools.count(1)


@dataclass
class FakeCluster:
    """Commits one word per round; every third draft is rejected.

    Each round waits for `step`, if given, up to 20 s. After `error_after` rounds it raises `error`.
    """

    place: dict[str, Any] = field(default_factory=dict)
    delay: float = 0.0
    step: threading.Semaphore | None = None
    error: BaseException | None = None
    error_after: int = 0
    words: tuple[str, ...] = WORDS
    closed: bool = False
    ran: list[tuple[str, Any, dict[str, Any]]] = field(default_factory=list)

    def close(self) -> None:
        self.closed = True

    def run(self, method: str, prompt: Any, **settings: Any) -> Trace:
        assert not self.closed, "the cluster is closed"
        self.ran.append((method, prompt, settings))
        script = _Script(self.header(method, prompt, settings), settings["listener"])
        status, error = "done", None
        for number, word in enumerate(self.words):
            if self.error is not None and number == self.error_after:
                status, error = "failed", self.error
                break
            if not self._wait(settings["cancel"]):
                status = "cancelled"
                break
            script.round(word, drafts="drafter" in METHODS[method].uses)
        script.end(status, str(error or ""))
        if error is not None:
            raise error
        return script.trace

    def _wait(self, cancel: threading.Event) -> bool:
        if self.step is None:
            return not cancel.wait(self.delay)
        deadline = time.monotonic() + 20
        while not self.step.acquire(timeout=0.005):
            assert time.monotonic() < deadline, "the test did not release the fake cluster"
            if cancel.is_set():
                return False
        return not cancel.is_set()

    def header(self, method: str, prompt: Any, settings: dict[str, Any]) -> Header:
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        profile, entry = self.place.get("profile") or "", METHODS[method]
        return Header(
            run_id=f"fake{next(_ids):04d}",
            created=f"2026-07-01T10:00:{next(_ids) % 60:02d}.000+00:00",
            method=method,
            title=METHODS[method].title,
            config=dict(settings["config"]),
            prompts=(text,),
            prompt_ids=((1, 2, 3),),
            sampling={n: getattr(settings["sampling"], n) for n in settings["sampling"].__slots__},
            limits={n: getattr(settings["limits"], n) for n in settings["limits"].__slots__},
            runtime=self.place.get("runtime", "local-process"),
            profile=profile,
            devices=DEVICES,
            target_path="target",
            drafter_path="drafter",
            environment={"specscope": "test"},
            group=settings["group"],
            lossless=entry.lossless(entry.configure(settings["config"])) or settings["sampling"].greedy,
        )


class _Script:
    """Writes the rows of a toy run: 2 ms per draft, 8 ms per target forward."""

    def __init__(self, header: Header, listener: Any) -> None:
        self.trace, self._listener = Trace(header), listener
        self._spans, self._step, self._position = itertools.count(), 0, 3
        self._now = 0
        listener(header)
        for device, model in (("cpu:0", "drafter"), ("cpu:1", "target")):
            self.add(Span(next(self._spans), device, "prefill", 0, 10 * MS, model, 0, 0, 3, 0, "done"))
        self._now = 10 * MS

    def add(self, event: Any) -> None:
        self.trace.add(event)
        self._listener(event)

    def round(self, word: str, *, drafts: bool) -> None:
        self._step += 1
        step, now, token = self._step, self._now, 10 + self._position
        good, draft = self._step % 3 != 0, -1
        if drafts:
            draft = next(self._spans)
            self.add(Span(draft, "cpu:0", "draft", now, now + 2 * MS, "drafter", step, 0, 1, 3, "done"))
            now += 2 * MS
        verify = next(self._spans)
        self._now = now + 8 * MS
        self.add(Span(verify, "cpu:1", "verify", now, self._now, "target", step, 0, 1 + drafts, 3, "done"))
        origin = ("accepted" if good else "corrected") if drafts else "plain"
        at = (self._position, token)
        self.add(Piece(token, word))
        self.add(
            Round(
                step,
                0,
                "verify" if drafts else "plain",
                int(drafts),
                int(drafts and good),
                1,
                self._now,
                verify,
            )
        )
        if drafts:
            fate = "accepted" if good else "rejected"
            self.add(Decision(step, 0, 0, -1, *at, 0.8, 0.9, 0.5, "ratio", fate, draft, verify))
        if origin != "accepted":
            rule = "ratio" if drafts else "target"
            self.add(Decision(step, 0, -1, -1, *at, 0.8, None, 0.5, rule, origin, -1, verify))
        self.add(Commit(step, 0, *at, origin, word, self._now))
        self._position += 1

    def end(self, status: Any, error: str) -> None:
        self.add(Footer(status, ("length",), (self.trace.text,), self._now, error))


class FakeOpen:
    """Fake of `specscope.open`: returns the given clusters, then plain ones, and records them."""

    def __init__(self, *clusters: FakeCluster | BaseException, delay: float = 0.0) -> None:
        self.waiting = list(clusters)
        self.opened: list[FakeCluster] = []
        self.delay = delay
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, **place: Any) -> FakeCluster:
        assert self.gate.wait(20), "the test did not let the cluster load"
        cluster = self.waiting.pop(0) if self.waiting else FakeCluster(delay=self.delay)
        if isinstance(cluster, BaseException):
            raise cluster
        cluster.place = place
        self.opened.append(cluster)
        return cluster


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def commits(run: Any) -> int:
    """Return how many tokens a run has committed."""
    return sum(event.tag == "commit" for event in run.since(0)[0])
