"""The Lab's settings as a sweep and what executes its runs. Without Gradio."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from app import pairs
from app.runs import RunRequest
from app.tabs.plan import MOST_PASSES, VIRTUAL
from engine.bounds import check_prompt
from engine.errors import UsageError, shown
from engine.methods import METHODS
from engine.pairs.forms import FORMS
from engine.simulate.profile import Profile, profiles
from engine.types import Limits, check_range
from traces.lab.axes import ACCEPTANCE, USUAL, axis, sweepable
from traces.lab.points import Point, points_of
from traces.lab.sweep import MOST_TOKENS, Scripted, Sweep

if TYPE_CHECKING:
    import threading

    from app.service import Service
    from engine.methods import Method
    from engine.trace.trace import Trace
    from traces.lab.sweep import Job, Runner

MODELS_ROW = "none"
"""Value of the second axis for a sweep over one field."""
MOST_PROMPTS = 8
MOST_RUNS = 240
"""Most runs of a sweep with models, plain decoding included: others wait meanwhile."""


class Settings(NamedTuple):
    """The values of the tab's controls."""

    method: str
    field: str
    values: str
    rows: str
    """Second axis: a field, `ACCEPTANCE`, `DRAFTER` or `MODELS_ROW`."""
    row_values: str
    profile: str
    """A profile's name, or the value for this machine."""
    pair: str
    """The modelled pair; the profile's default if empty."""
    tokens: float | None
    seeds: float | None
    models: str
    prompts: str
    passes: float | None


class Work(NamedTuple):
    """A sweep that can begin."""

    plan: Sweep
    run: Runner
    points: list[Point]


def work_of(given: Settings, here: str, service: Service, stop: threading.Event) -> Work:
    """Return the checked sweep of the settings.

    Args:
        given: The values of the controls.
        here: The profile's value for measured runs on this machine.
        service: Executes runs with models, one at a time.
        stop: Set when the sweep shall end.

    Raises:
        UsageError: A value is wrong.
    """
    if given.profile not in (here, *profiles()):  # a path would name a file of the server
        raise UsageError(f"there is no profile {shown(given.profile)}; choose one of {', '.join(profiles())}")
    if given.method not in sweepable():
        raise UsageError(f"{shown(given.method)} has no sweep; choose one of {', '.join(sweepable())}")
    method, scripted = METHODS[given.method], given.rows == ACCEPTANCE
    prompts = [line.strip() for line in str(given.prompts or "").splitlines() if line.strip()]
    samples = int(given.seeds or 0) if scripted else 1 if method.batched else len(prompts)
    measured = given.profile == here
    passes = int(given.passes or 0)
    check_range("passes", passes, 1, MOST_PASSES)
    plan = Sweep(
        given.method,
        axis(method, str(given.field), str(given.values)),
        None if given.rows == MODELS_ROW else axis(method, str(given.rows), str(given.row_values)),
        samples=samples,
        passes=passes if measured else 1,
        measured=measured,
    )
    _check_drafters(plan)
    plan.check()
    profile = None if measured else given.profile
    points = points_of(plan, profile, given.pair)
    tokens = int(given.tokens or 0)
    if scripted:
        runner = Scripted(given.profile, given.pair or "", tokens)
        runner.check(samples)
        return Work(plan, runner, points)
    runs = 2 * len(plan.places) * plan.samples * plan.passes
    check_range("the number of runs, two for each cell, prompt and pass,", runs, 0, MOST_RUNS)
    return Work(plan, _decoder(given, method, prompts, tokens, profile, service, stop), points)


def _check_drafters(plan: Sweep) -> None:
    """Refuse a drafter that is a path: it would name a folder of the server."""
    known, asked = (USUAL, *FORMS), plan.rows.values if plan.rows and plan.rows.drafters else ()
    if unknown := [value for value in asked if value not in known]:
        raise UsageError(f"there is no drafter {shown(unknown[0])}; choose among {', '.join(known)}")


def _decoder(
    given: Settings,
    method: Method,
    prompts: list[str],
    tokens: int,
    profile: str | None,
    service: Service,
    stop: threading.Event,
) -> Runner:
    """Return the runner of a sweep whose models decode prompts.

    Raises:
        UsageError: A value is wrong, or the models cannot run the method.
    """
    check_range("tokens", tokens, 1, MOST_TOKENS)
    check_range("the number of prompts", len(prompts), 1, MOST_PROMPTS)
    for prompt in prompts:
        check_prompt(prompt)
    if given.models not in pairs.NAMES:
        raise UsageError(f"there are no models {shown(given.models)}; choose one of {', '.join(pairs.NAMES)}")
    if lacking := pairs.lacks(given.models, method.layout(method.configure({}))):
        raise UsageError(
            f"{method.title} needs {lacking}, and {pairs.label(given.models)} has none; choose another method or "
            "other models"
        )
    place: dict[str, Any] = {}
    if profile is not None:
        Profile.load(profile).latency(given.pair or None)
        place = {"runtime": VIRTUAL, "profile": profile, "profile_pair": given.pair or None}
    messages = [[{"role": "user", "content": prompt}] for prompt in prompts]
    request = RunRequest(
        method=method.key, prompt=messages[0], limits=Limits(tokens), pair=given.models, **place
    )
    return Decoder(request, messages, service, stop, batched=method.batched)


@dataclass(frozen=True, slots=True)
class Decoder:
    """A `Runner` that queues each job at the service and waits for its end."""

    request: RunRequest
    prompts: list[list[dict[str, str]]]
    service: Service
    stop: threading.Event
    batched: bool

    def __call__(self, job: Job) -> Trace:
        """Return the trace of a job.

        Raises:
            RunCancelled: `stop` was set.
            SpecScopeError: The run failed.
        """
        mine = self.prompts if self.batched else [self.prompts[job.sample]]
        drafter = () if job.drafter == USUAL else (job.drafter,)
        asked = {"method": job.method, "config": job.config, "group": job.group, "drafter": drafter}
        run = self.service.start(replace(self.request, prompt=mine[0], further=tuple(mine[1:]), **asked))
        while not run.wait(0.05):
            if self.stop.is_set():
                run.cancel()
        return run.result()
