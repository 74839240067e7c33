from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from specscope.engine.checkpoints.loader import load
from specscope.engine.errors import ModelError, RunCancelled, UsageError
from specscope.engine.training import pair
from specscope.engine.training.data import Mixed, Stream
from specscope.engine.training.loop import Progress, read_log
from specscope.engine.training.pair import distil_drafter, new_model, prune, save_model
from specscope.engine.training.settings import DistilOptions, Shape
from specscope.engine.training.step import losses
from specscope.engine.training.target_text import Text, read_text, save_text
from tests.engine.training.tiny import refused, stop_after, toy_corpus, train

Options = Callable[..., DistilOptions]


def options_of(corpus, trained, out, **changed):
    """Settings of a training of a second, from the toy pair."""
    base = DistilOptions(
        data=corpus,
        out=out,
        pair=trained,
        device="cpu",
        precision="fp32",
        batch=4,
        sequence=32,
        steps=12,
        feed_forward=24,
        written=600,
        answer=40,
        warmup=2,
        learning_rate=1e-2,
        held_out=0.1,
        checkpoint_every=5,
    )
    return replace(base, **changed)


@pytest.fixture
def settings(corpus, trained, tmp_path):
    return lambda **changed: options_of(corpus, trained, **{"out": tmp_path / "out", **changed})


@pytest.fixture(scope="module")
def straight(corpus, trained, tmp_path_factory):
    """A training without a break."""
    return distil_drafter(options_of(corpus, trained, tmp_path_factory.mktemp("distil") / "out"))


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


def test_pruning_units_without_output_changes_nothing():
    model = new_model(Shape(2, 16, 1, 32), 64, 32, seed=0)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight[:, 1::2] = 0
        tokens = torch.arange(32)[None]
        expected = model(input_ids=tokens).logits
        prune(model, 16, tokens.numpy())
        torch.testing.assert_close(model(input_ids=tokens).logits, expected)


def test_the_drafter_is_smaller_and_closer_to_the_target_on_its_text(settings, trained):
    out = distil_drafter(settings(steps=40))
    config = json.loads((out / "drafter/config.json").read_text())
    assert (config["intermediate_size"], config["max_position_embeddings"]) == (24, 128)
    assert {t.dtype for t in load_file(out / "drafter/model.safetensors").values()} == {torch.bfloat16}
    assert (out / "target/model.safetensors").read_bytes() == (
        trained / "target/model.safetensors"
    ).read_bytes()
    for file in ("tokenizer.json", "generation_config.json"):
        new, old = (json.loads((folder / "drafter" / file).read_text()) for folder in (out, trained))
        assert new == old
    text = read_text(out / "written.safetensors", out / "target")
    before, after = (divergence(out / "target", folder / "drafter", text) for folder in (trained, out))
    assert after < 0.9 * before
    log = [row["loss"] for row in read_log(out / "loss.jsonl")]
    assert np.mean(log[-5:]) < 0.9 * np.mean(log[:5])
    assert load(out / "drafter").context == 128


def test_facts_extend_the_facts_of_the_pair(straight, trained):
    old, new = (json.loads((folder / "training.json").read_text()) for folder in (trained, straight))
    assert new["phases"][:-1] == old["phases"]
    facts = {"name": "distil", "steps": 12, "tokens": 12 * 4 * 32, "length": 32}
    assert new["phases"][-1] | {"minutes": 0, "loss": 0} == {**facts, "minutes": 0, "loss": 0}
    assert new["method"].startswith(old["method"])
    assert "cut from 32 to 24 units" in new["method"]
    assert str(trained) not in json.dumps(new)


def test_resumed_training_ends_with_the_same_bits(settings, straight):
    parts = settings()
    for resume, (phase, step) in enumerate((("written", 128), ("distil", 3), ("distil", 9), ("distil", 12))):
        listen, cancel = stop_after(step, phase)
        with pytest.raises(RunCancelled, match=r"^stopped .*--resume"):
            distil_drafter(parts, progress=listen, cancel=cancel, resume=resume > 0)
    reports = list[Progress]()
    distil_drafter(parts, progress=reports.append, resume=True)
    assert not [p for p in reports if p.phase in ("written", "distil")], "both were finished"
    for file in ("drafter/model.safetensors", "written.safetensors", "loss.jsonl"):
        assert (parts.out / file).read_bytes() == (straight / file).read_bytes()


def test_a_training_killed_while_it_writes_the_drafter_resumes(settings, straight, monkeypatch):
    def die(model, folder):
        save_model(model, folder)
        with (folder / "model.safetensors").open("r+b") as file:
            file.truncate(100)
        raise KeyboardInterrupt

    parts, model = settings(), "drafter/model.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(pair, "save_model", die)
        with pytest.raises(KeyboardInterrupt):
            distil_drafter(parts)
    distil_drafter(parts, resume=True)
    assert (parts.out / model).read_bytes() == (straight / model).read_bytes()


def test_text_of_an_earlier_training_is_reused(settings, straight):
    again, reports = settings(text=straight / "written.safetensors"), list[Progress]()
    distil_drafter(again, progress=reports.append)
    assert "written" not in {p.phase for p in reports}
    model = "drafter/model.safetensors"
    assert (again.out / model).read_bytes() == (straight / model).read_bytes()


def test_mixed_batches_have_the_share_of_each_stream():
    streams = [Stream(toy_corpus(list(range(a, a + 100))), 0) for a in (1000, 2000)]
    inputs, labels = Mixed(*streams, 0.75).batch(2 * 4 * 10, 4, 10)
    assert (inputs[:3] < 2000).all()
    assert (inputs[3] >= 2000).all()
    for rows, (stream, n) in zip((slice(0, 3), slice(3, 4)), zip(streams, (3, 1), strict=True), strict=True):
        expected = stream.batch(2 * n * 10, n, 10)
        assert np.array_equal(inputs[rows], expected[0])
        assert np.array_equal(labels[rows], expected[1])
    assert (Mixed(*streams, 1.0).batch(0, 4, 10)[0] < 2000).all()
    assert (Mixed(*streams, 0.0).batch(0, 4, 10)[0] >= 2000).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"share": 1.5}, "share is 1.5; it must be at least 0 and at most 1"),
        ({"written": 0}, "written is 0; it must be at least 1"),
        ({"feed_forward": 33}, "feed_forward is 33; it must be at most the 32 of the drafter"),
        ({"feed_forward": -1}, "feed_forward is -1; it must be at least 0"),
        ({"sequence": 129}, "sequence is 129; it must be at most 128: the pair knows 128 positions"),
        ({"answer": 128}, "answer is 128; it must be at most 127: the pair knows 128 positions"),
        ({"pair": Path("nowhere")}, "pair is nowhere; it must be a folder with target and drafter in it"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_written(settings, changed, message):
    refused(lambda: distil_drafter(settings(**changed)), message)
    assert not settings().out.exists()


def test_text_of_another_target_or_a_broken_file_is_refused(settings, trained, tmp_path):
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
            distil_drafter(settings(text=file, out=tmp_path / name))
        assert "\n" not in str(error.value)


def test_the_command_line_trains_a_drafter(settings, capsys):
    options = settings()
    words = f"distil --pair {options.pair} --data {options.data} --out {options.out} --threads 1"
    words += " --steps 2 --batch 2 --sequence 16 --written 100 --answer 20 --feed-forward 8 --device cpu"
    assert train(words) == 0
    assert f"train card --pair {options.out}" in capsys.readouterr().out
    assert json.loads((options.out / "drafter/config.json").read_text())["intermediate_size"] == 8
