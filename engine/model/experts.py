"""A mixture of experts in place of a layer's MLP: each row is computed by a few of E small MLPs.

The router's probabilities over the experts are a softmax; a row takes its `used` most probable
experts and adds their outputs, weighted (Shazeer et al. 2017; Mixtral, Jiang et al. 2024, equation
2). Some families have an expert for all rows beside them, Qwen2's weighted by a sigmoid of its own.

Rows are grouped by expert, so a forward reads each expert once, however many rows need it: a
verification of several rows reads more experts than a plain step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specscope.engine.model.families import Mixture

Product = Callable[[Tensor], Tensor]


class Expert(NamedTuple):
    """A gated MLP, (T, D) -> (T, D)."""

    gate_up: Product
    """One product of gate and up, (T, 2 inner)."""
    down: Product
    activate: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(self.activate(gate).mul_(up))


def experts_of(shape: Mixture, expert: Callable[[str], Expert], take: Callable[[str], Tensor]) -> Experts:
    """Return a layer's experts: `expert` makes the one of a name, `take` returns a tensor."""
    return Experts(
        take("mlp.router.weight"),
        [expert(f"mlp.experts.{i}") for i in range(shape.experts)],
        shape.used,
        normalised=shape.normalised,
        shared=expert("mlp.shared") if shape.shared else None,
        shared_gate=take("mlp.shared_gate.weight") if shape.shared_gate else None,
    )


class Experts:
    """The experts of one layer.

    Args:
        router: (E, D).
        experts: The E experts.
        used: Experts of a row.
        normalised: Whether a row's weights sum to 1; otherwise they are the probabilities.
        shared: An expert for all rows.
        shared_gate: (1, D): the shared expert's output is multiplied by a sigmoid; None for 1.
    """

    def __init__(
        self,
        router: Tensor,
        experts: Sequence[Expert],
        used: int,
        *,
        normalised: bool,
        shared: Expert | None = None,
        shared_gate: Tensor | None = None,
    ) -> None:
        self._router, self._experts, self._used, self._normalised = router.t(), experts, used, normalised
        self._shared, self._shared_gate = shared, shared_gate
        self.held, self.read = len(experts), 0
        """Experts of this layer, and those that the last forward read; without a shared one."""

    def __call__(self, x: Tensor) -> Tensor:
        probabilities = (x @ self._router).float().softmax(-1)
        weights, chosen = probabilities.topk(self._used, -1)
        if self._normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=len(self._experts)).tolist()
        rows, scales = order // self._used, weights.flatten()[order, None].to(x.dtype)
        output, first = self._of_all(x), 0
        for expert, count in zip(self._experts, counts, strict=True):
            own = slice(first, first + count)
            if count:
                output.index_add_(0, rows[own], expert(x[rows[own]]).mul_(scales[own]))
            first += count
        self.read = sum(count > 0 for count in counts)
        return output

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))

    def _of_all(self, x: Tensor) -> Tensor:
        if self._shared is None:
            return torch.zeros_like(x)
        output = self._shared(x)
        return output if self._shared_gate is None else output.mul_((x @ self._shared_gate.t()).sigmoid())
