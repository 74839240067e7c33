"""`specscope.sweep`: what `specscope sweep` returns, without a command line or a database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from specscope.app.busy import busy_since, read_load
from specscope.app.notebook.opening import arguments, bar, opened, texts
from specscope.app.sweeping import Swept, decoder, in_order
from specscope.engine.cluster.session import Cluster
from specscope.engine.errors import UsageError, named_arguments
from specscope.engine.methods import Method, find
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.lab.axes import USUAL, Axis, axis, check_axis
from specscope.traces.lab.points import points_of
from specscope.traces.lab.sweep import Cell, Runner, Scripted, Sweep
from specscope.traces.lab.sweep import sweep as cells_of


@named_arguments
def sweep(
    method: str,
    over: Mapping[str, str | Sequence[Any]],
    prompts: str | Sequence[Any] = (),
    *,
    cluster: Cluster | None = None,
    config: Mapping[str, Any] | None = None,
    sampling: Sampling | None = None,
    limits: Limits | None = None,
    passes: int | None = None,
    seeds: int = 2,
    progress: bool = True,
    **others: Any,
) -> Swept:
    """Return the speed-up of a method over plain decoding for each value of one or two fields.

    Args:
        method: Key of the method.
        over: Field -> values, as a list or as the command line has them (`1:8`). A field is a
            numeric setting, `drafter` (in measured runs, without `cluster`), or `acceptance_rate`:
            drafts are then right at each rate, no model decodes, and `others` name a profile.
        prompts: The samples of each cell; none with `acceptance_rate`.
        cluster: As in `compare`.
        config: Settings of all cells.
        sampling: As in `compare`.
        limits: When to stop; with `acceptance_rate` 64 tokens if it is not given.
        passes: Of each measured cell, 1 to 9 (2; virtual: 1).
        seeds: With `acceptance_rate`: samples of a cell, 1 to 5.
        progress: Whether to show a bar.
        others: As in `compare`.

    Raises:
        UsageError: A name or a value is wrong, or no cell has a speed-up.
    """
    brief = limits is None and "max_new_tokens" not in others
    sampling, limits, models = arguments(sweep, sampling, limits, others)
    columns, rows = _axes(find(method), over)
    scripted = columns.scripted or bool(rows and rows.scripted)
    profile, profile_pair = _profile(cluster, models)
    samples = [] if scripted else texts(prompts)
    measured = not profile and not scripted
    count = seeds if scripted else 1 if find(method).batched else len(samples)
    repeats = passes if passes is not None else 2 if measured else 1
    plan = Sweep(method, columns, rows, config or {}, samples=count, passes=repeats, measured=measured)
    plan.check()
    with ExitStack() as stack:
        if scripted:
            runner = _scripted(cluster, models, Limits(64) if brief else limits, seeds)
        else:
            given = (sampling, limits, _opener(cluster, models), _decode)
            runner = decoder(plan, samples, *given, stack)
        before = read_load()
        cells = _cells(plan, runner, progress)
        warning = busy_since(before) if measured else ""
    if not any(cell.speedups for cell in cells):
        raise UsageError(f"no cell has a speed-up: {cells[0].error}")
    return Swept(plan, cells, points_of(plan, profile, profile_pair), warning)


def _axes(method: Method, over: Mapping[str, str | Sequence[Any]]) -> tuple[Axis, Axis | None]:
    if not 1 <= len(over) <= 2:
        raise UsageError(f"the sweep is over {len(over)} fields; choose one or two")
    found = list[Axis]()
    for name, values in over.items():
        one = axis(method, name, values) if isinstance(values, str) else Axis(name, tuple(values))
        check_axis(method, one)
        found.append(one)
    return in_order(found)


def _profile(cluster: Cluster | None, models: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the name of the profile and its pair."""
    if cluster is not None:
        return cluster.placement.profile or None, cluster.placement.details.get("profile_pair")
    named = models.get("profile")
    return getattr(named, "name", named), models.get("profile_pair")


def _scripted(cluster: Cluster | None, models: Mapping[str, Any], limits: Limits, seeds: int) -> Runner:
    places = {name: models[name] for name in ("profile", "profile_pair") if models.get(name)}
    if cluster is not None or "profile" not in places or set(models) - {*places, "runtime"}:
        raise UsageError(
            "drafts of a given acceptance rate have no models: give profile, profile_pair or neither a cluster "
            "nor models"
        )
    runner = Scripted(places["profile"], places.get("profile_pair", ""), limits.max_new_tokens)
    runner.check(seeds)
    return runner


def _opener(
    cluster: Cluster | None, models: Mapping[str, Any]
) -> Callable[[str], AbstractContextManager[Cluster]]:
    """Return a function that opens the models with a drafter."""

    def open_with(drafter: str) -> AbstractContextManager[Cluster]:
        if drafter == USUAL:
            return opened(cluster, models)
        if cluster is not None:
            raise UsageError("a sweep over drafters opens each drafter; give models in place of the cluster")
        return opened(None, {**models, "drafter": [drafter]})

    return open_with


def _decode(cluster: Cluster, method: str, prompts: list[Any], given: dict[str, Any]) -> Trace:
    return cluster.run(method, *prompts, **given)


def _cells(plan: Sweep, runner: Runner, shown: bool) -> list[Cell]:
    cells = list[Cell]()
    with bar(len(plan.places), "cell", shown) as step:
        for cell in cells_of(plan, runner):
            cells.append(cell)
            step()
    return cells
