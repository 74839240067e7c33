"""Text that a target writes: its prompts, its answers, its files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import repeat

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import RunCancelled
from specscope.engine.heads.trainable import Learned
from specscope.engine.model.attention import attention_parts
from specscope.engine.training.data import ASSISTANT, BOS, Stream, split_chat
from specscope.engine.training.heads.features import Batches
from specscope.engine.training.heads.train import train_head
from specscope.engine.training.measure import LoadedPair
from specscope.engine.training.settings import HeadOptions
from specscope.engine.training.target_text import (
    PART,
    Text,
    Writer,
    chat_prompts,
    cut_prompts,
    fingerprint,
    read_text,
    save_text,
    slots_for,
)
from specscope.engine.types import Sampling
from tests.engine.training.tiny import chats, refused, stop_after, toy_corpus


def ignore(_):
    """Let a writer go on."""


@pytest.fixture(scope="module")
def target(trained):
    return load(trained / "target")


@pytest.fixture(scope="module")
def eos(trained):
    return Pair.of(trained / "target").eos


def test_greedy_answers_equal_the_engines(trained, target, eos):
    pair = Pair.of(trained / "target", trained / "drafter")
    prompt = [BOS, *pair.encode_text("Once there was a")]
    writer = Writer(target, repeat(np.array(prompt)), eos, (20, 30), seed=0, slots=32)
    texts = writer.run(32 * 30, ignore).finished
    ids, _ = LoadedPair.load(pair).write(prompt, 30, Sampling())
    greedy = [text for text in texts if list(text.ids) == prompt + ids]
    assert len(greedy) >= 16, "every second answer is greedy"
    assert {text.answer for text in texts} == {len(prompt)}
    assert len({tuple(text.ids) for text in texts}) >= 16, "the others are drawn"


def test_slots_are_reused_and_answers_cut_off(target):
    steps, eos = list[int](), tuple(range(0, 320, 5))
    prompts = (np.array([BOS, 20 + i % 5, *range(30, 30 + i % 4)]) for i in range(10_000))
    writer = Writer(target, prompts, eos, (6, 7), seed=0, slots=16)
    written = writer.run(400, lambda written: steps.append(written.tokens))
    assert steps == list(range(16, 401, 16))
    assert len(written.finished) > 16 + 20
    assert len(written.unfinished) == 16
    for text in written.finished:
        answer = list(text.ids[text.answer :])
        assert not set(answer[:-1]) & set(eos)
        assert len(answer) == 7 or answer[-1] in eos
    assert {len(text.ids) - text.answer for text in written.finished} > {7}


def test_all_slots_share_one_attention_call(target, eos, monkeypatch):
    calls = list[int]()

    def counted(*arguments):
        parts = list(attention_parts(*arguments))
        calls.append(len(parts))
        return parts

    monkeypatch.setattr("specscope.engine.model.decoder.attention_parts", counted)
    prompts = (np.array([BOS, *range(20, 21 + i)]) for i in range(1000))
    Writer(target, prompts, (), (30, 8), seed=0, slots=8).run(8 * 4, ignore)
    assert calls[0] == 8, "the prefill reads each prompt at its own length"
    assert calls[1:] == [1] * 4


def test_keys_and_values_limit_the_slots(target, monkeypatch):
    assert slots_for(target, (20, 11), 10_000) == 128
    assert slots_for(target, (20, 11), 5) == 5
    monkeypatch.setattr("specscope.engine.training.target_text.CACHE_BYTES", 3 * 2 * 2 * 32 * 4 * 32 + 1)
    assert slots_for(target, (20, 11), 10_000) == 3


CHAT = [BOS, 3, 50, 51, ASSISTANT, 60, 61, 3, 52, ASSISTANT, 62, 2]
STORY = [BOS, *range(20, 60), 2]


@pytest.mark.parametrize(
    ("document", "most", "ends"),
    [(CHAT, 20, [5, 10]), (CHAT, 6, [5]), (STORY, 16, range(8, 17))],
    ids=["a chat's ends before an answer", "it fits", "a story's is its first tokens"],
)
def test_the_prompts_of_a_corpus(document, most, ends):
    prompts = cut_prompts(toy_corpus(document), ASSISTANT, most, seed=0)
    assert {tuple(next(prompts)) for _ in range(100)} == {tuple(document[:end]) for end in ends}


def test_a_corpus_without_prompts_is_refused():
    chat = toy_corpus([BOS, 3, *range(20, 60), ASSISTANT, 60, 2])
    message = "no document of the corpus gives a prompt of at most 16 tokens"
    refused(lambda: next(cut_prompts(chat, ASSISTANT, 16, seed=0)), message)


CHATS = ["<|user|> Hi! <|assistant|>Hello.<|user|>Bye.", "<|user|>Who?<|assistant|>I.", "Once there was"]


@pytest.fixture(scope="module")
def templated(trained, tmp_path_factory):
    """Return a target, without a drafter, whose chat template is not the corpus's format."""
    folder = tmp_path_factory.mktemp("templated") / "model"
    shutil.copytree(trained / "target", folder)
    template = "{{ bos_token }}Question: {{ messages[0]['content'] }}\nAnswer:"
    (folder / "chat_template.jinja").write_text(template)
    return folder


