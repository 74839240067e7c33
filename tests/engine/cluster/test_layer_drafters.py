"""Drafters made of a target's layers run like other drafters: every runtime, alone or several."""

from __future__ import annotations

import pytest
import torch

import engine
from engine.model.draft_vocabulary import DraftVocabulary
from engine.types import Limits, Sampling
from tests.engine.methods.pairs import make_pair
from tests.engine.pairs.layer_drafters import make_drafter
from tests.engine.toy import Table
from tests.engine.toy_joint import distance, joint, target_joint
from tests.engine.toy_methods import METHODS, method

PROMPT = list(range(20, 31))
RUNS = {
    "speculative": {"gamma": 3},
    "pearl": {"gamma": 3},
    "easyspec": {"size": 2, "width": 2, "gamma": 3},  # fuzzy groups of the drafter's layers
    "dsi": {"drafters": 2, "lookahead": 4, "sp": 1},  # both drafters, on a third device
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A tiny target and two drafters of its layers, one with a shortened vocabulary and a map."""
    folder = tmp_path_factory.mktemp("layers")
    target = make_pair(folder, "qwen3", "right")[0].target_path
    short = make_drafter(folder / "short", target, noise=0.02, layers=(0, 2), vocabulary=40, mapped=True)
    whole = make_drafter(folder / "whole", target, noise=0.02, layers=(0, 1, 2))
    return target, [short, whole]


@pytest.mark.parametrize(
    ("options", "methods", "count"),
    [
        ({"runtime": "local-thread"}, ("speculative", "pearl", "easyspec"), 2),
        ({"runtime": "local-process"}, ("speculative",), 1),
        ({"runtime": "virtual", "profile": "8xA100"}, ("easyspec", "dsi"), 2),
    ],
)
def test_every_runtime_gives_the_targets_greedy_text(models, options, methods, count):
    """Several drafters in processes are in `tests/engine/methods/test_dsi_drafters.py`."""
    target, drafters = models
    with engine.open(target=target, drafter=drafters[:count], device="cpu", **options) as cluster:
        expected = cluster.run("autoregressive", PROMPT, limits=Limits(20)).token_ids()
        for key in methods:
            trace = cluster.run(key, PROMPT, config=RUNS[key], limits=Limits(20))
            assert trace.token_ids() == expected, key
            assert any(decision.outcome == "accepted" for decision in trace.decisions), key


class Shortened(Table):
    """A drafter of some tokens only, with the LM head that real drafters have."""

    def __init__(self, seed: int, ids: list[int], vocabulary: int) -> None:
        super().__init__(seed, vocabulary)
        self._chosen = torch.tensor(ids)
        self._head = DraftVocabulary(lambda x: x[:, self._chosen], self._chosen, vocabulary)

    def __call__(self, context):
        return self._head(super().__call__(context)[None])[0]


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        ("speculative-2", Sampling(1.0)),
        ("pearl-2", Sampling(0.7, top_p=0.8)),
        ("tree-2x2", Sampling(1.5, top_k=2)),
    ],
)
def test_a_shortened_vocabulary_keeps_the_joint_distribution(name, sampling):
    key, config = METHODS[name]
    p = Table(5, 3 if name.startswith("tree") else 4)
    q = Shortened(6, [0, 2], len(p([0])))
    texts = joint(method(key, **config), p, q, sampling)
    assert distance(texts, target_joint(p, sampling)) < 1e-9
