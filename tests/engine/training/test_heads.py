"""Trainings of drafting heads: features, batches, the files they write, and resuming."""

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specscope.engine.checkpoints.config import read_config
from specscope.engine.checkpoints.loader import load
from specscope.engine.errors import UsageError
from specscope.engine.heads.files import read_head
from specscope.engine.heads.kinds import KINDS
from specscope.engine.heads.packed import Frozen
from specscope.engine.model.shape import ModelShape
from specscope.engine.model.slots import Rows
from specscope.engine.training import cli
from specscope.engine.training.heads.features import Batches, features_of, stored_features
from specscope.engine.training.heads.train import read_frozen, train_head
from specscope.engine.training.loop import TrainingProgress, read_log
from specscope.engine.training.settings import HEAD_DEFAULTS, HeadOptions
from specscope.engine.training.target_text import read_text
from tests.engine.training.tiny import parse, toy_corpus, train

Options = Callable[..., HeadOptions]


def test_stored_features_equal_those_of_decoding(trained, tmp_path):
    decoder = load(trained / "target")
    corpus = toy_corpus([1, *range(20, 40), 2], [1, 5, 6, 7, 2], [1, 9, 2])
    place = {"device": torch.device("cpu"), "dtype": torch.float32}
    training = SimpleNamespace(**place, progress=lambda _: None, cancel=threading.Event())
    stored = stored_features(tmp_path, corpus, trained / "target", training)
    alone = torch.cat([features_of(decoder, [part])[0] for part in np.split(corpus.ids, corpus.starts[1:-1])])
    torch.testing.assert_close(stored.float(), alone, atol=0.02, rtol=0.01)
    shape = ModelShape.of(read_config(trained / "target"), trained)
    lm_head = read_frozen(trained / "target", shape, torch.device("cpu")).lm_head
    rows = Rows.chain(0, corpus.ids[:22], 0)
    logits = decoder.forward(decoder.new_cache(1, 22), rows, np.arange(22)).logits
    torch.testing.assert_close(alone[:22] @ lm_head.T, logits, atol=1e-4, rtol=1e-4)
    with pytest.raises(UsageError, match="another text or target"):
        stored_features(tmp_path, toy_corpus([1, 5, 6, 7, 2]), trained / "target", training)


def test_batches_depend_on_seed_and_step_only():
    corpus = toy_corpus(*([1, *range(20, 23 + i % 5), 2] for i in range(120)))
    features = torch.arange(len(corpus.ids)).float()[:, None].bfloat16()
    batches = Batches(corpus, features, Frozen(torch.arange(65536).float()[:, None], torch.empty(0)), 6)
    assert len(batches.held_out) == 3
    first, again = batches.batch(7, 5, 0.5, 0), batches.batch(7, 5, 0.5, 0)
    assert torch.equal(first.ids, again.ids)
    assert first.anchors.tolist() == again.anchors.tolist()
    assert not torch.equal(first.ids, batches.batch(7, 5, 0.5, 1).ids)
    assert np.diff(first.starts).max() <= 6
    edges = set(first.starts[:-1]) | set(first.starts[1:] - 1)
    assert len(first.anchors)
    assert not edges & set(first.anchors.tolist())
    epoch = [t for step in range(117) for t in batches._chosen(step, 1, 0).tolist()]
    assert sorted(epoch) == batches.learned.tolist()
    assert (batches.steps(0, 5), batches.steps(2, 5)) == (0, 47), "234 texts are 47 steps of 5"
    assert batches.tokens(117, 0) == sum(min(6, n) for n in np.diff(corpus.starts)[batches.learned])
    with pytest.raises(UsageError, match="the text is too short to learn from"):
        Batches(toy_corpus([1, 2]), torch.zeros(2, 4), Frozen(torch.zeros(8, 4), torch.empty(0)), 64)


