"""Text that a target writes: its prompts, answers and files, and the drafter distilled from it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import repeat

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import ModelError, RunCancelled, UsageError
from specscope.engine.heads.packed import Frozen, Learned
from specscope.engine.model.attention import attention_parts
from specscope.engine.training import pair
from specscope.engine.training.data import ASSISTANT, BOS, Mixed, TokenStream, split_chat
from specscope.engine.training.heads.features import Batches
from specscope.engine.training.heads.train import train_head
from specscope.engine.training.loop import TrainingProgress, read_log
from specscope.engine.training.measure import LoadedPair
from specscope.engine.training.pair import distil_drafter, new_model, prune, save_model
from specscope.engine.training.settings import DistilOptions, HeadOptions, Shape
from specscope.engine.training.step import losses
from specscope.engine.training.target_text import (
    PART,
    AnswerWriter,
    Text,
    chat_prompts,
    cut_prompts,
    fingerprint,
    read_text,
    save_text,
    slots_for,
)
from specscope.engine.types import Sampling
from tests.engine.training.tiny import chats, refused, stop_after, toy_corpus, train


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
    writer = AnswerWriter(target, repeat(np.array(prompt)), eos, (20, 30), seed=0, slots=32)
    texts = writer.run(32 * 30, ignore).finished
    ids, _ = LoadedPair.load(pair).write(prompt, 30, Sampling())
    greedy = [text for text in texts if list(text.ids) == prompt + ids]
    assert len(greedy) >= 16, "every second answer is greedy"
    assert {text.answer for text in texts} == {len(prompt)}
    assert len({tuple(text.ids) for text in texts}) >= 16, "the others are drawn"


def test_slots_are_reused_and_answers_cut_off(target):
    steps, eos = list[int](), tuple(range(0, 320, 5))
    prompts = (np.array([BOS, 20 + i % 5, *range(30, 30 + i % 4)]) for i in range(10_000))
    writer = AnswerWriter(target, prompts, eos, (6, 7), seed=0, slots=16)
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
    AnswerWriter(target, prompts, (), (30, 8), seed=0, slots=8).run(8 * 4, ignore)
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


def test_an_interrupted_training_goes_on_writing_in_the_targets_own_format(templated, corpus, tmp_path):
    out, written = tmp_path / "out", list[int]()
    options = HeadOptions.of("eagle", data=corpus, out=out, target=templated, precision="bf16", **SIZES)
    stop, cancel = stop_after(256, "written")

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
    text, pair = read_text(out / "written.safetensors", templated), Pair.of(templated)
    assert not (out / PART).exists()
    asked = {tuple(pair.encode(split_chat(chat)[1])) for chat in chats()}
    for start, answer in zip(text.starts[:-1], text.answers, strict=True):
        assert tuple(text.ids[start:answer].tolist()) in asked
    assert json.loads((out / "config.json").read_text())["target"] == "model"


@pytest.mark.parametrize(("largest", "dtype"), [(65_535, np.uint16), (65_536, np.int32), (128_000, np.int32)])
def test_text_is_stored_as_small_as_its_ids_fit_and_read(trained, tmp_path, largest, dtype):
    path, target = tmp_path / "text.safetensors", trained / "target"
    save_text(path, [Text([1, largest, 5], 2), Text([1, 7], 1)], target)
    text = read_text(path, target)
    assert (text.ids.dtype, text.ids.tolist()) == (dtype, [1, largest, 5, 1, 7])
    assert (text.starts.tolist(), text.repeats.tolist()) == ([0, 3, 5], [1, 1])
    assert text.answers.tolist() == [2, 4]
    inputs, _ = TokenStream(text, 0).batch(0, 1, 5)
    assert sorted(inputs[0].tolist()) == [1, 1, 5, 7, largest]


def test_all_tokens_of_an_old_file_count(trained, tmp_path):
    path, target = tmp_path / "text.safetensors", trained / "target"
    ids, starts = np.arange(8, dtype=np.uint16), np.array([0, 5, 8])
    save_file({"ids": ids, "starts": starts}, path, {"target": fingerprint(target)})
    text = read_text(path, target)
    assert text.answers is None
    batches = Batches(text, torch.zeros(8, 4), Frozen(torch.zeros(9, 4), torch.empty(0)), 64)
    (held,) = batches.held(8, 8)
    assert held.anchors.tolist() == [1, 2, 3]


def test_only_answers_are_learned():
    """Three texts of 7 tokens, whose prompts have 3, 7 and 0 tokens."""
    documents = [list(range(20, 27)), list(range(30, 37)), list(range(40, 47))]
    corpus = replace(toy_corpus(*documents), answers=np.array([3, 14, 14]))
    batches = Batches(corpus, torch.zeros(21, 4), Frozen(torch.zeros(65536, 4), torch.empty(0)), 64)
    assert sorted([*batches.held_out, *batches.learned]) == [0, 2]
    texts = batches._texts(np.array([0, 2]), [np.arange(1, 6)] * 2)
    assert texts.anchors.tolist() == [2, 3, 4, 5, 8, 9, 10, 11, 12]
    assert texts.answers is not None
    assert texts.answers.nonzero()[:, 0].tolist() == [3, 4, 5, 6, *range(7, 14)]
    states, labels = torch.arange(5.0)[:, None], torch.tensor([1, 2, 3, 4, 9])
    counted = Learned(states, labels).of_answers(texts)
    assert counted.labels.tolist() == [3, 4, 9]
    assert counted.states[:, 0].tolist() == [2, 3, 4]


Options = Callable[..., DistilOptions]


def divergence(target, drafter, text):
    """Return KL(p || q) on the first tokens of a text."""
    p, q = (AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32) for f in (target, drafter))
    ids = torch.from_numpy(text.ids[:512].astype(np.int64)).reshape(-1, 64)
    with torch.no_grad():
        value = losses(q, p, ids, ids, 0.0).divergence
    assert value is not None
    return value


def test_pruning_keeps_the_units_with_the_largest_output():
    model = new_model(Shape(1, 16, 1, 8), 64, 32, seed=0)
    mlp, tokens = model.model.layers[0].mlp, np.arange(64).reshape(2, 32)
    with torch.no_grad():
        for weight in (mlp.gate_proj.weight, mlp.up_proj.weight):
            weight.copy_(weight[:1].expand_as(weight))  # all units have the same value ...
        columns = torch.tensor([1, 5, 2, 8, 0, 3, 9, 4.0])  # ... times these columns
        mlp.down_proj.weight.copy_(columns.expand_as(mlp.down_proj.weight))
        mlp.up_proj.weight[3] *= 0.01  # a large column with a small value
    prune(model, 4, tokens)
    assert mlp.down_proj.weight[0].tolist() == [5, 3, 9, 4]
    assert (mlp.gate_proj.out_features, mlp.up_proj.out_features, mlp.down_proj.in_features) == (4, 4, 4)
    assert model.config.intermediate_size == 4


def test_the_drafter_is_smaller_and_closer_to_the_target_on_its_text(distil, trained):
    out = distil_drafter(distil(steps=40))
    config = json.loads((out / "drafter/config.json").read_text())
    assert (config["intermediate_size"], config["max_position_embeddings"]) == (24, 128)
    assert {t.dtype for t in load_file(out / "drafter/model.safetensors").values()} == {torch.bfloat16}
    for file in ("target/model.safetensors", "drafter/tokenizer.json", "drafter/generation_config.json"):
        new, old = ((folder / file).read_bytes() for folder in (out, trained))
        assert new == old or json.loads(new) == json.loads(old)
    text = read_text(out / "written.safetensors", out / "target")
    before, after = (divergence(out / "target", folder / "drafter", text) for folder in (trained, out))
    assert after < 0.9 * before
    log = [row["loss"] for row in read_log(out / "loss.jsonl")]
    assert np.mean(log[-5:]) < 0.9 * np.mean(log[:5])
    assert load(out / "drafter").context == 128


@pytest.fixture
def straight(distil, tmp_path):
    """A training without a break."""
    return distil_drafter(distil(out=tmp_path / "straight"))


def test_facts_extend_the_facts_of_the_pair_and_the_text_is_reused(distil, straight, trained):
    old, new = (json.loads((folder / "training.json").read_text()) for folder in (trained, straight))
    assert new["phases"][:-1] == old["phases"]
    facts = {"name": "distil", "steps": 12, "tokens": 12 * 4 * 32, "length": 32}
    assert new["phases"][-1] | {"minutes": 0, "loss": 0} == {**facts, "minutes": 0, "loss": 0}
    assert new["method"].startswith(old["method"])
    assert "cut from 32 to 24 units" in new["method"]
    assert str(trained) not in json.dumps(new)
    again, reports = distil(text=straight / "written.safetensors"), list[TrainingProgress]()
    distil_drafter(again, progress=reports.append)
    assert "written" not in {p.phase for p in reports}
    model = "drafter/model.safetensors"
    assert (again.out / model).read_bytes() == (straight / model).read_bytes()


def test_a_training_killed_while_it_writes_the_drafter_resumes(distil, straight, monkeypatch):
    def die(model, folder):
        save_model(model, folder)
        with (folder / "model.safetensors").open("r+b") as file:
            file.truncate(100)
        raise KeyboardInterrupt

    parts, model = distil(), "drafter/model.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(pair, "save_model", die)
        with pytest.raises(KeyboardInterrupt):
            distil_drafter(parts)
    distil_drafter(parts, resume=True)
    assert (parts.out / model).read_bytes() == (straight / model).read_bytes()


def test_mixed_batches_have_the_share_of_each_stream():
    streams = [TokenStream(toy_corpus(list(range(a, a + 100))), 0) for a in (1000, 2000)]
    inputs, labels = Mixed(*streams, 0.75).batch(2 * 4 * 10, 4, 10)
    assert (inputs[:3] < 2000).all()
    assert (inputs[3] >= 2000).all()
    for rows, (stream, n) in zip((slice(0, 3), slice(3, 4)), zip(streams, (3, 1), strict=True), strict=True):
        expected = stream.batch(2 * n * 10, n, 10)
        assert np.array_equal(inputs[rows], expected[0])
        assert np.array_equal(labels[rows], expected[1])
    assert (Mixed(*streams, 1.0).batch(0, 4, 10)[0] < 2000).all()
    assert (Mixed(*streams, 0.0).batch(0, 4, 10)[0] >= 2000).all()


def test_text_of_another_target_or_a_broken_file_is_refused(distil, trained, tmp_path):
    shutil.copytree(trained / "drafter", tmp_path / "target")
    save_text(tmp_path / "text.safetensors", [Text(range(40), 5)], tmp_path / "target")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    for name, message in (
        ("text", "was written by another target"),
        ("broken", "does not hold text of a target"),
        ("missing", "does not hold text of a target"),
    ):
        file = tmp_path / f"{name}.safetensors"
        with pytest.raises((UsageError, ModelError), match=rf"{name}\.safetensors {message}") as error:
            distil_drafter(distil(text=file, out=tmp_path / name))
        assert "\n" not in str(error.value)


def test_the_command_line_trains_a_drafter(distil, capsys):
    options = distil()
    words = f"distil --pair {options.pair} --data {options.data} --out {options.out} --threads 1"
    words += " --steps 2 --batch 2 --sequence 16 --written 100 --answer 20 --feed-forward 8 --device cpu"
    assert train(words) == 0
    assert f"train card --pair {options.out}" in capsys.readouterr().out
    assert json.loads((options.out / "drafter/config.json").read_text())["intermediate_size"] == 8
