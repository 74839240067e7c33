"""Open a cluster: the engine's front door.

with specscope.open() as cluster:
    trace = cluster.run("pearl", "Tell me a story.", config={"gamma": 4})
    print(trace.text)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from specscope.engine.checkpoints.catalog import opening
from specscope.engine.checkpoints.forms import is_form
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.checkpoints.progress import Report
from specscope.engine.checkpoints.sizes import shape_of
from specscope.engine.checkpoints.sources import is_short_name, resolve, resolve_config, resolve_local
from specscope.engine.cluster.fit import split_by_memory
from specscope.engine.cluster.local_devices import devices_of, local_devices
from specscope.engine.cluster.memory import KV_TOKENS, Memory, parse_limits
from specscope.engine.cluster.options import Options
from specscope.engine.cluster.placement import Placement
from specscope.engine.cluster.pool import Pool
from specscope.engine.cluster.probing import is_toy
from specscope.engine.cluster.profile_devices import profile_devices
from specscope.engine.cluster.ray_cluster import RayCluster
from specscope.engine.cluster.ray_devices import RESOURCES, ray_devices
from specscope.engine.cluster.session import Cluster
from specscope.engine.errors import UsageError, named_arguments
from specscope.engine.simulate.oracle import Source
from specscope.engine.simulate.profile import Profile
from specscope.engine.trace.events import Device
from specscope.engine.trace.trace import Trace

Places: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
"""Paths of models: none, one or several."""


@named_arguments
def open(  # noqa: A001 - specscope.open(...), as in dbm.open or shelve.open
    pair: str | Pair | None = None,
    *,
    target: str | os.PathLike[str] | None = None,
    drafter: Places = None,
    runtime: str | None = None,
    profile: str | Profile | None = None,
    profile_pair: str | None = None,
    tokens: str | Trace | Source = "pair",
    device: str = "auto",
    threads: int = 1,
    forward: str = "auto",
    dtype: str = "auto",
    tp: int = 1,
    drafter_tp: int = 1,
    address: str | None = None,
    memory: str = "",
    head: Places = None,
    progress: Report | None = None,
    cancel: threading.Event | None = None,
    download: bool = True,
    plans: bool | None = None,
) -> Cluster:
    """Load a pair of models and return the cluster that runs methods on it.

    Args:
        pair: Name of a pair in assets/pairs or of a model of the catalog, or a Pair; by default the
            one that the page opens: SmolLM2 if it is on this machine, else `bundled`, a toy.
        target: Directory, GGUF file, short name or hub id of a target; replaces the pair. A short
            name brings its heads, and its drafter if none is given.
        drafter: The same for its drafter, which most methods need; several for methods that let
            drafters race. `int4` and `int8` are the target's own weights in fewer bits; they can
            also replace the drafter of a pair.
        runtime: `local-process`, `local-thread`, `ray` or `virtual`; by default `virtual` with a
            profile, else `local-process`.
        profile: The latency profile of a virtual cluster: a name, a path, or a Profile.
        profile_pair: The pair of models in the profile; its default if None.
        tokens: Token source of virtual runs: `pair`, `bernoulli:RATE` (several rates, separated by
            commas, for several drafters; then `:doubt=D`, `:misses=R`, see
            `specscope.engine.simulate.oracle.bernoulli_models`), a recorded Trace, or a Source of
            models.
        device: `cpu`, `cuda`, or `auto` for CUDA if there is a GPU.
        threads: Intra-op threads of each worker; more than 1 helps only if other cores are idle.
        forward: `eager`; `static` for forwards of fixed shapes, which CUDA replays as graphs
            (`specscope.engine.model.static`); `compiled` for graphs of compiled layers, which the
            first forward of a size waits for. `auto` is eager on a CPU and for split models, and
            on a GPU static until layers are compiled in a pause.
        dtype: Of the weights: `float32`, `bfloat16`, or `auto` for bfloat16 on GPUs and float32 on
            CPUs.
        tp: Devices that split the target by tensors, with `local-process` or on one node of `ray`:
            each holds a part of every layer (`specscope.engine.model.shard`).
        drafter_tp: The same for the drafter.
        address: With `ray`, the head of the Ray cluster: `host:port`, or `auto` for the one that
            this machine is in. By default a cluster of this machine alone is started.
        memory: Bytes that models may take on devices, such as `0=4GiB,1=4GiB` (numbers count this
            machine's devices from 0); by default what is free. A target that fits on no device is
            split by layers (`specscope.engine.cluster.fit`).
        head: Directories of drafting heads for the target; a method uses the first of its kind.
            By default the pair's own heads.
        progress: Takes the state of a download or conversion of a model that is not in the cache.
        cancel: Stops a download or conversion when set.
        download: Whether to download or convert a model that is not in the cache.
        plans: Whether `auto` settings of drafts are planned from measured cost, in runtimes that
            measure; by default unless the target is a toy
            (`specscope.engine.cluster.probing.SMALLEST`).

    Raises:
        UsageError: A name is unknown or the settings do not go together.
        ModelError: A model cannot be loaded or downloaded.
        RunCancelled: `cancel` was set during a download.
    """
    given: dict[str, Any] = locals()
    if runtime is None:  # a profile is that of a virtual cluster
        given = given | {"runtime": "local-process" if profile is None else "virtual"}
    options = Options(**{one.name: given[one.name] for one in fields(Options)})
    chosen = find_pair(pair, target, drafter, progress=progress, cancel=cancel, download=download)
    options = _with_eager_experts(chosen, options)
    plans = profile is None and (not is_toy(chosen.target_path) if plans is None else plans)
    return Cluster(chosen, Placement(_pool(chosen, options)), tuple(map(Path, _several(head))), plans=plans)


def find_pair(
    pair: str | Pair | None,
    target: str | os.PathLike[str] | None = None,
    drafter: Places = None,
    *,
    progress: Report | None = None,
    cancel: threading.Event | None = None,
    download: bool = True,
    sizes_only: bool = False,
) -> Pair:
    """Return the pair of models that `open` loads; arguments and errors are those of `open`.

    `sizes_only`: a config.json names a model, too, nothing is downloaded, and without tokenizers
    the pair is good for a plan only.
    """
    drafters = _several(drafter)
    find = resolve_config if sizes_only else resolve
    find_model = partial(find, progress=progress, cancel=cancel) if download else resolve_local
    if not drafters and target is not None and is_short_name(target):
        pair, target = str(target), None
    if target is not None:
        return Pair.of(str(target), *drafters, resolve=find_model, sizes_only=sizes_only)
    if others := [name for name in drafters if not is_form(name)]:
        raise UsageError(f"a drafter ({others[0]}) without a target; name the target too")
    if not isinstance(pair, Pair):
        pair = Pair.find(pair or opening(), find_model, sizes_only=sizes_only)
    return pair.with_forms(*drafters) if drafters else pair


def _several(places: Places) -> list[str]:
    paths = [places] if isinstance(places, str | os.PathLike) else places or ()
    names = list(map(str, paths))
    if not all(names):
        raise UsageError("a drafter's or a head's path is empty; give a directory")
    return names


def _pool(pair: Pair, options: Options) -> Pool:
    match options.runtime:
        case "virtual":
            return profile_devices(pair, options)
        case "ray":
            return _ray_pool(pair, options)
        case _:
            return local_pool(pair, options)


def local_pool(
    pair: Pair, options: Options, tokens: int = KV_TOKENS, devices: tuple[Device, ...] = ()
) -> Pool:
    """Return this machine as a device pool, its target split by layers if it fits on no device.

    Keys and values of `tokens` tokens must fit as well. A plan gives `devices` in place of this
    machine's (`specscope.engine.cluster.planned`).

    Raises:
        UsageError: An option does not fit this machine, or does not go with a split target.
        ModelError: The target does not fit on all devices together.
    """
    devices = devices or devices_of(options.device)
    options.check_devices(len(devices), drafter=pair.drafter_path is not None)
    limits = Memory(parse_limits(options.memory, devices)) if options.memory else Memory()
    pool = split_by_memory(local_devices(pair, options, devices, memory=limits), tokens)
    if pool.spans and options.is_static:
        raise UsageError(
            f"the target is split by layers over {len(pool.spans)} devices, and a split target has eager forwards "
            f"only; leave forward {options.forward} out"
        )
    return pool


def _with_eager_experts(pair: Pair, options: Options) -> Options:
    """Return options with eager forwards for a mixture of experts.

    How many rows an expert has is known on the host only, and a CUDA graph cannot ask it.
    """
    if options.runtime == "virtual":  # no graph is captured, and the models may not be here
        return options
    mixtures = [model for model, path in pair.models.items() if shape_of(path).mixture is not None]
    if not mixtures:
        return options
    if options.is_static:
        raise UsageError(
            f"the {mixtures[0]} is a mixture of experts, which has eager forwards only; leave forward {options.forward} out"
        )
    return replace(options, forward="eager")


def _ray_pool(pair: Pair, options: Options) -> Pool:
    if options.device not in RESOURCES:
        raise UsageError(f"there is no device {options.device!r}; choose auto, cpu or cuda")
    cluster = RayCluster(options.address, len(devices_of("cpu")))
    try:
        return ray_devices(pair, cluster, options)
    except BaseException:
        cluster.close()
        raise
