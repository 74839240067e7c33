"""Fits a pair into this machine's memory: its target by layers, and what `specscope plan` shows.

Only configs are read, and the headers of drafting heads; nothing is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

from specscope.engine.checkpoints.checkpoint import drafts_itself
from specscope.engine.checkpoints.progress import megabytes
from specscope.engine.checkpoints.sizes import Size, layer_sizes, model_size, shape_of
from specscope.engine.cluster.assignment import drafter_names, parts_on
from specscope.engine.cluster.local_devices import local_devices
from specscope.engine.cluster.memory import KV_TOKENS, ModelBytes, advice
from specscope.engine.cluster.pool import Pool
from specscope.engine.errors import ModelError, UsageError
from specscope.engine.heads.files import check_head
from specscope.engine.heads.find import HeadFile, Heads
from specscope.engine.heads.kinds import KINDS
from specscope.engine.layout import Layout
from specscope.engine.methods import METHODS, Method, Situation


def split_by_memory(pool: Pool, tokens: int = KV_TOKENS) -> Pool:
    """Return a pool whose devices have room for the target: on one device if it fits, else split.

    The target gets the devices after the drafter's. If none of them holds all of it, and the
    drafter's own one does, the drafter gets the smallest of the others that holds it. If the
    others are too small, the target also gets what the drafter leaves free on its own. Nothing is
    split where all devices share one memory. Keys and values of `tokens` tokens must fit as well.

    Raises:
        ModelError: The target does not fit on all devices together.
    """
    if pool.options.tp > 1 or len({pool.memory.name(device) for device in pool.devices}) == 1:
        return pool
    on_cpu, target = pool.devices[0].kind == "cpu", pool.pair.target_path
    sizes = layer_sizes(shape_of(target), pool.dtype, on_cpu=on_cpu)
    whole = model_size(target, pool.dtype, on_cpu=on_cpu)
    tokens = min(tokens, pool.pair.context)
    drafting, left = _without_drafters(pool, tokens)
    after = [pool.memory.free(device) for device in pool.devices[drafting:]]
    spans = _spans(whole, sizes, after, tokens)
    if len(spans) != 1 and (order := _exchanged(pool, whole, tokens)):
        return _reordered(pool, order)
    if spans:
        used = [drafting + i for i in spans]
        others = [i for i in range(len(left)) if i not in used]
        first = max(1, drafting)  # the target's first device, as `Pool.assign` places it
        order = [*others[:first], *used, *others[first:]]
    elif spans := _spans(whole, sizes, left, tokens):
        order = list(spans)
    else:
        raise ModelError(_refusal(pool, sizes, left, tokens))
    return _reordered(pool, order, tuple(spans.values()) if len(spans) > 1 else ())


def _reordered(pool: Pool, order: Sequence[int], spans: tuple[range, ...] = ()) -> Pool:
    devices = tuple(pool.devices[i] for i in order)
    return local_devices(pool.pair, pool.options, devices, spans, pool.memory)


def _exchanged(pool: Pool, whole: Size, tokens: int) -> list[int]:
    """Return the order of the devices in which the target has the first one for itself.

    Empty if it does not fit there, or if a single drafter fits on none of the others.
    """
    drafters = [part for part in _parts(pool, pool.base) if part.model != "target"]
    free = [pool.memory.free(device) for device in pool.devices]
    if len(drafters) != 1 or whole.with_cache(tokens) > free[0]:
        return []
    needed = drafters[0].weights + tokens * drafters[0].per_token
    others = sorted(range(1, len(free)), key=lambda i: (free[i] < needed, free[i]))
    if not others or free[others[0]] < needed:
        return []
    return [others[0], 0, *sorted(others[1:])]


def _spans(whole: Size, sizes: Sequence[Size], limits: Sequence[int], tokens: int) -> dict[int, range]:
    for device, limit in enumerate(limits):
        if whole.with_cache(tokens) <= limit:
            return {device: range(len(sizes))}
    return layer_spans(sizes, limits, tokens)


def layer_spans(sizes: Sequence[Size], limits: Sequence[int], tokens: int) -> dict[int, range]:
    """Return the layers of each device that gets some; empty if they do not all fit.

    One device after another is filled, each with as many whole layers, and the keys and values of
    `tokens` tokens in them, as fit into its limit in bytes.
    """
    spans, first = dict[int, range](), 0
    for device, limit in enumerate(limits):
        last = first
        while last < len(sizes) and sizes[last].with_cache(tokens) <= limit:
            limit -= sizes[last].with_cache(tokens)
            last += 1
        if last > first:
            spans[device] = range(first, last)
        first = last
    return spans if first == len(sizes) else {}


def _without_drafters(pool: Pool, tokens: int) -> tuple[int, list[int]]:
    """Return the number of the drafter's devices, and the bytes free for the target on each one."""
    left = {device.name: pool.memory.free(device) for device in pool.devices}
    drafters = [part for part in _parts(pool, pool.base) if part.model != "target"]
    for part in drafters:
        name = part.device.name.split("/")[0]
        left[name] = max(0, left[name] - part.weights - tokens * part.per_token)
    return len({part.device.name.split("/")[0] for part in drafters}), list(left.values())


def _refusal(pool: Pool, sizes: Sequence[Size], left: Sequence[int], tokens: int) -> str:
    needed = sum(size.with_cache(tokens) for size in sizes)
    free = ", ".join(
        f"{megabytes(size)} on {device.label}" for device, size in zip(pool.devices, left, strict=True)
    )
    return (
        f"{pool.pair.target_path}: the weights and the KV cache of {tokens:,} tokens take {megabytes(needed)}, and no "
        f"layer may be split; free are {free}; {advice(needed, sum(left), pool.dtype)}"
    )


