"""The supported families of models, as data: their options, and the names in their checkpoints.

Our names are Llama's. A family differs in a norm, an activation, biases, positions, and in how its
checkpoint names, fuses or transposes the same matrices.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from specscope.engine.errors import ModelError

ACTIVATIONS = ("silu", "relu", "gelu", "gelu_new", "gelu_pytorch_tanh")

WAY_OUT = (
    "specscope.watch records transformers' own generate() with any model (docs/transformers.md), and --server shows "
    "a running vLLM or llama.cpp (docs/servers.md)"
)
"""What runs models that the decoder does not."""
_KINDS = {
    r"d-?flash|d-?spark": "a block drafter, whose layers read states of its target",
    r"mtp|next-?n(?!et)": "a head of multi-token prediction, which reads the last states of its target",
    r"eagle-?3|eagle": "a drafting head; give it with --head",
    r"mamba|rwkv|jamba|zamba|bamba|hybrid|next|qwen3[._]?5|lfm2|falcon-?h1|nemotron_?h|recurrent|linear|plamo2": (
        "a model with recurrent layers, whose state cannot drop the rows of a rejected draft"
    ),
}
"""Pattern of an architecture's name in a config or a GGUF file -> what such a model is."""


def kind_of(architecture: str) -> str:
    """Return what a model of an unsupported architecture is, as `: it is ...`; empty if unknown."""
    found = (what for pattern, what in _KINDS.items() if re.search(pattern, architecture, re.IGNORECASE))
    return f": it is {what}" if (what := next(found, "")) else ""


class TensorPlace(NamedTuple):
    """Where a checkpoint keeps one of our tensors."""

    key: str
    start: int = 0
    """First row of ours in it; matrices that are fused follow each other."""
    rows: int = 0
    transposed: bool = False
    added: float = 0.0
    expert: int = -1
    """Number of ours among the stored matrices, (E, rows, columns); -1 if it is stored alone."""


class Mixture(NamedTuple):
    """The experts of a mixture's layers (`specscope.engine.model.experts`)."""

    experts: int
    """E, the experts of a layer."""
    used: int
    """Experts that compute a row."""
    inner: int
    """Inner width of an expert."""
    normalised: bool
    """Whether a row's weights of its experts sum to 1."""
    layers: tuple[bool, ...]
    """Whether each layer has experts; the others have the usual MLP."""
    shared: int = 0
    """Inner width of the expert of all rows; 0 without one."""
    shared_gate: bool = False
    """Whether that expert's output has a weight of its own."""


@dataclass(frozen=True)
class Family:
    """One architecture."""

    model_type: str
    options: Callable[[Any], dict[str, Any]]
    """Config -> fields of the shape that differ from Llama's."""
    activation: str = "hidden_act"
    needs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Field of the config -> its only supported value."""
    prefix: str = "model"
    """Prefix of the stored names; a checkpoint of the bare model lacks it."""
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Our name of a part -> the stored one, without prefix, number of the layer, and kind.

    `{}` is the number of an expert, which our name lacks; without it all experts are one tensor."""
    fused: tuple[str, ...] = ()
    """Stored names of matrices that hold several of ours."""
    transposed: bool = False
    """Whether the matrices of layers are stored as (in, out)."""
    norm_offset: float = 0.0
    skipped: int = 0
    """Rows of the stored table of positions before position 0."""
    mixture: bool = False
    """Whether layers may hold a mixture of experts."""
    ignored: tuple[str, ...] = ()
    """Ends of names of stored tensors without weights."""

    def check(self, config: Any, path: Path) -> None:
        """Raise ModelError if an option has another value than its only supported one."""
        for name, value in self.needs.items():
            value = getattr(config, value) if isinstance(value, str) else value
            given = getattr(config, name, value)
            if (bool(given) if isinstance(value, bool) else given) != value:
                raise ModelError(
                    f"{path}: {name} {reprlib.repr(given)} is not supported; supported is {value}"
                )

    def place(self, key: str, size: tuple[int, ...], starts: Mapping[str, int]) -> TensorPlace:
        """Return where a checkpoint keeps one of our tensors.

        Args:
            key: Our name.
            size: Its shape.
            starts: First row of each matrix within a fused one; 0 for others.
        """
        words = key.split(".")
        is_layer = words[1] == "layers"
        ours, expert = ".".join(words[3:-1] if is_layer else words[:-1]), -1
        if ours.startswith("mlp.experts."):
            expert, ours = int(words[5]), f"mlp.experts.{words[6]}"
        stored, kind = self.names.get(ours, ours), words[-1]
        stacked = -1 if "{}" in stored else expert
        stored = stored.format(expert)
        fused = stored.rpartition(".")[2] in self.fused
        if is_layer:
            stored = f"{self.names.get('model.layers', 'layers')}.{words[2]}.{stored}"
        if is_layer or ours in self.names:
            stored = f"{self.prefix}.{stored}".lstrip(".")
        start = starts.get(ours, 0) if fused else 0
        start = self.skipped if ours == "model.embed_positions" else start
        transposed = self.transposed and is_layer and len(size) == 2
        added = self.norm_offset if "norm" in ours else 0.0
        return TensorPlace(f"{stored}.{kind}", start, size[0], transposed, added, stacked)


