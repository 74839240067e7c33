"""The figures of docs/tutorial.md are those of its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import specscope
from specscope.traces.metrics import Metrics, measure
from specscope.traces.whatif.replay import Change, what_if

TEXT = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
PROMPT = "Tell me a story about a lighthouse keeper who is afraid of the dark."


@pytest.fixture(scope="module")
def runs():
    wanted = (("autoregressive", {}), ("speculative", {}), ("pearl", {}), ("speculative", {"gamma": 3}))
    with specscope.open(runtime="virtual", profile="pearl-3xA100") as cluster:
        return [cluster.run(method, PROMPT, config=config) for method, config in wanted]


def faster(metrics: Metrics, plain: Metrics) -> str:
    assert metrics.tokens_per_second
    assert plain.tokens_per_second
    return f"{metrics.tokens_per_second / plain.tokens_per_second:.2f}×"


def test_the_shares_and_speed_ups_are_those_of_the_runs(runs):
    plain, speculative, pearl, short = map(measure, runs)
    assert len({trace.text for trace in runs}) == 1
    assert PROMPT in TEXT
    assert f"the same {plain.tokens}\n" in TEXT
    for name, metrics in (("Speculative decoding, gamma 5", speculative), ("PEARL, gamma 3", pearl)):
        shares = " | ".join(f"{100 * metrics.waiting[key]:.0f} %" for key in ("both", "draft", "target"))
        assert f"| {name} | {faster(metrics, plain)} | {shares} |" in TEXT
    assert (
        f"again: {faster(short, plain)}. The target now waits for {short.waiting['draft']:.0%}".replace(
            "%", " %"
        )
        in TEXT
    )


def test_the_rejected_token_and_the_what_if_are_those_of_the_runs(runs):
    rejected = next(d for d in runs[1].decisions if d.outcome == "rejected")
    assert f"p = {rejected.p:.3f} and q = {rejected.q:.3f}" in " ".join(TEXT.split())
    result = what_if(runs[2], Change(config={"gamma": 6}))
    assert f"*Replay*: {faster(measure(result.replay), measure(result.plain))}." in TEXT
