"""Runs with random drafting heads, and the drafts that a slow reference expects of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.drafting.static import tree
from specscope.engine.sampling.draws import Draws
from specscope.engine.trace.events import Round
from specscope.engine.types import Sampling
from tests.engine.heads.random_heads import make_heads, with_eagle3
from tests.engine.methods.pairs import save_with_tokenizer
from tests.engine.methods.plain_heads import Node, Plain, Rows, dynamic_tree, static_tree
from tests.engine.model import tiny

METHODS = {
    "medusa": ("medusa", {}),
    "hydra": ("hydra", {}),
    "eagle": ("eagle", {}),
    "eagle2": ("eagle", {"top": 4, "depth": 4, "total": 12}),
    "parallelspec_medusa": ("parallelspec_medusa", {}),
    "parallelspec_eagle": ("parallelspec_eagle", {"masks": 3}),
    "dflash": ("dflash", {}),
    "mtp": ("mtp", {}),
    "eagle with EAGLE-3": ("eagle3", {}),
    "eagle2 with EAGLE-3": ("eagle3", {"top": 4, "depth": 4, "total": 12}),
}
"""The kind of head of each method, and its settings."""
GREEDY = Sampling()
PROMPT, NEW = [5, 9, 23, 4], 14


def drifting(family: str) -> torch.nn.Module:
    """Return a target with similar embeddings, so that random heads have accepted drafts."""
    model = tiny.reference(family, seed=3)
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(0.6)
        model.get_output_embeddings().weight[10:16].add_(0.06)
    return model


class Clusters:
    """Two clusters of one target; the second uses an EAGLE-3 head."""

    def __init__(self, *clusters: specscope.Cluster) -> None:
        self._clusters = clusters
        self.pair = clusters[0].pair

    def of(self, method: str) -> specscope.Cluster:
        return self._clusters["EAGLE-3" in method]

    def run(self, method: str, *prompts, **settings):
        return self.of(method).run(method.split()[0], *prompts, **settings)


@contextmanager
def open_world(family: str, folder: Path) -> Iterator[tuple[Clusters, torch.nn.Module, Path]]:
    """Open a family's target with random heads of all kinds; yield (clusters, target, heads)."""
    model = drifting(family)
    save_with_tokenizer(model, folder / "target")
    heads = make_heads(folder / "heads", folder / "target", scale=0.5)
    pair = replace(Pair.of(folder / "target"), heads_path=heads)
    third = with_eagle3(pair, folder / "eagle3")
    with (
        specscope.open(pair, runtime="local-thread", device="cpu") as cluster,
        specscope.open(third, runtime="local-thread", device="cpu") as other,
    ):
        yield Clusters(cluster, other), model, heads


def drafts(trace) -> dict[int, list[Node]]:
    rows = sorted((d for d in trace.decisions if d.node >= 0), key=lambda d: (d.step, d.node))
    trees = {step: [Node(d.token, d.parent) for d in ds] for step, ds in groupby(rows, key=lambda d: d.step)}
    return {r.step: trees.get(r.step, []) for r in trace.rounds}


def expected(
    plain: Plain,
    method: str,
    config: dict,
    x: list[int],
    levels: int,
    sampling: Sampling,
    draws: Draws | None,
) -> list[Node]:
    """Return the reference's draft after x, of at most `levels` levels."""
    masked_tail = config.get("first") == "mask"
    plain.levels = min(levels, config.get("gamma", 0))
    rows = plain.rows(x)
    if masked_tail:
        rows = partial(_rows_from_masks, plain.rows(x[:-1]), x[-1])
    if "top" in config:
        return dynamic_tree(rows, config["top"], min(config["depth"], levels), config["total"])
    if "gamma" in config:
        chain = {(0,) * (level + 1) for level in range(plain.levels)}
        return static_tree(rows, chain, plain.levels, x, sampling, draws)
    depth = config.get("masks", 99) + 1 - masked_tail
    paths = {
        p
        for p in tree(config.get("tree") or ("eagle" if method.endswith("eagle") else "medusa")).paths
        if len(p) <= depth
    }
    return static_tree(rows, paths, min(levels, max(map(len, paths))), x, sampling, draws)


def _rows_from_masks(rows: Rows, last: int, path: list[int]) -> Tensor:
    """Return the row of one mask more: the first mask is in the last token's place."""
    return rows([last, *path])


def rounds(
    trace, plain: Plain, method: str, config: dict, sampling: Sampling = GREEDY, draws: Draws | None = None
) -> Iterator[tuple[Round, list[int], list[Node]]]:
    """Check the drafts against the reference; yield each round, the text before it, the nodes."""
    prompt, done = list(trace.header.prompt_ids[0]), trace.token_ids()
    new, x = len(done), prompt
    for r, (step, nodes) in zip(trace.rounds, drafts(trace).items(), strict=True):
        levels = len(prompt) + new - len(x)
        assert nodes == expected(plain, method, trace.header.config | config, x, levels, sampling, draws), (
            step
        )
        yield r, x, nodes
        x = prompt + done[: len(x) - len(prompt) + r.emitted]
    assert x == prompt + done


def walk(plain: Plain, x: list[int], nodes: list[Node]) -> list[int]:
    at, path = -1, list[int]()
    while True:
        own = plain.own(x + path)
        child = next((i for i, n in enumerate(nodes) if n == (own, at)), None)
        if child is None:
            return path
        at, path = child, [*path, own]
