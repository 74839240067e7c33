"""The Load tab's settings as runs under load. Without Gradio."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from app import pairs
from app.loaded import batch_sizes, parse_arrivals, poisson
from app.runs import RunRequest
from app.tabs.plan import VIRTUAL
from engine.bounds import check_prompt
from engine.errors import UsageError, shown
from engine.methods import BASELINE, METHODS
from engine.run.serving import CHUNK, Load, under_load
from engine.simulate.profile import Profile, profiles
from engine.types import Limits, Sampling, check_range

if TYPE_CHECKING:
    import threading

    from app.runs import LiveRun
    from app.service import Service
    from engine.trace.trace import Trace

PROMPTS = Path(__file__).parents[2] / "assets" / "prompts" / "bench.json"
AT_ONCE, RATE, TIMES = "at once", "rate", "times"
"""How requests arrive."""
MOST_METHODS = 5
"""Methods beside plain decoding."""
MOST_SIZES = 8
"""Batch sizes."""
MOST_REQUESTS = 256
MOST_TOKENS = 256
"""New tokens of a request."""
MOST_MS = 3_600_000
"""Largest limit of a latency."""


class Settings(NamedTuple):
    """The values of the tab's controls."""

    methods: Sequence[str]
    models: str
    profile: str
    """A profile's name, or the value for this machine."""
    profile_pair: str
    """The modelled pair; the profile's default if empty."""
    arriving: str
    """`AT_ONCE`, `RATE` or `TIMES`."""
    rate: float | None
    """Requests per second."""
    times: str
    """A time in seconds a line."""
    requests: float | None
    sizes: str
    """Batch sizes, separated by commas."""
    tokens: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    prompts: str
    """One a line; the bench's if empty."""


class Cell(NamedTuple):
    """One run of the plan."""

    method: str
    batch: int


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Runs that can begin, in their order: all methods with the smallest batch first."""

    cells: tuple[Cell, ...]
    arrivals: tuple[float, ...]
    request: RunRequest
    """What all runs share; `prompt` and `further` are the requests' prompts."""
    ttft_ms: float
    tpot_ms: float

    def start(self, cell: Cell, service: Service, group: str) -> LiveRun:
        """Queue a run."""
        load = (self.arrivals, cell.batch, CHUNK)
        return service.start(replace(self.request, method=cell.method, load=load, group=group))


def servable() -> list[str]:
    """Return the keys of the methods that run under load with their default settings."""
    found = list[str]()
    for key, method in METHODS.items():
        try:
            under_load(key, method.layout(method.configure({})), Load((0.0,)), 1)
        except UsageError:
            continue
        found.append(key)
    return found


def plan_of(given: Settings, here: str) -> LoadPlan:
    """Return the checked runs of the settings.

    Args:
        given: The values of the controls.
        here: The profile's value for measured runs on this machine.

    Raises:
        UsageError: A value is wrong.
    """
    if given.profile not in (here, *profiles()):  # a path would name a file of the server
        raise UsageError(f"there is no profile {shown(given.profile)}; choose one of {', '.join(profiles())}")
    methods, sizes = _methods(given), batch_sizes(given.sizes, "a batch size")
    check_range("the number of batch sizes", len(sizes), 1, MOST_SIZES)
    tokens = _whole("new tokens", given.tokens, MOST_TOKENS)
    arrivals, prompts = _arrivals(given), _prompts(given)
    limits = [
        _limit(*one) for one in (("the limit of TTFT", given.ttft_ms), ("the limit of TPOT", given.tpot_ms))
    ]
    place: dict[str, Any] = {}
    if given.profile != here:
        Profile.load(given.profile).latency(given.profile_pair or None)
        place = {
            "runtime": VIRTUAL,
            "profile": given.profile,
            "profile_pair": given.profile_pair or None,
        }
    first, *further = [[{"role": "user", "content": prompts[i % len(prompts)]}] for i in range(len(arrivals))]
    request = RunRequest(
        method=BASELINE,
        prompt=first,
        further=tuple(further),
        sampling=Sampling(),
        limits=Limits(tokens),
        pair=given.models,
        **place,
    )
    cells = tuple(Cell(key, batch) for batch in sizes for key in (BASELINE, *methods))
    return LoadPlan(cells, tuple(arrivals), request, *limits)


def serve(
    plan: LoadPlan, service: Service, stop: threading.Event
) -> Iterator[tuple[Cell, LiveRun, Trace | None]]:
    """Execute the runs one after the other.

    Yields:
        The cell and its run, several times while it waits and runs, and at its end with the trace.

    Raises:
        RunCancelled: `stop` was set.
        SpecScopeError: A run failed.
    """
    groups = {cell.batch: uuid.uuid4().hex[:12] for cell in plan.cells}
    for cell in plan.cells:
        run = plan.start(cell, service, groups[cell.batch])
        try:
            while not run.wait(0.25):
                if stop.is_set():
                    run.cancel()
                yield cell, run, None
        finally:
            if not run.ended:  # the page was closed
                run.cancel()
        yield cell, run, run.result()


def _methods(given: Settings) -> list[str]:
    """Return the chosen methods without plain decoding, which is always run."""
    methods = [key for key in dict.fromkeys(map(str, given.methods or ())) if key != BASELINE]
    check_range("the number of methods", len(methods), 1, MOST_METHODS)
    if given.models not in pairs.NAMES:
        raise UsageError(f"there are no models {shown(given.models)}; choose one of {', '.join(pairs.NAMES)}")
    for key in methods:
        if key not in servable():
            raise UsageError(f"{shown(key)} does not run under load; choose one of {', '.join(servable())}")
        if lacking := pairs.lacks(given.models, METHODS[key].layout(METHODS[key].configure({}))):
            raise UsageError(
                f"{METHODS[key].title} needs {lacking}, and {pairs.label(given.models)} has none; choose another method "
                "or other models"
            )
    return methods


def _arrivals(given: Settings) -> list[float]:
    """Return the seconds of the requests."""
    if given.arriving == TIMES:
        times = [one.seconds for one in parse_arrivals(str(given.times or ""), "the list of times")]
        check_range("the number of times", len(times), 1, MOST_REQUESTS)
        return times
    count = _whole("requests", given.requests, MOST_REQUESTS)
    if given.arriving == RATE:
        return poisson(float(given.rate or 0), count, seed=0)
    if given.arriving != AT_ONCE:
        raise UsageError(f"requests arrive {shown(given.arriving)}; choose {AT_ONCE}, {RATE} or {TIMES}")
    return [0.0] * count


def _prompts(given: Settings) -> list[str]:
    """Return the prompts, which requests take in turn."""
    prompts = [line.strip() for line in str(given.prompts or "").splitlines() if line.strip()]
    for prompt in prompts:
        check_prompt(prompt)
    return prompts or json.loads(PROMPTS.read_text(encoding="utf-8"))["prompts"]


def _whole(name: str, value: float | None, most: int) -> int:
    number = int(value or 0)
    check_range(name, number, 1, most)
    return number


def _limit(name: str, value: float | None) -> float:
    limit = float(value or 0)
    check_range(f"{name} in ms", limit, 0, MOST_MS, exclusive=True)
    return limit
