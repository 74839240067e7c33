import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from specscope.engine.errors import ModelError
from specscope.engine.training.data import Corpus, Encoder, TokenStream, TrainingText, find_sources
from specscope.engine.training.loop import TrainingProgress, read_log
from specscope.engine.training.pair import new_model, train_pair
from specscope.engine.training.settings import PairOptions, Shape
from specscope.engine.training.step import learning_rate, losses, pick_device, plan
from tests.engine.training.tiny import refused, stories, write_source

Options = Callable[..., PairOptions]


def weights(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob("*/*.safetensors"))}


def test_the_pair_has_the_configured_shapes_and_files(trained):
    for role, shape in (("target", Shape(2, 32, 2, 64)), ("drafter", Shape(1, 16, 1, 32))):
        config = json.loads((trained / role / "config.json").read_text())
        wanted = {"max_position_embeddings": 128, "tie_word_embeddings": True, "dtype": "bfloat16"}
        assert wanted.items() <= config.items()
        tensors = load_file(trained / role / "model.safetensors")
        assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
        assert sum(t.numel() for t in tensors.values()) == shape.parameters(320)
        generation = json.loads((trained / role / "generation_config.json").read_text())
        assert (generation["eos_token_id"], generation["pad_token_id"]) == ([2, 3], 0)
    assert (trained / "target/tokenizer.json").read_text() == (trained / "drafter/tokenizer.json").read_text()
    suffixes = {p.suffix for p in trained.rglob("*") if p.is_file()}
    assert suffixes == {".safetensors", ".json", ".jsonl", ".jinja"}, "nothing is pickled"
    checkpoints = {p.name for p in (trained / "checkpoints").iterdir()}
    assert checkpoints == {"1-0000016.safetensors", "state.json"}, "one is left"


@pytest.mark.parametrize("stopped", ["before the first checkpoint", "after one"])
def test_a_killed_training_resumes_from_its_checkpoint(options, tmp_path, trained, stopped):
    at = ("target", 17) if stopped == "after one" else ("text", 0)

    def die(progress):
        if progress.phase == at[0] and progress.step >= at[1]:
            raise KeyboardInterrupt

    settings = options(out=tmp_path / "pair")
    with pytest.raises(KeyboardInterrupt):
        train_pair(settings, progress=die)
    checkpoints, first = settings.out / "checkpoints", 1
    if stopped == "after one":
        assert len(read_log(settings.out / "loss.jsonl")) == 17
        (checkpoints / "0-0000017.safetensors.part").touch()  # of a checkpoint in the making
        first = 11  # the checkpoint was step 10
    reports = list[TrainingProgress]()
    train_pair(settings, progress=reports.append, resume=True)
    assert [p.step for p in reports if p.phase == "target"] == list(range(first, 25))
    assert weights(settings.out) == weights(trained)
    assert len([*checkpoints.iterdir()]) == 2, "the last tensors and their state"
    assert (settings.out / "loss.jsonl").read_text() == (trained / "loss.jsonl").read_text()


def test_the_drafter_is_distilled_from_the_saved_target(options, tmp_path):
    settings = options(out=tmp_path / "pair", steps=3, drafter_steps=1)
    out = train_pair(settings)
    first = read_log(out / "loss.jsonl")[-1]
    sources = find_sources(settings.data)
    encode = Encoder(AutoTokenizer.from_pretrained(out / "target"))
    text = TrainingText(sources, dict.fromkeys(sources, 1), settings.held_out)
    stream = TokenStream(Corpus.read(text, encode), settings.seed)
    inputs, labels = map(torch.from_numpy, stream.batch(3 * 4 * 32, 4, 32))
    target = AutoModelForCausalLM.from_pretrained(out / "target", dtype=torch.float32).eval()
    with torch.no_grad():
        log_p = target(input_ids=inputs).logits.log_softmax(-1)
        log_q = new_model(settings.drafter, 320, 128, seed=0)(input_ids=inputs).logits.log_softmax(-1)
    assert first["loss"] == pytest.approx((log_p.exp() * (log_p - log_q)).sum(-1).mean().item(), rel=1e-4)
    assert first["tokens"] == pytest.approx(-log_q.gather(-1, labels[..., None]).mean().item(), rel=1e-5)


def test_token_loss_weighs_cross_entropy_and_divergence():
    model, teacher = (new_model(Shape(1, 16, 1, 32), 64, 32, seed=seed) for seed in (0, 1))
    inputs = torch.arange(32).reshape(2, 16)
    step = losses(model, teacher, inputs, inputs + 1, 0.25)
    assert step.divergence is not None
    assert step.total.item() == pytest.approx(0.25 * step.tokens + 0.75 * step.divergence, rel=1e-5)


def test_the_plan_of_a_training():
    """The learning rate rises, stays and falls; the phases follow each other in the stream."""
    options = PairOptions(Path(), Path(), steps=100, warmup=9, decay=0.5, learning_rate=1.0)
    phase = plan(options)[0]
    rates = [learning_rate(phase, step, options) for step in range(100)]
    assert rates[:10] == pytest.approx(np.arange(1, 11) / 10)
    assert rates[10:50] == [1.0] * 40
    assert rates[50:] == pytest.approx(np.arange(50, 0, -1) / 50)
    options = PairOptions(Path(), Path(), steps=10, drafter_steps=5, long_steps=2, batch=18, sequence=256)
    assert [(p.name, p.rows, p.length, p.position) for p in plan(options)] == [
        ("target", 18, 256, 0),
        ("target-long", 2, 2304, 46080),
        ("drafter", 18, 256, 55296),
        ("drafter-long", 2, 2304, 78336),
    ]


@pytest.mark.parametrize("text", ["8x320x5", "axbxcxd", "8x320x7x864", "0x320x5x864", "8x320x0x864", ""])
def test_a_wrong_shape_is_refused(text):
    refused(lambda: Shape.parse(text), "(shape|hidden|layers|heads) is ")
    assert Shape.parse(str(Shape(4, 192, 6, 512))) == Shape(4, 192, 6, 512)


def test_a_training_that_cannot_start_or_go_on_is_refused(options, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    write_source(tmp_path / "other", "stories", stories())
    out = tmp_path / "pair"
    for changed, resume, message in (
        ({"out": trained}, False, rf".*{trained} is not empty; .*--resume"),
        ({"out": tmp_path}, True, r".*holds no training to resume"),
        (
            {"out": trained, "steps": 30, "seed": 7},
            True,
            r".*has seed 0, not 7; steps 24, not 30: use the same settings",
        ),
        (
            {"out": trained, "data": tmp_path / "other"},
            True,
            r".*the training to resume had \d+: give it the same text",
        ),
        (
            {"out": out, "device": "cuda"},
            False,
            r"device is cuda, but torch finds no CUDA device; use cpu or",
        ),
        ({"out": out, "data": tmp_path / "nowhere"}, False, ".*nowhere is not a folder"),
    ):
        refused(lambda c=changed, r=resume: train_pair(options(**c), resume=r), message)
    assert not out.exists(), "nothing is written before a refusal"
    assert pick_device("auto") == torch.device("cpu")


@pytest.mark.parametrize("broken", ["state.json", "1-0000003.safetensors"])
def test_a_broken_checkpoint_is_refused_by_name(options, tmp_path, broken):
    settings = options(out=tmp_path / "pair", steps=1, drafter_steps=3)
    train_pair(settings)
    path = settings.out / "checkpoints" / broken
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ModelError, match=broken) as error:
        train_pair(settings, resume=True)
    assert "\n" not in str(error.value)
