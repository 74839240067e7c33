"""Published heads are read: the config, and each tensor by its name in SpecScope."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from specscope.engine.heads.files import read_head
from specscope.engine.heads.kinds import KINDS
from tests.engine.heads.forms import CONFIG, HEADS, D, V, drawn, eagle, hydra, medusa_1, store

Shapes = dict[str, tuple[int, ...]]
EMBEDDING: Shapes = {"embed_tokens.weight": (V, D)}
WHOLE_MODEL: Shapes = {
    "model.embed_tokens.weight": (V, D),
    "lm_head.weight": (V, D),
    "model.norm.weight": (D,),
}
MEDUSA = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "owner/target"}
SPECULATORS = {
    "speculators_model_type": "eagle",
    "transformer_layer_config": CONFIG,
    "speculators_config": {"algorithm": "eagle", "verifier": {"name_or_path": "owner/target"}},
}
QKV_BIASES: Shapes = {
    f"layers.0.self_attn.{part}_proj.bias": (D if part == "q" else D // 2,) for part in "qkv"
}


def without_lm_heads() -> Shapes:
    return {name: shape for name, shape in medusa_1().items() if "linear" in name}


CASES: dict[str, tuple[Shapes, Shapes, dict[str, Any], dict[str, Any]]] = {
    # form: tensors, those that are not read, config.json, fields of the config
    "Medusa-1": (
        medusa_1(),
        {},
        MEDUSA,
        {"heads": 3, "layers": 1, "vocab_size": V, "target": "owner/target"},
    ),
    "Medusa-2": (
        {f"medusa_head.{name}": shape for name, shape in medusa_1().items()},
        WHOLE_MODEL,
        MEDUSA,
        {"kind": "medusa", "heads": 3, "layers": 1, "vocab_size": V, "own_lm_head": True},
    ),
    "Medusa of two layers": (medusa_1(2, 2), {}, {}, {"kind": "medusa", "heads": 2, "layers": 2}),
    "Medusa without LM heads": (
        without_lm_heads(),
        {},
        {"vocab_size": V},
        {"own_lm_head": False, "heads": 3, "vocab_size": V},
    ),
    **{
        f"Hydra {numbers}": (
            hydra(numbers),
            {"input_embed_fn.weight": (V, D)},
            {"hydra_num_heads": 3},
            {"kind": "hydra", "heads": 3, "layers": len(numbers), "own_lm_head": True, "biased": True},
        )
        for numbers in ((1,), (0,), (1, 3))
    },
    "EAGLE": (eagle(bias=False), EMBEDDING, CONFIG, {"kind": "eagle", "biased": False, "target": ""}),
    "EAGLE with biases": (eagle() | QKV_BIASES, {}, CONFIG, {"biased": True, "qkv_bias": True}),
    "speculators": (
        eagle("fusion_fc", "transformer", bias=False),
        EMBEDDING | {"lm_head.weight": (V, D)},
        SPECULATORS,
        {"kind": "eagle", "biased": False, "qkv_bias": False, "target": "owner/target"},
    ),
}
RENAMED = (
    (r"^medusa_head\.", ""),
    (r"^(hydra_mlp\.\d+)\.0\.", r"\1.1."),
    (r"^fusion_fc\.", "fc."),
    (r"^transformer\.", "layers.0."),
)
"""Published names of tensors, as in SpecScope."""


@pytest.mark.parametrize("form", CASES)
def test_a_published_form_is_read(form: str, tmp_path: Path) -> None:
    shapes, unread, config, expected = CASES[form]
    tensors = drawn(shapes)
    head = read_head(store(tmp_path / "head", tensors | drawn(unread), config, "medusa_lm_head"))
    assert {name: getattr(head.config, name) for name in expected} == expected
    for pattern, ours in RENAMED:
        tensors = {re.sub(pattern, ours, name): tensor for name, tensor in tensors.items()}
    assert head.tensors.keys() == tensors.keys()
    assert all(torch.equal(head.tensors[name], tensor) for name, tensor in tensors.items())
    if head.config.kind == "eagle":
        assert KINDS["eagle"].levels(head.config) == 0
        assert head.config.shape["rope_parameters"]["rope_theta"] == 5000
        assert head.config.shape["head_dim"] == D // HEADS
