"""Open a cluster: the engine's front door.

with engine.open() as cluster:
    trace = cluster.run("pearl", "Tell me a story.", config={"gamma": 4})
    print(trace.text)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from engine.cluster.runtimes import place
from engine.cluster.session import Cluster
from engine.errors import UsageError
from engine.model.hub import Report
from engine.model.pair import Pair
from engine.model.sources import resolve, resolve_local
from engine.trace.trace import Trace

Places: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
"""Where models lie: none, one or several."""


def open(  # noqa: A001 - engine.open(...), as in dbm.open or shelve.open
    pair: str | Pair = "bundled",
    *,
    target: str | os.PathLike[str] | None = None,
    drafter: Places = None,
    runtime: str = "local-process",
    profile: str | None = None,
    profile_pair: str | None = None,
    tokens: str | Trace = "pair",
    device: str = "auto",
    threads: int = 1,
    head: Places = None,
    progress: Report | None = None,
    cancel: threading.Event | None = None,
    download: bool = True,
) -> Cluster:
    """Load a pair of models and return the cluster that runs methods on it.

    Args:
        pair: Name of a pair in assets/pairs or of a model of the catalog, or a Pair.
        target: Directory, GGUF file, short name or hub id of a target; replaces the pair.
        drafter: The same of its drafter; methods that draft need one. Several, the first one first, for methods
            that let them race.
        runtime: `local-process`, `local-thread` or `virtual`.
        profile: The latency profile of a virtual cluster.
        profile_pair: Which of the profile's pairs; its default when left out.
        tokens: Where a virtual run's tokens come from: `pair`, `bernoulli:RATE` (or a rate for each drafter, with commas
            between), or a recorded Trace.
        device: `cpu`, `cuda`, or `auto`: CUDA where there is a GPU.
        threads: Intra-op threads of each worker; more than 1 only pays when nothing runs beside it.
        head: Directories of drafting heads of the target, one or several: a method takes the first of its kind. Without any,
            those that come with the pair are used.
        progress: Takes the state of a download or conversion, when a model is not in the cache.
        cancel: Set it to stop either.
        download: Whether a model may be downloaded or converted; if not, it must be in the cache.

    Raises:
        UsageError: A name is unknown or the settings do not go together.
        ModelError: A model cannot be loaded or downloaded.
        RunCancelled: `cancel` was set during a download.
    """
    drafters = _several(drafter)
    find_model = partial(resolve, progress=progress, cancel=cancel) if download else resolve_local
    if target is not None:
        chosen = Pair.of(str(target), *drafters, resolve=find_model)
    elif drafters:
        raise UsageError(f"a drafter ({drafters[0]}) without a target; name the target too")
    else:
        chosen = pair if isinstance(pair, Pair) else Pair.find(pair, find_model)
    return Cluster(
        chosen,
        place(
            chosen,
            runtime=runtime,
            profile=profile,
            profile_pair=profile_pair,
            tokens=tokens,
            device=device,
            threads=threads,
        ),
        tuple(map(Path, _several(head))),
    )


def _several(given: Places) -> list[str]:
    each = [given] if isinstance(given, str | os.PathLike) else given or ()
    found = [str(one) for one in each]
    if not all(found):
        raise UsageError("a drafter's or a head's path is empty; give a directory")
    return found
