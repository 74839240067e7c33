"""`specscope.sweep`: what `specscope sweep` returns, without a command line or a database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from specscope.app.busy import busy_since, read_load
from specscope.app.experiments.sweep import Swept, axes_of, decoder, plan_of, scripted
from specscope.app.notebook.opening import arguments, bar, opened, texts
from specscope.engine.cluster.session import Cluster
from specscope.engine.errors import UsageError, named_arguments
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.lab.axes import ACCEPTANCE, USUAL
from specscope.traces.lab.points import points_of
from specscope.traces.lab.sweep import SweepCell
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
    profile, pair = models.get("profile"), models.get("profile_pair")
    profile = getattr(profile, "name", profile)
    if cluster is not None:
        profile, pair = cluster.placement.profile or None, cluster.placement.details.get("profile_pair")
    rates = ACCEPTANCE in over
    samples = [] if rates else texts(prompts)
    measured = not profile and not rates
    asked: dict[str, Any] = {"measured": measured, "passes": passes, "seeds": seeds}
    plan = plan_of(method, axes_of(method, over.items()), config or {}, len(samples), **asked)
    with ExitStack() as stack:
        if rates:
            if cluster is not None or not profile or set(models) - {"profile", "profile_pair", "runtime"}:
                raise UsageError(
                    "drafts of a given acceptance rate have no models: give profile, profile_pair or neither a "
                    "cluster nor models"
                )
            runner = scripted(plan, models["profile"], pair, 64 if brief else limits.max_new_tokens)
        else:
            opener = _opener(cluster, models)
            runner = decoder(plan, samples, sampling, limits, opener, _decode, stack)
        before, cells = read_load(), list[SweepCell]()
        step = stack.enter_context(bar(len(plan.places), "cell", progress))
        for cell in cells_of(plan, runner):
            cells.append(cell)
            step()
        warning = busy_since(before) if measured else ""
    return Swept(plan, cells, points_of(plan, profile, pair), warning)


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


def _decode(cluster: Any, method: str, prompts: list[Any], given: dict[str, Any]) -> Trace:
    return cluster.run(method, *prompts, **given)
