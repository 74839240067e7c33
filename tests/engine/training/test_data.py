"""The corpus of a training: its documents, order and tokenizer."""

from __future__ import annotations

import lzma
from collections import Counter

import numpy as np
import pytest
from transformers import AutoTokenizer

from specscope.engine.checkpoints.catalog import PAIRS
from specscope.engine.errors import UsageError
from specscope.engine.training import data
from specscope.engine.training.data import (
    SPECIALS,
    Corpus,
    Encoder,
    Stream,
    find_sources,
    is_held_out,
    read_documents,
    read_mixture,
    split_chat,
    train_tokenizer,
    training_documents,
)
from tests.engine.training.tiny import chats, stories


def make_stream(seed=0):
    """Documents 10, 20 20, 30 30 30, repeated 1, 2 and 3 times: 14 tokens an epoch."""
    ids = np.array([10, 20, 20, 30, 30, 30], dtype=np.uint16)
    return Stream(Corpus(ids, np.array([0, 1, 3, 6]), np.array([1, 2, 3])), seed)


@pytest.mark.parametrize("chunk", [1, 4, 1 << 20])
def test_documents_are_whole_however_the_file_is_read(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(data, "_CHUNK", chunk)
    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress("eins\r\n\x1ezwölf\n\n\x1e \n\x1e€\x1e".encode()))
    assert list(read_documents(path)) == ["eins\r\n", "zwölf\n\n", "€"]


