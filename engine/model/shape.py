"""The shape of a decoder: sizes, biases, windows and rotary frequencies, read from a config.

Most models have one rotation. Gemma 3 has a second one in its local layers, and SmolLM3 has layers
without any. A pair of numbers of frequency 0 is not rotated, and not scaled.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specscope.engine.errors import ModelError
from specscope.engine.model.families import ACTIVATIONS, FAMILIES, Mixture, TensorPlace, family_of
from specscope.engine.model.fields import LAYER_TYPES, WHOLE, check_fields, check_rotation

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope")
"""Supported scalings; a model's frequencies do not depend on the length of the text."""
TWO_ROTATIONS = ("gemma3_text",)
"""Model types with a rotation for each kind of layer."""
PARTIAL = ("phi3",)
"""Model types that may rotate a part of each head only."""


def head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def context_of(config: Any) -> int:
    """Return the positions that a model supports.

    Longrope has frequencies for texts up to its original context, and others for longer ones: all
    keys of a text would change once it is longer. We support the original context.
    """
    rope: Any = getattr(config, "rope_parameters", None) or {}
    longest: int = config.max_position_embeddings
    return (
        min(longest, rope["original_max_position_embeddings"])
        if rope.get("rope_type") == "longrope"
        else longest
    )


def no_rotation(config: Any) -> dict[str, Any]:
    return {"frequencies": (0.0,) * (head_dim(config) // 2), "rope_scale": 1.0}


def rotations(config: Any, path: Path) -> dict[str, Any]:
    """Return the shape's fields of the rotations; ModelError for unsupported ones."""
    parameters = config.rope_parameters
    kinds = [kind for kind in LAYER_TYPES if isinstance(parameters.get(kind), dict)]
    if kinds and config.model_type not in TWO_ROTATIONS:
        raise ModelError(
            f"{path}: rope_parameters.{kinds[0]} is an object; one rotation for all layers is supported"
        )
    main, local = (parameters.get(kind, parameters) for kind in LAYER_TYPES)
    frequencies, scale = _rotation(config, main, path, LAYER_TYPES[0] if kinds else None)
    found: dict[str, Any] = {"frequencies": frequencies, "rope_scale": scale}
    if kinds:
        others = tuple(kind == LAYER_TYPES[1] for kind in config.layer_types)
        second, second_scale = _rotation(config, local, path, LAYER_TYPES[1])
    elif all(rotated := _rotated(config, path)):
        return found
    else:
        others = tuple(not each for each in rotated)
        second, second_scale = (0.0,) * len(frequencies), 1.0
    if (scale, second_scale) != (1.0, 1.0):
        raise ModelError(
            f"{path}: two rotations, of which one is scaled by {max(scale, second_scale):g}, are not supported"
        )
    return found | {"other_frequencies": second, "others": others}


def _rotated(config: Any, path: Path) -> list[Any]:
    flags: Any = getattr(config, "no_rope_layers", None) or [1] * config.num_hidden_layers
    if len(flags) != config.num_hidden_layers or not all(flag in (0, 1) for flag in flags):
        raise ModelError(
            f"{path}: no_rope_layers is {reprlib.repr(flags)}; it must hold 0 or 1 for each of the "
            f"{config.num_hidden_layers} layers"
        )
    return flags


def _rotation(
    config: Any, parameters: Mapping[str, Any], path: Path, layer_type: str | None
) -> tuple[tuple[float, ...], float]:
    """Return the frequencies of a head's pairs, (head_dim / 2,), and what they are scaled by."""
    import torch  # takes seconds; the names of FAMILIES are read without it

    kind, size = parameters.get("rope_type", "default"), head_dim(config)
    if kind not in ROPE_TYPES:
        raise ModelError(
            f"{path}: rope_type {reprlib.repr(kind)} is not supported; supported are {', '.join(ROPE_TYPES)}"
        )
    check_rotation(parameters, path)
    part = parameters.get("partial_rotary_factor") or 1.0
    dim = int(size * part)
    if part != 1.0 and (config.model_type not in PARTIAL or dim % 2 or dim < 2):
        raise ModelError(f"{path}: only a part of each head is rotated, which is not supported")
    if kind != "default":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), layer_type=layer_type)
    else:
        frequencies = 1.0 / parameters["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float) / dim)
        scale = 1.0
    if 2 * len(frequencies) != dim:
        raise ModelError(f"{path}: only a part of each head is rotated, which is not supported")
    if not (frequencies.isfinite().all() and math.isfinite(scale)):
        raise ModelError(f"{path}: rope_parameters give a rotation that is not finite")
    return (*frequencies.tolist(), *(0.0,) * ((size - dim) // 2)), float(scale)


EMBEDDING = "model.embed_tokens.weight"
POSITIONS = "model.embed_positions.weight"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes and options of a Llama-style decoder."""

    layers: int
    width: int
    """Width D of the hidden state."""
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    """Inner width of the MLP."""
    vocab: int
    context: int
    eps: float
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    tied: bool
    windows: tuple[int | None, ...]
    frequencies: tuple[float, ...]
    """Rotary frequencies in radians per position, (head_dim / 2,); 0 for pairs not rotated."""
    rope_scale: float
    """Factor of rotated queries and keys; other than 1 only for yarn and longrope."""
    other_frequencies: tuple[float, ...] = ()
    """Frequencies of the layers in `others`; empty if all layers have the same."""
    others: tuple[bool, ...] = ()
    """Whether each layer has the other frequencies."""
    qk_norm: Literal["", "head", "all"] = ""
    """Whether each head norms its queries and keys, as in Qwen3, or all heads as one vector do."""
    mixture: Mixture | None = None
    """The experts of a mixture's layers."""
    input_norm: bool = True
    """Whether attention reads normed states; False in EAGLE's layer."""
    final_norm: bool = True
    """Whether the LM head reads normed states; False in EAGLE's layer."""
    block: Literal["", "unlimited", "all"] = ""
    """Layers in which the rows of one draft also see later ones: none, those without a window, all.

    Only in a block drafter, whose other rows have given states (`Decoder.run_layers`)."""
    family: str = "LlamaForCausalLM"
    layer_norm: bool = False
    """Whether norms subtract the mean and have biases; otherwise they are RMS norms."""
    gated: bool = True
    """Whether the MLP multiplies two products; otherwise it has one."""
    activation: str = "silu"
    learned_positions: bool = False
    """Whether a vector for each position is added to the embeddings, without a rotation."""
    post_norms: bool = False
    embed_scale: float = 1.0
    """Factor of the embeddings, not of a tied LM head."""
    residual_scale: float = 1.0
    """Factor of the outputs of attention and MLP, before they are added to the hidden state."""
    query_scale: float = 0.0
    """Factor of the queries; 0 for 1 / sqrt(head_dim)."""
    attention_cap: float = 0.0
    """Attention scores s become cap tanh(s / cap); 0 for no cap."""
    logit_cap: float = 0.0
    """The same for logits."""
    logit_scale: float = 1.0
    """What logits are divided by."""

    @classmethod
    def of(cls, config: PretrainedConfig, path: Path) -> ModelShape:
        check_fields(vars(config), path)
        family = (config.architectures or ["none"])[0]
        kind = family_of(family, path)
        options: dict[str, Any] = kind.options(config)
        kind.check(config, path)
        act = kind.activation
        allowed = ("silu",) if act == "hidden_act" else ACTIVATIONS
        if (activation := getattr(config, act)) not in allowed:
            raise ModelError(
                f"{path}: {act} {reprlib.repr(activation)} is not supported; supported is {', '.join(allowed)}"
            )
        if stored := getattr(config, "quantization_config", None):
            how = reprlib.repr(stored.get("quant_method", "unknown"))
            raise ModelError(
                f"{path}: quantized weights ({how}) are not supported; use the unquantized model, or a server that "
                "runs it with --server"
            )
        kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        if config.num_attention_heads % kv_heads:
            raise ModelError(
                f"{path}: num_key_value_heads is {kv_heads}; it must divide the {config.num_attention_heads} attention heads"
            )
        if (size := head_dim(config)) % 2 or size < 2:
            raise ModelError(
                f"{path}: head_dim is {size}; it must be even, at least 2 and at most {WHOLE['head_dim'][1]}"
            )
        mixture: Mixture | None = options.get("mixture")
        if mixture is not None and mixture.used > mixture.experts:
            raise ModelError(
                f"{path}: num_experts_per_tok is {mixture.used}; it must be at most the {mixture.experts} experts"
            )
        turns = no_rotation(config) if options.get("learned_positions") else rotations(config, path)
        return cls(
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=kv_heads,
            head_dim=size,
            vocab=config.vocab_size,
            tied=bool(config.tie_word_embeddings),
            windows=_windows(config, path),
            family=family,
            activation=activation,
            context=context_of(config),
            **turns,
            **options,
        )

    def places(self, stored: Collection[str]) -> dict[str, TensorPlace]:
        tensors, family = self.tensors(), FAMILIES[self.family]
        if not any(name.startswith(f"{family.prefix}.") for name in stored):
            family = replace(family, prefix="")  # a checkpoint of the bare model
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        starts = {
            "self_attn.k_proj": queries,
            "self_attn.v_proj": queries + keys,
            "mlp.up_proj": self.inner,
            "mlp.experts.up_proj": self.mixture.inner if self.mixture else 0,
        }
        return {key: family.place(key, size, starts) for key, size in tensors.items()}

    def check_llama(self, path: Path) -> None:
        """Raise ModelError unless block and names are Llama's, of which trained heads are made."""
        plain = (self.embed_scale, self.residual_scale, self.logit_scale, self.query_scale) == (1, 1, 1, 0)
        if FAMILIES[self.family].names or self.others or not plain:
            raise ModelError(
                f"{path}: {self.family} has a block or names of its own; trained heads need a target of Llama, "
                "Mistral, Qwen2 or Qwen3"
            )

    @property
    def rotated(self) -> int:
        """Numbers of a head that are rotated, the first ones."""
        return 2 * sum(frequency != 0 for frequency in self.frequencies)

    @property
    def kv_numbers(self) -> int:
        """Numbers in the keys and values of one token."""
        return self.layers * 2 * self.kv_heads * self.head_dim

    def tensors(self, span: range | None = None) -> dict[str, tuple[int, ...]]:
        """Return name -> shape of a checkpoint's tensors: all, or of one stage's layers, `span`."""
        span = range(self.layers) if span is None else span
        is_last = span.stop == self.layers
        q, kv, d = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.width
        names: dict[str, tuple[int, ...]] = {}
        if span.start == 0 or (is_last and self.tied):
            names[EMBEDDING] = (self.vocab, d)
        if span.start == 0 and self.learned_positions:
            names[POSITIONS] = (self.context, d)
        kinds = ("weight", "bias") if self.layer_norm else ("weight",)
        if self.final_norm:
            names |= {f"model.norm.{kind}": (d,) for kind in kinds}
        if is_last and not self.tied:
            names["lm_head.weight"] = (self.vocab, d)
        linear = {
            "self_attn.q_proj": (q, d, self.qkv_bias),
            "self_attn.k_proj": (kv, d, self.qkv_bias),
            "self_attn.v_proj": (kv, d, self.qkv_bias),
            "self_attn.o_proj": (d, q, self.out_bias),
        }
        for i in span:
            prefix = f"model.layers.{i}."
            names |= {f"{prefix}post_attention_layernorm.{kind}": (d,) for kind in kinds}
            if self.post_norms:
                names |= {f"{prefix}{part}.post_norm.weight": (d,) for part in ("self_attn", "mlp")}
            if self.input_norm:
                names |= {f"{prefix}input_layernorm.{kind}": (d,) for kind in kinds}
            for part, (rows, columns, bias) in (linear | self._mlp(i)).items():
                names[f"{prefix}{part}.weight"] = (rows, columns)
                if bias:
                    names[f"{prefix}{part}.bias"] = (rows,)
            if self.qk_norm:
                sizes = (self.head_dim, self.head_dim) if self.qk_norm == "head" else (q, kv)
                names |= {
                    f"{prefix}self_attn.{n}_norm.weight": (s,) for n, s in zip("qk", sizes, strict=True)
                }
        return names

    def mixture_of(self, layer: int) -> Mixture | None:
        return self.mixture if self.mixture is not None and self.mixture.layers[layer] else None

    def _mlp(self, layer: int) -> dict[str, tuple[int, int, bool]]:
        """Return part -> (rows, columns, whether it has a bias) of a layer's MLP or experts."""

        def gated(name: str, inner: int) -> dict[str, tuple[int, int, bool]]:
            parts = ("gate_proj", "up_proj") if self.gated else ("up_proj",)
            wide = {f"{name}.{part}": (inner, self.width, self.mlp_bias) for part in parts}
            return wide | {f"{name}.down_proj": (self.width, inner, self.mlp_bias)}

        mixture = self.mixture_of(layer)
        if mixture is None:
            return gated("mlp", self.inner)
        found = {"mlp.router": (mixture.experts, self.width, False)}
        for i in range(mixture.experts):
            found |= gated(f"mlp.experts.{i}", mixture.inner)
        if mixture.shared:
            found |= gated("mlp.shared", mixture.shared)
        return found | ({"mlp.shared_gate": (1, self.width, False)} if mixture.shared_gate else {})


def _windows(config: Any, path: Path) -> tuple[int | None, ...]:
    """Return each layer's window: in all layers (Mistral) or in the sliding ones."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    if len(kinds) != config.num_hidden_layers:
        raise ModelError(
            f"{path}: layer_types has {len(kinds)} entries; num_hidden_layers is {config.num_hidden_layers}"
        )
    if window == 0 and "sliding_attention" in kinds:
        raise ModelError(f"{path}: sliding_window is 0; it must be at least 1 in a layer with a window")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
