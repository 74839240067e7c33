"""Configs of every method and what the tests of lossless methods share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch

import specscope
from specscope.engine.methods import METHODS
from tests.engine.heads.random_heads import with_heads
from tests.engine.methods.pairs import DRAFTERS, make_pair

CONFIGS = {
    "speculative": [
        {"gamma": 1},
        {"gamma": 5},
        {"gamma": 4, "schedule": "threshold"},
        {"gamma": 4, "schedule": "average", "off_below": 0.2},
    ],
    "llma": [{}, {"match": 1, "copy": 12}, {"match": 1, "reference": "once upon a time, the fox!"}],
    "prompt_lookup": [{}, {"ngram": 1, "copy": 3, "which": "latest"}],
    "suffix": [{}, {"depth": 64, "factor": 3.0, "least": 0.0}, {"depth": 2, "offset": 1.0, "finished": 0}],
    "hybrid": [
        {},
        {"gamma": 1, "offset": 2.0, "least": 0.0},
        {"weigh": "seconds", "c": 2.0},
    ],
    "assisted": [
        {},
        {"start": 1, "confidence": 0.0},
        {"start": 9, "confidence": 0.9, "drafts": "greedy"},
        {"schedule": "constant"},
    ],
    "lookahead": [{}, {"level": 2, "window": 3, "guesses": 2}, {"level": 8, "window": 20, "guesses": 12}],
    "ouroboros": [
        {},
        {"gamma": 12, "level": 7, "window": 20, "guesses": 20},
        {"gamma": 1, "level": 2, "phrases": 8, "window": 2},
        {"phrases": 0},
    ],
    "dsi": [{}, {"lookahead": 64, "sp": 1}, {"acceptance": "rejection"}, {"drafts": "sampled"}],
    "ssd": [
        {"gamma": 3},
        {"gamma": 4, "forks": 2, "backup": "none"},
        {"gamma": 5, "fanout": "geometric", "forks": 2, "saguaro": 0.3},
        {"fanout": "[1,2,4]", "drafts": "greedy"},
        {"gamma": 4, "forks": 2, "schedule": "threshold"},
        {"gamma": 4, "forks": 2, "schedule": "average", "off_below": 0.2},
    ],
    "ems": [
        {},
        {"base": "speculative"},
        {"base": "speculative", "width": 3},
        {"match": 1, "unpad_inputs": False, "unpad_kv": False},
    ],
    "tree": [{}, {"width": 1, "depth": 4}, {"width": 12, "depth": 5}, {"width": 3, "drafts": "greedy"}],
    "easyspec": [
        {"size": 2, "calibrate": False},
        {"size": 1},
        {"size": 3, "width": 4, "gamma": 3},
        {"size": 3, "width": 3, "drafts": "greedy", "devices": 1},
    ],
    "medusa": [{}, {"tree": "eagle", "heads": 2}, {"acceptance": "typical"}],
    "hydra": [{}],
    "eagle": [{}, {"tree": "medusa", "drafts": "greedy"}],
    "eagle2": [{}, {"top": 2, "depth": 8, "total": 9}],
    "parallelspec_medusa": [{}, {"masks": 1}, {"first": "mask"}],
    "parallelspec_eagle": [{}, {"masks": 2, "drafts": "greedy"}],
    "specbranch": [
        {"gamma": 4, "length": 4, "threshold": 0.5},
        {"gamma": 2, "length": 6, "threshold": 0.9, "branches": 8, "drafts": "greedy"},
        {"gamma": 3, "length": 1, "branches": 1, "threshold": 0.0, "placement": "co-located"},
        {},
    ],
    "pearl": [
        {"gamma": 1},
        {"gamma": 4},
        {"gamma": 3, "guesses": 4, "placement": "co-located"},
        {"gamma": 3, "placement": "pipeline"},
        {"gamma": 4, "placement": "pipeline", "post_verify": False},
        {"gamma": 4, "schedule": "threshold"},
        {"gamma": 4, "schedule": "average", "off_below": 0.2},
        {"gamma": 4, "schedule": "threshold", "placement": "pipeline"},
        {"gamma": 3, "pre_verify": False},
        {"gamma": 3, "post_verify": False},
        {"gamma": 3, "pre_verify": False, "post_verify": False},
    ],
}
"""Configs of each method; other methods run with their defaults."""
CASES = [(key, config) for key in METHODS for config in CONFIGS.get(key, [{}])]
TWO_EACH = [(key, config) for key in METHODS for config in CONFIGS.get(key, [{}])[:2]]
ONE_EACH = [(key, CONFIGS.get(key, [{}])[0]) for key in METHODS]
FAMILIES = ("llama3-rope", "mistral-window", "qwen2", "qwen3")
one_each = pytest.mark.parametrize(("method", "config"), ONE_EACH, ids=str)


def rule_2() -> pytest.MarkDecorator:
    """Run a test on the first config of each method that rule 2 judges above temperature 0.

    Its drafts are greedy. Further configs are in `tests/engine/test_joint.py`.
    """
    always_sampled = {"acceptance": "rejection"}, {"base": "speculative"}
    cases = dict[str, dict[str, object]]()
    for method, config in TWO_EACH:
        drafts = next((s.choices for s in METHODS[method].settings() if s.name == "drafts"), ())
        if "greedy" in drafts:
            cases.setdefault(method, {**config, "drafts": "greedy"})
        elif method != "pearl" and not any(choice.items() <= config.items() for choice in always_sampled):
            cases.setdefault(method, config)
    return pytest.mark.parametrize(("method", "config"), cases.items(), ids=str)


def runs_a_drafter(method: str, config: dict[str, object]) -> bool:
    """Return whether a model drafts: neither copies nor a drafting head."""
    registered = METHODS[method]
    return "drafter" in registered.uses and not registered.layout(registered.configure(config)).head


def on(*pairs: tuple[str, str]) -> pytest.MarkDecorator:
    """Run a test on pairs: on the first pair all cases, on the others those that may differ there.

    Another drafter matters to cases that run a drafter. A sliding window may end inside a draft and
    has two configs of each method. Another family has one config of each: chains and trees of every
    family are compared with transformers in `tests/engine/model/test_decoder.py`.
    """
    cases = [
        (pair, method, config)
        for pair in pairs
        for method, config in CASES
        if pair == OTHER
        or (pair[0] == FAMILIES[0] and runs_a_drafter(method, config))
        or (pair[0] != FAMILIES[0] and (method, config) in (TWO_EACH if "window" in pair[0] else ONE_EACH))
    ]
    return pytest.mark.parametrize(("pair", "method", "config"), cases, ids=str)


OTHER, RIGHT, WRONG = ((FAMILIES[0], drafter) for drafter in DRAFTERS)
_generated: dict[tuple[object, ...], list[int]] = {}


def generate(model, prompt: list[int], new: int, eos: int | list[int] | None = None) -> list[int]:
    """Return the token ids that transformers generates at temperature 0."""
    key = (model, tuple(prompt), new, str(eos))  # not id(model), which may be reused
    if key not in _generated:
        _generated[key] = _generate(model, prompt, new, eos)
    return _generated[key]


def _generate(model, prompt: list[int], new: int, eos: int | list[int] | None) -> list[int]:
    config = copy.deepcopy(model.generation_config)
    config.update(max_new_tokens=new, do_sample=False, eos_token_id=eos, pad_token_id=0)
    out = model.generate(
        torch.tensor([prompt]), generation_config=config, attention_mask=torch.ones(1, len(prompt))
    )
    return out[0, len(prompt) :].tolist()


def assert_same(model, prompt: list[int], mine: list[int], theirs: list[int]) -> None:
    """Check that two texts are equal, or differ first where the target's best logits tie."""
    if mine == theirs:
        return
    n = next(
        (i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), min(len(mine), len(theirs))
    )
    exact = copy.deepcopy(model).double()
    top = exact(torch.tensor([prompt + theirs[:n]])).logits[0, -1].topk(2).values
    gap = float(top[0] - top[1])
    assert gap < 1e-4, (
        f"differs at token {n} ({mine[n : n + 3]} against {theirs[n : n + 3]}), top-2 gap {gap:.2e}"
    )


@contextmanager
def tiny_clusters(
    folder: Path,
) -> Generator[Callable[[tuple[str, str]], tuple[specscope.Cluster, torch.nn.Module]]]:
    """(family, drafter) -> a cluster with heads and its target, opened at first use."""
    with ExitStack() as opened:

        @cache
        def cluster(pair: tuple[str, str]) -> tuple[specscope.Cluster, torch.nn.Module]:
            tiny, model = make_pair(folder, *pair)
            tiny = with_heads(tiny, folder / f"heads-{pair[0]}")
            return opened.enter_context(specscope.open(tiny, runtime="local-thread", device="cpu")), model

        yield cluster
