"""Tiny random GGUF files, written with the `gguf` package."""

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from specscope.engine.checkpoints.text import _bytes_of_characters

WIDTH, INNER, LAYERS, VOCAB = 256, 256, 2, 320
EXPERTS, EXPERT = 3, 768
"""Experts of a layer, and their inner width: transformers reads no other one."""
TEMPLATE = "{% for m in messages %}<|user|>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<|bot|>{% endif %}"
SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Type that `gguf` cannot quantise -> offsets of the float16 scales in its blocks."""


def tensors(arch, tied, heads):
    """Return name -> shape (out, in) of all tensors; two query heads share a KV head."""
    square, kv = (WIDTH, WIDTH), (WIDTH // 2, WIDTH)
    shapes = {"token_embd.weight": (VOCAB, WIDTH), "output_norm.weight": (WIDTH,)}
    if not tied:
        shapes["output.weight"] = (VOCAB, WIDTH)
    rows = {"attn_q": square, "attn_k": kv, "attn_v": kv, "attn_output": square}
    rows |= {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
    norms = {"attn_norm": WIDTH, "ffn_norm": WIDTH}
    if arch == "qwen3moe":
        rows = {name: shape for name, shape in rows.items() if not name.startswith("ffn")}
        rows |= {f"ffn_{name}_exps": (EXPERTS, EXPERT, WIDTH) for name in ("gate", "up")}
        rows |= {"ffn_down_exps": (EXPERTS, WIDTH, EXPERT), "ffn_gate_inp": (EXPERTS, WIDTH)}
    if arch in ("qwen3", "qwen3moe"):
        norms |= {"attn_q_norm": WIDTH // heads, "attn_k_norm": WIDTH // heads}
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in rows.items()}
        shapes |= {f"blk.{i}.{name}.weight": (size,) for name, size in norms.items()}
        if arch == "qwen2":
            shapes |= {f"blk.{i}.{name}.bias": rows[name][:1] for name in ("attn_q", "attn_k", "attn_v")}
    return shapes


def write(
    path,
    kind="F32",
    arch="llama",
    *,
    tied=False,
    drop="",
    inner=INNER,
    heads=2,
    extra=None,
    rope=None,
    experts=0,
):
    """Write a file with matrices of one block type and float32 norms and biases.

    `inner` is the feed-forward length in the metadata.
    """
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, arch)
    _add_metadata(writer, arch, inner, heads, rope or {}, experts or (EXPERTS if arch == "qwen3moe" else 0))
    for name, shape in tensors(arch, tied, heads).items():
        if name == drop:
            continue
        values = random.normal(1.0 if "norm" in name else 0.0, 0.1, shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, values)
        elif kind in SCALES:
            writer.add_tensor(name, _blocks(random, Kind[kind], shape), raw_dtype=Kind[kind])
        else:
            writer.add_tensor(name, gguf.quantize(values, Kind[kind]), raw_dtype=Kind[kind])
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _blocks(random, kind, shape):
    """Return random blocks with small finite scales, as bytes (out, bytes of a row)."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (shape[0] * shape[1] // elements, size), dtype=np.uint8)
    for offset in SCALES[kind.name]:
        scales = random.uniform(1e-4, 2e-4, (len(blocks), 1)).astype(np.float16)
        blocks[:, offset : offset + 2] = scales.view(np.uint8)
    return blocks.reshape(shape[0], -1)


def _add_metadata(writer, arch, inner, heads, rope, experts):
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads // 2)
    writer.add_key_length(WIDTH // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCAB)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(EXPERT)
    for key, value in rope.items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"{arch}.rope.{key}", value)
    special = ["<|pad|>", "<|end|>", "<|user|>", "<|bot|>"]
    letters = [*special, *_bytes_of_characters(), "Ġt"]
    unused = [f"<unused{i}>" for i in range(VOCAB - len(letters))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*letters, *unused])
    writer.add_token_types([3] * 4 + [1] * 257 + [5] * len(unused))
    writer.add_token_merges(["Ġ t"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)
