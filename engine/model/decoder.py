"""A decoder of the Llama kind over packed rows: one forward for prefill, single rows, chains, trees and batches.

Linear layers see the rows of all slots at once; attention works slot by slot on the slot's own rows, so nothing is
padded. Rotary pairs (i, i + head_dim / 2) are brought next to each other when the weights are loaded: rotating is
then one complex product, and scores do not change because queries and keys are reordered alike.

A forward may be fuzzy (`engine.model.fuzzy`): groups of layers then read one hidden state.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from engine.errors import UsageError
from engine.model.aligned import Aligned, attend
from engine.model.attention import Attention
from engine.model.cache import Buffers, Cache
from engine.model.fuzzy import Fuzzy, layer_groups
from engine.model.language import Output
from engine.model.weights import Layer, Linear, Norm, as_it_is

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from engine.model.shape import ModelShape
    from engine.model.slots import Rows
    from engine.model.stage import Border


class Decoder:
    """Language model over packed rows; see `engine.model.slots.LanguageModel`.

    Args:
        shape: Sizes and options.
        take: Returns the checkpoint's tensor of a name, in the dtype and on the device to compute with.
        name: What spans call it: target or drafter.
        span: Its layers, for a stage of a split model (`engine.model.stage`); all of them when not given.
        ends: Embedding, (V, D), and head of a drafting head's layer; the checkpoint's own when not given.
        before: Makes of rows, and the embeddings of their tokens (T, D), what enters the first layer, (T, D), and what its
            attention reads, (T, any width), where that is not the same, normed.
        masks: Mask tokens of a drafting head; their ids are -1, -2, and so on.
    """

    def __init__(
        self,
        shape: ModelShape,
        take: Callable[[str], Tensor],
        name: str = "target",
        span: range | None = None,
        *,
        ends: tuple[Tensor, Callable[[Tensor], Tensor]] | None = None,
        before: Callable[[Rows, Tensor], tuple[Tensor, Tensor | None]] | None = None,
        masks: int = 0,
    ) -> None:
        span = range(shape.layers) if span is None else span
        self.starts, self.ends = span.start == 0, span.stop == shape.layers
        """Whether it has the embeddings, and whether it has the head."""
        self.shape = replace(shape, layers=len(span), windows=shape.windows[span.start : span.stop])
        self.name = name
        self.vocab_size = shape.vocab
        self.context = shape.context
        self._before, self._lowest = before, -masks
        self.layers = [Layer.of(shape, i, take) for i in span]
        self.norm = Norm(take("model.norm.weight"), shape.eps) if shape.final_norm else as_it_is
        like = self.layers[0].mlp_norm.weight
        self.device, self.dtype = like.device, like.dtype
        if ends is not None:
            self.embedding, self.head = ends
        else:
            nothing = like.new_empty((0, shape.width))
            held = self.starts or (self.ends and shape.tied)
            self.embedding = take("model.embed_tokens.weight") if held else nothing
            head = nothing if not self.ends else self.embedding if shape.tied else take("lm_head.weight")
            self.head = Linear(head, shared=shape.tied)
        self._ordinary = Fuzzy(layer_groups(len(span), 1))
        # Queries are scaled by 1 / sqrt(head_dim) while they are rotated.
        scales = torch.full((shape.heads + shape.kv_heads, 1), shape.rope_scale)
        scales[: shape.heads] /= math.sqrt(shape.head_dim)
        self._scales = scales.to(self.device)
        self._rotations = torch.empty((0, 1, shape.head_dim // 2), dtype=torch.complex64, device=self.device)

    def new_cache(self, slots: int, capacity: int) -> Cache:
        """Return an empty cache for `slots` sequences of `capacity` rows each, tree rows included."""
        positions = min(capacity, self.context)
        if positions > len(self._rotations):
            angles = torch.outer(torch.arange(positions).float(), torch.tensor(self.shape.frequencies))
            self._rotations = torch.polar(torch.ones_like(angles), angles)[:, None].to(self.device)
        return Cache(self.shape, slots, capacity, self.dtype, self.device)

    @property
    def depth(self) -> int:
        """Number of layers."""
        return self.shape.layers

    @torch.inference_mode()
    def forward(
        self,
        cache: Cache,
        rows: Rows,
        want: np.ndarray,
        hidden: tuple[int, ...] = (),
        fuzzy: Fuzzy | None = None,
        border: Border | None = None,
    ) -> Output:
        """Run the rows and add them to the cache; see `LanguageModel.forward`."""
        picked = self._check(rows, want, hidden)
        segments = rows.segments()
        before = [(slot, cache.length(slot)) for slot, _, _ in segments]
        try:
            index = cache.append(rows)
            buffers = cache.buffers(len(rows))
            parts = list(attend(cache, buffers, segments))
            if len(parts) == 1 and isinstance(parts[0], Attention) and parts[0].chained:
                rotation = self._rotations[parts[0].start : parts[0].stop]
            else:
                rotation = self._rotations[
                    torch.from_numpy(cache.positions[rows.slots, index]).to(self.device)
                ]
            x, first = self._enter(rows, border)
            turns = rotation * self._scales
            states = self._run(x, first, turns, buffers, parts, hidden, fuzzy or self._ordinary)
            cells = sum(part.cells(self.layers[0].window) for part in parts)
            if not self.ends:
                _known(border).leave(x)
                return Output(x.new_empty((len(want), 0)), states, cells)
            if picked is not None:
                x = x.index_select(0, picked)
            return Output(self.head(self.norm(x)).float(), states, cells)
        except BaseException:
            for slot, length in before:  # keys and values behind it were not all written
                cache.truncate(slot, length)
            raise

    def _enter(self, rows: Rows, border: Border | None) -> tuple[Tensor, Tensor | None]:
        """Return what enters the first of its layers, (T, D), and what its attention reads, where that is not the same, normed."""
        if not self.starts:
            return _known(border).enter(len(rows), self.layers[0].mlp_norm.weight), None
        ids = rows.tokens if self._before is None else np.maximum(rows.tokens, 0)
        x = self.embedding.index_select(0, torch.from_numpy(ids).to(self.device))
        return (x, None) if self._before is None else self._before(rows, x)

    def _check(self, rows: Rows, want: np.ndarray, hidden: tuple[int, ...]) -> Tensor | None:
        """Check a forward's arguments; return the wanted rows for the device, or None when they are all in order."""
        ids, wanted = rows.tokens.tolist(), want.tolist()
        if ids and not self._lowest <= min(ids) <= max(ids) < self.vocab_size:
            wrong = next(token for token in ids if not self._lowest <= token < self.vocab_size)
            raise UsageError(f"token id {wrong} is not in the {self.name}'s vocabulary of {self.vocab_size}")
        if wanted and not 0 <= min(wanted) <= max(wanted) < len(ids):
            wrong = next(row for row in wanted if not 0 <= row < len(ids))
            raise UsageError(f"wanted row {wrong} is not one of the rows 0 to {len(ids) - 1}")
        if not all(-1 <= i <= self.shape.layers for i in hidden):
            raise UsageError(f"hidden layers are {hidden}; they must be -1 to {self.shape.layers}")
        return None if wanted == list(range(len(ids))) else torch.from_numpy(want).to(self.device)

    def _run(
        self,
        x: Tensor,
        first: Tensor | None,
        rotation: Tensor,
        buffers: Buffers,
        parts: Sequence[Attention | Aligned],
        hidden: tuple[int, ...],
        fuzzy: Fuzzy,
    ) -> dict[int, Tensor]:
        """Run the layers on x, (T, D), in place and return the hidden states asked for."""
        states = {0: x.clone()} if 0 in hidden else {}

        def read(i: int) -> None:
            """Leave what the rows of layer i read from x in the buffers."""
            layer = self.layers[i]
            layer.qkv.into(buffers.qkv, layer.norm(x) if i or first is None else first)
            if layer.qk_norm is not None:
                buffers.turned.copy_(layer.qk_norm(buffers.turned))
            buffers.rotate(rotation)
            for part in parts:
                part.run(i, layer.window)
            if fuzzy.watch is not None:
                fuzzy.watch(i, buffers)

        def attention(i: int) -> Tensor:
            read(i)
            return self.layers[i].out(buffers.read)

        for group in fuzzy.groups:
            outputs = fuzzy.attend(group, x, attention) if len(group) > 1 else None
            for i in group:
                layer = self.layers[i]
                if outputs is not None:  # EasySpec, algorithm 2
                    x.add_(outputs[i - group.start])
                else:
                    read(i)
                    layer.out.add_to(x, buffers.read)
                layer.gate_up.into(buffers.gate_up, layer.mlp_norm(x))
                layer.down.add_to(x, functional.silu(buffers.gate).mul_(buffers.up))
                if i + 1 in hidden:
                    states[i + 1] = x.clone()
        if -1 in hidden:
            states[-1] = self.norm(x)
        return states


def _known(border: Border | None) -> Border:
    assert border is not None, "a stage of a split model works with the one before and the one behind it"
    return border
