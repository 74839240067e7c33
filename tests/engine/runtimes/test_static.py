"""Every method decides the same in static forwards as in eager ones."""

from __future__ import annotations

import pytest

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import UsageError
from specscope.engine.model import weights
from specscope.engine.types import Limits
from tests.engine.heads.random_heads import with_heads
from tests.engine.runtimes.test_contract import CONFIGS, PROMPT, WARM, facts

BATCH = ["Hello!", "Name a colour.", "Tell me a story about a fox who lost its hat."]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    """Return an eager and a static cluster; a product in int8 would round their q differently."""
    pair = with_heads(Pair.find("bundled"), tmp_path_factory.mktemp("pair") / "heads")
    options = {"runtime": "local-thread", "device": "cpu"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "PACKED_FROM", 1 << 40)
        with (
            specscope.open(pair, **options) as eager,
            specscope.open(pair, forward="static", **options) as static,
        ):
            yield eager, static


JOBS = (
    *("speculative", "ssd", "specbranch", "tree", "easyspec", "assisted", "lookahead"),
    *("medusa with typical acceptance", "hydra", "eagle", "eagle2", "parallelspec_eagle"),
)
"""Configurations that together have every kind of job of a worker."""


@pytest.mark.parametrize("name", JOBS)
def test_a_method_decides_the_same(name, clusters):
    method, limits = name.split()[0], Limits(5)
    eager, static = (
        cluster.run(method, PROMPT, config=CONFIGS[name], sampling=WARM, limits=limits)
        for cluster in clusters
    )
    assert facts(static) == facts(eager)
    assert static.text == eager.text
    assert static.header.environment["forward"] == "static"


@pytest.mark.parametrize("unpad", [True, False])
def test_a_batch_decides_the_same(unpad, clusters):
    config = {"unpad_inputs": unpad, "unpad_kv": unpad}
    eager, static = (cluster.run("ems", *BATCH, config=config, limits=Limits(8)) for cluster in clusters)
    assert facts(static) == facts(eager)
    assert static.footer.texts == eager.footer.texts


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"runtime": "virtual", "profile": "pearl-4xA100", "forward": "static"},
            "runtime virtual takes auto only",
        ),
        ({"forward": "fast"}, "no forward 'fast'; choose one of auto, eager, static"),
        ({"dtype": "int4"}, "no dtype 'int4'; choose one of auto, float32, bfloat16"),
    ],
)
def test_wrong_forwards_are_refused(given, message):
    with pytest.raises(UsageError, match=message):
        specscope.open("bundled", **given)
