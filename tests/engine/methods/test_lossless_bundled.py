"""Every method is lossless on the bundled pair: its text equals the target's own.

At temperature 0 the reference is transformers' `generate` in float32; above it, for drafts that are
a function of the prefix, `autoregressive` with the same seed. For sampled drafts see
`tests/engine/test_joint*.py`. Further configs are in `test_lossless.py`.
"""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.types import Limits, Sampling
from tests.engine.heads.random_heads import with_heads
from tests.engine.methods.lossless import assert_same, generate, one_each, rule_2


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    pair = with_heads(Pair.find("bundled"), tmp_path_factory.mktemp("pairs") / "heads")
    model = AutoModelForCausalLM.from_pretrained(pair.target_path, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    with specscope.open(pair, runtime="local-thread", device="cpu") as cluster:
        yield cluster, model


@one_each
def test_text_of_the_bundled_pair(bundled, method, config):
    cluster, model = bundled
    prompt, new = "Tell me a story about a dragon.", 24
    ids = cluster.pair.encode(prompt)
    trace = cluster.run(method, prompt, config=config, limits=Limits(new))
    assert trace.header.prompt_ids == (tuple(ids),)
    expected = generate(model, ids, new, list(cluster.pair.eos))
    assert_same(model, ids, trace.token_ids(), expected)


WARM = Sampling(temperature=0.9, top_k=60, top_p=0.95, seed=11)


@pytest.fixture(scope="module")
def warm_text(bundled):
    return bundled[0].run("autoregressive", "Tell me a joke.", sampling=WARM, limits=Limits(20)).token_ids()


@rule_2()
def test_rule_2_gives_the_text_of_autoregressive_above_temperature_0(bundled, warm_text, method, config):
    cluster, _ = bundled
    trace = cluster.run(method, "Tell me a joke.", config=config, sampling=WARM, limits=Limits(20))
    assert trace.header.lossless
    assert {d.rule for d in trace.decisions} <= {"match", "target", ""}
    assert trace.token_ids() == warm_text


def test_a_seed_repeats_its_text_and_another_seed_differs(bundled):
    cluster, _ = bundled

    def text(seed):
        return cluster.run(
            "speculative", "Tell me a joke.", sampling=Sampling(1.0, seed=seed), limits=Limits(24)
        ).text

    assert text(1) == text(1)
    assert text(1) != text(2)
