"""The cluster and the progress bar of a function that a notebook calls."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any

import specscope
from specscope.app.bars import DownloadBar, is_watched, new_bar
from specscope.engine.cluster.prompts import Plain, settled
from specscope.engine.cluster.session import Cluster
from specscope.engine.errors import UsageError, check_names, names_of
from specscope.engine.types import Limits, Sampling


@contextmanager
def opened(cluster: Cluster | None, models: Mapping[str, Any]) -> Generator[Cluster]:
    """Yield an open cluster, which stays open, or one that is opened for the meantime."""
    if cluster is not None:
        if models:
            raise UsageError(f"a cluster and {', '.join(models)} were given; leave one of them out")
        yield cluster
        return
    with DownloadBar() as line:
        place = specscope.open(**{"progress": line.show, **models})
    with place:
        yield place


def arguments(
    call: Callable[..., object], sampling: Sampling | None, limits: Limits | None, given: Mapping[str, Any]
) -> tuple[Sampling, Limits, dict[str, Any]]:
    """Return sampling and limits, and the arguments of `specscope.open` among a call's others."""
    models = names_of(signature(specscope.open))
    check_names(
        call.__name__, given, [*dict.fromkeys([*names_of(signature(call)), *models, *Plain.__annotations__])]
    )
    return *settled(sampling, limits, given), {name: value for name, value in given.items() if name in models}


def texts(prompts: str | Any) -> list[Any]:
    """Return the prompts as a list; UsageError if there is none."""
    several = [prompts] if isinstance(prompts, str) else [*prompts]
    if not several:
        raise UsageError("no prompt was given; give a text or a list of texts")
    return several


@contextmanager
def bar(total: int, unit: str, shown: bool) -> Generator[Callable[[], None]]:
    """Show a progress bar, a notebook's or a terminal's; yield what counts a step."""
    with new_bar(total=total, unit=unit, leave=False, disable=not (shown and is_watched())) as line:
        yield lambda: line.update() and None
