"""Families with files of their own, what is refused, and text token by token."""

import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from specscope.engine.checkpoints.config import read_config
from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.checkpoints.text import Detokenizer, IncrementalText
from specscope.engine.errors import ModelError, UsageError
from specscope.engine.model.shape import context_of
from specscope.engine.model.slots import Rows
from specscope.engine.training.heads.train import train_head
from specscope.engine.training.settings import HeadOptions
from tests.engine.model import tiny

WEIGHTS = "model.safetensors"
MIXTURES = ("mixtral", "qwen2-moe", "olmoe", "granite-moe")
OURS = ("opt", "gpt2", "phi3", "gemma2", "gemma3", "smollm3", "granite", *MIXTURES)
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    for family in OURS:
        tiny.save(tiny.reference(family, seed=1), folder / family)
    return folder


@pytest.fixture
def model(source, tmp_path):
    """Return a function that returns a copy of a family's model, for changes."""
    return lambda family: shutil.copytree(source / family, tmp_path / family)


def logits(path):
    decoder, ids = load(path), np.arange(9)
    return decoder.forward(decoder.new_cache(1, 9), Rows.chain(0, ids, 0), ids).logits


def edit(path, **changes):
    """Change a config and return the error of loading the model."""
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ModelError) as error:
        load(path)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before False is not supported; supported is True"),
        ("opt", {"word_embed_proj_dim": 16}, "word_embed_proj_dim 16 is not supported; supported is 32"),
        ("opt", {"activation_function": "tanh"}, "activation_function 'tanh' is not supported; supported is silu"),
        ("opt", {"ffn_dim": 57}, "model.decoder.layers.0.fc1.weight has shape [56, 32]; config.json asks for [57, 32]"),
        ("opt", {"ffn_dim": None}, "ffn_dim is None; it must be a whole number"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True is not supported"),
        ("gpt2", {"n_inner": 64}, "transformer.h.0.mlp.c_fc.weight has shape [32, 128]; config.json asks for [32, 64]"),
        ("gemma2", {"hidden_activation": "tanh"}, "hidden_activation 'tanh' is not supported; supported is silu, relu"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention True is not supported"),
        ("gemma2", {"final_logit_softcapping": 0}, "final_logit_softcapping is 0; it must be a number, at least 0.001"),
        ("gpt2", {"n_head": "4"}, "n_head is '4'; it must be a whole number"),
        ("phi3", {"num_key_value_heads": 1}, "qkv_proj.weight has shape [64, 32]; config.json asks for [48, 32]"),
        ("phi3", {"rope_parameters": LONGROPE | {"short_factor": [1.0] * 3}}, "short_factor"),
        ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 1}, "rope_parameters.original_max_position_embeddings is 1; longrope divides by its logarithm"),
        ("phi3", {"rope_parameters": LONGROPE | {"long_factor": [1.0, 0.0] * 2}}, "long_factor is 0.0; it must be a number, at least 0.001"),
        ("phi3", {"rope_parameters": LONGROPE | {"long_factor": "1"}}, "rope_parameters.long_factor is '1'; it must be a list of numbers"),
        ("phi3", {"rope_parameters": LONGROPE | {"long_factor": None}}, "rope_parameters.long_factor is None; it must be a list"),
        ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.4}}, "only a part of each head is rotated"),
        ("gemma2", {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}}, "one rotation for all layers is supported"),
        ("gemma3", {"architectures": ["Gemma3ForConditionalGeneration"]}, "it reads more than text, and only models of text are supported: Llama"),
        ("gemma3", {"attn_logit_softcapping": 2.0}, "attn_logit_softcapping 2.0 is not supported; supported is None"),
        ("gemma3", {"rope_parameters": {"full_attention": {"full_attention": {}}}}, "full_attention.full_attention is an object"),
        ("gemma3", {"rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_theta": 1e4}}}, "two rotations, of which one is scaled by 1.13863, are not"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers is [1, 0]; it must hold 0 or 1 for each of the 3 layers"),
        ("smollm3", {"no_rope_layers": [1, 0, 2]}, "no_rope_layers is [1, 0, 2]; it must hold 0 or 1 for each of the 3 layers"),
        ("smollm3", {"use_sliding_window": True}, "use_sliding_window True is not supported; supported is False"),
        ("granite", {"residual_multiplier": 0}, "residual_multiplier is 0; it must be a number, at least 1e-06"),
        ("mixtral", {"num_experts_per_tok": 6}, "num_experts_per_tok is 6; it must be at most the 5 experts"),
        ("mixtral", {"num_local_experts": 4}, "the weights hold model.layers.0.block_sparse_moe.experts.4.w1.weight"),
        ("mixtral", {"num_local_experts": 6}, "the weights lack model.layers.0.block_sparse_moe.experts.5.w1.weight"),
        ("mixtral", {"sliding_window": 0}, "sliding_window is 0; it must be at least 1 in a layer with a window"),
        ("granite-moe", {"intermediate_size": 48}, "input_linear.weight has shape [4, 112, 32]; config.json asks for [4, 96, 32]"),
        ("granite-moe", {"architectures": ["GraniteForCausalLM"], "model_type": "granite"}, "'GraniteForCausalLM' is a mixture of experts (num_local_experts is 4); supported are Mixtral"),
        ("qwen2-moe", {"shared_expert_intermediate_size": 0}, "the weights hold model.layers.0.mlp.shared_expert.down_proj.weight"),
        ("qwen2-moe", {"mlp_only_layers": []}, "the weights lack model.layers.1.mlp.gate.weight"),
        ("qwen2-moe", {"mlp_only_layers": 1}, "mlp_only_layers is 1; it must be a list"),
        ("qwen2-moe", {"mlp_only_layers": [{}]}, "mlp_only_layers holds {}; it must hold at most 1024 numbers of layers"),
        ("qwen2-moe", {"mlp_only_layers": [1] * 10**5}, "mlp_only_layers holds 1; it must hold at most 1024 numbers"),
        ("mixtral", {"num_local_experts": 4096, "num_hidden_layers": 1024}, "num_local_experts is 4096 in 1024 layers; all layers together must have at most 65536 experts"),
        ("qwen2-moe", {"decoder_sparse_step": 0}, "decoder_sparse_step is 0; it must be a whole number, at least 1"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv 8.0 is not supported; supported is None"),
    ],
)  # fmt: skip
def test_options_that_are_not_supported_are_refused(model, family, changes, message):
    assert message in edit(model(family), **changes)