def family_of(name: Any, path: Path) -> Family:
    if isinstance(name, str) and name in FAMILIES:
        return FAMILIES[name]
    known = f"supported are {', '.join(FAMILIES)}"
    if isinstance(name, str) and name.endswith("ForConditionalGeneration"):
        known = f"it reads more than text, and only models of text are supported: {', '.join(FAMILIES)}"
    kind = kind_of(name) if isinstance(name, str) else ""
    raise ModelError(f"{path}: architecture {reprlib.repr(name)} is not supported{kind}; {known}; {WAY_OUT}")


def _llama(config: Any) -> dict[str, Any]:
    biased = bool(getattr(config, "attention_bias", False))
    return {
        "inner": config.intermediate_size,
        "eps": config.rms_norm_eps,
        "qkv_bias": biased,
        "out_bias": biased,
        "mlp_bias": bool(getattr(config, "mlp_bias", False)),
    }


def _plain(config: Any) -> dict[str, Any]:
    biases = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), True)
    return {
        **biases,
        "inner": getattr(config, "ffn_dim", None)
        or getattr(config, "n_inner", None)
        or 4 * config.hidden_size,
        "eps": getattr(config, "layer_norm_epsilon", 1e-5),
        "layer_norm": True,
        "gated": False,
        "learned_positions": True,
    }


def _gemma2(config: Any) -> dict[str, Any]:
    return {
        **_llama(config),
        "post_norms": True,
        "embed_scale": config.hidden_size**0.5,
        "query_scale": config.query_pre_attn_scalar**-0.5,
        "attention_cap": config.attn_logit_softcapping or 0.0,
        "logit_cap": config.final_logit_softcapping or 0.0,
    }


def _gemma3(config: Any) -> dict[str, Any]:
    return {**_gemma2(config), "qk_norm": "head", "attention_cap": 0.0}


def _granite(config: Any) -> dict[str, Any]:
    return {
        **_llama(config),
        "embed_scale": float(config.embedding_multiplier),
        "residual_scale": float(config.residual_multiplier),
        "query_scale": float(config.attention_multiplier),
        "logit_scale": float(config.logits_scaling),
    }


def _mixture(config: Any, inner: int, *, normalised: bool, shared: int = 0) -> Mixture | None:
    """Return the experts of a config: in all layers, or in those that Qwen's fields name."""
    experts: int = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None) or 0
    step, dense = getattr(config, "decoder_sparse_step", 1), getattr(config, "mlp_only_layers", None) or []
    layers = tuple(
        i not in dense and not (i + 1) % step and experts > 0 for i in range(config.num_hidden_layers)
    )
    used: int = config.num_experts_per_tok
    return Mixture(experts, used, inner, normalised, layers, shared, shared > 0) if any(layers) else None


def _mixtral(config: Any) -> dict[str, Any]:
    return {**_llama(config), "mixture": _mixture(config, config.intermediate_size, normalised=True)}


def _qwen2_moe(config: Any) -> dict[str, Any]:
    sizes = config.moe_intermediate_size, config.shared_expert_intermediate_size
    mixture = _mixture(config, sizes[0], normalised=config.norm_topk_prob, shared=sizes[1])
    return {**_llama(config), "qkv_bias": config.qkv_bias, "mixture": mixture}


def _qwen3_moe(config: Any) -> dict[str, Any]:
    mixture = _mixture(config, config.moe_intermediate_size, normalised=config.norm_topk_prob)
    return {**_llama(config), "qk_norm": "head", "mixture": mixture}


def _olmoe(config: Any) -> dict[str, Any]:
    mixture = _mixture(config, config.intermediate_size, normalised=config.norm_topk_prob)
    return {**_llama(config), "qk_norm": "all", "mixture": mixture}


def _granite_moe(config: Any) -> dict[str, Any]:
    mixture = _mixture(config, config.intermediate_size, normalised=True)
    return {**_granite(config), "mixture": mixture}