class HeadSize(NamedTuple):
    """A drafting head beside the target, in bytes."""

    kind: str
    file: HeadFile
    weights: int
    per_token: int


class Use(NamedTuple):
    """One memory and what the pair takes of it, in bytes."""

    memory: str
    free: int
    weights: int
    per_token: int

    def tokens(self, extra: int = 0) -> int:
        """Return how many tokens' keys and values fit beside the weights and `extra` bytes."""
        return max(0, self.free - self.weights - extra) // self.per_token if self.per_token else 0


@dataclass(frozen=True)
class Fit:
    """What fits."""

    dtype: str
    context: int
    """Positions that all models support."""
    parts: tuple[ModelBytes, ...]
    uses: tuple[Use, ...]
    heads: tuple[HeadSize, ...]
    methods: Mapping[str, str]
    """Method -> why it cannot run with default settings; empty if it can."""

    @property
    def tokens(self) -> int:
        """How many tokens' keys and values fit beside all weights; the context is no limit."""
        return min(use.tokens() for use in self.uses)


def fit(pool: Pool, named_heads: tuple[Path, ...] = ()) -> Fit:
    """Return what a pool's pair takes and what fits; by default with the pair's own heads.

    Raises:
        ModelError: A model or head is broken.
        UsageError: A head is for another target.
    """
    parts = _parts(pool, pool.base)
    files = _head_files(pool, named_heads)
    heads = {kind: _head_size(pool, head) for kind, head in files.items()}
    drafter, found = pool.pair.drafter_path, Heads(pool.pair, named_heads)
    situation = pool.situation(
        pool.pair.context,
        shape_of(drafter).layers if drafter else 0,
        lambda: 1.0,
        lambda asked: asked or max(2, pool.ways),
        lambda kind: found.find(kind).levels,
    )
    return Fit(
        str(pool.dtype).removeprefix("torch."),
        pool.pair.context,
        tuple(parts),
        tuple(_uses(pool, parts)),
        tuple(heads.values()),
        {key: _reason(pool, method, situation, heads) for key, method in METHODS.items()},
    )


def _parts(pool: Pool, layout: Layout) -> list[ModelBytes]:
    assigned = pool.assign(layout)
    drafters = drafter_names(layout, len(assigned.get("drafter", ())), None)
    return pool.parts(parts_on(assigned, drafters))


def _uses(pool: Pool, parts: Iterable[ModelBytes]) -> list[Use]:
    uses = dict[str, Use]()
    for part in parts:
        name = pool.memory.name(part.device)
        use = uses.get(name) or Use(name, pool.memory.free(part.device), 0, 0)
        uses[name] = use._replace(
            weights=use.weights + part.weights, per_token=use.per_token + part.per_token
        )
    return list(uses.values())


def _head_files(pool: Pool, named: tuple[Path, ...]) -> dict[str, HeadFile]:
    folder, target = pool.pair.heads_path, pool.pair.target_path
    paths = named or (sorted(p for p in folder.iterdir() if p.is_dir()) if folder and folder.is_dir() else [])
    if not named and any(target.glob("*.safetensors")) and drafts_itself(target):
        paths = [*paths, target]
    files = dict[str, HeadFile]()
    for path in paths:
        file = HeadFile(path, check_head(path, target), target)
        files.setdefault(file.serves, file)
    return files


def _head_size(pool: Pool, head: HeadFile) -> HeadSize:
    config, kind = head.config, KINDS[head.config.kind]
    itemsize = pool.dtype.itemsize
    tied = shape_of(pool.pair.target_path).tied
    numbers = sum(map(prod, kind.tensors(config).values()))
    if pool.spans and not tied:  # the last stage has no embeddings
        numbers += config.vocab_size * config.hidden_size
    weights = numbers * itemsize
    cached = len(config.features) * config.hidden_size
    if kind.layered:  # a layer that drafts further tokens reads its own states
        states = 0 if kind.sized_by else config.hidden_size
        cached += max(1, config.heads) * (config.layer().kv_numbers + states)
    return HeadSize(config.kind, head, weights, cached * itemsize)


def _reason(pool: Pool, method: Method, situation: Situation, heads: Mapping[str, HeadSize]) -> str:
    try:
        layout = method.layout(method.plan(method.configure({}), situation))
        if layout.needs_drafter and pool.pair.drafter_path is None:
            return "needs a drafter: name one with --drafter"
        return _shortage(pool, layout, heads)
    except (UsageError, ModelError) as error:
        return str(error)


def _shortage(pool: Pool, layout: Layout, heads: Mapping[str, HeadSize]) -> str:
    parts = _parts(pool, layout)
    if layout.head and pool.spans:
        heads[layout.head].file.check_split()
    holders = [part.device for part in parts if part.model == "target"][-1 if pool.spans else 0 :]
    beside = {pool.memory.name(device) for device in holders}
    for use in _uses(pool, parts):
        head = heads[layout.head] if layout.head and use.memory in beside else None
        extra = head.weights + head.per_token if head else 0
        if not use.tokens(extra):
            needed = use.weights + use.per_token + extra
            return f"needs {megabytes(needed)} in the memory of {use.memory}, of which {megabytes(use.free)} are free"
    return ""
