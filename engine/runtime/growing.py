"""Drafting a tree level by level: a source says which tokens may follow, a shape which of them become nodes.

A fuzzy tree (EasySpec) starts with an exact forward over all that was never forwarded exactly: the accepted tokens and the
target's own (bonus calibration, section 3.2). Its last row makes the first level; the levels below are fuzzy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from engine.drafters.tree import line, next_level, root
from engine.draws import TOP, Draws, most_probable
from engine.model.fuzzy import Alone, Fuzzy, Share, layer_groups
from engine.runtime.forwards import NO_DRAFT, Forwards
from engine.runtime.heads import HEADS
from engine.runtime.jobs import Grow, Grown, Stamp
from engine.types import Sampling


class Partners(Share, Protocol):
    """The devices that draft one tree together."""

    def agree(self, stopped: bool) -> bool:
        """Return whether any of them was asked to stop: all stop after the same forward."""
        ...


class Drafting(NamedTuple):
    """What drafting needs besides its job."""

    sampling: Sampling
    draws: Draws
    """Those of the job's sequence."""
    vocab_size: int
    """The target's."""
    write: Callable[[int, torch.Tensor], None]
    """Puts a row of q, (V,), into the slab."""
    partners: Partners = Alone()
    """Who shares the layers of fuzzy forwards."""


class Source(Protocol):
    """Who drafts: a small model, or a head of the target."""

    def __call__(self, tree: Sequence[Grown], at: Sequence[int]) -> torch.Tensor | None:
        """Return the logits after some nodes, all of the last level; None when nothing can be drafted yet.

        Args:
            tree: All nodes so far.
            at: Which of them, R; -1 is the prefix's last token.

        Returns:
            (R, V); (1, V) where one row holds for all of them.
        """
        ...


def grow(
    forwards: Forwards, job: Grow, drafting: Drafting, stamps: list[Stamp], stopped: Callable[[], bool]
) -> tuple[Grown, ...]:
    """Draft a tree; `stopped` is asked between levels.

    Args:
        forwards: Holds the drafter and its KV slots. The rows of the tree stay there: the next job finds the path
            that was accepted among them.
        job: What to draft.
        drafting: How.
        stamps: Takes one stamp per forward.
        stopped: Whether somebody asked to stop.
    """
    (prefix,) = job.prefixes
    sampling, tree, paths = drafting.sampling, list[Grown](), list[float]()
    above, at = [root(drafting.sampling, job.sampled)], [-1]
    rows, before = iter(job.rows), len(stamps)
    source = _source(forwards, job, drafting.partners, stamps)
    for level in range(job.levels):
        if drafting.partners.agree(stopped()) or (logits := source(tree, at)) is None:
            break
        nodes, q = next_level(
            logits[:, : drafting.vocab_size],
            above,
            job.shape,
            position=len(prefix) + level,
            sampling=sampling,
            draws=drafting.draws,
            sampled=job.sampled,
        )
        lines = [line(node.parent, q) for node in nodes]
        kept = {} if not job.sampled or sampling.greedy else {i: next(rows) for i in dict.fromkeys(lines)}
        for i, row in kept.items():
            drafting.write(row, q[i])
        tops = most_probable(q, TOP)
        chosen = q[lines, [node.token for node in nodes]].tolist()
        first, forward = len(tree), len(stamps) - before - 1
        tree += [
            Grown(node.token, at[node.parent], level, kept.get(i, -1), p, tops[i], forward)
            for node, i, p in zip(nodes, lines, chosen, strict=True)
        ]
        paths += [node.path for node in nodes]
        onward = job.shape.onward(nodes)
        above, at = [nodes[i] for i in onward], [first + i for i in onward]
        if not above:
            break
    return _picked(tree, job.shape.kept(paths))


def _picked(tree: Sequence[Grown], kept: Sequence[int]) -> tuple[Grown, ...]:
    """Return some nodes of a tree, their parents among them, numbered anew."""
    number = {-1: -1} | {old: new for new, old in enumerate(kept)}
    return tuple(tree[old]._replace(parent=number[tree[old].parent]) for old in kept)


def _source(forwards: Forwards, job: Grow, partners: Partners, stamps: list[Stamp]) -> Source:
    if (head := forwards.heads.get(job.model)) is not None:
        return HEADS[type(head)](forwards, job, stamps)
    fuzzy = _fuzzy(forwards.models[job.model].depth, job.fuzzy, partners)
    return SmallModel(forwards, job, fuzzy, stamps)


class SmallModel:
    """A model of its own: the first level comes from a forward of what is not cached, each other from one over the level above."""

    def __init__(self, forwards: Forwards, job: Grow, fuzzy: Fuzzy | None, stamps: list[Stamp]) -> None:
        self._forwards, self._job, self._fuzzy, self._stamps = forwards, job, fuzzy, stamps
        self._calibrates = job.fuzzy > 1 and job.calibrate
        self._rows = {-1: -1}
        """Of the nodes that were forwarded: which of them each is."""

    def __call__(self, tree: Sequence[Grown], at: Sequence[int]) -> torch.Tensor:
        """Forward these nodes."""
        job, (prefix,), forwards = self._job, self._job.prefixes, self._forwards
        if not tree:
            kind, fuzzy = ("calibrate", None) if self._calibrates else ("draft", self._fuzzy)
            return forwards.extend(job.model, [prefix], [NO_DRAFT], self._stamps, kind, fuzzy=fuzzy)[0]
        level = tuple(tree[i].id for i in at), tuple(self._rows[tree[i].parent] for i in at)
        self._rows |= {node: len(self._rows) - 1 + i for i, node in enumerate(at)}
        return forwards.branch(
            job.model,
            prefix,
            level,
            self._stamps,
            "draft",
            fuzzy=self._fuzzy,
            provisional=self._calibrates,
        )


def _fuzzy(depth: int, size: int, share: Share) -> Fuzzy | None:
    """Return how a model of so many layers runs its fuzzy forwards; None where they are the ordinary ones."""
    return Fuzzy(layer_groups(depth, size), share) if depth and size > 1 else None
