"""The form of a drafting head: what its config says, and which tensors of which shapes it holds.

A head is a directory with `config.json` and `model.safetensors`. f_t is the target's final normed hidden state at token
t, E its embedding, x_n the last known token. All states are read by the target's LM head, unless a head has its own.

- medusa: `{i}.{j}.linear`: head i turns f_(n-1) into the state of x_(n+1+i) by its layers x + SiLU(W x + b).
- hydra: `hydra_mlp.{i}.1`: res_connection(z) + SiLU(linear(z)) of z = [f_(n-1); E(x_n); E(d_1) ... E(d_i)] stands for
  d_(i+1); further layers `hydra_mlp.{i}.{2j+1}` are x + SiLU(W x + b).
- eagle: `fc` on [E(x_j); f_(j-1)], then one decoder layer without a norm before its attention; its output is f_j.
- parallelspec_eagle: the same, and K masks with an embedding and a feature of their own.
- parallelspec_medusa: a whole decoder layer on embedding_scale E(x_j) + f_(j-1), K masks with an embedding each, a final norm.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.model.shape import Shape

SIDE = ("medusa", "hydra")
_VECTORS = {"parallelspec_eagle": ("embedding", "feature"), "parallelspec_medusa": ("embedding",)}
"""What a mask reads, by kind."""
PARALLEL = tuple(_VECTORS)
LAYERED = ("eagle", *PARALLEL)
KINDS = (*SIDE, *LAYERED)
SUMMED = ("parallelspec_medusa",)
"""Kinds that add what the others join in `fc`, and whose layer has a decoder's norms; EAGLE's has neither the first nor the last."""
LAYER = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_parameters",
    "max_position_embeddings",
)
"""Fields of a head's `shape`."""
_LENT = ("embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """What a head's config.json says."""

    kind: str
    """One of `KINDS`."""
    hidden_size: int
    """D, of the target."""
    vocab_size: int
    """V, of the target; 0 where a published head does not say."""
    heads: int = 0
    """Of medusa and hydra."""
    layers: int = 1
    """Of each head (medusa, hydra)."""
    masks: int = 0
    """K, of the parallel drafters."""
    features: tuple[int, ...] = (-1,)
    """Layers of the target whose states are read; -1 is the final normed state."""
    tokenizer: str | None = None
    """SHA-256 of the target's tokenizer.json; None where it is not known."""
    shape: dict[str, Any] = field(default_factory=dict[str, Any])
    """Sizes of the one decoder layer, named as in a transformers config; empty for medusa and hydra."""
    target: str = ""
    """Name of the target."""
    embedding_scale: float = 1.0
    """What E(x) is multiplied with before the feature is added (parallelspec_medusa)."""
    own_lm_head: bool = False
    """Whether each head has an LM head of its own (medusa, hydra)."""
    biased: bool = False
    """Whether `fc`, or a hydra's own LM head, has a bias."""

    @property
    def levels(self) -> int:
        """Tokens it was trained to draft one after the other; 0 where any number will do."""
        return self.heads if self.kind in SIDE else self.masks + 1 if self.kind in PARALLEL else 0

    def check(self) -> None:
        """Check that there can be a head like this.

        Raises:
            ModelError: A field is wrong; the message names it, its value and what it may be.
        """
        if self.kind not in KINDS:
            raise ModelError(f"kind is {self.kind!r}; it must be one of {', '.join(KINDS)}")
        side, least = self.kind in SIDE, {"hidden_size": 1, "vocab_size": 1}
        least |= {"heads": 1, "layers": 1} if side else {"masks": 0} if self.kind in PARALLEL else {}
        if side and not self.own_lm_head:
            least["vocab_size"] = 0
        for name, low in least.items():
            if type(value := getattr(self, name)) is not int or value < low:
                raise ModelError(f"{name} is {value!r}; it must be a whole number of at least {low}")
        if self.features != (-1,):
            raise ModelError(f"features is {list(self.features)}; supported is [-1], the target's last state")
        tokenizer: Any = self.tokenizer
        if not isinstance(tokenizer, str | None):
            raise ModelError(
                f"tokenizer is {tokenizer!r}; it must be the SHA-256 of a tokenizer.json, or null"
            )
        scale: Any = self.embedding_scale
        if not isinstance(scale, int | float) or not 0 < scale < 1e6:
            raise ModelError(f"embedding_scale is {scale!r}; it must be a number above 0")
        if not side:
            self.layer()

    def layer(self) -> Shape:
        """Return the shape of its one decoder layer.

        Raises:
            ModelError: A field of `shape` is missing or wrong.
        """
        given: Any = self.shape
        if not isinstance(given, dict):
            raise ModelError(f"shape is {given!r}; it must hold the fields of a Llama config")
        if lacking := [name for name in LAYER if name not in self.shape]:
            raise ModelError(f"shape lacks {', '.join(lacking)}")
        if self.shape["hidden_size"] != self.hidden_size:
            raise ModelError(
                f"hidden_size is {self.shape['hidden_size']} in shape, {self.hidden_size} above it; they must be the same"
            )
        shape, normed = layer_of(self.shape | {"vocab_size": self.vocab_size}), self.kind in SUMMED
        return replace(shape, input_norm=normed, final_norm=normed)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of all tensors."""
        side = {"medusa": self._medusa, "hydra": self._hydra}
        if self.kind in side:
            return side[self.kind]()
        d, names = self.hidden_size, self._layer()
        if self.kind not in SUMMED:
            names |= {"fc.weight": (d, 2 * d)} | ({"fc.bias": (d,)} if self.biased else {})
        vectors = _VECTORS.get(self.kind, ()) if self.masks else ()
        return names | {f"mask.{name}": (self.masks, d) for name in vectors}

    def _medusa(self) -> dict[str, tuple[int, ...]]:
        d, names = self.hidden_size, dict[str, tuple[int, ...]]()
        for i in range(self.heads):
            for j in range(self.layers):
                names |= {f"{i}.{j}.linear.weight": (d, d), f"{i}.{j}.linear.bias": (d,)}
            if self.own_lm_head:
                names[f"{i}.{self.layers}.weight"] = (self.vocab_size, d)
        return names

    def _hydra(self) -> dict[str, tuple[int, ...]]:
        d, names = self.hidden_size, dict[str, tuple[int, ...]]()
        for i in range(self.heads):
            for j in range(self.layers):
                at, width = f"hydra_mlp.{i}.{2 * j + 1}", d if j else d * (i + 2)
                for part in ("linear",) if j else ("linear", "res_connection"):
                    names |= {f"{at}.{part}.weight": (d, width), f"{at}.{part}.bias": (d,)}
            if self.own_lm_head:
                names[f"hydra_lm_head.{i}.1.weight"] = (self.vocab_size, d)
                if self.biased:
                    names[f"hydra_lm_head.{i}.1.bias"] = (self.vocab_size,)
        return names

    def _layer(self) -> dict[str, tuple[int, ...]]:
        """What a decoder of one layer holds, without what the target lends."""
        sizes = {name.removeprefix("model."): size for name, size in self.layer().tensors().items()}
        return {name: size for name, size in sizes.items() if name not in _LENT}


def layer_of(fields: dict[str, Any]) -> Shape:
    """Return the shape of a Llama decoder of one layer, from the fields of its config.

    Raises:
        ModelError: A field is wrong or not supported.
    """
    fixed: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
    given = fields | fixed
    try:
        from transformers import LlamaConfig  # takes a second, which only heads with a layer are worth

        return Shape.of(LlamaConfig(**given), Path("shape"))
    except ModelError:
        raise
    except Exception as e:  # noqa: BLE001 - whatever transformers finds wrong with it
        raise ModelError(f"shape is wrong: {' '.join(str(e).split())[:300]}") from None
