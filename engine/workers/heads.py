"""How each kind of drafting head says what may follow: sources of a tree's levels (see `engine.workers.trees`).

The target's forwards leave its hidden states beside the KV cache, so drafting costs no forward of the target. A head has nothing
to draft from until the target has forwarded something: after a prompt of one token the first draft is empty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from engine.heads.modules import Eagle, Eagle3, Hydra, Layered, Medusa, ParallelEagle, ParallelMedusa, Work
from engine.types import Prefix
from engine.workers.forwards import NO_DRAFT, Forwards, Tree
from engine.workers.jobs import Grow, Grown, Stamp

if TYPE_CHECKING:
    from engine.heads.modules import Head

TARGET = "target"


class FromMedusa:
    """One call of all heads; every node of a level has the same row."""

    def __init__(self, forwards: Forwards, job: Grow, stamps: list[Stamp]) -> None:
        self._forwards, self._job, self._stamps = forwards, job, stamps
        head = forwards.heads[job.model]
        assert isinstance(head, Medusa), "the source of its kind"
        self._head, self._rows = head, torch.empty(0)

    def __call__(self, tree: Sequence[Grown], at: Sequence[int]) -> torch.Tensor | None:
        """Return the row of the next level."""
        if not tree:
            if (h := _last(self._forwards, self._job.prefixes[0])) is None:
                return None
            (levels,) = self._job.levels
            self._rows = _timed(self._stamps, 1, self._head.work(levels), lambda: self._head(h, levels))
        return self._rows[level_after(tree, at)][None]


class FromHydra:
    """One call for each level, over all nodes that get children."""

    def __init__(self, forwards: Forwards, job: Grow, stamps: list[Stamp]) -> None:
        self._forwards, self._job, self._stamps = forwards, job, stamps
        head = forwards.heads[job.model]
        assert isinstance(head, Hydra), "the source of its kind"
        self._head = head
        self._h: torch.Tensor | None = None

    def __call__(self, tree: Sequence[Grown], at: Sequence[int]) -> torch.Tensor | None:
        """Return a row for each node."""
        (prefix,) = self._job.prefixes
        if not tree:
            self._h = _last(self._forwards, prefix)
        if (h := self._h) is None:
            return None
        paths = [[int(prefix.tokens[-1]), *_path(tree, node)] for node in at]
        work = self._head.work(level_after(tree, at))
        return _timed(self._stamps, len(at), work, lambda: self._head(h, paths))


class FromEagle:
    """A forward of the layer for each level: the first one with exact states, the others with those it predicted itself."""

    def __init__(self, forwards: Forwards, job: Grow, stamps: list[Stamp]) -> None:
        self._forwards, self._job, self._stamps = forwards, job, stamps
        self._rows = {-1: -1}
        """Of the nodes that were forwarded: which of them each is."""

    def __call__(self, tree: Sequence[Grown], at: Sequence[int]) -> torch.Tensor | None:
        """Return a row for each node."""
        name, (prefix,), forwards = self._job.model, self._job.prefixes, self._forwards
        if not tree:
            return follow(forwards, name, prefix, self._stamps, "draft")
        after = _behind_first(prefix)
        parents = tuple(self._rows[tree[i].parent] for i in at)
        rows = [len(after) + parent for parent in parents]
        predicted = forwards.states(name, prefix.sequence, rows)
        ids = tuple(tree[i].id for i in at)
        self._rows |= {node: len(self._rows) - 1 + i for i, node in enumerate(at)}
        (logits,) = forwards.branch(
            name, [after], [(ids, parents)], self._stamps, "draft", provisional=True, vectors=predicted
        )
        self._stamps[-1] = self._stamps[-1]._replace(work=_layered(forwards, name).work)
        return logits


class FromMasks:
    """One forward over the last token and the masks behind it; every node of a level has the same row."""

    def __init__(self, forwards: Forwards, job: Grow, stamps: list[Stamp]) -> None:
        self._forwards, self._job, self._stamps = forwards, job, stamps
        self._rows: torch.Tensor | None = None

    def __call__(self, tree: Sequence[Grown], at: Sequence[int]) -> torch.Tensor | None:
        """Return the row of the next level."""
        job = self._job
        if not tree:
            count = job.levels[0] - 1
            masks = tuple(range(-1, -1 - count, -1)), tuple(range(-1, count - 1))
            self._rows = follow(self._forwards, job.model, job.prefixes[0], self._stamps, "draft", masks)
        return None if self._rows is None else self._rows[level_after(tree, at)][None]


HEADS: Mapping[type[Head], Callable[[Forwards, Grow, list[Stamp]], Any]] = {
    Medusa: FromMedusa,
    Hydra: FromHydra,
    Eagle: FromEagle,
    Eagle3: FromEagle,
    ParallelEagle: FromMasks,
    ParallelMedusa: FromMasks,
}


def follow(
    forwards: Forwards,
    name: str,
    prefix: Prefix,
    stamps: list[Stamp],
    kind: str,
    masks: Tree = NO_DRAFT,
    *,
    logits: bool = True,
) -> torch.Tensor | None:
    """Forward what a head's layer has not cached of a prefix, with the target's states, and mask tokens behind it.

    Its rows begin at the second token: the row of a token reads the state of the one before.

    Returns:
        The logits of the last row and of the masks, (1 + K, V); None where the target has not forwarded the prefix.
    """
    after, head = _behind_first(prefix), _layered(forwards, name)
    if not len(after) or forwards.features(TARGET, prefix, len(after) - 1) is None:
        return None

    def states(first: int) -> torch.Tensor:
        found = forwards.features(TARGET, prefix, first)
        assert found is not None, "they are all there"
        found = head.fuse(found)
        return torch.cat([found, found.new_zeros(len(masks[0]), found.shape[1])]) if masks[0] else found

    (rows,) = forwards.extend(name, [after], [masks], stamps, kind, logits=logits, vectors=states)
    stamps[-1] = stamps[-1]._replace(work=head.exact)
    return rows


def prefill(forwards: Forwards, name: str, prefixes: Sequence[Prefix], stamps: list[Stamp]) -> None:
    """Cache the rows of prefixes in a head's layer, where it has one; the target has forwarded them."""
    if forwards.heads[name].layer is not None:
        for prefix in prefixes:
            follow(forwards, name, prefix, stamps, "prefill", logits=False)


def level_after(tree: Sequence[Grown], at: Sequence[int]) -> int:
    """Return the level of the children of some nodes."""
    return tree[at[0]].level + 1 if tree else 0


def _path(tree: Sequence[Grown], node: int) -> list[int]:
    path = list[int]()
    while node >= 0:
        path.insert(0, tree[node].id)
        node = tree[node].parent
    return path


def _last(forwards: Forwards, prefix: Prefix) -> torch.Tensor | None:
    """Return the target's state of the last token but one, (D,)."""
    found = forwards.features(TARGET, prefix, len(prefix) - 2) if len(prefix) > 1 else None
    return None if found is None else found[0]


def _behind_first(prefix: Prefix) -> Prefix:
    return Prefix(prefix.sequence, prefix.tokens[1:])


def _layered(forwards: Forwards, name: str) -> Layered:
    head = forwards.heads[name]
    assert isinstance(head, Layered), "it has a layer"
    return head


def _timed(stamps: list[Stamp], rows: int, work: Work, call: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Make a call of a head without a layer, and its stamp."""
    start = time.perf_counter_ns()
    out = call()
    if out.is_cuda:
        torch.cuda.current_stream(out.device).synchronize()
    stamps.append(Stamp("draft", start, time.perf_counter_ns(), rows, 0, work=work))
    return out
