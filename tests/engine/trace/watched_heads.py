"""What the tests of `specscope.watch` with drafting heads share: models and a spy."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from runpy import run_path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    MuseGlimmerAssistantConfig,
    MuseGlimmerAssistantModel,
)
from transformers.generation.candidate_generator import (
    DFlashTokenCandidateGenerator,
    EarlyExitCandidateGenerator,
    MTPCandidateGenerator,
    SinglePositionMultiTokenCandidateGenerator,
)
from transformers.modeling_layers import MtpModel

from specscope.engine.checkpoints.loader import load_reference
from specscope.engine.heads.files import read_head
from tests.engine.methods.head_runs import drifting

ROOT = Path(__file__).parents[3]
BUNDLED = ROOT / "assets/pairs/bundled"
MASK = 4096
"""The id of DFlash's mask, after all of the bundled vocabulary."""


class Drafting(NamedTuple):
    """A target, its drafter if that is a model, and a call that uses it."""

    target: Any
    drafter: Any
    arguments: dict[str, Any]
    generator: type
    module: type
    """The class whose forwards draft."""
    title: str
    settings: dict[str, Any]
    lossless: bool = True
    """Whether a sampled call has the target's distribution."""


def mtp(folder: Path, layers: int) -> Drafting:
    """Return the bundled target, whose head is repeated as so many layers."""
    with_layers = run_path(str(ROOT / "docs/examples/mtp.py"))["with_layers"]
    target = with_layers(load_reference(BUNDLED / "target"), folder, layers)
    return Drafting(
        target, None, {"use_mtp": True}, MTPCandidateGenerator, MtpModel, "MTP", {"layers": layers}
    )


def dflash() -> Drafting:
    """Return the bundled target and DFlash head in transformers' form.

    transformers does not scale embeddings. To divide what the layer adds to them by the scale has
    the same effect. The mask is a token: one more row of the target's embeddings.
    """
    target, (config, tensors) = load_reference(BUNDLED / "target"), read_head(BUNDLED / "heads/dflash")
    for part in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"layers.0.{part}.weight"] /= config.embedding_scale
    embedding = target.get_input_embeddings().weight.detach()
    mask = tensors.pop("noise.embedding") / config.embedding_scale
    target.set_input_embeddings(nn.Embedding.from_pretrained(torch.cat([embedding, mask])))
    more = {"block_size": config.block + 1, "mask_token_id": MASK, "target_layer_ids": [3, 7]}
    drafter = MuseGlimmerAssistantModel(
        MuseGlimmerAssistantConfig(
            **config.shape, num_hidden_layers=1, layer_types=["full_attention"], **more
        )
    )
    names = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    drafter.load_state_dict({names.get(name, name): tensor for name, tensor in tensors.items()})
    call = {"assistant_model": drafter.eval(), "speculation_type": "dflash"}
    settings = {"block_size": config.block + 1}
    return Drafting(target, drafter, call, DFlashTokenCandidateGenerator, type(drafter), "DFlash", settings)


def one_position() -> Drafting:
    """Return a Gemma 4 and its assistant, which reads the target's cache; both are random."""
    layers = ["sliding_attention", "full_attention"]
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "global_head_dim": 16}
    sizes |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "eos_token_id": None}
    config = {**sizes, "sliding_window": 8, "layer_types": layers}
    torch.manual_seed(0)
    target = Gemma4ForCausalLM(Gemma4TextConfig(**config)).eval()
    text = Gemma4TextConfig(**config)
    drafter = Gemma4AssistantForCausalLM(Gemma4AssistantConfig(text_config=text, backbone_hidden_size=32))
    drafter.generation_config.num_assistant_tokens = 3
    call, generator = {"assistant_model": drafter.eval()}, SinglePositionMultiTokenCandidateGenerator
    title = "MTP from one position"
    return Drafting(target, drafter, call, generator, type(drafter), title, {"gamma": 3}, lossless=False)


def early_exit() -> Drafting:
    """Return a target that drafts with its first layer."""
    target = drifting("llama").eval()
    target.generation_config.num_assistant_tokens = 3
    target.generation_config.assistant_confidence_threshold = 0.0
    settings = {"gamma": 3, "exit_after": 1, "schedule": "constant"}
    call = {"assistant_early_exit": 1}
    return Drafting(target, None, call, EarlyExitCandidateGenerator, type(target), "early exit", settings)


def spied(monkeypatch: Any, owner: type, name: str) -> list[Any]:
    """Return the list of a method's results, which grows with each call."""
    found, original = list[Any](), getattr(owner, name)

    @wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        found.append(original(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(owner, name, method)
    return found
