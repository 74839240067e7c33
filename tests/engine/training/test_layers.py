"""Training of drafters made of a target's layers: on a tiny target, in seconds."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import engine
from engine.errors import ModelError, PairError, RunCancelled, UsageError
from engine.model.slots import Rows
from engine.pairs.layers import read_tensors
from engine.pairs.load import load
from engine.pairs.pair import Pair
from engine.training import cli
from engine.training.layers.start import fit_map, frequent_tokens
from engine.training.layers.student import Stack, Student, columns_of, divergence
from engine.training.layers.texts import answer_starts, make_texts
from engine.training.layers.train import train_drafter
from engine.training.options import DrafterOptions
from engine.training.steps import Progress, load_teacher, read_log
from engine.training.target_text import read_text
from engine.training.teacher import Outputs
from engine.types import Limits
from tests.engine.methods.pairs import save_with_tokenizer
from tests.engine.model import tiny
from tests.engine.pairs.layer_drafters import make_drafter
from tests.engine.training.test_pair import stop_after

Options = Callable[..., DrafterOptions]


@pytest.fixture(scope="module")
def settings(corpus: Path, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Options:
    """Settings of a training of a second: one of the two layers of the toy pair's target."""
    base = DrafterOptions(
        data=corpus,
        out=Path("unset"),
        target=trained / "target",
        layers="auto",
        depth=1,
        rank=4,
        vocabulary=100,
        top=16,
        corpus=800,
        written=700,
        answer=24,
        batch=4,
        sequence=48,
        steps=30,
        warmup=2,
        learning_rate=1e-2,
        held_out=0.1,
        checkpoint_every=10,
        device="cpu",
    )
    return lambda **changed: replace(base, **changed)


