"""Text token by token, compared with tokenizer.decode of all ids."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from specscope.engine.checkpoints.pair import Pair
from specscope.engine.checkpoints.text import Detokenizer, IncrementalText

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
