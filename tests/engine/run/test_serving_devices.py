"""Under load with a drafter on several devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import specscope
from specscope import Load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.types import Limits, Sampling
from tests.engine.methods.pairs import make_pair
from tests.engine.model import tiny
from tests.engine.run.test_serving import alone

PROMPTS = [tuple(range(7 + 5 * i, 7 + 5 * i + n)) for i, n in enumerate((9, 1, 20))]
LOAD = Load((0.0, 0.0, 0.001), batch=2, chunk=6)
LIMITS = Limits(10)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Models of 5 layers: groups of the layers 0, 1 and 2, 3, 4."""
    folder: Path = tmp_path_factory.mktemp("devices")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny._SIZES, "num_hidden_layers", 5)
        return make_pair(folder, "qwen3", "other")[0]


@pytest.mark.parametrize("config", [{"size": 2}, {"size": 2, "width": 2, "calibrate": False}], ids=str)
@pytest.mark.parametrize(
    "options", [{"runtime": "virtual", "profile": "8xA100"}, {"runtime": "local-thread"}]
)
def test_the_layers_of_easyspecs_drafter_are_shared(
    pair: Pair, options: dict[str, Any], config: dict[str, Any]
) -> None:
    config = {"gamma": 3, "devices": 2, **config}
    with specscope.open(pair, device="cpu", **options) as cluster:
        for warm in (Sampling(), Sampling(temperature=0.9, seed=4)):
            trace = cluster.run("easyspec", *PROMPTS, config=config, sampling=warm, limits=LIMITS, load=LOAD)
            assert {"draft", "verify"} <= {s.kind for s in trace.spans if s.sequence == -1}
            drafting = {s.device for s in trace.spans if s.model == "drafter"}
            assert len(drafting) == 2
            for i, prompt in enumerate(PROMPTS):
                text, _ = alone(cluster, "easyspec", i, prompt, config=config, sampling=warm)
                assert trace.token_ids(i) == text
