"""DFlash: published checkpoints are read, and draft what transformers' generator drafts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import GenerationConfig, MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel
from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import ModelError
from specscope.engine.heads.files import check_head
from specscope.engine.types import Limits
from tests.engine.methods.head_runs import drafts, drifting
from tests.engine.methods.pairs import save_with_tokenizer

BLOCK, MASK, WINDOW = 6, 90, 5
SIZES = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"head_dim": 10, "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "num_hidden_layers": 2}
SIZES |= {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}}
LAYERS = ["full_attention", "sliding_attention"]
NAMES = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}
PROMPT = list(range(3, 22))


def drafter() -> MuseGlimmerAssistantModel:
    torch.manual_seed(4)
    more = {"layer_types": LAYERS, "sliding_window": WINDOW, "block_size": BLOCK, "mask_token_id": MASK}
    model = MuseGlimmerAssistantModel(MuseGlimmerAssistantConfig(**SIZES, **more, target_layer_ids=[0, 2]))
    for name, parameter in model.named_parameters():
        parameter.data = torch.randn_like(parameter) * 0.3 + ("norm" in name)
    return model.eval()


def publish(path: Path, form: str, **changes: object) -> Path:
    """Write the drafter as z-lab or speculators do; their windows end before the distance."""
    path.mkdir()
    tensors = {NAMES.get(name, name): tensor.contiguous() for name, tensor in drafter().state_dict().items()}
    save_file(tensors, path / "model.safetensors")
    layer = SIZES | {"vocab_size": 97, "layer_types": LAYERS, "sliding_window": WINDOW + 1}
    config = {"architectures": ["DFlashDraftModel"], "block_size": BLOCK}
    if form == "speculators":
        config |= {
            "speculators_model_type": "dflash",
            "transformer_layer_config": layer,
            "mask_token_id": MASK,
        }
        config |= {"aux_hidden_state_layer_ids": [1, 3], "sliding_window_non_causal": True}
    else:
        own = {"mask_token_id": MASK, "target_layer_ids": [0, 2]}
        config |= layer | {"is_causal": False, "dflash_config": own}
    (path / "config.json").write_text(json.dumps(config | changes))
    return path


@torch.no_grad()
def expected(target: torch.nn.Module, x: list[int]) -> list[int]:
    """Return what transformers' generator drafts after x; the target has not read its end."""
    config = GenerationConfig(max_length=500, do_sample=False)
    ends = target.get_input_embeddings(), target.get_output_embeddings()
    generator = DFlashTokenCandidateGenerator(drafter(), *ends, config)
    ids = torch.tensor([x])
    read = target(ids[:, :-1], output_hidden_states=True)
    inputs = {"position_ids": torch.arange(len(x))[None], "attention_mask": torch.ones_like(ids)}
    found, _ = generator.get_candidates(ids, inputs, read, is_first_iteration=False, n_last_matches=0)
    return found[0, len(x) :].tolist()


@pytest.mark.parametrize("form", ["z-lab", "speculators"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_drafts_equal_those_of_transformers(tmp_path, form, family):
    target, new = drifting(family), 24
    save_with_tokenizer(target, tmp_path / "target")
    head = publish(tmp_path / "head", form)
    with specscope.open(
        Pair.of(tmp_path / "target"), runtime="local-thread", device="cpu", head=head
    ) as cluster:
        trace = cluster.run("dflash", PROMPT, limits=Limits(new))
    x, done = list(PROMPT), trace.token_ids()
    for r, (_, nodes) in zip(trace.rounds, drafts(trace).items(), strict=True):
        if len(PROMPT) + new - len(x) >= BLOCK:  # later blocks are shorter
            assert [node.token for node in nodes] == expected(target.eval(), x)
        x += done[len(x) - len(PROMPT) :][: r.emitted]
    assert len(x) > len(PROMPT) + WINDOW, "texts are longer than the window"


@pytest.mark.parametrize(
    ("form", "changes", "message"),
    [
        ("z-lab", {"is_causal": True}, "is_causal is True, which cannot be run yet"),
        ("z-lab", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ("z-lab", {"architectures": ["DFlash2DraftModel"]}, "a drafter of the kind DFlash2"),
        ("z-lab", {"block_size": 1}, "block is 0; it must be a whole number, at least 1"),
        ("z-lab", {"block_size": "6"}, "block_size is '6'; it must be a number"),
        ("z-lab", {"dflash_config": {"mask_token_id": 97, "target_layer_ids": [0, 2]}}, "mask_token is 97"),
        ("z-lab", {"dflash_config": {"mask_token_id": MASK}}, "target_layer_ids is None; it must be a list"),
        (
            "z-lab",
            {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 3]}},
            "the target has 3 layers",
        ),
        ("z-lab", {"sliding_window": 0}, "sliding_window is 0; it must be a whole number of at least 1"),
        ("z-lab", {"layer_types": ["full_attention"]}, "layer_types"),
        ("speculators", {"sample_from_anchor": True}, "sample_from_anchor is True"),
        ("speculators", {"projector_type": "domino"}, "projector_type is 'domino'"),
    ],
)
def test_other_forms_are_refused_by_name(tmp_path, form, changes, message):
    save_with_tokenizer(drifting("llama"), tmp_path / "target")
    with pytest.raises(ModelError, match=message.replace("[", r"\[")):
        check_head(publish(tmp_path / "head", form, **changes), tmp_path / "target")


def test_sliding_layers_of_a_published_head_are_causal_unless_it_says_otherwise(tmp_path):
    assert not check_head(publish(tmp_path / "both", "z-lab")).causal
    assert check_head(publish(tmp_path / "one", "z-lab", is_causal=None)).causal
    config = check_head(publish(tmp_path / "spec", "speculators", sliding_window_non_causal=False))
    assert config.causal
    assert config.windows == (0, WINDOW + 1)
    assert config.features == (1, 3)
