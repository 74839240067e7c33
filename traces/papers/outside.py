"""Tables of others, predicted in two ways; nothing is fitted to them.

First with the round costs that ParallelSpec's Table 1 implies. Then on the virtual cluster: the
forwards of a round in the profile of the GPU, with the methods' published shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from engine.heads.work import Work
from engine.simulate.profile import Profile
from traces.papers import nano_pearl
from traces.papers.parallelspec import round_cost
from traces.papers.rows import Paper, Row, numbers

_DATA = numbers("outside")
_KNOWN = ("EAGLE", "Hydra", "Medusa", "PLD", "SpS", "Lookahead")
_CONTEXT = 500
"""Cached rows of a forward; a prompt of Spec-Bench with half of its answer."""
_PROFILES = {"Spec-Bench, A100": "A100-40G", "Spec-Bench, RTX 3090": "RTX-3090"}
_REASONS = {
    "Spec-Bench, A100": "the authors of ParallelSpec measured 1.42x for 2.39 tokens of Medusa on an A100 40 GB; "
    "Spec-Bench has 1.78x for 2.32 on an A100, so the two measured rounds differ by 29 %.",
    "Spec-Bench, RTX 3090": "the costs are an A100's. A 3090 has 60 % of the bandwidth of an A100 40 GB, so a "
    "small drafter's share of a round is less, and 23 % of its tensor rate, so many rows cost more.",
}

_VIRTUAL = "Accepted tokens over a round of the profile: forwards of drafter, heads and target, and judging."
_WORK = (
    "the profile has forwards and judging only. A round of the measured program also builds trees, masks and caches in "
    "Python: for EAGLE, Hydra, Medusa and Lookahead ParallelSpec's Table 1 implies 1.64, 1.53, 1.68 and 1.21 plain "
    "steps a round, where the profile has 1.26, 1.12, 1.10 and 1.06."
)


class Shape(NamedTuple):
    """Forwards of a round."""

    drafts: int
    """Forwards of a drafting model."""
    heads: tuple[Work, ...]
    """Forwards of drafting heads."""
    rows: int
    """Rows of the verification."""


SHAPES = {
    "EAGLE": Shape(0, (Work(1, 2),) * 5, 26),  # five levels of its tree of 25 nodes
    "Hydra": Shape(0, tuple(Work(0, 2 * (i + 2)) for i in range(4)), 64),  # four heads, a tree of 63 nodes
    "Medusa": Shape(0, (Work(0, 5, 5),), 64),  # five heads, a tree of 63 nodes
    "PLD": Shape(0, (), 11),  # ten copied tokens
    "SpS": Shape(5, (), 6),  # five drafts
    "Lookahead": Shape(0, (), 57),  # window 7 and guess set 7, four rows each, and the last token
}
"""Rounds of Spec-Bench's methods, with the settings of ParallelSpec, section 5.1."""


def profile_cost(method: str, profile: str) -> float:
    """Return a round's time in plain steps on a profile."""
    latency, shape = Profile.load(profile).latency(), SHAPES[method]
    drafting = shape.drafts * latency("drafter", 1, _CONTEXT)
    heads = sum(latency.head(work, 1, _CONTEXT) for work in shape.heads)
    verification = latency("target", shape.rows, _CONTEXT) + latency.sample_us
    return (drafting + heads + verification) / latency("target", 1, _CONTEXT)


def _spec_bench(item: str) -> Iterator[Row]:
    text = "Accepted tokens over the round's cost that ParallelSpec's Table 1 implies for Vicuna 7B on an A100 40 GB."
    for method, values in _DATA[item].items():
        if method == "columns":
            continue
        speed, accepted = values
        if method in _KNOWN:
            ours = accepted / round_cost(method)
            yield Row(f"{method}, speed-up", speed, ours, "closed form", text, _REASONS[item])
            virtual = accepted / profile_cost(method, _PROFILES[item])
            name = f"{method}, speed-up on the profile {_PROFILES[item]}"
            yield Row(name, speed, virtual, "closed form", _VIRTUAL, _WORK)
        else:
            yield Row(
                f"{method}, speed-up", speed, None, "published only", "No cost of its round is printed."
            )
        yield Row(f"{method}, accepted", accepted, None, "published only", "An input of the speed-up.")


PAPER = Paper(
    "outside",
    {name: partial(_spec_bench, name) for name in _REASONS} | {"nano-PEARL, H200": nano_pearl.rows},
)
