"""Tables of others, predicted with round costs from ParallelSpec; nothing is fitted to them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from traces.papers.parallelspec import round_cost
from traces.papers.rows import Paper, Row, numbers, published_only

_DATA = numbers("outside")
_KNOWN = ("EAGLE", "Hydra", "Medusa", "PLD", "SpS", "Lookahead")
_REASONS = {
    "Spec-Bench, A100": "the authors of ParallelSpec measured 1.42x for 2.39 tokens of Medusa on an A100 40 GB; "
    "Spec-Bench has 1.78x for 2.32 on an A100, so the two measured rounds differ by 29 %.",
    "Spec-Bench, RTX 3090": "the costs are an A100's. A 3090 has 60 % of the bandwidth of an A100 40 GB, so a "
    "small drafter's share of a round is less, and 23 % of its tensor rate, so many rows cost more.",
}


def _spec_bench(item: str) -> Iterator[Row]:
    text = "Accepted tokens over the round's cost that ParallelSpec's Table 1 implies for Vicuna 7B on an A100 40 GB."
    for method, values in _DATA[item].items():
        if method == "columns":
            continue
        speed, accepted = values
        if method in _KNOWN:
            ours = accepted / round_cost(method)
            yield Row(f"{method}, speed-up", speed, ours, "closed form", text, _REASONS[item])
        else:
            yield Row(
                f"{method}, speed-up", speed, None, "published only", "No cost of its round is printed."
            )
        yield Row(f"{method}, accepted", accepted, None, "published only", "An input of the speed-up.")


def _nano_pearl() -> Iterator[Row]:
    why = "Neither acceptance rates nor plain speeds are printed with the table."
    return published_only(_DATA["nano-PEARL, H200"], why)


PAPER = Paper(
    "outside",
    {name: partial(_spec_bench, name) for name in _REASONS} | {"nano-PEARL, H200": _nano_pearl},
)