_EXPERTS = {f"mlp.experts.{part}_proj": f"mlp.experts.{{}}.{part}_proj" for part in ("gate", "up", "down")}
_QWEN_MOE = {
    **_EXPERTS,
    "mlp.router": "mlp.gate",
    "mlp.shared_gate": "mlp.shared_expert_gate",
    **{f"mlp.shared.{part}_proj": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
}
_GEMMA = {
    "post_attention_layernorm": "pre_feedforward_layernorm",
    "self_attn.post_norm": "post_attention_layernorm",
    "mlp.post_norm": "post_feedforward_layernorm",
}
FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family("llama", _llama),
    "MistralForCausalLM": Family("mistral", _llama),
    "Qwen2ForCausalLM": Family("qwen2", lambda config: {**_llama(config), "qkv_bias": True}),
    "Qwen3ForCausalLM": Family("qwen3", lambda config: {**_llama(config), "qk_norm": "head"}),
    "Phi3ForCausalLM": Family(
        "phi3",
        _llama,
        names={
            **dict.fromkeys(
                ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "self_attn.qkv_proj"
            ),
            **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), "mlp.gate_up_proj"),
        },
        fused=("qkv_proj", "gate_up_proj"),
    ),
    "Gemma2ForCausalLM": Family(
        "gemma2",
        _gemma2,
        "hidden_activation",
        needs={"use_bidirectional_attention": False},
        names=_GEMMA,
        norm_offset=1.0,
    ),
    "Gemma3ForCausalLM": Family(
        "gemma3_text",
        _gemma3,
        "hidden_activation",
        needs={"use_bidirectional_attention": False, "attn_logit_softcapping": None},
        names=_GEMMA,
        norm_offset=1.0,
    ),
    "SmolLM3ForCausalLM": Family("smollm3", _llama, needs={"use_sliding_window": False}),
    "GraniteForCausalLM": Family("granite", _granite),
    "MixtralForCausalLM": Family(
        "mixtral",
        _mixtral,
        names={
            "mlp.router": "block_sparse_moe.gate",
            "mlp.experts.gate_proj": "block_sparse_moe.experts.{}.w1",
            "mlp.experts.down_proj": "block_sparse_moe.experts.{}.w2",
            "mlp.experts.up_proj": "block_sparse_moe.experts.{}.w3",
        },
        mixture=True,
    ),
    "Qwen2MoeForCausalLM": Family("qwen2_moe", _qwen2_moe, names=_QWEN_MOE, mixture=True),
    "Qwen3MoeForCausalLM": Family("qwen3_moe", _qwen3_moe, names=_QWEN_MOE, mixture=True),
    "OlmoeForCausalLM": Family("olmoe", _olmoe, needs={"clip_qkv": None}, names=_QWEN_MOE, mixture=True),
    "GraniteMoeForCausalLM": Family(
        "granitemoe",
        _granite_moe,
        names={
            "mlp.router": "block_sparse_moe.router.layer",
            **dict.fromkeys(
                ("mlp.experts.gate_proj", "mlp.experts.up_proj"), "block_sparse_moe.input_linear"
            ),
            "mlp.experts.down_proj": "block_sparse_moe.output_linear",
        },
        fused=("input_linear",),
        mixture=True,
    ),
    "OPTForCausalLM": Family(
        "opt",
        _plain,
        "activation_function",
        needs={
            "do_layer_norm_before": True,
            "enable_bias": True,
            "layer_norm_elementwise_affine": True,
            "_remove_final_layer_norm": False,
            "word_embed_proj_dim": "hidden_size",
        },
        prefix="model.decoder",
        names={
            "model.embed_tokens": "embed_tokens",
            "model.embed_positions": "embed_positions",
            "model.norm": "final_layer_norm",
            "self_attn.o_proj": "self_attn.out_proj",
            "input_layernorm": "self_attn_layer_norm",
            "post_attention_layernorm": "final_layer_norm",
            "mlp.up_proj": "fc1",
            "mlp.down_proj": "fc2",
        },
        skipped=2,
    ),
    "GPT2LMHeadModel": Family(
        "gpt2",
        _plain,
        "activation_function",
        needs={
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
        prefix="transformer",
        names={
            "model.embed_tokens": "wte",
            "model.embed_positions": "wpe",
            "model.layers": "h",
            "model.norm": "ln_f",
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
            **dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "attn.c_attn"),
            "self_attn.o_proj": "attn.c_proj",
            "mlp.up_proj": "mlp.c_fc",
            "mlp.down_proj": "mlp.c_proj",
        },
        fused=("c_attn",),
        transposed=True,
        ignored=(".attn.bias", ".attn.masked_bias"),
    ),
}
