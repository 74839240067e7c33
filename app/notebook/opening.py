"""The cluster and the progress bar of a function that a notebook calls."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import engine
from engine.cluster.session import Cluster
from engine.errors import UsageError


def opened(cluster: Cluster | None, models: Mapping[str, Any]) -> AbstractContextManager[Cluster]:
    """Return an open cluster, which stays open, or else one that `engine.open` opens."""
    if cluster is not None:
        if models:
            raise UsageError(f"a cluster and {', '.join(models)} were given; leave one of them out")
        return nullcontext(cluster)
    virtual = {"runtime": "virtual"} if models.get("profile") else {}
    return engine.open(**{**virtual, **models})


def texts(prompts: str | Any) -> list[Any]:
    """Return the prompts as a list; UsageError if there is none."""
    several = [prompts] if isinstance(prompts, str) else [*prompts]
    if not several:
        raise UsageError("no prompt was given; give a text or a list of texts")
    return several


@contextmanager
def bar(total: int, unit: str, shown: bool) -> Generator[Callable[[], None]]:
    """Show a progress bar, a notebook's or a terminal's; yield what counts a step."""
    from tqdm.std import TqdmWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)  # without ipywidgets a bar of text will do
        from tqdm.auto import tqdm
    with tqdm(total=total, unit=unit, leave=False, disable=None if shown else True) as line:
        yield lambda: line.update() and None