def test_prompts_of_chats_are_first_turns_in_the_targets_template(templated):
    pair = Pair.of(templated)
    prompts = chat_prompts(pair, CHATS, 100, seed=0)
    found = [next(prompts).tolist() for _ in range(20)]
    assert sorted(found) == sorted([pair.encode("Hi!"), pair.encode("Who?")] * 10)
    assert pair.tokenizer.decode(pair.encode("Hi!")) == "<|bos|>Question: Hi!\nAnswer:"
    refused(
        lambda: next(chat_prompts(pair, CHATS, 3, seed=0)),
        "no chat of the corpus gives a prompt of at most 3 tokens",
    )
    # before a prompt is asked for, and so before the target loads
    refused(
        lambda: chat_prompts(pair, CHATS[2:], 100, seed=0),
        r"no document .* is a chat that begins with <\|user\|>; .* of model",
    )


SIZES = {"steps": 2, "written": 500, "answer": 20, "sequence": 64}


def test_a_head_is_trained_in_the_targets_own_format(templated, corpus, tmp_path):
    out = tmp_path / "out"
    train_head(HeadOptions.of("eagle", data=corpus, out=out, target=templated, precision="bf16", **SIZES))
    text, pair = read_text(out / "written.safetensors", templated), Pair.of(templated)
    assert not (out / PART).exists()
    asked = {tuple(pair.encode(split_chat(chat)[1])) for chat in chats()}
    for start, answer in zip(text.starts[:-1], text.answers, strict=True):
        assert tuple(text.ids[start:answer].tolist()) in asked
    assert json.loads((out / "config.json").read_text())["target"] == "model"


def test_an_interrupted_training_goes_on_writing(templated, corpus, tmp_path):
    options = HeadOptions.of("medusa", data=corpus, out=tmp_path / "out", target=templated, **SIZES)
    (stop, cancel), written = stop_after(256, "written"), list[int]()

    def listen(progress):
        stop(progress)
        if progress.phase == "written":
            written.append(progress.step)

    message = r"^stopped after the target wrote 384 tokens, which are kept: add --re"
    with pytest.raises(RunCancelled, match=message):
        train_head(options, progress=listen, cancel=cancel)
    assert written == [128, 256]
    train_head(options, progress=listen, resume=True)
    assert written == [128, 256, 500]


@pytest.mark.parametrize(("largest", "dtype"), [(65_535, np.uint16), (65_536, np.int32), (128_000, np.int32)])
def test_text_is_stored_as_small_as_its_ids_fit_and_read(trained, tmp_path, largest, dtype):
    path, target = tmp_path / "text.safetensors", trained / "target"
    save_text(path, [Text([1, largest, 5], 2), Text([1, 7], 1)], target)
    text = read_text(path, target)
    assert (text.ids.dtype, text.ids.tolist()) == (dtype, [1, largest, 5, 1, 7])
    assert (text.starts.tolist(), text.repeats.tolist()) == ([0, 3, 5], [1, 1])
    assert text.answers.tolist() == [2, 4]
    inputs, _ = Stream(text, 0).batch(0, 1, 5)
    assert sorted(inputs[0].tolist()) == [1, 1, 5, 7, largest]


def test_all_tokens_of_an_old_file_count(trained, tmp_path):
    path, target = tmp_path / "text.safetensors", trained / "target"
    ids, starts = np.arange(8, dtype=np.uint16), np.array([0, 5, 8])
    save_file({"ids": ids, "starts": starts}, path, {"target": fingerprint(target)})
    text = read_text(path, target)
    assert text.answers is None
    batches = Batches(text, torch.zeros(8, 4), torch.zeros(9, 4), 64)
    (held,) = batches.held(8, 8)
    assert held.anchors.tolist() == [1, 2, 3]


def test_only_answers_are_learned():
    """Three texts of 7 tokens, whose prompts have 3, 7 and 0 tokens."""
    documents = [list(range(20, 27)), list(range(30, 37)), list(range(40, 47))]
    corpus = replace(toy_corpus(*documents), answers=np.array([3, 14, 14]))
    batches = Batches(corpus, torch.zeros(21, 4), torch.zeros(65536, 4), 64)
    assert sorted([*batches.held_out, *batches.learned]) == [0, 2]
    texts = batches._texts(np.array([0, 2]), [np.arange(1, 6)] * 2)
    assert texts.anchors.tolist() == [2, 3, 4, 5, 8, 9, 10, 11, 12]
    assert texts.answers is not None
    assert texts.answers.nonzero()[:, 0].tolist() == [3, 4, 5, 6, *range(7, 14)]
    states, labels = torch.arange(5.0)[:, None], torch.tensor([1, 2, 3, 4, 9])
    counted = Learned(states, labels).of_answers(texts)
    assert counted.labels.tolist() == [3, 4, 9]
    assert counted.states[:, 0].tolist() == [2, 3, 4]
