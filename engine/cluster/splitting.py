"""Which layers of a target each device holds, where the target is larger than one device.

accelerate's `infer_auto_device_map` fills one device after another. It reads an empty model: blocks
with the sizes of ours and no data, one per layer, which are never split. The first block has the
embeddings, the last one the LM head. KV rows are a buffer of their block, so they are counted, too.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from engine.cluster.local_devices import LocalDevices, dtype_of
from engine.cluster.memory import part_of
from engine.errors import ModelError
from engine.layout import Layout
from engine.pairs.progress import megabytes
from engine.pairs.sizes import Size, checked_shape, layer_sizes, model_size
from engine.types import drafter_key

TOKENS = 2048
"""Tokens whose keys and values devices have room for, if the context is not shorter."""


def split_by_memory(site: LocalDevices, base: Layout, tokens: int = TOKENS) -> LocalDevices:
    """Return a site whose devices have room for the target: on one device if it fits, else split.

    The target gets the devices after the drafter's. If they are too small, it also gets what the
    drafter leaves free on its own. Nothing is split where all devices share one memory.

    Args:
        site: The devices.
        base: The layout to place.
        tokens: Number of tokens whose keys and values must fit as well.

    Raises:
        ModelError: The target does not fit on all devices together.
    """
    if site.tp > 1 or len({site.memory.name(device) for device in site.devices}) == 1:
        return site
    dtype, on_cpu = dtype_of(site.dtype, site.devices[0]), site.devices[0].kind == "cpu"
    target = site.pair.target_path
    sizes = layer_sizes(checked_shape(target), dtype, on_cpu=on_cpu)
    whole = model_size(target, dtype, on_cpu=on_cpu)
    tokens = min(tokens, site.pair.context)
    drafting, left = _without_drafters(site, base, dtype, tokens)
    after = [site.memory.free(device) for device in site.devices[drafting:]]
    if spans := _spans(whole, sizes, after, tokens):
        used = [drafting + i for i in spans]
        others = [i for i in range(len(left)) if i not in used]
        first = max(1, drafting)  # the target's first device, as `LocalDevices.assign` places it
        order = [*others[:first], *used, *others[first:]]
    elif spans := _spans(whole, sizes, left, tokens):
        order = list(spans)
    else:
        raise ModelError(_refusal(site, sizes, left, tokens, dtype))
    layers = tuple(spans.values()) if len(spans) > 1 else ()
    return replace(site, devices=tuple(site.devices[i] for i in order), spans=layers)


def _spans(whole: Size, sizes: Sequence[Size], limits: Sequence[int], tokens: int) -> dict[int, range]:
    """Return the first device that has room for the whole target, else several with its layers."""
    for device, limit in enumerate(limits):
        if whole.weights + tokens * whole.per_token <= limit:
            return {device: range(len(sizes))}
    return layer_spans(sizes, limits, tokens)


def _without_drafters(
    site: LocalDevices, base: Layout, dtype: torch.dtype, tokens: int
) -> tuple[int, list[int]]:
    """Return the number of the drafter's devices, and the bytes free for the target on each one."""
    left = {device.name: site.memory.free(device) for device in site.devices}
    devices = set[str]()
    for number, drafter in enumerate(site.assign(base).get("drafter", ())):
        for i in range(len(drafter.members)):
            part = part_of(site.pair, dtype, drafter_key(number), drafter, i)
            name = part.device.name.split("/")[0]
            devices.add(name)
            left[name] = max(0, left[name] - part.weights - tokens * part.per_token)
    return len(devices), list(left.values())


def _refusal(
    site: LocalDevices, sizes: Sequence[Size], left: Sequence[int], tokens: int, dtype: torch.dtype
) -> str:
    """Return why the target fits on no devices, and what would fit."""
    weights, kv = (sum(each) for each in zip(*sizes, strict=True))
    needed, most = weights + tokens * kv, sum(left)
    free = ", ".join(
        f"{megabytes(size)} on {device.label}" for device, size in zip(site.devices, left, strict=True)
    )
    advice = (
        "--dtype bfloat16 takes half"
        if dtype.itemsize > 2 and needed // 2 <= most
        else f"at most {most / dtype.itemsize / 1e6:,.0f} million weights fit"
    )
    return (
        f"{site.pair.target_path}: the weights and the KV cache of {tokens:,} tokens take {megabytes(needed)}, and no "
        f"layer may be split; free are {free}; {advice}"
    )


class Block(torch.nn.Module):
    """One layer without data, with the parts of the model before the first or after the last.

    Args:
        size: Bytes of the layer.
        tokens: Number of tokens whose keys and values the layer caches.
    """

    def __init__(self, size: Size, tokens: int) -> None:
        super().__init__()
        self.register_buffer("weights", torch.empty(size.weights, dtype=torch.uint8))
        self.register_buffer("kv", torch.empty(size.per_token * tokens, dtype=torch.uint8))


def layer_spans(sizes: Sequence[Size], limits: Sequence[int], tokens: int) -> dict[int, range]:
    """Return the layers of each device that gets some, in order; none if they do not fit.

    Args:
        sizes: Bytes of each layer.
        limits: Bytes that the model may take on each device.
        tokens: Number of tokens whose keys and values must fit as well.
    """
    from accelerate import infer_auto_device_map, init_empty_weights  # the import takes a second

    with init_empty_weights(include_buffers=True):
        model = torch.nn.ModuleList(Block(size, tokens) for size in sizes)
    # accelerate keeps room on the first device for offloaded layers. Ours are never offloaded: its
    # first device is one without memory.
    most: dict[int | str, int | str] = {0: 0, **{i + 1: limit for i, limit in enumerate(limits)}}
    with _quiet():
        places = infer_auto_device_map(
            model, most, no_split_module_classes=[Block.__name__], clean_result=False
        )
    devices = [place for i in range(len(sizes)) if isinstance(place := places[str(i)], int)]
    if len(devices) < len(sizes):
        return {}  # the rest would go to the disk
    spans = dict[int, range]()
    for device in dict.fromkeys(devices):
        first = devices.index(device)
        spans[device - 1] = range(first, first + devices.count(device))
    return spans


@contextmanager
def _quiet() -> Generator[None]:
    """Silence accelerate's warnings that CPU devices are no GPUs, and about offloading."""
    logger = logging.getLogger("accelerate.utils.modeling")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
