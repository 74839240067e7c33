"""A Llama-style decoder: one packed forward for prefill, single rows, chains, trees and batches.

Linear layers process the rows of all slots at once; attention runs slot by slot, without padding.
Loading reorders queries and keys so that rotary pairs (i, i + head_dim / 2) are neighbours:
rotation is then one complex product, and attention scores stay the same.

In a fuzzy forward (`specscope.engine.model.fuzzy`) the layers of a group read one hidden state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specscope.engine.errors import RunCancelled, UsageError
from specscope.engine.model.attention import Attention, PaddedAttention, SlotAttention, attention_parts
from specscope.engine.model.cache import Buffers, Cache
from specscope.engine.model.experts import Experts
from specscope.engine.model.int8 import rotated
from specscope.engine.model.language import Output, never
from specscope.engine.model.shape import EMBEDDING, POSITIONS, ModelShape
from specscope.engine.model.shard import Ranks, Shard
from specscope.engine.model.slots import PROVISIONAL, Rows
from specscope.engine.model.stage import StageIO
from specscope.engine.model.weights import ACTIVATE, Layer, Linear, identity, norm_of

if TYPE_CHECKING:
    from specscope.engine.model.compiler import Compiler
    from specscope.engine.model.fuzzy import Fuzzy

    MakeInputs = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]
    """(masks (T,), embeddings (T, D), vectors (T, D)) -> residual input (T, D), attention input.

    `masks` has the number of each row's mask, from 1, and 0 for other rows. Without an attention
    input, (T, any width), attention reads the normed residual input."""


class GivenStates(NamedTuple):
    """Rows whose states are given: attention reads them in every layer as they are."""

    rows: Tensor
    """(C,) int64."""
    states: Tensor
    """(C, D)."""


class Decoder:
    """A language model over packed rows; see `specscope.engine.model.language.LanguageModel`.

    Args:
        shape: Sizes and options.
        take: Returns a checkpoint tensor by name, with the decoder's dtype and device.
        name: The model's name in spans: target or drafter.
        span: Layers of this stage of a split model (`specscope.engine.model.stage`); default: all.
        embedding: Token embeddings (V, D) of a drafting head; default: the checkpoint's.
        head: LM head (T, D) -> (T, V) of a drafting head; default: the checkpoint's.
        make_inputs: Makes the inputs of a drafting head's layer; default: the embeddings.
        mask_tokens: Number of mask tokens of a drafting head; their ids are -1, -2, and so on.
        bits: Of a model that serves drafts only (see `Linear`); an LM head has 8 at least.
        rotate: Whether the tensors are those of a rotated model (`specscope.engine.model.int8`),
            whose embeddings are rotated here.
        shard: This rank's part of a model split by tensors; `shape` and `take` are then the rank's.
        ranks: The ranks of such a model; all of them run every forward.
    """

    def __init__(
        self,
        shape: ModelShape,
        take: Callable[[str], Tensor],
        name: str = "target",
        span: range | None = None,
        *,
        embedding: Tensor | None = None,
        head: Callable[[Tensor], Tensor] | None = None,
        make_inputs: MakeInputs | None = None,
        mask_tokens: int = 0,
        bits: int = 0,
        rotate: bool = False,
        shard: Shard | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        span = range(shape.layers) if span is None else span
        self.is_first = span.start == 0
        self.is_last = span.stop == shape.layers
        self.shape = replace(shape, layers=len(span), windows=shape.windows[span.start : span.stop])
        self.name = name
        self.vocab_size = shape.vocab
        self.context = shape.context
        self.make_inputs, self._lowest_id = make_inputs, -mask_tokens
        self._ranks = ranks
        self.layers = [Layer.of(shape, i, take, bits=bits, rotated=rotate) for i in span]
        self._rotate = rotate
        self.norm = norm_of(shape, take, "model.norm") if shape.final_norm else identity
        like = self.layers[0].mlp_norm.weight
        self.device, self.dtype = like.device, like.dtype
        self.embedding = self._load_embedding(take) if embedding is None else embedding
        self.learned = take(POSITIONS) if shape.learned_positions and self.is_first else None
        """Vector of each position, (P, D), added to the embeddings; None for rotary positions."""
        self._activate = ACTIVATE[shape.activation]
        if shard is not None and ranks is not None:
            head = shard.head(self.embedding, take, ranks)
        self.head = self._load_head(take, bits, rotate) if head is None else head
        self._single_layers = [range(i, i + 1) for i in range(len(span))]
        # The rotation of queries includes their factor.
        scales = torch.ones((shape.heads + shape.kv_heads, 1))
        scales[: shape.heads] *= shape.query_scale or 1 / math.sqrt(shape.head_dim)
        self.scales = scales.to(self.device)
        """Factors of the rotation of each head, (heads + kv_heads, 1)."""
        tables = filter(None, (shape.frequencies, shape.other_frequencies))
        self._frequencies = torch.tensor(list(tables))[:, None]
        self.rotations = self._rotations(0)
        """Both rotations, or the only one, of each position, (R, P, 1, head_dim / 2) complex."""
        self.steps: Any = None
        """Runs forwards of few rows in fixed shapes, if set (`engine.model.static.StaticSteps`)."""
        self.compiler: Compiler | None = None
        self.compiled: Any = None
        """The layers of such forwards, compiled (`engine.model.compiled.compile_layers`)."""

    def _load_embedding(self, take: Callable[[str], Tensor]) -> Tensor:
        if self.is_first or (self.is_last and self.shape.tied):
            return take(EMBEDDING)
        return self.layers[0].mlp_norm.weight.new_empty((0, self.shape.width))

    def _load_head(self, take: Callable[[str], Tensor], bits: int, rotated: bool) -> Linear:
        if not self.is_last:
            weight = self.layers[0].mlp_norm.weight.new_empty((0, self.shape.width))
        else:
            weight = self.embedding if self.shape.tied else take("lm_head.weight")
        return Linear(weight, keep=self.shape.tied or not bits, bits=8 if bits else 0, rotated=rotated)

    def new_cache(self, slots: int, capacity: int) -> Cache:
        positions = min(capacity, self.context)
        if positions > self.rotations.shape[1]:
            self.rotations = self._rotations(positions)
        return Cache(self.shape, slots, capacity, self.dtype, self.device)

    def _rotations(self, positions: int) -> Tensor:
        angles = torch.arange(positions).float()[:, None] * self._frequencies
        sizes = torch.where(self._frequencies != 0, self.shape.rope_scale, 1.0)
        return torch.polar(sizes.expand_as(angles), angles)[:, :, None].to(self.device)

    @property
    def depth(self) -> int:
        return self.shape.layers

    @torch.inference_mode()
    def forward(
        self,
        cache: Cache,
        rows: Rows,
        want: np.ndarray,
        hidden: tuple[int, ...] = (),
        fuzzy: Fuzzy | None = None,
        stage_io: StageIO | None = None,
        stopped: Callable[[], bool] = never,
    ) -> Output:
        ids = range(self._lowest_id, self.vocab_size)
        check_forward(self.name, rows, want, hidden, ids=ids, layers=self.shape.layers)
        in_order = want.tolist() == list(range(len(rows)))
        before = self._communicated()
        segments = rows.segments()
        lengths = [(slot, cache.length(slot)) for slot, _, _ in segments]
        try:
            indices = cache.append(rows)
            if self.steps is not None and fuzzy is None and stage_io is None:
                output = self.steps.run(cache, rows, indices, want, hidden)
                if output is not None:
                    return output._replace(communicated=self._communicated() - before)
            buffers = cache.buffers(len(rows))
            parts = list(attention_parts(cache, buffers, segments))
            rotation = self._rotation(cache, rows, indices, parts)
            x, attention_input = self._inputs(rows, cache.positions[rows.slots, indices], stage_io)
            given = self._given(rows)
            states = self.run_layers(
                x, attention_input, rotation, buffers, parts, hidden, fuzzy, stopped, given
            )
            cells = sum(part.cells(self.layers[0].window) for part in parts)
            if not self.is_last:
                _required(stage_io).send(x)
                return Output(x.new_empty((len(want), 0)), states, cells, self._read())
            if not in_order:
                x = x.index_select(0, torch.from_numpy(want).to(self.device))
            return Output(self.logits(x), states, cells, self._read(), self._communicated() - before)
        except BaseException:
            for slot, length in lengths:  # some of the new keys and values are not written
                cache.truncate(slot, length)
            raise

    def _read(self) -> tuple[int, int] | None:
        """Return the experts that the last forward read and those of all layers; None without."""
        mixtures = [layer.down for layer in self.layers if isinstance(layer.down, Experts)]
        return (sum(e.read for e in mixtures), sum(e.held for e in mixtures)) if mixtures else None

    def _communicated(self) -> int:
        return self._ranks.spent if self._ranks is not None else 0

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits, (T, V) float32, of the last layer's states, (T, D)."""
        logits, cap = self.head(self.norm(x)), self.shape.logit_cap
        if self.shape.logit_scale != 1.0:
            logits = logits / self.shape.logit_scale
        logits = (logits.div(cap).tanh_().mul_(cap) if cap else logits).float()
        return logits[:, : self.vocab_size]

    def _output(
        self, linear: Linear | Experts, inputs: Tensor, norm: Callable[[Tensor], Tensor] | None
    ) -> Tensor:
        output = linear(inputs)
        if self._ranks is not None:
            output = self._ranks.add(output)
        if self.shape.residual_scale != 1.0:
            output = output.mul_(self.shape.residual_scale)
        return output if norm is None else norm(output)

    def _add_to(
        self, x: Tensor, linear: Linear | Experts, inputs: Tensor, norm: Callable[[Tensor], Tensor] | None
    ) -> None:
        if self._ranks is None and norm is None and self.shape.residual_scale == 1.0:
            linear.add_to(x, inputs)
        else:
            x.add_(self._output(linear, inputs, norm))

    def _rotation(
        self,
        cache: Cache,
        rows: Rows,
        indices: np.ndarray,
        parts: Sequence[Attention],
    ) -> Tensor:
        """Return the scaled rotations of each row, (R, T, heads + kv_heads, head_dim / 2)."""
        if len(parts) == 1 and isinstance(parts[0], SlotAttention) and parts[0].chained:
            rotations = self.rotations[:, parts[0].start : parts[0].stop]
        else:
            positions = torch.from_numpy(cache.positions[rows.slots, indices])
            rotations = self.rotations[:, positions.to(self.device)]
        return rotations * self.scales

    def _inputs(
        self, rows: Rows, positions: np.ndarray, stage_io: StageIO | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the first layer's residual input (T, D) and its attention input, if separate."""
        if not self.is_first:
            return _required(stage_io).receive(len(rows), self.layers[0].mlp_norm.weight), None
        return self.inputs_of(rows, positions)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the first layer's input, (T, D), for T token ids at their positions."""
        x = self.embedding.index_select(0, ids)
        if self.shape.embed_scale != 1.0:
            x.mul_(torch.tensor(self.shape.embed_scale, dtype=x.dtype))
        x = rotated(x) if self._rotate else x
        return x if self.learned is None else x.add_(self.learned.index_select(0, positions))

    def inputs_of(self, rows: Rows, positions: np.ndarray) -> tuple[Tensor, Tensor | None]:
        """Return the first layer's inputs for rows at these positions, in a whole model."""
        tokens, masks = rows.tokens, None
        if self.make_inputs is not None:
            tokens, masks = np.maximum(tokens, 0), torch.from_numpy(np.maximum(-tokens, 0))
        ids = torch.from_numpy(tokens).to(self.device)
        # a head does not read positions, and their copy to a GPU would block the host
        places = ids if self.make_inputs is not None else torch.from_numpy(positions).to(self.device)
        return self.inputs(ids, places, masks, rows.vectors)

    def inputs(
        self, ids: Tensor, positions: Tensor, masks: Tensor | None, vectors: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the first layer's inputs for T token ids; masks, vectors: see `MakeInputs`."""
        if self.make_inputs is None:
            return self.embed(ids, positions), None
        assert masks is not None and vectors is not None, "a head's rows carry states"  # noqa: PT018
        return self.make_inputs(masks, self.embedding.index_select(0, ids), vectors)

    def _given(self, rows: Rows) -> GivenStates | None:
        """Return the rows of a block drafter that are no part of a block."""
        if not self.shape.block:
            return None
        assert rows.vectors is not None, "a head's rows carry states"
        places = torch.from_numpy(np.flatnonzero(rows.flags & PROVISIONAL == 0)).to(self.device)
        return GivenStates(places, rows.vectors.index_select(0, places))

    def run_static(
        self,
        x: Tensor,
        attention_input: Tensor | None,
        rotation: Tensor,
        buffers: Buffers,
        attention: PaddedAttention,
        hidden: tuple[int, ...],
    ) -> dict[int, Tensor]:
        """Run the layers of a static forward, compiled if they are; see `run_layers`."""
        if self.compiled is not None and self.compiled.has(len(x)):
            return self.compiled.run(x, attention_input, rotation, attention, hidden)
        return self.run_layers(x, attention_input, rotation, buffers, [attention], hidden)

    def run_layers(
        self,
        x: Tensor,
        attention_input: Tensor | None,
        rotation: Tensor,
        buffers: Buffers,
        parts: Sequence[Attention],
        hidden: tuple[int, ...],
        fuzzy: Fuzzy | None = None,
        stopped: Callable[[], bool] = never,
        given: GivenStates | None = None,
    ) -> dict[int, Tensor]:
        """Run the layers on x, (T, D), in place; return the states of the layers in `hidden`.

        Args:
            x: Residual input, (T, D).
            attention_input: The first layer's attention input, if it is not the normed x.
            rotation: Of each row, scaled, (R, T, heads + kv_heads, head_dim / 2) complex.
            buffers: Buffers of T rows.
            parts: Attention of all slots.
            hidden: See `Output.hidden`.
            fuzzy: Groups of layers; default: an exact forward.
            stopped: See `LanguageModel.forward`.
            given: Rows of a block drafter whose states are the target's.
        """
        rotations, groups = rotation.unbind(0), fuzzy.groups if fuzzy is not None else self._single_layers
        states = {0: x.clone()} if 0 in hidden else {}

        def attend(i: int) -> None:
            layer = self.layers[i]
            state = layer.norm(x) if i or attention_input is None else attention_input
            if given is not None:
                state = state.index_copy(0, given.rows, given.states)
            layer.qkv.into(buffers.qkv, state)
            if layer.qk_norm is not None:
                buffers.queries_keys.copy_(layer.qk_norm(buffers.queries_keys))
            buffers.rotate(rotations[layer.rotation])
            for part in parts:
                part.run(i, layer.window)
            if fuzzy is not None and fuzzy.watch is not None:
                fuzzy.watch(i, buffers)

        def attention_output(i: int) -> Tensor:
            attend(i)
            return self._output(self.layers[i].out, buffers.attended, self.layers[i].out_norm)

        for group in groups:
            if stopped():
                raise RunCancelled("a forward was stopped")
            outputs = (
                fuzzy.attend(group, x, attention_output) if fuzzy is not None and len(group) > 1 else None
            )
            for i in group:
                layer = self.layers[i]
                if outputs is not None:  # EasySpec, algorithm 2
                    x.add_(outputs[i - group.start])
                else:
                    attend(i)
                    self._add_to(x, layer.out, buffers.attended, layer.out_norm)
                inner = layer.mlp_norm(x)
                if layer.gate_up is not None:
                    layer.gate_up.into(buffers.gate_up, inner)
                    inner = self._activate(buffers.gate)
                    inner = inner.mul_(buffers.up) if self.shape.gated else inner
                self._add_to(x, layer.down, inner, layer.down_norm)
                if i + 1 in hidden:
                    states[i + 1] = x.clone()
        if -1 in hidden:
            states[-1] = self.norm(x)
        return states


def _required(stage_io: StageIO | None) -> StageIO:
    assert stage_io is not None, "a stage of a split model needs a StageIO"
    return stage_io


def check_forward(
    name: str, rows: Rows, want: np.ndarray, hidden: tuple[int, ...], *, ids: range, layers: int
) -> None:
    """Raise UsageError if a token, row or layer of `LanguageModel.forward` does not exist."""
    tokens, wanted = rows.tokens.tolist(), want.tolist()
    if tokens and not ids.start <= min(tokens) <= max(tokens) < ids.stop:
        unknown = next(token for token in tokens if token not in ids)
        raise UsageError(f"token id {unknown} is not in the {name}'s vocabulary of {ids.stop}")
    if wanted and not 0 <= min(wanted) <= max(wanted) < len(tokens):
        invalid = next(row for row in wanted if not 0 <= row < len(tokens))
        raise UsageError(f"wanted row {invalid} is not one of the rows 0 to {len(tokens) - 1}")
    if not all(-1 <= i <= layers for i in hidden):
        raise UsageError(f"hidden layers are {hidden}; they must be -1 to {layers}")
