"""The trained form of a drafter made of layers: frozen target layers, trained deltas and norms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.pairs.layers import MATRICES
from engine.training.teacher import Outputs


class Stack:
    """A target's layers in transformers; a chosen few of them run.

    Args:
        model: A transformers model of the Llama family; changed in place.
        dtype: Dtype of matrix products.
    """

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self.norm: Any = model.model.norm
        self.head: Tensor = model.get_output_embeddings().weight.detach()
        self._body: Any = model.model
        self._layers: list[Any] = list(model.model.layers)
        self._types: list[str] | None = getattr(model.config, "layer_types", None)
        self._body.norm = nn.Identity()
        self._body.requires_grad_(False)
        self.device: torch.device = self.head.device
        self.dtype = dtype
        self.depth = len(self._layers)

    def keep(self, numbers: Sequence[int]) -> list[Any]:
        """Let these layers run, in this order; return them."""
        chosen, config = [self._layers[i] for i in numbers], self._body.config
        self._body.layers = nn.ModuleList(chosen)
        config.num_hidden_layers = len(chosen)
        if self._types is not None:
            config.layer_types = [self._types[i] for i in numbers]
        return chosen

    def autocast(self) -> torch.autocast:
        """Return the context in which matrix products have `dtype`."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the states after the last kept layer, (B, L, D), for ids of (B, L)."""
        return self._body(input_ids=ids, use_cache=False).last_hidden_state


class Delta(nn.Module):
    """A frozen matrix with a trained delta: x (W + B A)' + b."""

    def __init__(self, linear: Any, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        weight: Tensor = linear.weight.detach()
        self.a = nn.Parameter(torch.randn(rank, weight.shape[1]) / math.sqrt(weight.shape[1]))
        self.b = nn.Parameter(torch.zeros(weight.shape[0], rank))
        # plain attributes: a checkpoint holds parameters only
        self._weight = weight.to(dtype)
        self._bias: Tensor | None = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Return x (W + B A)' + b, (..., out), for x of (..., in)."""
        delta = functional.linear(functional.linear(x, self.a), self.b)
        return functional.linear(x, self._weight, self._bias) + delta


class Student(nn.Module):
    """Frozen layers of a target with trained deltas, norms and an optional map.

    Args:
        stack: The target's layers.
        layers: Numbers of the kept ones.
        rank: Rank of the deltas.
        ids: Tokens that can be drafted, (N,); None: all.
        mapping: Initial map before the last norm, (D, D); None: none.
        seed: Fixes the initial A; B is zero.
    """

    def __init__(
        self,
        stack: Stack,
        layers: Sequence[int],
        rank: int,
        ids: Tensor | None,
        mapping: Tensor | None,
        seed: int,
    ) -> None:
        super().__init__()
        self._stack, self.device, self.autocast = stack, stack.device, stack.autocast
        self.ids = None if ids is None else ids.to(stack.device)
        parts = dict[str, Any]()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for j, layer in enumerate(stack.keep(layers)):
                for matrix in MATRICES:
                    room, _, name = matrix.partition(".")
                    delta = Delta(getattr(getattr(layer, room), name), rank, stack.dtype).to(stack.device)
                    setattr(getattr(layer, room), name, delta)
                    parts[f"model.layers.{j}.{matrix}"] = delta
                parts |= {
                    f"model.layers.{j}.{name}": m
                    for name, m in layer.named_modules()
                    if name.endswith("norm")
                }
        parts["model.norm"] = stack.norm
        self.parts = nn.ModuleDict(
            {name.replace(".", "/"): part.requires_grad_(True) for name, part in parts.items()}
        )
        self.map = (
            None if mapping is None else nn.Parameter(mapping.to(stack.device, torch.float32, copy=True))
        )
        head = stack.head if ids is None else stack.head[ids.to(stack.device)]
        self._head = head.to(stack.dtype)

    def forward(self, ids: Tensor, places: Tensor) -> Tensor:
        """Return logits (n, N) at n of the B x L tokens.

        Args:
            ids: (B, L).
            places: Indices of the tokens, (n,).
        """
        x = self._stack(ids).flatten(0, 1)[places]
        x = x if self.map is None else functional.linear(x, self.map)
        x = self._stack.norm(x)
        return functional.linear(x, self._head).float()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy stored tensors into the parameters."""
        with torch.no_grad():
            for name, parameter in self._parameters_by_name().items():
                parameter.copy_(tensors[name])

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to store, named as in `LayerDrafter.tensors`."""
        stored = {name: parameter.detach() for name, parameter in self._parameters_by_name().items()}
        return stored | ({} if self.ids is None else {"ids": self.ids})

    def _parameters_by_name(self) -> dict[str, nn.Parameter]:
        named = {
            f"{part.replace('/', '.')}.{name}": parameter
            for part, module in self.parts.items()
            for name, parameter in module.named_parameters()
        }
        return named if self.map is None else named | {"map": self.map}


def columns_of(tokens: Tensor, ids: Tensor | None, vocab: int) -> Tensor:
    """Return the columns of tokens among the N drafted ones; -1 for others.

    Args:
        tokens: Token ids of any shape.
        ids: The drafted tokens, (N,); None: all.
        vocab: Number of the target's tokens.
    """
    if ids is None:
        return tokens.long()
    columns = torch.full((vocab,), -1, dtype=torch.int64, device=tokens.device)
    columns[ids.to(tokens.device)] = torch.arange(len(ids), device=tokens.device)
    return columns[tokens.long()]


def divergence(logits: Tensor, columns: Tensor, outputs: Outputs) -> Tensor:
    """Return KL(p || q) over the K tokens and one bucket for all others, in nats per token.

    Tokens that cannot be drafted are left out of p, which is scaled to 1.

    Args:
        logits: The drafter's, (n, N).
        columns: Columns of the target's K most probable tokens; -1: cannot be drafted, (n, K).
        outputs: The target's outputs.
    """
    inside = columns >= 0
    log_p = torch.cat(
        [outputs.logs.float().masked_fill(~inside, -torch.inf), outputs.tail.float()[:, None]], 1
    )
    log_p = log_p.log_softmax(-1)
    log_q = logits.gather(1, columns.clamp(min=0)) - logits.logsumexp(-1, keepdim=True)
    known = log_q.exp().masked_fill(~inside, 0).sum(-1, keepdim=True)
    log_q = torch.cat([log_q, torch.log1p(-known.clamp(max=1 - 1e-6))], 1)
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p.masked_fill(p == 0, 0) - log_q), 0).sum(-1).mean()
