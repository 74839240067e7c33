from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specscope.engine.training.heads.train import train_head
from specscope.engine.training.pair import train_pair
from specscope.engine.training.settings import HEAD_DEFAULTS, DistilOptions, HeadOptions, PairOptions, Shape
from tests.engine.training.tiny import HEAD, chats, stories, write_source


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder with the sources `stories` and `chats`, 36 documents each."""
    folder = tmp_path_factory.mktemp("corpus")
    write_source(folder, "stories", stories())
    write_source(folder, "chats", chats())
    return folder


@pytest.fixture(scope="session")
def options(corpus):
    """Settings of a training that takes a second."""
    place = {"data": corpus, "out": Path("unset"), "device": "cpu", "precision": "fp32", "held_out": 0.1}
    sizes = {"steps": 24, "drafter_steps": 16, "batch": 4, "sequence": 32, "context": 128, "vocabulary": 320}
    shapes = {"target": Shape(2, 32, 2, 64), "drafter": Shape(1, 16, 1, 32)}
    base = PairOptions(**place, **sizes, **shapes, learning_rate=1e-2, warmup=2, checkpoint_every=10)
    return lambda **changed: replace(base, **changed)


@pytest.fixture(scope="session")
def trained(options, tmp_path_factory):
    """A pair that was trained without a break."""
    torch.set_num_threads(1)
    return train_pair(options(out=tmp_path_factory.mktemp("trained") / "pair"))


@pytest.fixture
def distil(corpus, trained, tmp_path):
    """Settings of a training of a second, from the toy pair."""
    place = {"data": corpus, "out": tmp_path / "out", "pair": trained, "device": "cpu", "precision": "fp32"}
    sizes = {"batch": 4, "sequence": 32, "steps": 12, "feed_forward": 24, "written": 600, "answer": 40}
    rates = {"warmup": 2, "learning_rate": 1e-2, "held_out": 0.1, "checkpoint_every": 5}
    return lambda **changed: replace(DistilOptions(**place, **sizes, **rates), **changed)


@pytest.fixture
def heads(corpus, trained, tmp_path):
    """Settings of a head's training for the toy pair's target that takes a second."""

    def of(kind="eagle", **changed):
        target = {"data": corpus, "target": trained / "target", "target_name": trained.name}
        sizes = {"size": 3, "steps": 12, "checkpoint_every": 5, "precision": "fp32"}
        known = kind if kind in HEAD_DEFAULTS else "eagle"
        base = HeadOptions.of(known, out=tmp_path / kind, **target, **sizes, **HEAD)
        return replace(base, kind=kind, **changed)

    return of


@pytest.fixture(scope="session")
def text(corpus, trained, tmp_path_factory):
    """Return the target's text, with its features beside it."""
    out = tmp_path_factory.mktemp("text") / "head"
    options = HeadOptions.of("medusa", data=corpus, out=out, target=trained / "target", steps=1, **HEAD)
    return train_head(options) / "written.safetensors"
