"""Published forms of drafting heads: tensor names, shapes, and slow reference readers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu

from specscope.engine.heads.config import LAYER_FIELDS

D, V, INNER, HEADS, KV = 16, 40, 24, 4, 2
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": D,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "max_position_embeddings": 64,
    "vocab_size": V,
    "hidden_act": "silu",
}
SHAPE = {name: CONFIG.get(name, 4) for name in LAYER_FIELDS} | {
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}
}
LAYER_TENSORS = {
    "self_attn.q_proj.weight": (D, D),
    "self_attn.k_proj.weight": (D // 2, D),
    "self_attn.v_proj.weight": (D // 2, D),
    "self_attn.o_proj.weight": (D, D),
    "mlp.gate_proj.weight": (INNER, D),
    "mlp.up_proj.weight": (INNER, D),
    "mlp.down_proj.weight": (D, INNER),
    "post_attention_layernorm.weight": (D,),
}


def drawn(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) * 0.4 for name, shape in shapes.items()}


def medusa_1(heads: int = 3, layers: int = 1) -> dict[str, tuple[int, ...]]:
    shapes = dict[str, tuple[int, ...]]()
    for i in range(heads):
        for j in range(layers):
            shapes |= {f"{i}.{j}.linear.weight": (D, D), f"{i}.{j}.linear.bias": (D,)}
        shapes[f"{i}.{layers}.weight"] = (V, D)
    return shapes


def hydra(numbers: tuple[int, ...], heads: int = 3) -> dict[str, tuple[int, ...]]:
    shapes = dict[str, tuple[int, ...]]()
    for i in range(heads):
        for part in ("linear", "res_connection"):
            at = f"hydra_mlp.{i}.{numbers[0]}.{part}"
            shapes |= {f"{at}.weight": (D, D * (i + 2)), f"{at}.bias": (D,)}
        for m in numbers[1:]:
            shapes |= {f"hydra_mlp.{i}.{m}.linear.weight": (D, D), f"hydra_mlp.{i}.{m}.linear.bias": (D,)}
        shapes |= {f"hydra_lm_head.{i}.1.weight": (V, D), f"hydra_lm_head.{i}.1.bias": (V,)}
    return shapes


def eagle(fc: str = "fc", layer: str = "layers.0", *, bias: bool = True) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{fc}.weight": (D, 2 * D)} | ({f"{fc}.bias": (D,)} if bias else {})
    return shapes | {f"{layer}.{name}": shape for name, shape in LAYER_TENSORS.items()}


def store(
    folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], name: str = "model"
) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(dict(tensors), folder / f"{name}.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def normed(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def reference_layer(
    t: Mapping[str, Tensor],
    layer: str,
    read: Tensor,
    x: Tensor,
    heads: int,
    kv: int,
    theta: float = 5000.0,
    eps: float = 1e-5,
) -> Tensor:
    """Return a decoder layer's output, (n, D). `read` is what attention reads, `x` the residual."""
    n, size = len(x), len(t[f"{layer}.self_attn.k_proj.weight"]) // kv
    turns = torch.outer(torch.arange(n).to(x), theta ** (-torch.arange(size // 2).to(x) * 2 / size))

    def project(name: str) -> Tensor:
        bias = t.get(f"{layer}.self_attn.{name}_proj.bias", torch.zeros(1))
        return read @ t[f"{layer}.self_attn.{name}_proj.weight"].T + bias

    def rotated(name: str, heads: int) -> Tensor:
        a, b = project(name).view(n, heads, 2, size // 2).unbind(2)
        return torch.complex(a, b) * torch.polar(torch.ones_like(turns), turns)[:, None]

    shared = heads // kv
    q, k = rotated("q", heads), rotated("k", kv).repeat_interleave(shared, 1)
    v = project("v").view(n, kv, size).repeat_interleave(shared, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k.conj()).real / size**0.5
    scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    out = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v)
    x = x + out.flatten(1) @ t[f"{layer}.self_attn.o_proj.weight"].T
    y = normed(x, t[f"{layer}.post_attention_layernorm.weight"], eps)
    gate, up, down = (t[f"{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return x + (silu(y @ gate.T) * (y @ up.T)) @ down.T