def test_a_bare_gpt2_without_prefix_and_with_masks_is_the_same_model(model):
    path = model("gpt2")
    expected, tensors = logits(path), load_file(path / WEIGHTS)
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    bare |= {f"h.{i}.attn.bias": torch.ones(1, 1, 64, 64) for i in range(3)}
    save_file(bare, path / WEIGHTS)
    assert torch.equal(logits(path), expected)
    fewer = {name: tensor for name, tensor in bare.items() if name != "h.1.attn.c_attn.bias"}
    for wrong, message in (
        (bare | {"h.0.attn.other": torch.ones(1)}, r"hold h\.0\.attn\.other, unknown to config\.json"),
        (fewer, r"lack h\.1\.attn\.c_attn\.bias"),
    ):
        save_file(wrong, path / WEIGHTS)
        with pytest.raises(ModelError, match=f"the weights {message}"):
            load(path)


def test_gemma3_configs_of_the_hub_say_the_same_in_older_fields(model):
    path = model("gemma3")
    expected, config = logits(path), json.loads((path / "config.json").read_text())
    del config["rope_parameters"]
    older = {"rope_theta": 1e3, "rope_local_base_freq": 10.0}
    older |= {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    (path / "config.json").write_text(json.dumps(config | older))
    assert torch.equal(logits(path), expected)
    del config["layer_types"]
    (path / "config.json").write_text(json.dumps(config | older | {"sliding_window_pattern": 3}))
    assert torch.equal(logits(path), expected)


def test_longrope_ends_at_the_context_that_one_set_of_factors_serves(model):
    path = model("phi3")
    config = json.loads((path / "config.json").read_text())
    changes = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 16}
    (path / "config.json").write_text(json.dumps(config | changes))
    decoder = load(path)
    assert (decoder.context, context_of(read_config(path)), config["max_position_embeddings"]) == (16, 16, 64)
    with pytest.raises(UsageError, match="the model's context is 16 positions"):
        decoder.forward(decoder.new_cache(1, 20), Rows.chain(0, np.arange(17), 0), np.arange(1))


@pytest.mark.parametrize("family", OURS)
def test_trained_heads_need_llamas_block(source, family, tmp_path):
    options = HeadOptions.of("medusa", data=tmp_path, out=tmp_path / "out", target=source / family)
    with pytest.raises(ModelError, match="trained heads need a target of Llama, Mistral, Qwen2 or Qwen3"):
        train_head(options)
    assert not options.out.exists()


TOKENIZER = Pair.find("bundled").tokenizer


def sentencepiece():
    """Return a tokenizer like Llama 2's: U+2581 for spaces, bytes for unknown characters."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    words += ["▁", "▁hello", "▁world", "hel", "lo", "▁▁", "é", "▁naïve", "�", "!"]
    vocab = {word: i for i, word in enumerate(words)}
    bpe = models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    backend = Tokenizer(bpe)
    spaces = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    backend.normalizer = normalizers.Sequence(spaces)
    steps = [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    backend.decoder = decoders.Sequence(steps)
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


LLAMA2 = sentencepiece()


def pushed(tokenizer, ids):
    text = IncrementalText(tokenizer)
    return [*(text.push(i) for i in ids), text.flush()]


def ids_of(text):
    return TOKENIZER(text, add_special_tokens=False, split_special_tokens=True).input_ids


BYTES = [i for i in range(len(TOKENIZER)) if len(TOKENIZER.convert_ids_to_tokens(i)) == 1]


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=40) | st.lists(st.sampled_from(BYTES), max_size=12)
)
def test_any_tokens_of_the_bundled_tokenizer_give_the_decoded_text(ids):
    """Most sequences of single bytes are not valid UTF-8."""
    assert "".join(pushed(TOKENIZER, ids)) == TOKENIZER.decode(ids, skip_special_tokens=True)


@settings(max_examples=60)
@given(st.text(max_size=30))
@example("Well, naïve 😀 text.")
def test_any_text_is_reproduced(text):
    class Cleaning:
        """The tokenizer with transformers' option for tokenizers other than BPE."""

        clean_up_tokenization_spaces = True

        def __getattr__(self, name):
            return getattr(TOKENIZER, name)

    for tokenizer in (TOKENIZER, Cleaning()):
        assert "".join(pushed(tokenizer, ids_of(text))) == text


