"""The form of a drafting head: what its config says, and which tensors of which shapes it holds.

A head is a directory with `config.json` and `model.safetensors`. f_t is the target's final normed hidden state at token
t, E its embedding, x_n the last known token. All states are read by the target's LM head, unless a head has its own.

- medusa: `{i}.{j}.linear`: head i turns f_(n-1) into the state of x_(n+1+i) by its layers x + SiLU(W x + b).
- hydra: `hydra_mlp.{i}.1`: res_connection(z) + SiLU(linear(z)) of z = [f_(n-1); E(x_n); E(d_1) ... E(d_i)] stands for
  d_(i+1); further layers `hydra_mlp.{i}.{2j+1}` are x + SiLU(W x + b).
- eagle: `fc` on [E(x_j); f_(j-1)], then one decoder layer without a norm before its attention; its output is f_j.
- eagle3: `fc` on three states of the target's layers, [g_(j-1)] of 3 D, then one decoder layer whose attention reads [E(x_j); fc g_(j-1)],
  each normed; its output is what the next draft reads in place of fc g_j. A norm and an LM head of its own; the i-th
  token it knows is the target's i + d2t[i].
- parallelspec_eagle: the same as eagle, and K masks with an embedding and a feature of their own.
- parallelspec_medusa: a whole decoder layer on embedding_scale E(x_j) + f_(j-1), K masks with an embedding each, a final norm.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.errors import ModelError, one_line
from engine.model.fields import MOST_LAYERS, MOST_TOKENS, READ, WHOLE, check_fields
from engine.model.shape import ModelShape

SIDE = ("medusa", "hydra")
_VECTORS = {"parallelspec_eagle": ("embedding", "feature"), "parallelspec_medusa": ("embedding",)}
"""What a mask reads, by kind."""
PARALLEL = tuple(_VECTORS)
LAYERED = ("eagle", "eagle3", *PARALLEL)
KINDS = (*SIDE, *LAYERED)
SUMMED = ("parallelspec_medusa",)
"""Kinds that add what the others join."""
_NORMS = {"parallelspec_medusa": (True, True), "eagle3": (False, True)}
"""Whether a kind's layer norms what its attention reads, and what the LM head reads; EAGLE's does neither."""
_SERVES = {"eagle3": "eagle"}
"""Kinds that methods know by another one's name."""
INDICES = ("d2t",)
"""Tensors of whole numbers."""
STATES = 3
"""States of the target that an EAGLE-3 head reads where it does not say which."""
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
MOST = 64
"""Heads, and layers of each, at most."""
_FLAGS = ("own_lm_head", "biased", "qkv_bias", "own_embedding", "norm_before_residual")
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
    """States of the target that are read: i is the one after layer i (0: the embeddings), -1 the final normed one. Empty in an eagle3
    head that reads the usual three, which depend on the target (see `beside`)."""
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
    qkv_bias: bool = False
    """Whether the layer's queries, keys and values have biases."""
    draft_vocab: int = 0
    """Tokens that an eagle3 head's own LM head knows; 0 for all of the target's."""
    own_embedding: bool = False
    """Whether it reads embeddings of its own (eagle3)."""
    norm_before_residual: bool = False
    """Whether what attention adds to is the normed state (eagle3)."""

    @property
    def serves(self) -> str:
        """The kind by which methods ask for it."""
        return _SERVES.get(self.kind, self.kind)

    @property
    def states(self) -> int:
        """How many of the target's states its layer reads."""
        return len(self.features) or STATES

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
            raise ModelError(f"kind is {reprlib.repr(self.kind)}; it must be one of {', '.join(KINDS)}")
        side = self.kind in SIDE
        ranges = {
            "hidden_size": WHOLE["hidden_size"],
            "vocab_size": (0 if side and not self.own_lm_head else 1, MOST_TOKENS),
            "draft_vocab": (0, MOST_TOKENS),
        }
        ranges |= {"heads": (1, MOST), "layers": (1, MOST)} if side else {}
        ranges |= {"masks": (0, MOST)} if self.kind in PARALLEL else {}
        for name, (low, high) in ranges.items():
            if type(value := getattr(self, name)) is not int or not low <= value <= high:
                raise ModelError(
                    f"{name} is {reprlib.repr(value)}; it must be a whole number, at least {low} and at most {high}"
                )
        for name in _FLAGS:
            if not isinstance(value := getattr(self, name), bool):
                raise ModelError(f"{name} is {reprlib.repr(value)}; it must be true or false")
        target: Any = self.target
        if not isinstance(target, str):
            raise ModelError(f"target is {reprlib.repr(target)}; it must be the target's name")
        read = reprlib.repr(list(self.features))
        if self.kind != "eagle3" and self.features != (-1,):
            raise ModelError(f"features is {read}; supported is [-1], the target's last state")
        layers = all(type(i) is int and 0 <= i <= MOST_LAYERS for i in self.features)
        if self.kind == "eagle3" and not (layers and len(self.features) <= MOST):
            raise ModelError(
                f"features is {read}; it must hold at most {MOST} whole numbers, at least 0 and at most {MOST_LAYERS}"
            )
        tokenizer: Any = self.tokenizer
        if not isinstance(tokenizer, str | None):
            raise ModelError(
                f"tokenizer is {reprlib.repr(tokenizer)}; it must be the SHA-256 of a tokenizer.json, or null"
            )
        scale: Any = self.embedding_scale
        if type(scale) not in (int, float) or not 0 < scale < 1e6:
            raise ModelError(
                f"embedding_scale is {reprlib.repr(scale)}; it must be a number above 0 and below 1e6"
            )
        if not side:
            self.layer()

    def beside(self, layers: int) -> HeadConfig:
        """Return this beside a target of so many layers: all states it reads have numbers.

        Raises:
            ModelError: The target has no such layers.
        """
        usual = (2, layers // 2, layers - 3)
        if not self.features and list(usual) != sorted(usual):
            raise ModelError(
                f"it reads the states after layers 2, L / 2 and L - 3 of a target of L layers; there are {layers}, at least 5 are "
                "needed: name others in its config, as eagle_aux_hidden_state_layer_ids"
            )
        found = self.features or usual
        if max(found) > layers:
            raise ModelError(f"it reads the state after layer {max(found)}; the target has {layers} layers")
        return replace(self, features=found)

    def layer(self) -> ModelShape:
        """Return the shape of its one decoder layer.

        Raises:
            ModelError: A field of `shape` is missing or wrong.
        """
        given: Any = self.shape
        if not isinstance(given, dict):
            raise ModelError(f"shape is {reprlib.repr(given)}; it must hold the fields of a Llama config")
        if lacking := [name for name in LAYER if name not in self.shape]:
            raise ModelError(f"shape lacks {', '.join(lacking)}")
        if self.shape["hidden_size"] != self.hidden_size:
            raise ModelError(
                f"hidden_size is {reprlib.repr(self.shape['hidden_size'])} in shape, {self.hidden_size} above it; they must be the same"
            )
        shape = layer_of(self.shape | {"vocab_size": self.vocab_size})
        first, last = _NORMS.get(self.kind, (False, False))
        return replace(shape, input_norm=first, final_norm=last, qkv_bias=self.qkv_bias)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of all tensors."""
        own = {"medusa": self._medusa, "hydra": self._hydra, "eagle3": self._eagle3}
        if self.kind in own:
            return own[self.kind]()
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

    def _eagle3(self) -> dict[str, tuple[int, ...]]:
        d, names = self.hidden_size, self._layer()
        for part in "qkv":
            at = f"layers.0.self_attn.{part}_proj.weight"
            names[at] = (names[at][0], 2 * d)
        names |= {f"layers.0.{norm}.weight": (d,) for norm in ("input_layernorm", "hidden_norm")}
        names |= {
            "fc.weight": (d, self.states * d),
            "lm_head.weight": (self.draft_vocab or self.vocab_size, d),
        }
        names |= {"d2t": (self.draft_vocab,)} if self.draft_vocab else {}
        return names | ({"embed_tokens.weight": (self.vocab_size, d)} if self.own_embedding else {})

    def _layer(self) -> dict[str, tuple[int, ...]]:
        """What a decoder of one layer holds, without what the target lends."""
        sizes = {name.removeprefix("model."): size for name, size in self.layer().tensors().items()}
        return {name: size for name, size in sizes.items() if name not in _LENT}


def layer_of(fields: dict[str, Any]) -> ModelShape:
    """Return the shape of a Llama decoder of one layer, from the fields of its config.

    Raises:
        ModelError: A field is wrong or not supported.
    """
    check_fields(fields, "shape")
    fixed: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
    given = {name: fields[name] for name in READ if name in fields} | fixed
    try:
        from transformers import LlamaConfig  # takes a second, which only heads with a layer are worth

        return ModelShape.of(LlamaConfig(**given), Path("shape"))
    except ModelError:
        raise
    except Exception as e:  # noqa: BLE001 - whatever transformers finds wrong with it
        raise ModelError(f"shape is wrong: {one_line(e)}") from None
