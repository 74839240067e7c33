"""What a pair takes on this machine's devices, what fits, and which methods can run.

Only configs and the headers of weight files are read; nothing is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

from engine.cluster.local_devices import LocalDevices, dtype_of
from engine.cluster.memory import Part, part_of
from engine.cluster.runtimes import base_layout
from engine.cluster.site import Assignment
from engine.errors import ModelError, UsageError
from engine.heads.files import check_head
from engine.heads.find import HeadFile, Heads
from engine.heads.kinds import KINDS
from engine.layout import Layout
from engine.methods import METHODS, Method, Situation
from engine.pairs.progress import megabytes
from engine.pairs.sizes import checked_shape
from engine.types import MOST_DRAFTERS, drafter_key


class HeadSize(NamedTuple):
    """A drafting head beside the target, in bytes."""

    kind: str
    file: HeadFile
    weights: int
    per_token: int
    """Keys, values and stored states of one token."""


class Use(NamedTuple):
    """One memory and what the pair takes of it, in bytes."""

    memory: str
    free: int
    weights: int
    per_token: int
    """Keys and values of one token, of all models together."""

    def tokens(self, extra: int = 0) -> int:
        """Return how many tokens' keys and values fit beside the weights and `extra` bytes."""
        return max(0, self.free - self.weights - extra) // self.per_token if self.per_token else 0


@dataclass(frozen=True)
class Fit:
    """What fits."""

    dtype: str
    context: int
    """Positions that all models support."""
    parts: tuple[Part, ...]
    uses: tuple[Use, ...]
    heads: tuple[HeadSize, ...]
    methods: Mapping[str, str]
    """Method -> why it cannot run with default settings; empty if it can."""

    @property
    def tokens(self) -> int:
        """How many tokens' keys and values fit beside all weights; the context is no limit."""
        return min(use.tokens() for use in self.uses)


def fit(site: LocalDevices, named_heads: tuple[Path, ...] = ()) -> Fit:
    """Return what a site's pair takes and what fits.

    Args:
        site: The devices, with the target split if it must be.
        named_heads: Directories of drafting heads; default: the pair's own.

    Raises:
        ModelError: A model or head is broken.
        UsageError: A head is for another target.
    """
    parts = _parts(site, site.assign(base_layout(site.pair)))
    files = _head_files(site, named_heads)
    heads = {kind: _head_size(site, head) for kind, head in files.items()}
    situation = _situation(site, Heads(site.pair, named_heads))
    return Fit(
        str(dtype_of(site.dtype, site.devices[0])).removeprefix("torch."),
        site.pair.context,
        tuple(parts),
        tuple(_uses(site, parts)),
        tuple(heads.values()),
        {key: _reason(site, method, situation, heads) for key, method in METHODS.items()},
    )


def _parts(site: LocalDevices, assigned: Mapping[str, list[Assignment]]) -> list[Part]:
    """Return the parts of all models of a layout."""
    dtype = dtype_of(site.dtype, site.devices[0])
    named = [
        (drafter_key(i) if model == "drafter" else model, assignment)
        for model in ("drafter", "target")
        for i, assignment in enumerate(assigned.get(model, ()))
    ]
    return [part_of(site.pair, dtype, name, a, i) for name, a in named for i in range(len(a.members))]


def _uses(site: LocalDevices, parts: Iterable[Part]) -> list[Use]:
    """Return each memory with what parts take of it."""
    uses = dict[str, Use]()
    for part in parts:
        name = site.memory.name(part.device)
        use = uses.get(name) or Use(name, site.memory.free(part.device), 0, 0)
        uses[name] = use._replace(
            weights=use.weights + part.weights, per_token=use.per_token + part.per_token
        )
    return list(uses.values())


def _head_files(site: LocalDevices, named: tuple[Path, ...]) -> dict[str, HeadFile]:
    """Return the heads by the kind that methods ask for: those named, else the pair's own."""
    folder = site.pair.heads_path
    paths = named or (sorted(p for p in folder.iterdir() if p.is_dir()) if folder and folder.is_dir() else ())
    files = dict[str, HeadFile]()
    for path in paths:
        file = HeadFile(path, check_head(path, site.pair.target_path), site.pair.target_path)
        files.setdefault(file.serves, file)
    return files


def _head_size(site: LocalDevices, head: HeadFile) -> HeadSize:
    config, kind = head.config, KINDS[head.config.kind]
    itemsize = dtype_of(site.dtype, site.devices[0]).itemsize
    tied = checked_shape(site.pair.target_path).tied
    numbers = sum(map(prod, kind.tensors(config).values()))
    if site.spans and not tied:  # the last stage has no embeddings
        numbers += config.vocab_size * config.hidden_size
    weights = numbers * itemsize
    cached = len(config.features) * config.hidden_size + (config.layer().kv_numbers if kind.layered else 0)
    return HeadSize(config.kind, head, weights, cached * itemsize)


def _reason(site: LocalDevices, method: Method, situation: Situation, heads: Mapping[str, HeadSize]) -> str:
    """Return why a method cannot run with its default settings; empty if it can."""
    try:
        layout = method.layout(method.plan(method.configure({}), situation))
        if layout.needs_drafter and site.pair.drafter_path is None:
            return "needs a drafter: name one with --drafter"
        return _shortage(site, layout, heads)
    except (UsageError, ModelError) as error:
        return str(error)


def _shortage(site: LocalDevices, layout: Layout, heads: Mapping[str, HeadSize]) -> str:
    """Return which memory is too small for a layout; empty if none is."""
    parts = _parts(site, site.assign(layout))
    if layout.head and site.spans:
        heads[layout.head].file.check_split()
    holders = [part.device for part in parts if part.model == "target"][-1 if site.spans else 0 :]
    beside = {site.memory.name(device) for device in holders}
    for use in _uses(site, parts):
        head = heads[layout.head] if layout.head and use.memory in beside else None
        extra = head.weights + head.per_token if head else 0
        if not use.tokens(extra):
            needed = use.weights + use.per_token + extra
            return f"needs {megabytes(needed)} in the memory of {use.memory}, of which {megabytes(use.free)} are free"
    return ""


def _situation(site: LocalDevices, heads: Heads) -> Situation:
    """Return the facts that methods' plans use, without measured ones: c is 1."""
    pair, drafters = site.pair, site.drafters()
    layers = checked_shape(pair.drafter_path).layers if pair.drafter_path else 0
    return Situation(
        context=pair.context,
        depth=layers,
        devices=site.ranks(),
        drafters=drafters,
        servers=tuple(site.servers(n) for n in range(max(drafters, MOST_DRAFTERS) + 1)),
        c=lambda: 1.0,
        stages=lambda asked: asked or site.stage_limits().usual,
        head_levels=lambda kind: heads.find(kind).levels,
        planned=lambda settings, best: None,  # noqa: ARG005 - nothing is measured
    )
