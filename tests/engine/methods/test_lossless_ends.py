"""A text that ends inside a draft, at EOS or a stop string, equals the target's own."""

from __future__ import annotations

import pytest

from engine.types import Limits
from tests.engine.methods.lossless import OTHER, RIGHT, WRONG, assert_same, generate, on, tiny_clusters


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    with tiny_clusters(tmp_path_factory.mktemp("pairs")) as opened:
        yield opened


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
    """Return the target's text of the prompt without stop strings."""
    cluster, _ = clusters(OTHER)
    return cluster.run("autoregressive", STOPPED, limits=Limits(12)).text


@on(OTHER, RIGHT, WRONG)
def test_a_stop_string_inside_a_draft_is_cut(clusters, unlimited, pair, method, config):
    cluster, _ = clusters(pair)
    stops = (unlimited[:1], unlimited[4:9], "absent") if pair == OTHER else (unlimited[4:9],)
    for stop in stops:
        trace = cluster.run(method, STOPPED, config=config, limits=Limits(12, stop=(stop,)))
        assert trace.text == unlimited.partition(stop)[0]
        assert "".join(c.text for c in trace.commits) == trace.text
        assert trace.footer.reasons == (("stop",) if stop in unlimited else ("length",))
