"""What trainings of pairs, of smaller drafters and of heads have in common: resuming, refusals."""

from pathlib import Path

import pytest

from specscope.engine.errors import RunCancelled
from specscope.engine.training.heads.train import train_head
from specscope.engine.training.loop import TrainingProgress
from specscope.engine.training.pair import distil_drafter, train_pair
from specscope.engine.training.settings import Shape
from tests.engine.training.tiny import refused, stop_after

TRAIN = {"pair": train_pair, "distil": distil_drafter, "head": train_head}


@pytest.fixture
def made(options, distil, heads, tmp_path):
    """A function that returns the settings of a training."""

    def settings(training, **changed):
        match training:
            case "pair":
                return options(**{"out": tmp_path / "out", **changed})
            case "distil":
                return distil(**changed)
            case _:
                return heads(**{"kind": "parallelspec_eagle", **changed})

    return settings


SHORT = {"steps": 4, "drafter_steps": 4, "long_steps": 2, "token_loss": 0.3}
PHASES = (("target", 2), ("target-long", 1), ("drafter", 4), ("drafter-long", 1))
RESUMED = {
    "a pair, muon": ("pair", {**SHORT, "optimizer": "muon"}, PHASES),
    "a pair, adamw": ("pair", {**SHORT, "optimizer": "adamw"}, PHASES),
    "a drafter": ("distil", {}, (("written", 128), ("distil", 3), ("distil", 9), ("distil", 12))),
    "a head": ("head", {}, (("written", 128), ("features", 64), ("parallelspec_eagle", 3))),
}
"""A training -> its settings, and the phases and steps in which it is stopped."""


@pytest.mark.parametrize(("training", "changed", "stops"), RESUMED.values(), ids=RESUMED)
def test_resumed_training_ends_with_the_same_bits(training, changed, stops, made, tmp_path):
    train, reports = TRAIN[training], list[TrainingProgress]()
    straight, parts = (made(training, **changed, out=tmp_path / name) for name in ("straight", "parts"))
    train(straight)
    for resume, (phase, step) in enumerate(stops):
        listen, cancel = stop_after(step, phase)
        with pytest.raises(RunCancelled, match=r"^stopped .*--resume"):
            train(parts, progress=listen, cancel=cancel, resume=resume > 0)
    train(parts, progress=reports.append, resume=True)
    if training == "distil":
        assert not {p.phase for p in reports} & {"written", "distil"}, "both were finished"
    whole = {p.relative_to(straight.out) for p in straight.out.rglob("*") if p.is_file()}
    files = {p for p in whole if p.suffix in (".safetensors", ".jsonl") or "features" in str(p)}
    assert len(files) >= 4
    for file in files:
        assert (parts.out / file).read_bytes() == (straight.out / file).read_bytes(), file


@pytest.mark.parametrize(
    ("training", "changed", "message"),
    [
        ("pair", {"steps": 0}, "steps is 0; it must be at least 1"),
        ("pair", {"steps": 1.5}, "steps is 1.5; it must be a whole number"),
        ("pair", {"sequence": 4096}, "sequence is 4096; it must be at most the context of 128"),
        ("pair", {"vocabulary": 100}, "vocabulary is 100; it must be at least 270"),
        ("pair", {"learning_rate": float("nan")}, "learning_rate is nan"),
        ("pair", {"token_loss": 1.5}, "token_loss is 1.5; it must be at least 0 and at most 1"),
        ("pair", {"optimizer": "sgd"}, "optimizer is 'sgd'; choose one of muon, adamw"),
        ("pair", {"accumulate": 3}, "accumulate is 3; it must divide the batch of 4"),
        ("pair", {"precision": "fp16"}, "precision is 'fp16'; choose one of auto, fp32, bf16"),
        ("pair", {"device": "tpu"}, "device is 'tpu'; choose one of auto, cpu, cuda"),
        (
            "pair",
            {"target": Shape(24, 320, 5, 864)},
            "target 24x320x5x864 has .* parameters; at most 12000000",
        ),
        ("distil", {"share": 1.5}, "share is 1.5; it must be at least 0 and at most 1"),
        ("distil", {"written": 0}, "written is 0; it must be at least 1"),
        ("distil", {"feed_forward": 33}, "feed_forward is 33; it must be at most the 32 of the drafter"),
        ("distil", {"feed_forward": -1}, "feed_forward is -1; it must be at least 0"),
        (
            "distil",
            {"sequence": 129},
            "sequence is 129; it must be at most 128: the pair knows 128 positions",
        ),
        (
            "distil",
            {"pair": Path("nowhere")},
            "pair is nowhere; it must be a folder with target and drafter in",
        ),
        ("head", {"size": 65}, "size is 65; it must be at least 0 and at most 64"),
        ("head", {"kind": "eagle", "size": 0}, "size is 0; it must be at least 1 and at most 64"),
        ("head", {"anchors": 0.0}, "anchors is 0; it must be at least 0.001 and at most 1"),
        ("head", {"fade": 1.5}, "fade is 1.5; it must be at least 0.001 and at most 1"),
        ("head", {"kind": "medusas"}, "kind is 'medusas'; choose one of medusa, hydra, eagle,"),
        ("head", {"vocabulary": 321}, "vocabulary is 321; it must be at least 0 and at most 320"),
        ("head", {"answer": 128}, "answer is 128; it must be at most 127: the target knows 128 positions"),
        ("head", {"data": Path("nowhere")}, "nowhere is not a folder; --data takes one with txt.xz files"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_written(training, changed, message, made):
    refused(lambda: TRAIN[training](made(training, **changed)), message)
    assert not made(training).out.exists()
