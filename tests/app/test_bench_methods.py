"""The bench of all methods of a pair. Times are not tested."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from specscope.app.bench.figures import Bar, Measurement
from specscope.app.bench.methods import COPYING, MethodRaces, figures
from specscope.app.bench.speed import SpeedRace
from specscope.engine.errors import UsageError
from specscope.engine.trace.trace import Trace
from specscope.traces.facts.waiting import decode_window
from tests.app.commands import run_bench
from tests.traces.samples import sample_trace

BASE = "autoregressive"


def test_a_comparison_of_different_tokens_meets_no_bar():
    for bar in (Bar(at_least=1.4), Bar(at_most=1.4)):
        assert [bar.met(Measurement((1.4,), "", valid=valid)) for valid in (True, False)] == [True, False]


def _race(seconds: dict[str, float], ids=(5, 6)) -> SpeedRace:
    """Return a race of one round in which each method takes its time for one prompt."""
    now = [0.0]

    def generate(name, _):
        now[0] += seconds[name]
        return ids

    contestants = {name: partial(generate, name) for name in seconds}
    return SpeedRace(contestants, [(1,)], clock=lambda: now[0]).run(1, 1e9)


def _comparison(races: dict[str, SpeedRace], expected=(5, 6)) -> MethodRaces:
    keys = next(iter(races.values())).seconds
    traces = {key: {category: [sample_trace()] for category in races} for key in keys}
    return MethodRaces(races, traces, {category: [list(expected)] for category in races})


def test_the_overall_ratio_is_all_tokens_over_all_seconds_of_equal_texts():
    races = {
        "chat": _race({BASE: 4.0, "speculative": 2.0}),
        COPYING: _race({BASE: 8.0, "speculative": 8.0}),
    }
    comparison = _comparison(races)
    assert comparison.overall("speculative").values == (pytest.approx(12 / 10),)
    assert comparison.on("speculative", "chat").values == (2.0,)
    assert comparison.overall("speculative").detail["categories"]["chat"]["median"] == 2.0
    assert comparison.overall("speculative").valid
    comparison = _comparison({"chat": _race({BASE: 4.0, "llma": 2.0})}, expected=(5, 7))
    assert not comparison.overall("llma").valid
    assert not comparison.on("llma", "chat").valid


def test_prefill_can_be_left_out():
    decode_seconds = {BASE: (8.0, 6.0), "pearl": (2.0, 3.0)}
    race = _race({BASE: 20.0, "pearl": 19.0})
    for rounds in (*race.seconds.values(), *race.tokens.values()):
        rounds.append(rounds[0])
    traces = {key: {"chat": [_decoded(seconds) for seconds in each]} for key, each in decode_seconds.items()}
    comparison = MethodRaces({"chat": race}, traces, {"chat": [[5, 6]]})
    assert comparison.after_prefill("pearl").values == pytest.approx((4, 2))
    result = figures(comparison)
    assert result["pearl_over_autoregressive_after_prefill"].median == pytest.approx(3)
    assert result["pearl_over_autoregressive"].median == pytest.approx(20 / 19)
    assert not replace(comparison, expected={"chat": [[5, 7]]}).after_prefill("pearl").valid


def _decoded(seconds: float) -> Trace:
    """Return a trace of four tokens; the last one is written `seconds` after prefill."""
    trace = sample_trace(tokens=4)
    start, _ = decode_window(trace)
    commits = [replace(c, time=start + int(seconds * 1e9)) for c in trace.commits]
    return replace(trace, commits=commits)


def test_the_best_head_and_the_best_copier_have_figures_of_their_own():
    times = {BASE: 8.0, "eagle": 8.0, "medusa": 4.0, "llma": 4.0, "prompt_lookup": 8.0, "speculative": 1.0}
    result = figures(_comparison({"chat": _race(times), COPYING: _race(times | {"prompt_lookup": 2.0})}))
    assert result["best_head_over_autoregressive"].detail == {"method": "medusa"}
    assert result["best_head_over_autoregressive"].median == 2.0
    assert result["copying_over_autoregressive"].detail["method"] == "prompt_lookup"
    assert result["copying_over_autoregressive"].median == 4.0
    assert set(result) >= {f"{key}_over_autoregressive" for key in times if key != BASE}


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ((), ("local-process", None)),
        (("--runtime", "ray", "--address", "10.0.0.1:6379"), ("ray", "10.0.0.1:6379")),
    ],
)
def test_the_pair_is_opened_where_the_options_say(given, place, monkeypatch):
    def opened(pair, *, runtime, address, **_):
        raise UsageError(f"opened {pair}: {(runtime, address)}")

    monkeypatch.setattr("specscope.open", opened, raising=False)
    with pytest.raises(UsageError) as seen:
        run_bench("--pair", "bundled", *given)
    assert str(seen.value) == f"opened bundled: {place}"
