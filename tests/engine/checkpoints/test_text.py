"""Text token by token, compared with tokenizer.decode of all ids."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from specscope.engine.checkpoints.pair import Pair
from specscope.engine.checkpoints.text import Detokenizer, IncrementalText

TOKENIZER = Pair.find("bundled").tokenizer


def sentencepiece():
    """Return a tokenizer like Llama 2's: U+2581 for spaces, bytes for unknown characters."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    words += ["\u2581", "\u2581hello", "\u2581world", "hel", "lo"]
    words += ["\u2581\u2581", "é", "\u2581naïve", "\ufffd", "!"]
    vocab = {word: i for i, word in enumerate(words)}
    backend = Tokenizer(
        models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


LLAMA2 = sentencepiece()


def pushed(tokenizer, ids):
    text = IncrementalText(tokenizer)
    return [*(text.push(i) for i in ids), text.flush()]


def ids_of(text):
    return TOKENIZER(text, add_special_tokens=False, split_special_tokens=True).input_ids


@settings(max_examples=120, deadline=None)
@given(st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=40))
def test_any_tokens_of_the_bundled_tokenizer_give_the_decoded_text(ids):
    assert "".join(pushed(TOKENIZER, ids)) == TOKENIZER.decode(ids, skip_special_tokens=True)


BYTES = [i for i in range(len(TOKENIZER)) if len(TOKENIZER.convert_ids_to_tokens(i)) == 1]


@settings(max_examples=120, deadline=None)
@given(st.lists(st.sampled_from(BYTES), max_size=12))
def test_any_bytes_give_the_decoded_text(ids):
    """Most sequences of single bytes are not valid UTF-8."""
    assert "".join(pushed(TOKENIZER, ids)) == TOKENIZER.decode(ids, skip_special_tokens=True)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_reproduced(text):
    assert "".join(pushed(TOKENIZER, ids_of(text))) == text


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(0, len(LLAMA2) - 1), st.sampled_from([1, 3 + 0x20, 3 + 0xC3, 3 + 0xA9, 259, 260, 263])
        ),
        max_size=14,
    )
)
def test_any_tokens_with_byte_fallback_give_the_decoded_text(ids):
    assert "".join(pushed(LLAMA2, ids)) == LLAMA2.decode(ids, skip_special_tokens=True)


def test_a_byte_level_tokenizer_that_cleans_up_spaces():
    class Cleaning:
        """A tokenizer with transformers' option for tokenizers other than BPE."""

        clean_up_tokenization_spaces = True

        def __getattr__(self, name):
            return getattr(TOKENIZER, name)

    ids = ids_of("Well, naïve 😀 text.")
    assert "".join(pushed(Cleaning(), ids)) == "Well, naïve 😀 text."


def test_the_last_byte_of_an_emoji_adds_it():
    ids = ids_of("a😀b")
    assert len(ids) == 6
    assert pushed(TOKENIZER, ids) == ["a", "", "", "", "😀", "b", ""]


def test_with_byte_fallback_the_next_token_adds_an_emoji():
    ids = [
        LLAMA2.convert_tokens_to_ids(t) for t in ("\u2581hello", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "!")
    ]
    assert pushed(LLAMA2, ids) == ["hello", "", "", "", "", "😀!", ""]


def test_only_the_first_word_loses_its_space():
    ids = [
        LLAMA2.convert_tokens_to_ids(t) for t in ("<s>", "\u2581hello", "\u2581world", "</s>", "\u2581world")
    ]
    assert pushed(LLAMA2, ids) == ["", "hello", " world", "", " world", ""]


def test_flush_returns_an_incomplete_character_once():
    text = IncrementalText(TOKENIZER)
    ids = ids_of("😀")[:2]
    assert [text.push(i) for i in ids] == ["", ""]
    assert text.flush() == "\ufffd"
    assert text.flush() == ""


def test_special_tokens_add_nothing_even_inside_a_character():
    ids = ids_of("😀")
    specials = [i for i, token in TOKENIZER.added_tokens_decoder.items() if token.special]
    assert len(specials) > 3  # not only bos, eos and pad
    assert pushed(TOKENIZER, [*specials, *ids[:2], *specials, *ids[2:]])[-2:] == ["😀", ""]


@pytest.mark.parametrize("tokenizer", [TOKENIZER, LLAMA2])
def test_the_cost_of_a_push_does_not_depend_on_the_length(tokenizer, monkeypatch):
    longest = 0
    decode = type(tokenizer).decode

    def watched(self, ids, **options):
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(self, ids, **options)

    monkeypatch.setattr(type(tokenizer), "decode", watched)
    words = ("hel", "lo", "!") if tokenizer is LLAMA2 else ("hel", "lo", "!", "Ġworld")
    ids = [i for i in tokenizer.convert_tokens_to_ids(words) if i is not None] * 50
    pushed(tokenizer, ids)
    assert len(ids) > 60
    assert longest <= 4


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


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(TOKENIZER) - 1))
def test_the_piece_of_a_whole_character_is_the_decoded_token(token):
    decoded = TOKENIZER.decode([token])
    if "\ufffd" not in decoded:
        assert Detokenizer(TOKENIZER).piece(token) == decoded
    else:
        assert r"\x" in Detokenizer(TOKENIZER).piece(token)
