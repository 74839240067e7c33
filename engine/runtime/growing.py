"""Drafting a tree with a small model: level by level, one forward over all nodes of a level.

A fuzzy tree (EasySpec) starts with an exact forward over all that was never forwarded exactly: the accepted tokens and the
target's own (bonus calibration, section 3.2). Its last row makes the first level; the levels below are fuzzy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from engine.drafters.tree import next_level, root
from engine.draws import TOP, Draws, most_probable
from engine.model.fuzzy import Alone, Fuzzy, Share, layer_groups
from engine.runtime.forwards import NO_DRAFT, Forwards
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


def grow(
    forwards: Forwards, job: Grow, drafting: Drafting, stamps: list[Stamp], stopped: Callable[[], bool]
) -> tuple[Grown, ...]:
    """Draft a tree; `stopped` is asked between levels.

    Args:
        forwards: Holds the drafter and its KV slots. The rows of the tree stay there: the next job finds the path
            that was accepted among them.
        job: What to draft.
        drafting: How.
        stamps: Takes one stamp per level.
        stopped: Whether somebody asked to stop.
    """
    (prefix,) = job.prefixes
    sampling, tree, above = drafting.sampling, list[Grown](), [root(drafting.sampling, job.sampled)]
    rows = iter(job.rows)
    kind, provisional = ("calibrate", True) if job.fuzzy > 1 and job.calibrate else ("draft", False)
    fuzzy = _fuzzy(forwards.models[job.model].depth, job.fuzzy, drafting.partners)
    for level in range(job.depth):
        if drafting.partners.agree(stopped()):
            break
        first = len(tree) - len(above)  # of the nodes above; -1 is the prefix's last token
        if level == 0:
            first_fuzzy = None if provisional else fuzzy
            logits = forwards.extend(job.model, [prefix], [NO_DRAFT], stamps, kind, fuzzy=first_fuzzy)[0]
        else:
            last = tree[first:]
            ids, parents = tuple(t.id for t in last), tuple(t.parent for t in last)
            logits = forwards.branch(
                job.model, prefix, (ids, parents), stamps, "draft", fuzzy=fuzzy, provisional=provisional
            )
        above, q = next_level(
            logits[:, : drafting.vocab_size],
            above,
            job.width,
            position=len(prefix) + level,
            sampling=sampling,
            draws=drafting.draws,
            sampled=job.sampled,
        )
        kept = {} if not job.sampled or sampling.greedy else {node.parent: -1 for node in above}
        for parent in kept:
            kept[parent] = next(rows)
            drafting.write(kept[parent], q[parent])
        tops = most_probable(q, TOP)
        chosen = q[[node.parent for node in above], [node.token for node in above]].tolist()
        tree += [
            Grown(node.token, first + node.parent, level, kept.get(node.parent, -1), p, tops[node.parent])
            for node, p in zip(above, chosen, strict=True)
        ]
    return tuple(tree)


def _fuzzy(depth: int, size: int, share: Share) -> Fuzzy | None:
    """Return how a model of so many layers runs its fuzzy forwards; None where they are the ordinary ones."""
    return Fuzzy(layer_groups(depth, size), share) if depth and size > 1 else None
