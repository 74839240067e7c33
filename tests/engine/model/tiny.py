"""Tiny random models of every family, in the format that transformers writes."""

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GraniteConfig,
    GraniteMoeConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    OlmoeConfig,
    OPTConfig,
    Phi3Config,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

VOCAB = 97
CONTEXT = 64
_SIZES = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 3} | {
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": None,
}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0} | {
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
_GEMMA = {"num_key_value_heads": 2, "head_dim": 12, "sliding_window": 7, "query_pre_attn_scalar": 20}
_TWO_ROTATIONS = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e3, "factor": 2.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
}
_LONGROPE = {"rope_type": "longrope", "rope_theta": 1e3, "partial_rotary_factor": 0.5} | {
    "short_factor": [1.0, 1.5],
    "long_factor": [2.0, 8.0],
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**_SIZES, num_key_value_heads=4),
    "llama-gqa-tied-bias": lambda: LlamaConfig(**_SIZES, num_key_value_heads=2, tie_word_embeddings=True, attention_bias=True, mlp_bias=True  ),
    "llama3-rope": lambda: LlamaConfig(**_SIZES, num_key_value_heads=1, rope_parameters=_LLAMA3),
    "linear-rope": lambda: LlamaConfig(**_SIZES, num_key_value_heads=2, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    "yarn-rope": lambda: LlamaConfig(**_SIZES, num_key_value_heads=2, rope_parameters=_YARN),
    "mistral-window": lambda: MistralConfig(**_SIZES, num_key_value_heads=2, sliding_window=7),
    "mistral": lambda: MistralConfig(**_SIZES, num_key_value_heads=2, sliding_window=None),
    "qwen2": lambda: Qwen2Config(**_SIZES, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen2-window": lambda: Qwen2Config(**_SIZES, num_key_value_heads=2, use_sliding_window=True, sliding_window=6, max_window_layers=1  ),
    "narrow-heads": lambda: LlamaConfig(**_SIZES, num_key_value_heads=4, head_dim=4, attention_bias=True),
    "qwen3": lambda: Qwen3Config(**_SIZES, num_key_value_heads=2, head_dim=12),
    "opt": lambda: OPTConfig(**{name: size for name, size in _SIZES.items() if name != "intermediate_size"}, ffn_dim=56, word_embed_proj_dim=32),
    "gpt2": lambda: GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=3, n_head=4, n_positions=CONTEXT, bos_token_id=None, eos_token_id=None),
    "phi3": lambda: Phi3Config(**_SIZES, num_key_value_heads=2),
    "phi3-window": lambda: Phi3Config(**_SIZES, num_key_value_heads=4, sliding_window=7),
    "gemma2": lambda: Gemma2Config(**_SIZES, **_GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "gemma3": lambda: Gemma3TextConfig(
        **_SIZES | {"num_hidden_layers": 4}, **_GEMMA, rope_parameters=_TWO_ROTATIONS,
        layer_types=["sliding_attention"] * 2 + ["full_attention", "sliding_attention"],
    ),
    "smollm3": lambda: SmolLM3Config(**_SIZES, num_key_value_heads=2, no_rope_layers=[1, 0, 1]),
    "granite": lambda: GraniteConfig(**_SIZES, num_key_value_heads=2, embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=5.0),
    "phi3-longrope": lambda: Phi3Config(
        **_SIZES | {"max_position_embeddings": 4 * CONTEXT}, original_max_position_embeddings=CONTEXT,
        num_key_value_heads=2, partial_rotary_factor=0.5, rope_parameters=_LONGROPE,
    ),
    "mixtral": lambda: MixtralConfig(**_SIZES, num_key_value_heads=2, num_local_experts=5, num_experts_per_tok=2),
    "mixtral-window": lambda: MixtralConfig(**_SIZES, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=3, sliding_window=7),
    "qwen2-moe": lambda: Qwen2MoeConfig(**_SIZES, num_key_value_heads=2, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20, shared_expert_intermediate_size=24, mlp_only_layers=[1]),
    "qwen3-moe": lambda: Qwen3MoeConfig(**_SIZES, num_key_value_heads=2, head_dim=12, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=20, norm_topk_prob=True, decoder_sparse_step=2),
    "olmoe": lambda: OlmoeConfig(**_SIZES, num_key_value_heads=2, num_experts=6, num_experts_per_tok=2, eos_token_id=None),
    "granite-moe": lambda: GraniteMoeConfig(**_SIZES, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=5.0),
    "qwen3-bias": lambda: Qwen3Config(**_SIZES, num_key_value_heads=2, head_dim=12, attention_bias=True),
}  # fmt: skip


MIXTURES = [family for family in CONFIGS if any(name in family for name in ("mixtral", "olmoe", "moe"))]
DENSE = [family for family in CONFIGS if family not in MIXTURES]
"""Families that are no mixtures of experts, which have eager forwards only."""


def reference(family, seed=0, **changes):
    """Return a transformers model with random parameters, norms and biases included.

    `changes` override fields of its config.
    """
    torch.manual_seed(seed)
    config = CONFIGS[family]()
    config.update(changes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    return model


def save(model, path, **options):
    """Save a model as safetensors."""
    model.config.architectures = [type(model).__name__]
    model.save_pretrained(path, **options)