@pytest.fixture(scope="module")
def made(settings: Options, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter that was trained without a break, with its text."""
    torch.set_num_threads(1)
    return train_drafter(settings(out=tmp_path_factory.mktemp("made") / "drafter"))


def with_text(settings: Options, made: Path, out: Path, **changed: object) -> DrafterOptions:
    """Return settings of a training that reads the text of `made`."""
    text = (made / "written.safetensors", made / "corpus.safetensors")
    return settings(out=out, text=text, **({"corpus": 0} | changed))


def test_training_lowers_the_divergence_on_held_out_texts(made: Path) -> None:
    measured = read_log(made / "agreement.jsonl")
    assert [row["step"] for row in measured] == [0, 10, 20, 30]
    assert measured[-1]["divergence"] < 0.9 * measured[0]["divergence"]
    assert measured[-1]["tokens"] > measured[1]["tokens"] > 0 == measured[0]["tokens"]
    card = (made / "README.md").read_text()
    assert f"| 30 | {measured[-1]['tokens']:,} | {measured[-1]['agreement']:.3f} |" in card
    assert str(made) not in card


def test_the_drafter_runs_beside_its_target(made: Path, trained: Path) -> None:
    target = trained / "target"
    with engine.open(target=target, drafter=made, runtime="local-thread", device="cpu") as cluster:
        prompt = "Do you like the boat, Mia?"
        texts = {
            key: cluster.run(key, prompt, limits=Limits(12)).token_ids()
            for key in ("autoregressive", "speculative")
        }
    assert texts["autoregressive"] == texts["speculative"]
    decoder, ids = load(made, target=target), np.arange(9)
    logits = decoder.forward(decoder.new_cache(1, 9), Rows.chain(0, ids, 0), ids).logits
    assert decoder.depth == 1
    assert int(logits.isfinite().sum()) == 9 * 100


@pytest.mark.parametrize("family", ["llama-gqa-tied-bias", "qwen2-window", "qwen3", "mistral-window"])
def test_the_trained_form_and_the_engine_compute_the_same(tmp_path: Path, family: str) -> None:
    save_with_tokenizer(tiny.reference(family), tmp_path / "target")
    noisy = {"layers": (0, 2), "vocabulary": 30, "mapped": True}
    path = make_drafter(tmp_path / "drafter", tmp_path / "target", noise=0.1, **noisy)
    tensors = read_tensors(path)
    stack = Stack(load_teacher(tmp_path / "target", torch.device("cpu")), torch.float32)
    trained = Student(stack, (0, 2), 2, tensors["ids"].long(), tensors["map"], seed=0)
    trained.load(tensors)
    texts = np.array([np.arange(12), np.arange(40, 52)])
    with torch.no_grad():
        mine = trained(torch.from_numpy(texts), torch.arange(24))
    decoder = load(path, target=tmp_path / "target")
    for row, ids in enumerate(texts):
        logits = decoder.forward(decoder.new_cache(1, 12), Rows.chain(0, ids, 0), np.arange(12)).logits
        torch.testing.assert_close(
            mine[12 * row : 12 * row + 12], logits[:, trained.ids], atol=2e-4, rtol=1e-4
        )


def test_a_drafter_goes_on_with_another_training(made: Path, settings: Options, tmp_path: Path) -> None:
    options = with_text(
        settings, made, tmp_path / "more", start=made, steps=1, learning_rate=1e-8, rank=9, map="no"
    )
    out = train_drafter(options)
    assert (out / "config.json").read_bytes() == (made / "config.json").read_bytes()
    before, after = (read_tensors(path) for path in (made, out))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(after[name].float(), tensor.float(), atol=1e-3, rtol=1e-2)


def test_resumed_training_ends_with_the_same_bits(made: Path, settings: Options, tmp_path: Path) -> None:
    straight = train_drafter(with_text(settings, made, tmp_path / "straight", steps=8, checkpoint_every=3))
    options = with_text(settings, made, tmp_path / "parts", steps=8, checkpoint_every=3)
    for resume, (phase, step) in enumerate((("layers", 1), ("drafter", 2), ("drafter", 7))):
        listen, cancel = stop_after(step, phase)
        with pytest.raises(RunCancelled, match=r"^stopped .*--resume"):
            train_drafter(options, listen, cancel, resume=resume > 0)
    train_drafter(options, resume=True)
    for file in ("model.safetensors", "loss.jsonl", "agreement.jsonl", "config.json"):
        assert (straight / file).read_bytes() == (options.out / file).read_bytes(), file


def test_the_targets_outputs_are_written_once_and_an_interrupted_writing_goes_on(
    made: Path, settings: Options, tmp_path: Path
) -> None:
    text = tmp_path / "text" / "written.safetensors"
    text.parent.mkdir()
    shutil.copyfile(made / "written.safetensors", text)
    files = sorted((made / "written.outputs").iterdir())
    shutil.copytree(made / "written.outputs", text.with_suffix(".outputs"))
    (text.with_suffix(".outputs") / files[-1].name).unlink()
    reports = list[Progress]()
    options = settings(out=tmp_path / "out", text=(text,), corpus=0, steps=1, layers="0")
    train_drafter(options, reports.append)
    assert [p.phase for p in reports if p.phase == "outputs"] == ["outputs"], "one file was missing"
    for file in files:
        assert (text.with_suffix(".outputs") / file.name).read_bytes() == file.read_bytes()


def test_answers_are_found_where_a_file_does_not_mark_them(made: Path, trained: Path) -> None:
    pair = Pair.of(trained / "target")
    marked = read_text(made / "corpus.safetensors", trained / "target")
    unmarked = answer_starts(pair, replace(marked, answers=None))
    assert len(set(unmarked.tolist())) > 2
    assert np.array_equal(unmarked, answer_starts(pair, marked))


def test_a_text_of_the_corpus_is_a_message_with_an_answer(trained: Path) -> None:
    pair = Pair.of(trained / "target")
    chat = "<|user|>Do you like cake?<|assistant|>Yes, I do.<|user|>Why?<|assistant|>No."
    story = "Once there was a ball. " * 12
    for document, message, answer in (
        (chat, "Do you like cake?", "Yes, I do."),
        (story, story[:160].rpartition(" ")[0], ""),
    ):
        (text,) = make_texts(pair, [document], 10_000, 128, seed=0)
        assert list(text.ids[: text.answer]) == pair.encode(message)
        if answer:
            assert list(text.ids[text.answer :]) == [*pair.encode_text(answer), pair.eos[0]]
        assert len(text.ids) <= 128


def test_frequent_tokens_include_the_ends_of_a_text() -> None:
    texts = [np.array([5, 5, 5, 7, 7]), np.array([7, 9, 3])]
    assert frequent_tokens(texts, 3, 12, ends=(2,)).tolist() == [2, 5, 7]
    assert frequent_tokens(texts, 6, 12, ends=(2,)).tolist() == [0, 2, 3, 5, 7, 9]


def test_the_fitted_map_is_exact_where_one_exists() -> None:
    torch.manual_seed(0)
    states, matrix = torch.randn(200, 8), torch.randn(8, 8)
    scaled = states / states.square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(fit_map(states, scaled @ matrix.T), matrix, atol=5e-3, rtol=5e-3)


def test_the_divergence_of_the_full_vocabulary_is_kl() -> None:
    torch.manual_seed(0)
    p, q = torch.randn(5, 12).log_softmax(-1), torch.randn(5, 12)
    logs, ids = p.topk(12)
    outputs = Outputs(ids, logs, torch.full((5,), -30.0), torch.zeros(5, 1))
    expected = torch.nn.functional.kl_div(q.log_softmax(-1), p, log_target=True, reduction="batchmean")
    torch.testing.assert_close(divergence(q, ids, outputs), expected)


def test_the_divergence_has_one_bucket_for_all_other_tokens() -> None:
    torch.manual_seed(0)
    p, q = torch.randn(5, 12).softmax(-1), torch.randn(5, 12)
    kept = torch.tensor([0, 2, 3, 5, 7, 8, 9, 11])
    ids = p.topk(4).indices
    tail = 1 - p.gather(1, ids).sum(-1)
    columns = columns_of(ids, kept, 12)
    outputs = Outputs(ids, p.gather(1, ids).log(), tail.log(), torch.zeros(5, 1))
    expected = 0.0
    for row in range(5):  # by a loop over tokens
        known = {int(i): float(p[row, i]) for i in ids[row] if i in kept}
        total = sum(known.values()) + float(tail[row])
        drafted = q[row, kept].softmax(-1)
        chance = {int(i): float(drafted[n]) for n, i in enumerate(kept)}
        rest = 1 - sum(chance[i] for i in known)
        expected += sum(v / total * np.log(v / total / chance[i]) for i, v in known.items())
        expected += float(tail[row]) / total * np.log(float(tail[row]) / total / rest)
    assert divergence(q[:, kept], columns, outputs).item() == pytest.approx(expected / 5, rel=1e-4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"layers": "0,5"}, "layers is 0,5; there is no layer 5, the target's are 0 to 1"),
        ({"layers": "1,1"}, "layers is 1,1; each layer may be named once"),
        ({"layers": "1,0"}, "layers is 1,0; write the numbers in ascending order"),
        ({"layers": "0;1"}, "layers is '0;1'; write auto, or numbers such as"),
        ({"layers": ""}, "layers is ''; write auto, or numbers such as"),
        ({"depth": 3}, "depth is 3; it must be at most the target's 2 layers"),
        ({"rank": 0}, "rank is 0; it must be at least 1"),
        ({"rank": 33}, "rank is 33; it must be at least 1 and at most 32, the smallest side"),
        (
            {"vocabulary": 321},
            "vocabulary is 321; it must be at least 0 and at most 320, the target's tokens",
        ),
        ({"top": 321}, "top is 321; it must be at most the target's 320 tokens"),
        ({"sequence": 129}, "sequence is 129; it must be at most 128: the target knows 128 positions"),
        ({"map": "maybe"}, "map is 'maybe'; choose one of auto, yes, no"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_written(
    settings: Options, tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=f"^{message}") as error:
        train_drafter(settings(out=tmp_path / "out", **changed))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_material_of_another_target_is_refused(
    settings: Options, made: Path, trained: Path, tmp_path: Path
) -> None:
    other = trained / "drafter"
    with pytest.raises(UsageError, match="was written by another target"):
        train_drafter(with_text(settings, made, tmp_path / "out", target=other))
    with pytest.raises(PairError, match="is a drafter made of layers of another target"):
        train_drafter(settings(out=tmp_path / "out2", target=other, start=made))
    assert not (tmp_path / "out2").exists()
    text = tmp_path / "written.safetensors"
    shutil.copyfile(made / "written.safetensors", text)
    shutil.copytree(made / "corpus.outputs", tmp_path / "written.outputs")
    with pytest.raises(UsageError, match="holds the outputs of another text or target"):
        train_drafter(settings(out=tmp_path / "out3", text=(text,), corpus=0))


def test_an_unsupported_architecture_is_refused(settings: Options, trained: Path, tmp_path: Path) -> None:
    target = shutil.copytree(trained / "target", tmp_path / "target")
    config = json.loads((target / "config.json").read_text()) | {"architectures": ["BloomForCausalLM"]}
    (target / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="architecture 'BloomForCausalLM' is not supported"):
        train_drafter(settings(out=tmp_path / "out", target=target))


def test_the_command_line_makes_a_drafter(
    settings: Options, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, parser = settings(out=tmp_path / "out"), argparse.ArgumentParser()
    cli.add_arguments(parser)
    words = f"drafter --target {options.target} --data {options.data} --out {options.out} --threads 1"
    words += f" --text {made / 'written.safetensors'} {made / 'corpus.safetensors'} --corpus 0 --layers 0,1"
    words += " --rank 2 --vocabulary 0 --map yes --top 16 --steps 2 --batch 4 --sequence 48 --answer 24 --device cpu"
    assert cli.run(parser.parse_args(words.split())) == 0
    assert f"--target {options.target} --drafter {options.out}" in capsys.readouterr().out
    config, tensors = (
        json.loads((options.out / "config.json").read_text()),
        read_tensors(options.out),
    )
    assert (config["layers"], config["rank"], config["vocabulary"]) == ([0, 1], 2, 0)
    assert "ids" not in tensors
    assert tensors["map"].shape == (32, 32)