ODD = [1, 3 + 0x20, 3 + 0xC3, 3 + 0xA9, 259, 260, 263]


@settings(max_examples=120)
@given(st.lists(st.integers(0, len(LLAMA2) - 1) | st.sampled_from(ODD), max_size=14))
def test_any_tokens_with_byte_fallback_give_the_decoded_text(ids):
    assert "".join(pushed(LLAMA2, ids)) == LLAMA2.decode(ids, skip_special_tokens=True)


EMOJI = ids_of("😀")
SPECIALS = [i for i, token in TOKENIZER.added_tokens_decoder.items() if token.special]
HELLO, WORLD = "\u2581hello", "\u2581world"
BYTES_OF_EMOJI = [f"<0x{byte:02X}>" for byte in "😀".encode()]
PUSHED = {
    "the last byte of an emoji adds it": (
        TOKENIZER,
        ids_of("a😀b"),
        ["a", "", "", "", "😀", "b", ""],
    ),
    "a flush returns an incomplete character": (TOKENIZER, EMOJI[:2], ["", "", "\ufffd"]),
    "special tokens add nothing even inside a character": (
        TOKENIZER,
        [*SPECIALS, *EMOJI[:2], *SPECIALS, *EMOJI[2:]],
        [*[""] * (2 * len(SPECIALS) + 3), "😀", ""],
    ),
    "with byte fallback the next token adds an emoji": (
        LLAMA2,
        LLAMA2.convert_tokens_to_ids([HELLO, *BYTES_OF_EMOJI, "!"]),
        ["hello", "", "", "", "", "😀!", ""],
    ),
    "only the first word loses its space": (
        LLAMA2,
        LLAMA2.convert_tokens_to_ids(["<s>", HELLO, WORLD, "</s>", WORLD]),
        ["", "hello", " world", "", " world", ""],
    ),
}


@pytest.mark.parametrize(("tokenizer", "ids", "texts"), PUSHED.values(), ids=PUSHED)
def test_what_each_token_adds(tokenizer, ids, texts):
    assert len(SPECIALS) > 3  # not only bos, eos and pad
    text = IncrementalText(tokenizer)
    assert [*(text.push(i) for i in ids), text.flush()] == texts
    assert text.flush() == ""


@pytest.mark.parametrize("tokenizer", [TOKENIZER, LLAMA2])
def test_the_cost_of_a_push_does_not_depend_on_the_length(tokenizer, monkeypatch):
    lengths, decode = list[int](), type(tokenizer).decode

    def watched(self, ids, **options):
        lengths.append(len(ids))
        return decode(self, ids, **options)

    monkeypatch.setattr(type(tokenizer), "decode", watched)
    words = ("hel", "lo", "!") if tokenizer is LLAMA2 else ("hel", "lo", "!", "Ġworld")
    ids = [i for i in tokenizer.convert_tokens_to_ids(words) if i is not None] * 50
    pushed(tokenizer, ids)
    assert len(ids) > 60
    assert max(lengths, default=0) <= 4


def test_pieces():
    pieces = Detokenizer(TOKENIZER)
    assert [pieces.piece(i) for i in ids_of("Hello 😀")] == ["Hello", " ", r"\xf0", r"\x9f", r"\x98", r"\x80"]
    assert pieces.piece(2) == "<|eos|>"
    assert pieces.piece(ids_of("\n")[0]) == "\n"
    assert pieces.piece(10**6) == "<id 1000000>"


def test_pieces_of_byte_fallback():
    pieces = Detokenizer(LLAMA2)
    words = ("\u2581hello", "<0xE2>", "<0x41>", "é", "</s>", "\u2581\u2581")
    read = [pieces.piece(LLAMA2.convert_tokens_to_ids(word)) for word in words]
    assert read == [" hello", r"\xe2", "A", "é", "</s>", "  "]


@settings(max_examples=60)
@given(st.integers(0, len(TOKENIZER) - 1))
def test_the_piece_of_a_whole_character_is_the_decoded_token(token):
    decoded, piece = TOKENIZER.decode([token]), Detokenizer(TOKENIZER).piece(token)
    assert piece == decoded if "\ufffd" not in decoded else r"\x" in piece
