"""Every method is lossless: at temperature 0 its text equals the target's own.

The reference is transformers' `generate` in float32. Above temperature 0 see
`test_lossless_bundled.py`, for sampled drafts `tests/engine/test_joint*.py`.
"""

from __future__ import annotations

import pytest

from engine.types import Limits
from tests.engine.methods.lossless import (
    FAMILIES,
    OTHER,
    RIGHT,
    WRONG,
    assert_same,
    generate,
    on,
    tiny_clusters,
)

LONG = list(range(20, 31))
"""A prompt longer than the sliding window."""
SHORT = {OTHER: (([5], 9), ([3, 9], 1), ([7, 8, 9], 2)), RIGHT: (([7, 8, 9], 2),)}
"""Short prompts and their numbers of tokens; a right draft is cut after two."""
LENGTHS = {OTHER: 20, RIGHT: 33, WRONG: 12}
"""Tokens after it; 33 are a draft of 32 and the target's own."""


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    with tiny_clusters(tmp_path_factory.mktemp("pairs")) as opened:
        yield opened


@on(*((family, "other") for family in FAMILIES), RIGHT, WRONG)
def test_text_of_tiny_models_of_every_family(clusters, pair, method, config):
    cluster, model = clusters(pair)
    for prompt, new in (*SHORT.get(pair, ()), (LONG, LENGTHS.get(pair, 18))):
        trace = cluster.run(method, prompt, config=config, limits=Limits(new))
        assert_same(model, prompt, trace.token_ids(), generate(model, prompt, new))
        fuzzy = {part.span for part in trace.parts}
        tested = [d for d in trace.decisions if d.node >= 0 and d.outcome != "discarded" and d.top_q]
        tested = [d for d in tested if d.draft_span not in fuzzy]
        best = {d.outcome for d in tested if d.token == d.top_q[0][0]}
        if pair in (RIGHT, WRONG) and tested:
            assert best == {"accepted" if pair == RIGHT else "rejected"}