def test_reading_is_lazy(tmp_path):
    path = tmp_path / "a.txt.xz"
    whole = lzma.compress("\x1e".join(f"document {i} {'x' * 100}" for i in range(50_000)).encode())
    path.write_bytes(whole[: len(whole) // 2])
    assert next(read_documents(path)).startswith("document 0 ")


@pytest.mark.parametrize(
    "content",
    [b"plain text", lzma.compress(b"one\x1etwo" * 100)[:-20], lzma.compress(b"\xff\xfe\xfa"), b""],
    ids=["not xz", "cut short", "not UTF-8", "empty"],
)
def test_a_broken_file_is_refused_by_name(tmp_path, content):
    path = tmp_path / "a.txt.xz"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"a\.txt\.xz cannot be read .*; it must be xz") as error:
        list(read_documents(path))
    assert "\n" not in str(error.value)


def test_missing_and_empty_folders_are_refused_by_name(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere is not a folder; --data takes one with txt\.xz files"):
        find_sources(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=rf"{tmp_path} holds no \*\.txt\.xz file"):
        find_sources(tmp_path)


def test_the_held_out_share_is_that_of_the_setting():
    documents = [f"document {i}" for i in range(4000)]
    assert sum(is_held_out(d, 0.1) for d in documents) == pytest.approx(400, abs=60)
    assert not any(is_held_out(d, 0.0) for d in documents)
    kept = {d for d in documents if not is_held_out(d, 0.1)}
    assert not any(is_held_out(d, 0.05) for d in kept), "a smaller share holds out a part of a larger one"


def test_weights_change_the_default_mixture():
    assert read_mixture("", ["math", "wiki", "own"]) == {"math": 6, "wiki": 1, "own": 1}
    assert read_mixture("math=0, own=3", ["math", "own"]) == {"math": 0, "own": 3}


@pytest.mark.parametrize("text", ["math", "math=x", "math=-1", "math=1001", "poems=1", "math=0,own=0"])
def test_a_wrong_mixture_is_refused(text):
    with pytest.raises(UsageError, match=r"^weights "):
        read_mixture(text, ["math", "own"])


def test_training_documents_are_repeated_without_the_held_out_ones(corpus):
    sources = find_sources(corpus)
    counts = Counter(training_documents(sources, {"stories": 2, "chats": 0}, 0.2))
    kept = [d for d in read_documents(sources["stories"]) if not is_held_out(d, 0.2)]
    assert 0 < len(kept) < 36
    assert counts == dict.fromkeys(kept, 2)


def test_every_epoch_has_each_document_as_often_as_configured():
    stream = make_stream()
    assert stream.epoch_tokens == 14
    for epoch in range(5):
        assert Counter(stream.read(14 * epoch, 14).tolist()) == {10: 1, 20: 4, 30: 9}


def test_epochs_and_seeds_differ_in_order():
    stream = make_stream()
    epochs = {tuple(stream.read(14 * epoch, 14)) for epoch in range(8)}
    assert len(epochs) > 4
    assert any(tuple(make_stream(seed).read(0, 14)) != tuple(stream.read(0, 14)) for seed in range(1, 5))


def test_the_stream_is_a_function_of_the_position():
    whole = make_stream().read(0, 60)
    assert [int(make_stream().read(i, 1)[0]) for i in range(60)] == whole.tolist()
    assert make_stream().read(11, 40).tolist() == whole[11:51].tolist()


def test_batch_pairs_every_token_with_the_next():
    whole = make_stream().read(0, 60)
    inputs, labels = make_stream().batch(5, 3, 4)
    assert inputs.tolist() == whole[5:17].reshape(3, 4).tolist()
    assert labels.tolist() == whole[6:18].reshape(3, 4).tolist()


def test_a_corpus_without_training_documents_is_refused(corpus):
    with pytest.raises(UsageError, match=r"no document is left to train on; lower held_out from 1"):
        Corpus.read(find_sources(corpus), {"stories": 1, "chats": 1}, 1.0, lambda documents: iter(()))


# A training's tokenizer.


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Return a tokenizer that was trained, saved and loaded."""
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(stories() + chats(), 320, 128).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def encode(tokenizer, document):
    return next(Encoder(tokenizer)([document]))


def test_special_tokens_have_the_first_ids(tokenizer):
    assert tokenizer.convert_tokens_to_ids(list(SPECIALS)) == list(range(14))
    assert SPECIALS[3:6] == ("<|user|>", "<|assistant|>", "<|system|>")
    assert (SPECIALS[6], SPECIALS[13]) == ("<|mask_1|>", "<|mask_8|>")
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert len(tokenizer) == 320
    assert tokenizer.model_max_length == 128


def test_special_tokens_and_template_equal_the_bundled_pairs(tokenizer):
    shipped = AutoTokenizer.from_pretrained(PAIRS / "bundled" / "target")
    assert shipped.convert_tokens_to_ids(list(SPECIALS)) == list(range(14))
    assert shipped.chat_template == tokenizer.chat_template


def test_chat_template(tokenizer):
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|bos|><|system|>Be kind.<|user|>Hello<|assistant|>"


def test_chat_markers_become_special_tokens(tokenizer):
    ids = encode(tokenizer, "<|system|>Be kind.<|user|>Hello<|assistant|>Hi!<|user|>Bye")
    assert [i for i in ids if i < 14] == [1, 5, 3, 4, 3, 2]
    assert tokenizer.decode(ids) == "<|bos|><|system|>Be kind.<|user|>Hello<|assistant|>Hi!<|user|>Bye<|eos|>"


@pytest.mark.parametrize(
    ("document", "special"),
    [
        ("He wrote <|user|> on the wall, then <|assistant|>.", [1, 2]),
        (" <|user|>A space before it: no chat.", [1, 2]),
        ("<|user|>What is <|eos|>, <|pad|> or <|mask_1|>?<|assistant|>Text.", [1, 3, 4, 2]),
        ("<|bos|>A story.<|eos|>", [1, 2]),
    ],
)
def test_markers_in_other_text_stay_text(tokenizer, document, special):
    ids = encode(tokenizer, document)
    assert [i for i in ids if i < 14] == special
    assert tokenizer.decode(ids[1:-1]) == document


def test_the_vocabulary_has_no_parts_of_markers(tokenizer):
    assert not [t for t in tokenizer.get_vocab() if "|>" in t and t not in SPECIALS]


@pytest.mark.parametrize("text", ["1984", "Zwölf €uro 🙂 \x00\t\r\n", "  two  spaces ", "日本"])
def test_decoding_restores_every_text(tokenizer, text):
    assert tokenizer.decode(encode(tokenizer, text)[1:-1]) == text


def test_each_digit_is_one_token(tokenizer):
    assert len(encode(tokenizer, "198400")) == 2 + 6


def test_training_is_repeatable():
    one, two = (train_tokenizer(stories(), 300, 64).get_vocab() for _ in range(2))
    assert one == two


def test_many_documents_keep_their_order(tokenizer):
    documents = [f"<|user|>{i}<|assistant|>{i + 1}" for i in range(1500)]
    encoded = list(Encoder(tokenizer)(documents))
    assert [tokenizer.decode(ids[1:-1]) for ids in encoded] == documents


def test_split_chat_without_a_marker_at_its_start():
    assert split_chat("a<|user|>b") == ["a<|user|>b"]
    assert split_chat("<|user|><|assistant|>b") == ["<|user|>", "<|assistant|>", "b"]
