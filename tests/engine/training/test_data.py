"""The corpus of a training: its documents, order and tokenizer."""

from __future__ import annotations

import lzma
from collections import Counter

import numpy as np
import pytest
from transformers import AutoTokenizer

from specscope.engine.checkpoints.catalog import PAIRS
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
    train_tokenizer,
    training_documents,
)
from tests.engine.training.tiny import chats, refused, stories


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
    refused(lambda: list(read_documents(path)), r".*a\.txt\.xz cannot be read .*; it must be xz")


def test_sources_without_documents_are_refused(corpus, tmp_path):
    sources, nowhere = find_sources(corpus), tmp_path / "nowhere"
    refused(lambda: find_sources(nowhere), r".*nowhere is not a folder; --data takes one with txt\.xz files")
    refused(lambda: find_sources(tmp_path), rf"{tmp_path} holds no \*\.txt\.xz file")
    refused(
        lambda: Corpus.read(sources, {"stories": 1, "chats": 1}, 1.0, lambda documents: iter(())),
        "no document is left to train on; lower held_out from 1",
    )


def test_the_held_out_share_is_that_of_the_setting():
    documents = [f"document {i}" for i in range(4000)]
    assert sum(is_held_out(d, 0.1) for d in documents) == pytest.approx(400, abs=60)
    assert not any(is_held_out(d, 0.0) for d in documents)
    kept = {d for d in documents if not is_held_out(d, 0.1)}
    assert not any(is_held_out(d, 0.05) for d in kept), "a smaller share holds out a part of a larger one"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {"math": 6, "wiki": 1, "own": 1}),
        ("math=0, own=3", {"math": 0, "wiki": 1, "own": 3}),
        *((wrong, None) for wrong in ("math", "math=x", "math=-1", "math=1001", "poems=1")),
        ("math=0,own=0,wiki=0", None),
    ],
)
def test_weights_change_the_default_mixture(text, found):
    if found is None:
        refused(lambda: read_mixture(text, ["math", "wiki", "own"]), "weights ")
    else:
        assert read_mixture(text, ["math", "wiki", "own"]) == found


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
    inputs, labels = make_stream().batch(5, 3, 4)
    assert inputs.tolist() == whole[5:17].reshape(3, 4).tolist()
    assert labels.tolist() == whole[6:18].reshape(3, 4).tolist(), "every token's label is the next one"


# A training's tokenizer.


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Return a tokenizer that was trained, saved and loaded."""
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(stories() + chats(), 320, 128).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_the_trained_tokenizer(tokenizer):
    assert tokenizer.convert_tokens_to_ids(list(SPECIALS)) == list(range(14))
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert (len(tokenizer), tokenizer.model_max_length) == (320, 128)
    shipped = AutoTokenizer.from_pretrained(PAIRS / "bundled" / "target")
    assert shipped.convert_tokens_to_ids(list(SPECIALS)) == list(range(14))
    assert shipped.chat_template == tokenizer.chat_template
    vocabulary = tokenizer.get_vocab()
    assert not [t for t in vocabulary if "|>" in t and t not in SPECIALS], "no parts of markers"
    assert train_tokenizer(stories() + chats(), 320, 128).get_vocab() == vocabulary, "it is repeatable"


def test_chat_template(tokenizer):
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|bos|><|system|>Be kind.<|user|>Hello<|assistant|>"


@pytest.mark.parametrize(
    ("document", "special"),
    [
        ("<|system|>Be kind.<|user|>Hello<|assistant|>Hi!<|user|>Bye", [1, 5, 3, 4, 3, 2]),
        ("He wrote <|user|> on the wall, then <|assistant|>.", [1, 2]),
        (" <|user|>A space before it: no chat.", [1, 2]),
        ("<|user|>What is <|eos|>, <|pad|> or <|mask_1|>?<|assistant|>Text.", [1, 3, 4, 2]),
        ("<|bos|>A story.<|eos|>", [1, 2]),
        *((text, [1, 2]) for text in ("Zwölf €uro 🙂 \x00\t\r\n", "  two  spaces ", "日本")),
    ],
)
def test_markers_are_special_tokens_in_chats_only_and_decoding_restores_every_text(
    tokenizer, document, special
):
    ids = next(Encoder(tokenizer)([document]))
    assert [i for i in ids if i < 14] == special
    assert tokenizer.decode(ids) == f"<|bos|>{document}<|eos|>"


def test_many_documents_keep_their_order(tokenizer):
    documents = [f"<|user|>{i}<|assistant|>{i + 1}" for i in range(1500)]
    encoded = list(Encoder(tokenizer)(documents))
    assert [tokenizer.decode(ids[1:-1]) for ids in encoded] == documents
    assert len(encoded[1234]) == 4 + 8, "each digit is one token"
