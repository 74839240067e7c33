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

from dataclasses import dataclass, field
from typing import Any

SIDE = ("medusa", "hydra")
LAYERED = ("eagle", "parallelspec_eagle", "parallelspec_medusa")
KINDS = (*SIDE, *LAYERED)
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
    def drafts(self) -> int:
        """Tokens that one draft may have; 0 where there is no limit."""
        return self.heads if self.kind in SIDE else self.masks + 1 if self.masks else 0

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of all tensors."""
        if self.kind == "medusa":
            return self._medusa()
        if self.kind == "hydra":
            return self._hydra()
        d, names = self.hidden_size, self._layer()
        if self.kind == "parallelspec_medusa":
            names |= {"layers.0.input_layernorm.weight": (d,), "norm.weight": (d,)}
        else:
            names |= {"fc.weight": (d, 2 * d)} | ({"fc.bias": (d,)} if self.biased else {})
        if self.masks:
            vectors = ("embedding", "feature") if self.kind == "parallelspec_eagle" else ("embedding",)
            names |= {f"mask.{name}": (self.masks, d) for name in vectors}
        return names

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
        d, inner, at = self.hidden_size, self.shape["intermediate_size"], "layers.0."
        size = self.shape["head_dim"]
        queries, keys = (self.shape[f"num_{name}_heads"] * size for name in ("attention", "key_value"))
        return {
            f"{at}self_attn.q_proj.weight": (queries, d),
            f"{at}self_attn.k_proj.weight": (keys, d),
            f"{at}self_attn.v_proj.weight": (keys, d),
            f"{at}self_attn.o_proj.weight": (d, queries),
            f"{at}mlp.gate_proj.weight": (inner, d),
            f"{at}mlp.up_proj.weight": (inner, d),
            f"{at}mlp.down_proj.weight": (d, inner),
            f"{at}post_attention_layernorm.weight": (d,),
        }
