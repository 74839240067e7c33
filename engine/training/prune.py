"""Pruning of feed-forward layers: the units with the smallest output are removed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn


def prune(model: Any, width: int, tokens: np.ndarray) -> None:
    """Keep the `width` units of each feed-forward layer that add most to the residual stream.

    A unit adds a = silu(gate) * up times its column of the down matrix: its score is mean |a| over
    the tokens times that column's norm. The kept units stay in their order.

    Args:
        model: A transformers model of the Llama family; changed in place.
        width: Units to keep, at most the layer's width.
        tokens: Ids that the scores are computed on, (B, L).
    """
    mlps: list[Any] = [m for m in model.modules() if hasattr(m, "gate_proj")]
    sums: dict[nn.Module, torch.Tensor] = {mlp: torch.zeros(mlp.down_proj.in_features) for mlp in mlps}

    def watch(mlp: nn.Module) -> Any:
        def add(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            sums[mlp] += inputs[0].abs().flatten(0, -2).sum(0)

        return add

    hooks = [mlp.down_proj.register_forward_pre_hook(watch(mlp)) for mlp in mlps]
    with torch.no_grad():
        for row in tokens:
            model(input_ids=torch.from_numpy(row)[None], use_cache=False)
        for hook in hooks:
            hook.remove()
        for mlp in mlps:
            keep = (sums[mlp] * mlp.down_proj.weight.norm(dim=0)).topk(width).indices.sort().values
            _keep(mlp.gate_proj, keep, 0)
            _keep(mlp.up_proj, keep, 0)
            _keep(mlp.down_proj, keep, 1)
    model.config.intermediate_size = width


def _keep(linear: nn.Linear, units: torch.Tensor, dim: int) -> None:
    """Keep these rows (dim 0) or columns (dim 1) of a linear layer."""
    linear.weight = nn.Parameter(linear.weight.index_select(dim, units))
    linear.out_features, linear.in_features = linear.weight.shape
    if dim == 0 and linear.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
        linear.bias = nn.Parameter(linear.bias[units])
