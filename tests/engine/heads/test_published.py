"""Runs with published heads, whose tensors have their projects' names, equal a slow reference."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.types import Limits
from tests.engine.heads.random_heads import make_head
from tests.engine.methods.head_runs import METHODS, PROMPT, drifting, rounds, walk
from tests.engine.methods.pairs import save_with_tokenizer
from tests.engine.methods.plain_heads import Plain

PUBLISHED = {
    "Medusa-1": "medusa",
    "Medusa-2": "medusa",
    "Hydra": "hydra",
    "EAGLE": "eagle",
    "EAGLE-2": "eagle2",
    "speculators": "eagle",
    "EAGLE of Qwen2": "eagle2",
    "EAGLE-3": "eagle",
    "EAGLE-3 of speculators": "eagle2",
}
"""The method that runs each form."""
NEW = 22
"""Tokens after the prompt: so many that every head has accepted drafts."""
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    model = drifting("llama")
    save_with_tokenizer(model, folder / "target")
    return Pair.of(folder / "target"), model


def published(style: str, own: Path, model: torch.nn.Module) -> tuple[str, Tensors, dict[str, Any]]:
    """Return the file name, tensors and config of the head in `own` in a published form."""
    tensors, shape = (
        load_file(own / "model.safetensors"),
        json.loads((own / "config.json").read_text())["shape"],
    )
    embedding, lm_head = (
        x.weight.detach().clone() for x in (model.get_input_embeddings(), model.get_output_embeddings())
    )
    if style == "Medusa-1":
        return "medusa_lm_head", tensors, {"medusa_num_heads": 2, "medusa_num_layers": 1}
    if style == "Medusa-2":
        model_tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": lm_head}
        return (
            "model",
            {f"medusa_head.{name}": t for name, t in tensors.items()} | model_tensors,
            {"medusa_num_heads": 5},
        )
    if style == "Hydra":  # without dropout, blocks count from 0
        named = {re.sub(r"^(hydra_mlp\.\d+)\.1\.", r"\1.0.", name): t for name, t in tensors.items()}
        return "hydra_lm_head", named | {"input_embed_fn.weight": embedding}, {"hydra_num_heads": 5}
    layer = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": len(embedding)}
    layer |= {name: x for name, x in shape.items() if name not in ("rope_parameters", "head_dim")}
    layer |= {"num_hidden_layers": 1, "hidden_act": "silu", "torch_dtype": "float16"}
    layer |= {"rope_theta": shape["rope_parameters"]["rope_theta"]}
    if "EAGLE-3" in style:
        return "model", *published_eagle3(style, tensors, embedding, layer)
    if style != "speculators":
        return "model", tensors | {"embed_tokens.weight": embedding}, layer | {"bias": True}
    named = {
        re.sub(r"^fc\.", "fusion_fc.", re.sub(r"^layers\.0\.", "transformer.", name)): t
        for name, t in tensors.items()
    }
    config = {"speculators_model_type": "eagle", "transformer_layer_config": layer}
    return "model", named | {"embed_tokens.weight": embedding, "lm_head.weight": lm_head}, config


def published_eagle3(
    style: str, tensors: Tensors, embedding: Tensor, layer: dict[str, Any]
) -> tuple[Tensors, dict[str, Any]]:
    """Return an EAGLE-3 head's tensors and config; it reads the embeddings and two layers."""
    d2t = tensors["d2t"]
    t2d = torch.zeros(len(embedding), dtype=torch.bool).index_fill(0, torch.arange(len(d2t)) + d2t, True)
    tensors, ids = tensors | {"t2d": t2d}, "eagle_aux_hidden_state_layer_ids"
    if style == "EAGLE-3":
        named = {name.replace("layers.0.", "midlayer."): t for name, t in tensors.items()}
        return named, layer | {"draft_vocab_size": len(d2t), ids: [0, 1, 2]}
    config = {"speculators_model_type": "eagle3", "transformer_layer_config": layer, ids: [0, 1, 2]}
    config |= {"norm_before_residual": True, "draft_vocab_size": len(d2t)}
    return tensors | {"embed_tokens.weight": embedding}, config


def make_published(style: str, folder: Path, pair: Pair, model: torch.nn.Module) -> tuple[Path, Path]:
    """Write a published head, and the same head in SpecScope's form, for the reference."""
    kind = "eagle3" if "EAGLE-3" in style else METHODS[PUBLISHED[style]][0]
    changes = {"EAGLE of Qwen2": {"qkv_bias": True}, "EAGLE-3 of speculators": {"norm_before_residual": True}}
    own = make_head(folder / "own", kind, pair.target_path, own=True, scale=0.5, **changes.get(style, {}))
    tensors = load_file(own / "model.safetensors")
    for name, tensor in tensors.items():  # LM heads close to the target's
        if len(tensor) == pair.vocab_size and tensor.ndim == 2:
            tensors[name] = tensor + model.get_output_embeddings().weight.detach()
    save_file(tensors, own / "model.safetensors")
    (folder / "theirs").mkdir()
    name, tensors, config = published(style, own, model)
    save_file(tensors, folder / "theirs" / f"{name}.safetensors")
    (folder / "theirs" / "config.json").write_text(json.dumps(config))
    return folder / "theirs", own


@pytest.mark.parametrize("style", PUBLISHED)
def test_a_published_head_drafts_as_the_reference_and_the_text_equals_the_targets(world, tmp_path, style):
    (pair, model), method = world, PUBLISHED[style]
    head, own = make_published(style, tmp_path, pair, model)
    config = METHODS[method][1]
    with specscope.open(pair, runtime="local-thread", device="cpu", head=head) as cluster:
        trace = cluster.run(method, PROMPT, config=config, limits=Limits(NEW))
        alone = cluster.run("autoregressive", PROMPT, limits=Limits(NEW))
    assert trace.token_ids() == alone.token_ids()
    assert trace.header.environment["head"] == str(head)
    plain = Plain(copy.deepcopy(model), own)
    for r, x, nodes in rounds(trace, plain, method, config):
        assert r.accepted == len(walk(plain, x, nodes))
    assert max(r.accepted for r in trace.rounds) > 0, "some drafts are accepted"
