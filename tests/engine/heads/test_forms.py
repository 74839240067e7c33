"""Published heads are read with the numbers that a reference computes from the published names."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import silu

from engine.heads.files import read_head
from engine.heads.kinds import KINDS
from engine.heads.kinds.hydra import first_state
from engine.heads.modules import residual
from engine.heads.trainable import Packed
from tests.engine.heads.forms import (
    CONFIG,
    HEADS,
    D,
    V,
    drawn,
    eagle,
    hydra,
    medusa_1,
    reference_eagle,
    reference_hydra,
    reference_medusa,
    store,
)


def module_of(kind: str, shape: Any = None) -> nn.Module:
    """Return the module that is trained, of three heads or of a layer of some shape."""
    build = KINDS[kind].trainable
    assert build is not None
    return build(shape or SimpleNamespace(width=D), 3, 1.0, 1.0).module


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
def test_medusa(prefix: str, tmp_path: Path) -> None:
    tensors = {prefix + name: t for name, t in drawn(medusa_1()).items()}
    if prefix:  # Medusa-2 checkpoints include the whole model
        tensors |= drawn(
            {"model.embed_tokens.weight": (V, D), "lm_head.weight": (V, D), "model.norm.weight": (D,)}
        )
    config = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "owner/target"}
    head = read_head(store(tmp_path / "m", tensors, config, "medusa_lm_head"))
    assert (head.config.kind, head.config.heads, head.config.layers, head.config.vocab_size) == (
        "medusa",
        3,
        1,
        V,
    )
    assert head.config.target == "owner/target"
    f, ours = torch.randn(D), module_of("medusa")
    ours.load_state_dict({k: t for k, t in head.tensors.items() if "linear" in k})
    for i, logits in enumerate(reference_medusa(tensors, f, prefix)):
        state = residual([ours.get_submodule(f"{i}.0.linear")], f)
        torch.testing.assert_close(head.tensors[f"{i}.1.weight"] @ state, logits)


def test_medusa_of_two_layers_and_without_lm_heads(tmp_path: Path) -> None:
    assert read_head(store(tmp_path / "a", drawn(medusa_1(2, 2)), {})).config.layers == 2
    shapes = {name: shape for name, shape in medusa_1().items() if "linear" in name}
    config = read_head(store(tmp_path / "b", drawn(shapes), {"vocab_size": V})).config
    assert (config.own_lm_head, config.heads, config.vocab_size) == (False, 3, V)


@pytest.mark.parametrize("numbers", [(1,), (0,), (1, 3)])
def test_hydra(numbers: tuple[int, ...], tmp_path: Path) -> None:
    tensors = drawn(hydra(numbers)) | {"input_embed_fn.weight": torch.zeros(V, D)}
    head = read_head(store(tmp_path / "h", tensors, {"hydra_num_heads": 3}))
    assert (head.config.kind, head.config.heads, head.config.layers) == ("hydra", 3, len(numbers))
    ours = module_of("hydra")
    ours.load_state_dict({k: t for k, t in head.tensors.items() if re.match(r"hydra_mlp\.\d\.1", k)})
    for i in range(3):
        z = torch.randn((i + 2) * D)
        parts = (ours.get_submodule(f"hydra_mlp.{i}.1.{part}") for part in ("linear", "res_connection"))
        state = first_state(*parts, z)
        if len(numbers) > 1:
            block = (head.tensors[f"hydra_mlp.{i}.3.linear.{part}"] for part in ("weight", "bias"))
            weight, bias = block
            state = state + silu(weight @ state + bias)
        logits = (
            head.tensors[f"hydra_lm_head.{i}.1.weight"] @ state + head.tensors[f"hydra_lm_head.{i}.1.bias"]
        )
        torch.testing.assert_close(logits, reference_hydra(tensors, numbers, i, z), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("published", ["eagle", "speculators"])
def test_eagle(published: str, tmp_path: Path) -> None:
    fc, layer = ("fc", "layers.0") if published == "eagle" else ("fusion_fc", "transformer")
    tensors = drawn(eagle(fc, layer, bias=False)) | drawn({"embed_tokens.weight": (V, D)})
    config: dict[str, Any] = CONFIG
    if published == "speculators":
        verifier = {"name_or_path": "owner/target"}
        config = {
            "speculators_model_type": "eagle",
            "transformer_layer_config": CONFIG,
            "speculators_config": {"algorithm": "eagle", "verifier": verifier},
        }
        tensors |= drawn({"lm_head.weight": (V, D)})
    head = read_head(store(tmp_path / "e", tensors, config))
    assert (head.config.kind, head.config.biased, KINDS["eagle"].levels(head.config)) == ("eagle", False, 0)
    assert head.config.target == ("owner/target" if published == "speculators" else "")
    assert head.config.shape["rope_parameters"]["rope_theta"] == 5000
    assert head.config.shape["head_dim"] == D // HEADS
    ours = module_of("eagle", head.config.layer())
    ours.load_state_dict(head.tensors)
    n, e, f = 7, torch.randn(7, D), torch.randn(7, D)
    zero, seen = torch.zeros(n, dtype=torch.int64), torch.ones(n, n, dtype=torch.bool).tril()
    states = ours(e, f, Packed(zero, zero, torch.arange(n), (seen,)))
    torch.testing.assert_close(states, reference_eagle(tensors, fc, layer, e, f), atol=1e-4, rtol=1e-4)


def test_biases_are_read(tmp_path: Path) -> None:
    biases = {f"layers.0.self_attn.{part}_proj.bias": (D if part == "q" else D // 2,) for part in "qkv"}
    for named in ({}, biases):
        head = read_head(store(tmp_path / str(len(named)), drawn(eagle() | named), CONFIG))
        assert (head.config.biased, head.config.qkv_bias) == (True, bool(named))
        assert head.tensors["fc.bias"].shape == (D,)
        assert all(head.tensors[name].shape == shape for name, shape in named.items())
