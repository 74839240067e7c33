"""Every method is lossless: at temperature 0 its text equals the target's own.

The reference is transformers' `generate` in float32. Above it, drafts that are a function of the
prefix give the text of `autoregressive`; for sampled drafts see `tests/engine/test_joint*.py`.
"""

from __future__ import annotations

import pytest

from specscope.engine.types import Limits, Sampling
from tests.engine.methods.lossless import (
    FAMILIES,
    ONE_EACH,
    OTHER,
    RIGHT,
    WRONG,
    assert_same,
    generate,
    on,
    opened_clusters,
    rule_2,
)

LONG = list(range(20, 31))
"""A prompt longer than the sliding window."""
SHORT = {OTHER: (([5], 9), ([3, 9], 1), ([7, 8, 9], 2)), RIGHT: (([7, 8, 9], 2),)}
"""Short prompts and their numbers of tokens; a right draft is cut after two."""
LENGTHS = {OTHER: 20, RIGHT: 33, WRONG: 12}
"""Tokens after it; 33 are a draft of 32 and the target's own."""
WARM = Sampling(temperature=0.9, top_k=60, top_p=0.95, seed=11)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    with opened_clusters(tmp_path_factory.mktemp("pairs")) as opened:
        yield opened


@on(*((family, "other") for family in FAMILIES), RIGHT, WRONG)
def test_the_text_is_the_targets_with_models_of_every_family(clusters, pair, method, config):
    cluster, model = clusters(pair)
    short = SHORT.get(pair, ()) if (method, config) in ONE_EACH else ()
    for prompt, new in (*short, (LONG, LENGTHS.get(pair, 18))):
        trace = cluster.run(method, prompt, config=config, limits=Limits(new))
        expected = generate(model, prompt, new, list(cluster.pair.eos) or None)
        assert_same(model, prompt, trace.token_ids(), expected)
        assert trace.header.lossless, "also with typical acceptance"
        nodes = [d for d in trace.decisions if d.node >= 0]
        assert all(d.position < len(prompt) + new for d in nodes), "no draft reaches beyond the output"
        fuzzy = {part.span for part in trace.parts}
        judged = [d for d in nodes if d.outcome != "discarded" and d.top_q]
        tested = [d for d in judged if d.draft_span not in fuzzy]
        best = {d.outcome for d in tested if d.token == d.top_q[0][0]}
        if pair in (RIGHT, WRONG) and tested:
            assert best == {"accepted" if pair == RIGHT else "rejected"}


@pytest.fixture(scope="module")
def warm_text(clusters):
    return clusters(OTHER)[0].run("autoregressive", LONG, sampling=WARM, limits=Limits(20)).token_ids()


@rule_2()
def test_rule_2_gives_the_text_of_autoregressive_above_temperature_0(clusters, warm_text, method, config):
    cluster, _ = clusters(OTHER)
    trace = cluster.run(method, LONG, config=config, sampling=WARM, limits=Limits(20))
    assert trace.header.lossless
    assert {d.rule for d in trace.decisions} <= {"match", "target", ""}
    assert trace.token_ids() == warm_text


# A text that ends inside a draft, at EOS or a stop string.


@on(OTHER, RIGHT, WRONG)
def test_eos_inside_a_draft_ends_the_text(clusters, pair, method, config):
    cluster, model = clusters(pair)
    prompt = list(range(40, 45))
    unlimited = generate(model, prompt, 24)
    last = (4,) if pair == WRONG else (0, 2, 4)  # without accepted tokens all ends are alike
    for eos in (list(dict.fromkeys(unlimited))[i] for i in last):
        trace = cluster.run(method, prompt, config=config, limits=Limits(24, eos=(eos,)))
        assert_same(model, prompt, trace.token_ids(), generate(model, prompt, 24, eos))
        assert trace.token_ids()[-1] == eos
        assert trace.footer.reasons == ("eos",)
        printable = [token for token in trace.token_ids()[:-1] if 0 < token < 96]
        assert trace.text == "".join(chr(33 + token) for token in printable)


STOPPED = [50, 51, 52]


@pytest.fixture(scope="module")
def unlimited(clusters):
    return clusters(OTHER)[0].run("autoregressive", STOPPED, limits=Limits(12)).text


@on(OTHER, RIGHT, WRONG)
def test_a_stop_string_inside_a_draft_is_cut(clusters, unlimited, pair, method, config):
    cluster, _ = clusters(pair)
    stops = (unlimited[:1], unlimited[4:9], "absent") if pair == OTHER else (unlimited[4:9],)
    for stop in stops:
        trace = cluster.run(method, STOPPED, config=config, limits=Limits(12, stop=(stop,)))
        assert trace.text == unlimited.partition(stop)[0]
        assert "".join(c.text for c in trace.commits) == trace.text
        assert trace.footer.reasons == (("stop",) if stop in unlimited else ("length",))
