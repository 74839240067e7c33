"""The shape of a decoder: sizes, biases, windows and rotary frequencies, read from a config."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.errors import ModelError
from engine.model.families import ACTIVATIONS, FAMILIES, Place, family_of
from engine.model.fields import WHOLE, check_fields
from engine.model.rotary import context_of, head_dim, no_rotation, rotations

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from transformers import PretrainedConfig

EMBEDDING = "model.embed_tokens.weight"
"""Our name of the embeddings."""
POSITIONS = "model.embed_positions.weight"
"""Our name of the table of learned positions."""


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
    """Epsilon of the norms."""
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    tied: bool
    """Whether embedding and LM head share their weight."""
    windows: tuple[int | None, ...]
    """Sliding window of each layer in positions; None for all positions."""
    frequencies: tuple[float, ...]
    """Rotary frequencies in radians per position, (head_dim / 2,); 0 for pairs not rotated."""
    rope_scale: float
    """Factor of rotated queries and keys; other than 1 only for yarn and longrope."""
    other_frequencies: tuple[float, ...] = ()
    """Frequencies of the layers in `others`; empty if all layers have the same."""
    others: tuple[bool, ...] = ()
    """Whether each layer has the other frequencies."""
    qk_norm: bool = False
    """Whether each head norms its queries and keys, as in Qwen3."""
    input_norm: bool = True
    """Whether attention reads normed states; False in EAGLE's layer."""
    final_norm: bool = True
    """Whether the LM head reads normed states; False in EAGLE's layer."""
    family: str = "LlamaForCausalLM"
    """The architecture, a key of `FAMILIES`."""
    layer_norm: bool = False
    """Whether norms subtract the mean and have biases; otherwise they are RMS norms."""
    gated: bool = True
    """Whether the MLP multiplies two products; otherwise it has one."""
    activation: str = "silu"
    """One of `ACTIVATIONS`."""
    learned_positions: bool = False
    """Whether a vector for each position is added to the embeddings, without a rotation."""
    post_norms: bool = False
    """Whether norms follow attention and MLP, too."""
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
        """Return the shape in a config; error messages name `path`."""
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
        if getattr(config, "quantization_config", None):
            raise ModelError(f"{path}: quantized weights are not supported; use the unquantized model")
        kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        if config.num_attention_heads % kv_heads:
            raise ModelError(
                f"{path}: num_key_value_heads is {kv_heads}; it must divide the {config.num_attention_heads} attention heads"
            )
        if (size := head_dim(config)) % 2 or size < 2:
            raise ModelError(
                f"{path}: head_dim is {size}; it must be even, at least 2 and at most {WHOLE['head_dim'][1]}"
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

    def places(self, stored: Collection[str]) -> dict[str, Place]:
        """Return where a checkpoint with these stored names keeps each of our tensors."""
        tensors, family = self.tensors(), FAMILIES[self.family]
        if not any(name.startswith(f"{family.prefix}.") for name in stored):
            family = replace(family, prefix="")  # a checkpoint of the bare model
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        starts = {
            "self_attn.k_proj": queries,
            "self_attn.v_proj": queries + keys,
            "mlp.up_proj": self.inner,
        }
        return {key: family.place(key, size, starts) for key, size in tensors.items()}

    def check_llama(self, path: Path) -> None:
        """Check that the block is Llama's, of which trained heads are made.

        Raises:
            ModelError: It differs, or its checkpoint names its matrices in other ways.
        """
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
        """Return name -> shape of a checkpoint's tensors.

        Args:
            span: Layers of one stage of a split model; default: all tensors.
        """
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
            **({"mlp.gate_proj": (self.inner, d, self.mlp_bias)} if self.gated else {}),
            "mlp.up_proj": (self.inner, d, self.mlp_bias),
            "mlp.down_proj": (d, self.inner, self.mlp_bias),
        }
        for i in span:
            prefix = f"model.layers.{i}."
            names |= {f"{prefix}post_attention_layernorm.{kind}": (d,) for kind in kinds}
            if self.post_norms:
                names |= {f"{prefix}{part}.post_norm.weight": (d,) for part in ("self_attn", "mlp")}
            if self.input_norm:
                names |= {f"{prefix}input_layernorm.{kind}": (d,) for kind in kinds}
            for part, (rows, columns, bias) in linear.items():
                names[f"{prefix}{part}.weight"] = (rows, columns)
                if bias:
                    names[f"{prefix}{part}.bias"] = (rows,)
            if self.qk_norm:
                names[f"{prefix}self_attn.q_norm.weight"] = names[f"{prefix}self_attn.k_norm.weight"] = (
                    self.head_dim,
                )
        return names


def _windows(config: Any, path: Path) -> tuple[int | None, ...]:
    """Return each layer's window: in all layers (Mistral) or in the sliding ones."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    if len(kinds) != config.num_hidden_layers:
        raise ModelError(
            f"{path}: layer_types has {len(kinds)} entries; num_hidden_layers is {config.num_hidden_layers}"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