@pytest.mark.parametrize("kind", HEAD_DEFAULTS)
def test_every_kind_learns_and_writes_its_files(kind, heads, text, trained):
    steps = 160 if kind == "dflash" else 40  # its masks read nothing but attention
    out = train_head(heads(kind, steps=steps, checkpoint_every=steps // 2, text=text))
    log, measured = read_log(out / "loss.jsonl"), read_log(out / "acceptance.jsonl")
    assert [row["step"] for row in measured] == [steps // 2, steps]
    assert np.mean([sum(row["places"]) for row in log[-5:]]) < 0.9 * sum(log[0]["places"])
    assert measured[-1]["length"] > 1.2
    levels = {"eagle": 0, "mtp": 0}.get(kind, 4 if kind.startswith("p") else 3)
    assert len(log[0]["places"]) == max(levels, 1)
    head = read_head(out, trained / "target")
    config = head.config
    assert (config.kind, config.target, KINDS[kind].levels(config)) == (kind, trained.name, levels)
    assert all(torch.isfinite(t).all() for t in head.tensors.values())
    facts = json.loads((out / "training.json").read_text())
    assert (facts["acceptance"], facts["phase"]["steps"]) == (measured[-1], steps)
    assert str(trained) not in json.dumps(facts)


def test_a_head_starts_with_the_tensors_of_another(heads, text, tmp_path):
    first, reports = train_head(heads(steps=20, text=text)), list[TrainingProgress]()
    more = heads("parallelspec_eagle", steps=1, learning_rate=1e-8, text=text, start=first)
    train_head(more, progress=reports.append)
    assert {p.phase for p in reports} == {more.kind}, "text and features are used again"
    assert not (more.out / "written.features").exists()
    copied, original = read_head(more.out).tensors, read_head(first).tensors
    for name, tensor in original.items():
        torch.testing.assert_close(copied[name], tensor, atol=1e-4, rtol=0.01)
    other = tmp_path / "other"
    shutil.copytree(first, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"tokenizer": "0" * 64}))
    for kind, start, message in (
        ("medusa", first, r"no tensor of that head fits this one; leave out --start$"),
        ("eagle", other, "is a head for another target: its tokenizer is 000000000000, that of"),
    ):
        with pytest.raises(UsageError, match=message):
            train_head(heads(kind, out=tmp_path / "out", text=text, start=start))


@pytest.mark.parametrize("kind", ["parallelspec_eagle", "parallelspec_medusa"])
def test_a_parallel_drafter_without_masks_drafts_one_token(kind, heads, text):
    out = train_head(heads(kind, size=0, steps=4, text=text))
    head = read_head(out)
    assert (head.config.masks, KINDS[kind].levels(head.config)) == (0, 1)
    assert not [name for name in head.tensors if name.startswith("mask")]
    assert len(read_log(out / "acceptance.jsonl")[-1]["rates"]) == 1
    more = heads(kind, size=2, steps=4, out=out.with_name("more"), start=out, text=text)
    again = train_head(more)
    assert read_head(again).config.masks == 2
    begun = json.loads((again / "training.json").read_text())["begun_from"]
    assert {name.split(".")[0] for name in begun["random"]} == {"mask"}
    assert (len(begun["copied"]), begun["left_out"]) == (len(head.tensors), [])


def test_tensors_of_the_start_are_left_out_only_with_consent(heads, text):
    first = train_head(heads("parallelspec_eagle", steps=1, text=text))
    fewer = heads("parallelspec_eagle", out=first.with_name("fewer"), size=2, steps=1, text=text)
    eagle = heads("eagle", steps=1, text=text)
    add = r"; add --start-partial to leave them out$"
    for options, message in (
        (
            fewer,
            r"has tensors without a place in this head: mask\.embedding \(\[3, 32\] instead of \[2, 32\]\), "
            r"mask\.feature \(\[3, 32\] instead of \[2, 32\]\)",
        ),
        (eagle, r"head: mask\.embedding, mask\.feature"),
    ):
        with pytest.raises(UsageError, match=message + add):
            train_head(replace(options, start=first))
        assert not options.out.exists(), "nothing is written"
    more = train_head(replace(eagle, start=first, start_partial=True, learning_rate=1e-8))
    begun = json.loads((more / "training.json").read_text())["begun_from"]
    assert (begun["left_out"], begun["random"]) == (["mask.embedding", "mask.feature"], [])
    copied, original = (read_head(folder).tensors for folder in (more, first))
    torch.testing.assert_close(copied["fc.weight"], original["fc.weight"], atol=1e-4, rtol=0.01)


def test_the_command_line_trains_a_head_for_a_pair_without_a_drafter(heads, capsys, tmp_path):
    options, alone = heads("medusa"), tmp_path / "alone"
    shutil.copytree(options.target, alone / "target")
    words = f"medusa --pair {alone} --data {options.data} --out {options.out} --threads 1 --size 2"
    words += " --steps 2 --batch 2 --sequence 16 --written 400 --answer 20 --device cpu"
    assert train(words) == 0
    assert f"wrote {options.out}" in capsys.readouterr().out
    config = read_head(options.out).config
    assert (config.heads, config.target) == (2, "alone")
    assert json.loads((options.out / "training.json").read_text())["target"] == "alone"
    assert len(read_text(options.out / "written.safetensors", options.target).repeats)


def test_the_command_line_takes_a_target_instead_of_a_pair(heads, capsys, monkeypatch):
    target, words = heads("medusa").target, "medusa --data data --out out --target"
    assert cli.find_target(parse(f"{words} {target}")) == (target, "target")
    resolve = "specscope.engine.checkpoints.sources.resolve"
    monkeypatch.setattr(resolve, lambda name, report: Path("cache", str(name)))
    assert cli.find_target(parse(f"{words} owner/name")) == (Path("cache/owner/name"), "owner/name")
    with pytest.raises(SystemExit, match="2"):
        parse(f"{words} smollm2 --pair bundled")
    assert "argument --pair: not allowed with argument --target" in capsys.readouterr().err
