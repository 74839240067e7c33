"""The config of a drafting head (`config.json`).

Each kind's checks are in `specscope.engine.heads.kinds`.

A head is a directory with `config.json` and `model.safetensors`. All states are read by the
target's LM head, unless the head has its own.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import nextafter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

import torch

from specscope.engine.checkpoints.config import is_complete
from specscope.engine.errors import ModelError, one_line
from specscope.engine.model.fields import MOST_LAYERS, MOST_TOKENS, READ, WHOLE, check_fields, check_value
from specscope.engine.model.shape import ModelShape, head_dim
from specscope.engine.schema import Range, Text, fits

if TYPE_CHECKING:
    from transformers import PretrainedConfig

TensorShapes = dict[str, tuple[int, ...]]
INDEX_TENSORS = ("d2t",)
"""Tensors of int64; all others hold floating-point numbers."""
LAYER_FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_parameters",
    "max_position_embeddings",
)
_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "eos_token_id": None,
}
"""What a Llama config has unless it says otherwise, beside `LAYER_FIELDS`."""
MOST = 64
"""Largest number of heads, of layers, of masks, of places, and of target states that are read."""
_FLAGS = ("own_lm_head", "biased", "qkv_bias", "qk_norm", "own_embedding", "norm_before_residual", "causal")
_Window = Annotated[int, Range(*WHOLE["sliding_window"])]
_Scale = Annotated[float, Range(nextafter(0, 1), nextafter(1e6, 0))]
_Digest: TypeAlias = Text | None
_OTHERS: Mapping[str, tuple[Any, str]] = dict.fromkeys(_FLAGS, (bool, "")) | {
    "target": (Text, "the target's name"),
    "tokenizer": (_Digest, "a SHA-256, or null"),
    "embedding_scale": (_Scale, "a number above 0 and below 1e6"),
}
"""Field that is no whole number -> its type, and what it admits in words of its own."""


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """The content of a head's config.json."""

    kind: str
    """One of `specscope.engine.heads.kinds.KINDS`."""
    hidden_size: int
    """D, the target's."""
    vocab_size: int
    """V, the target's; 0 if a published head does not name it."""
    heads: int = 0
    """How many heads there are, or MTP layers that each draft one place. 0 if one layer drafts all
    places."""
    layers: int = 1
    masks: int = 0
    """K, number of mask tokens (parallelspec_medusa, parallelspec_eagle)."""
    features: tuple[int, ...] = (-1,)
    """Hidden states of the target that the head reads: i is the output of layer i (0: embeddings),
    -1 the final normed state. Empty for an eagle3 head with the default three
    (`Kind.for_target`)."""
    tokenizer: str | None = None
    """SHA-256 of the target's tokens by id (`tokenizer_digest`); None if unknown."""
    shape: dict[str, Any] = field(default_factory=dict[str, Any])
    """Sizes of the decoder layer, named as in a transformers config; empty for medusa and hydra."""
    target: str = ""
    embedding_scale: float = 1.0
    """Factor of E(x): before the feature is added (parallelspec_medusa), or as input (dflash)."""
    own_lm_head: bool = False
    """Whether each head has its own LM head (medusa, hydra), or the only one has (dflash)."""
    biased: bool = False
    """Whether `fc`, or a hydra's own LM head, has a bias."""
    qkv_bias: bool = False
    draft_vocab: int = 0
    """N, the number of the target's tokens that the head drafts; 0 for all of them."""
    own_embedding: bool = False
    """Whether the head has its own embedding (eagle3)."""
    norm_before_residual: bool = False
    """Whether attention's output is added to the normed state (eagle3)."""
    qk_norm: bool = False
    """Whether each head norms its queries and keys."""
    block: int = 0
    """Places that a block drafts (dflash)."""
    windows: tuple[int, ...] = (0,)
    """Sliding window of each decoder layer; 0 for none."""
    causal: bool = False
    """Whether places see no later ones in layers with a window (dflash)."""
    mask_token: int = -1
    """The target's token in every drafted place of a block; -1 for a learned vector (dflash)."""

    @property
    def drafted(self) -> int:
        return self.draft_vocab or self.vocab_size

    def check(self, **ranges: tuple[int, int]) -> None:
        """Check the fields that all kinds share, and whole numbers against `ranges`."""
        vocab: Any = self.vocab_size
        common = {
            "hidden_size": WHOLE["hidden_size"],
            "vocab_size": (1, MOST_TOKENS),
            "draft_vocab": (0, vocab if type(vocab) is int else MOST_TOKENS),
        }
        for name, ends in (common | ranges).items():
            check_value(getattr(self, name), Annotated[int, Range(*ends)], name)
        for name, (hint, expected) in _OTHERS.items():
            check_value(getattr(self, name), hint, name, expected)

    def check_reads_last_state(self) -> None:
        if self.features != (-1,):
            read = reprlib.repr(list(self.features))
            raise ModelError(f"features is {read}; supported is [-1], the target's last state")

    def check_features(self, least: int = 0) -> None:
        layers = tuple[Annotated[int, Range(least, MOST_LAYERS)], ...]
        if not fits(tuple(self.features), layers) or len(self.features) > MOST:
            raise ModelError(
                f"features is {reprlib.repr(list(self.features))}; it must hold at most {MOST} whole numbers, "
                f"at least {least} and at most {MOST_LAYERS}"
            )

    def layer(self, *, input_norm: bool = False, final_norm: bool = False) -> ModelShape:
        """Return the shape of the head's decoder layers; a ModelError for a wrong `shape`."""
        windows, most = self.windows, MOST if self.block else 1
        if not fits(tuple(windows), tuple[_Window, ...]) or not 1 <= len(windows) <= most:
            raise ModelError(
                f"windows is {reprlib.repr(list(windows))}; it must hold a whole number for each layer, at least 1 "
                f"and at most {most} of them"
            )
        given: Any = self.shape
        if not isinstance(given, dict):
            raise ModelError(f"shape is {reprlib.repr(given)}; it must hold the fields of a Llama config")
        if missing := [name for name in LAYER_FIELDS if name not in self.shape]:
            raise ModelError(f"shape lacks {', '.join(missing)}")
        if self.shape["hidden_size"] != self.hidden_size:
            raise ModelError(
                f"hidden_size is {reprlib.repr(self.shape['hidden_size'])} in shape, {self.hidden_size} above it; they must be the same"
            )
        with torch.device("cpu"):  # a head may be built on `meta`
            shape = layer_shape(self.shape | {"vocab_size": self.vocab_size})
        return replace(
            shape,
            layers=len(windows),
            windows=tuple(window or None for window in windows),
            input_norm=input_norm,
            final_norm=final_norm,
            qkv_bias=self.qkv_bias,
            qk_norm="head" if self.qk_norm else "",
        )


def layer_shape(fields: dict[str, Any]) -> ModelShape:
    """Return the shape of a Llama decoder of one layer, from the fields of its config."""
    check_fields(fields, "shape")
    fixed: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
    given = {name: fields[name] for name in READ if name in fields} | fixed
    if is_complete(plain := _LLAMA | given):
        return ModelShape.of(cast("PretrainedConfig", SimpleNamespace(**plain)), Path("shape"))
    try:
        from transformers import LlamaConfig  # the import takes seconds, and most heads do without

        return ModelShape.of(LlamaConfig(**given), Path("shape"))
    except ModelError:
        raise
    except Exception as e:  # noqa: BLE001 - transformers raises many types for a wrong config
        raise ModelError(f"shape is wrong: {one_line(e)}") from None


def layer_fields(config: Any) -> dict[str, Any]:
    given = {name: getattr(config, name) for name in LAYER_FIELDS if name != "head_dim"}
    return given | {"head_dim": head_dim(config)}  # Qwen2's configs have none
