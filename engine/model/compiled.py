"""Layers of a decoder as plain torch functions, which `torch.compile` fuses for a GPU.

What lies between two matrix products becomes one kernel: residual sums, norms, activations and
rotations. A function is compiled once per number of rows, and all layers of a model share it.
Static forwards (`specscope.engine.model.static`) run them inside their graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specscope.engine.model.compiler import Compiler, fused
from specscope.engine.model.weights import ACTIVATE

if TYPE_CHECKING:
    from specscope.engine.model.attention import PaddedAttention
    from specscope.engine.model.decoder import Decoder
    from specscope.engine.model.shape import ModelShape
    from specscope.engine.model.weights import Layer

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def enter(
    shape: ModelShape, layer: Layer, state: Tensor, rotation: Tensor, places: Tensor, kv: Tensor
) -> Tensor:
    """Return a layer's rotated queries, (T, heads, head_dim); cache its keys and values.

    Args:
        shape: The model's shape.
        layer: The layer.
        state: What attention reads, (T, D).
        rotation: Cosine and sine, scaled, (T, heads + kv_heads, head_dim / 2, 2).
        places: Lines of `kv` of each row's keys, then values, (T, 2 x kv_heads).
        kv: The layer's cache, a line for each head of each row, (lines, head_dim); written.
    """
    made = layer.qkv(state).unflatten(-1, (-1, shape.head_dim))
    queries_keys, values = made.split((shape.heads + shape.kv_heads, shape.kv_heads), 1)
    if layer.qk_norm is not None:
        queries_keys = layer.qk_norm(queries_keys)
    x, y = queries_keys.float().unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = rotation.unbind(-1)
    turned = torch.stack((x * cosine - y * sine, x * sine + y * cosine), -1).flatten(-2).to(values.dtype)
    kv[places] = torch.cat((turned[:, shape.heads :], values), 1)
    return turned[:, : shape.heads]


def leave(shape: ModelShape, layer: Layer, x: Tensor, attended: Tensor) -> Tensor:
    """Return the states after a layer, (T, D), from those before it and the attended values."""
    x = _sum(shape, x, layer.out(attended), layer.out_norm)
    assert layer.gate_up is not None, "a mixture of experts is not compiled"
    gate, *up = layer.gate_up(layer.mlp_norm(x)).split(shape.inner, -1)
    inner = ACTIVATE[shape.activation](gate)
    return _sum(shape, x, layer.down(inner * up[0] if up else inner), layer.down_norm)


def between(
    shape: ModelShape,
    layer: Layer,
    other: Layer,
    x: Tensor,
    attended: Tensor,
    rotation: Tensor,
    places: Tensor,
    kv: Tensor,
) -> tuple[Tensor, Tensor]:
    """Leave a layer and enter the other one, the next; return states and queries."""
    x = leave(shape, layer, x, attended)
    return x, enter(shape, other, other.norm(x), rotation, places, kv)


def _sum(shape: ModelShape, x: Tensor, output: Tensor, norm: Callable[[Tensor], Tensor] | None) -> Tensor:
    if shape.residual_scale != 1.0:
        output = output * shape.residual_scale
    output = output if norm is None else norm(output)
    # As floats: a sum inside the product (`addmm`) copies x first, and cannot join the norm.
    return (x.float() + output.float()).to(x.dtype)


def compile_layers(decoder: Decoder, *, waits: bool, wrap: Wrap = fused) -> None:
    """Let a decoder's static forwards run compiled layers.

    Args:
        decoder: A decoder without experts, of one rank.
        waits: Whether a function is compiled when it is first needed; otherwise in a pause.
        wrap: Makes a compiled function.
    """
    decoder.compiler = Compiler(decoder.device, waits=waits)
    decoder.compiled = CompiledLayers(decoder, decoder.compiler, wrap)


class CompiledLayers:
    """The layers of a decoder without experts and ranks, compiled.

    Args:
        decoder: Their weights.
        compiler: Decides when.
        wrap: Makes a compiled function.
    """

    def __init__(self, decoder: Decoder, compiler: Compiler, wrap: Wrap) -> None:
        self._layers, self._shape, self._norm = decoder.layers, decoder.shape, decoder.norm
        self._like, self._compiler = decoder.layers[0].mlp_norm.weight, compiler
        self._enter, self._between, self._leave = wrap(enter), wrap(between), wrap(leave)

    @property
    def rows(self) -> list[int]:
        """The numbers of rows of which the next run has compiled layers from its start."""
        return sorted(number for kind, number, *_ in self._compiler.made if kind == "layers")

    def has(self, rows: int) -> bool:
        """Return whether the functions of T rows are ready (see `Compiler.get`)."""
        return bool(self._compiler.get(("layers", rows), partial(self._make, rows)))

    def _make(self, rows: int) -> bool:
        shape, layers, like = self._shape, self._layers, self._like
        x, read = (like.new_zeros((rows, width)) for width in (shape.width, layers[0].qkv.inputs))
        rotation = x.new_zeros(
            (rows, shape.heads + shape.kv_heads, shape.head_dim // 2, 2), dtype=torch.float32
        )
        places = torch.zeros((rows, 2 * shape.kv_heads), dtype=torch.int64, device=x.device)
        # Caches are made outside of inference mode; a function is compiled for such tensors only.
        with torch.inference_mode(mode=False):
            kv = _any_length(
                torch.zeros((16 * shape.kv_heads, shape.head_dim), dtype=x.dtype, device=x.device)
            )
        attended = x.new_zeros((rows, shape.heads * shape.head_dim))
        self._enter(shape, layers[0], read, rotation, places, kv)
        if len(layers) > 1:
            x, _ = self._between(shape, *layers[:2], x, attended, rotation, places, kv)
        self._leave(shape, layers[-1], x, attended)
        return True

    def run(
        self,
        x: Tensor,
        attention_input: Tensor | None,
        rotation: Tensor,
        attention: PaddedAttention,
        hidden: tuple[int, ...],
    ) -> dict[int, Tensor]:
        """Run the layers on x in place; see `Decoder.run_layers`."""
        shape, layers, places = self._shape, self._layers, attention.places()
        rotations, kv = torch.view_as_real(rotation).unbind(0), list(map(_any_length, attention.lines))
        states = {0: x.clone()} if 0 in hidden else {}
        read = layers[0].norm(x) if attention_input is None else attention_input
        queries = self._enter(shape, layers[0], read, rotations[layers[0].rotation], places, kv[0])
        state = x
        for i, layer in enumerate(layers):
            attended = attention.read(i, layer.window, queries)
            if i + 1 < len(layers):
                other = layers[i + 1]
                given = state, attended, rotations[other.rotation], places, kv[i + 1]
                state, queries = self._between(shape, layer, other, *given)
            else:
                state = self._leave(shape, layer, state, attended)
            if i + 1 in hidden:
                states[i + 1] = state
        x.copy_(state)
        if -1 in hidden:
            states[-1] = self._norm(x)
        return states


def _any_length(lines: Tensor) -> Tensor:
    """Let a compiled function take caches of any length."""
    from torch._dynamo import mark_dynamic

    mark_dynamic(lines, 0)
    return lines
