"""Drafts branches for the likely outcomes of a verification in progress (SSD, `Fan`).

*Glue*: one forward over the trunk. *Fork*: at each place the most probable tokens of its row, but
not the trunk's next token, which a rejection cannot give. *Branches*: a chain after each of these
tokens; the rows of all chains are one forward per step. Parents give each row what precedes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from math import inf

import torch

from specscope.engine.drafting.level import Level, levels, ranked
from specscope.engine.drafting.tree import Wide
from specscope.engine.sampling.draws import Draws, Key, softmax
from specscope.engine.worker.drafting import Drafting
from specscope.engine.worker.forwards import Forwards
from specscope.engine.worker.jobs import Branch, Fan, Grown, Stamp

_ONE = Wide(1, 1)


@dataclass(slots=True)
class _Chain:
    """A growing branch."""

    place: int
    token: int
    probability: float
    length: int
    """Most tokens after `token`."""
    rows: tuple[int, ...]
    row: int
    """Row of its last token's parent in the tree; -1 is the prefix's last token."""
    nodes: list[Grown] = field(default_factory=list[Grown])

    @property
    def last(self) -> int:
        return self.nodes[-1].id if self.nodes else self.token

    def grows(self, stop_below: float) -> bool:
        unsure = bool(self.nodes) and self.nodes[-1].probability < stop_below
        return len(self.nodes) < self.length and not unsure


def fan(
    forwards: Forwards, job: Fan, drafting: Drafting, stamps: list[Stamp], stopped: Callable[[], bool]
) -> tuple[Branch, ...]:
    """Draft the branches of a fan; each forward's stamp is appended.

    `stopped` is called before each step of the branches: the forks are always known, so that no
    text depends on the time of a stop.
    """
    (prefix,) = job.prefixes
    trunk = job.trunk[: job.depth], tuple(range(-1, job.depth - 1))
    (logits,) = forwards.extend(job.model, [prefix], [trunk], stamps, "glue")
    chains = _forked(logits[:, : drafting.vocab_size], job)
    count, draws = job.depth, drafting.draws(prefix.sequence)
    for step in range(max(job.lengths)):
        growing = [chain for chain in chains if chain.grows(job.stop_below)]
        if not growing or stopped():
            break
        tree = tuple(chain.last for chain in growing), tuple(chain.row for chain in growing)
        (logits,) = forwards.branch(job.model, [prefix], [tree], stamps, "branch")
        damping = job.damping[step] if job.damping else None
        rows = logits[:, : drafting.vocab_size]
        how = {"sampled": job.sampled, "chain": True}
        (level,) = levels([rows], _ONE, drafting.sampling, damping=damping, **how)
        for i, chain in enumerate(growing):
            position = len(prefix) + chain.place + 1 + step
            chain.nodes.append(_next(level, i, chain, position, draws, drafting, len(stamps) - 1))
            chain.row = count + i
        count += len(growing)
    return tuple(Branch(c.place, c.token, c.probability, tuple(c.nodes)) for c in chains)


def _forked(logits: torch.Tensor, job: Fan) -> list[_Chain]:
    """Return the branches' first tokens, by place and falling probability; lower ids first.

    Logits are compared: small probabilities are rounded to 0, and would have no order.
    """
    found, rows = list[tuple[int, int, tuple[int, ...]]](), iter(job.rows)
    for place, top in enumerate(ranked(logits, max(job.forks) + 1, -inf)):
        leased = [next(rows, ()) for _ in range(job.forks[place])]
        following = job.trunk[place] if place < len(job.trunk) else None
        others = [token for token, _ in top if token != following]
        found += zip(repeat(place), others, leased if job.lengths[place] else ())
    places, tokens = ([one[i] for one in found] for i in (0, 1))
    probabilities: list[float] = softmax(logits)[places, tokens].tolist()
    return [
        _Chain(place, token, probability, job.lengths[place], leased, place - 1)
        for (place, token, leased), probability in zip(found, probabilities, strict=True)
    ]


def _next(
    level: Level, i: int, chain: _Chain, position: int, draws: Draws, drafting: Drafting, forward: int
) -> Grown:
    """Draft a branch's next token, as in a chain: by the position's number, or the argmax."""
    step, row = len(chain.nodes), -1
    if level.argmax:
        token = level.argmax[i]
    else:
        token, row = draws.choose(Key(position, "draft"), level.q[i]), chain.rows[step]
        drafting.write(row, level.q[i])
    return Grown(token, step - 1, step, row, level.probability(i, token), level.tops[i], forward)
