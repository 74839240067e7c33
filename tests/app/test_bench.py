"""The bench: arithmetic, JSON, equal work on both sides of a ratio. Times are not tested."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator

import pytest
import torch

import specscope
from specscope.app.bench import cuda, speed, suite
from specscope.app.bench.figures import BARS, FULL, QUICK, Bar, BenchPlan, Measurement, judged
from specscope.app.bench.speed import SpeedRace, Transformers, quiet
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.types import Limits
from tests.app.commands import run_bench

PROMPT = "Tell me a story about a lighthouse keeper and a whale."


def test_a_bar_uses_the_median_of_valid_measured_figures():
    for bar, values, met in (
        (Bar(at_least=1.4), (1.0, 1.4, 9.0), True),
        (Bar(at_least=1.4), (1.39, 1.39, 9.0), False),
        (Bar(at_most=0.01), (0.01,), True),
        (Bar(at_most=0.01), (0.011,), False),
    ):
        assert bar.met(Measurement(values, "")) == met, values
    bars = judged({"orchestration": Measurement((0.002,), ""), "c": Measurement((4.0,), "")})
    assert bars == {"orchestration": {"at_most": 0.05, "median": 0.002, "met": True}}


class _Track:
    """Contestants with given times."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def contestant(self, name, seconds, ids=(7, 8)):
        def generate(prompt):
            self.order.append(name)
            self.now += seconds(prompt) if callable(seconds) else seconds
            return ids(prompt) if callable(ids) else ids

        return generate

    def race(self, contestants, prompts=((1,),)):
        return SpeedRace(contestants, prompts, clock=lambda: self.now)


def test_a_speed_is_the_tokens_of_a_round_over_its_time():
    track = _Track()
    slow = track.contestant("slow", lambda prompt: 4.0 * len(prompt))
    fast = track.contestant("fast", 1.0, ids=lambda prompt: [5] * len(prompt))
    race = track.race({"slow": slow, "fast": fast}, [(1,), (1, 1, 1)]).run(rounds=2, seconds=1e9)
    assert race.speeds == {"slow": [4 / 16] * 2, "fast": [4 / 2] * 2}
    assert race.ratio("fast", "slow") == (8.0, 8.0)
    assert race.fastest() == "fast"
    assert race.fastest(["slow"]) == "slow"
    assert race.table() == {"slow": 0.2, "fast": 2.0}


def test_contestants_take_turns_after_a_warm_up_and_a_long_race_ends_early():
    track = _Track()
    names = ("a", "b", "c")
    race = track.race({n: track.contestant(n, 1.0) for n in names}, [(1,), (2,), (3,)])
    race.run(rounds=1, seconds=1e9)
    assert "".join(track.order) == "abc" + "abc" + "bca" + "cab"
    track = _Track()
    ended: list[int] = []
    race = track.race({"a": track.contestant("a", 100.0)}).run(9, 1.0, lambda: ended.append(1))
    assert len(race.speeds["a"]) == len(ended) == 3
    assert len(track.race({"a": track.contestant("a", 0.001)}).run(9, 1.0).speeds["a"]) == 9


def test_a_race_compares_the_texts_of_contestants():
    track = _Track()
    same = [track.contestant(n, 1.0, ids=lambda prompt: list(prompt)) for n in "ab"]
    other = track.contestant("c", 1.0, ids=lambda prompt: list(prompt) if prompt == (1,) else [0])
    race = track.race({"a": same[0], "b": same[1], "c": other}, [(1,), (2,)]).run(1, 1.0)
    assert race.same("a", "b")
    assert not race.same("a", "b", "c")
    assert not suite.ratio(race, "a", "c").valid


def test_json_is_one_object_even_if_libraries_print_and_without_it_a_table(monkeypatch, capsys):
    plans: list[BenchPlan] = []

    def measure(chosen, note):
        plans.append(chosen)
        print("a library talks")
        note("something")
        figures = {key: Measurement((1.5, 1.6, 1.7), "ratio") for key in BARS}
        row = Measurement((3.0, 1.0, 2.0, 10.0), "one row", detail={"target_ms": 4.2})
        return figures | {"c": row, "pearl_over_speculative": Measurement((60_000.0,), "ratio")}

    monkeypatch.setattr(suite, "measure", measure)
    assert run_bench("--json", "--quick") == 0
    out, err = capsys.readouterr()
    assert "a library talks" in err
    result = json.loads(out)
    assert (set(result["bars"]), result["quick"], "torch" in result["environment"]) == (set(BARS), True, True)
    for key in (*BARS, "c"):
        assert set(result[key]) >= {"median", "min", "max", "runs", "unit"}
    assert result["bars"]["speculative_over_assisted"] == {"at_least": 1.8, "median": 1.6, "met": False}
    assert [result["c"][name] for name in ("median", "min", "max", "runs")] == [2.5, 1.0, 10.0, 4]
    assert result["c"]["target_ms"] == 4.2
    assert run_bench() == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert ">= 1.8 missed" in lines["speculative_over_assisted"]
    assert ">= 1.1 met" in lines["pearl_over_speculative"]
    assert "60,000" in lines["pearl_over_speculative"]
    assert plans == [QUICK, FULL]
    assert len(FULL.questions()) == FULL.prompts


@pytest.fixture(scope="module")
def cluster() -> Iterator[specscope.Cluster]:
    with specscope.open(runtime="local-thread", device="cpu") as cluster:
        yield cluster


def test_transformers_and_ours_write_the_same(cluster):
    """Both baselines are greedy, and assisted generation uses the requested draft length."""
    pair, new = Pair.find(), 12
    ids = pair.encode(PROMPT)
    with quiet(), speed.one_core():
        expected = cluster.run("autoregressive", ids, limits=Limits(new)).token_ids()
        theirs = Transformers(pair, new)
        assert theirs.generate(ids) == expected
        assert theirs.assisted()(ids) == expected
        assert theirs.watched(theirs.assisted())(ids) == expected
        calls: list[str] = []
        theirs._drafter.register_forward_hook(lambda *_: calls.append("d"))
        theirs._target.register_forward_hook(lambda *_: calls.append("t"))
        assert theirs.assisted(3)(ids) == expected
        rounds = "".join(calls).split("t")
        assert len(rounds) > 3
        assert rounds[0] == "ddd"
        # Only the last rounds are shorter: confidence and schedule do not change the length.
        assert all(r == "ddd" for r in rounds[:-2])
        traces: list = []
        assert speed.decode(cluster, _plan(new), "speculative", traces, gamma=3)(ids) == expected
        assert traces[0].rounds[0].drafted == 3


def _plan(new: int) -> BenchPlan:
    return BenchPlan(1, 1, 1.0, 1, new, 1)


def test_costs_are_ratios_of_the_bundled_pairs_forwards():
    figures = suite.costs(suite.Bench(Pair.find(), _plan(new=1), None, lambda: None))
    c = figures["c"]
    assert c.median == pytest.approx(c.detail["target_ms"] / c.detail["drafter_ms"], rel=0.2)
    assert c.median > 1
    assert "5 rows" in figures["verification_cost"].unit


@pytest.fixture
def threads() -> Iterator[int]:
    """Set two threads for a test that changes their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(before)


def test_one_core_restores_threads_and_cores(threads):
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    with contextlib.suppress(RuntimeError), speed.one_core() as words:
        assert torch.get_num_threads() == 1
        assert "one thread each" in words
        if cores is not None:
            assert len(os.sched_getaffinity(0)) == 1
        raise RuntimeError("the measurement failed")
    assert torch.get_num_threads() == threads
    if cores is not None:
        assert os.sched_getaffinity(0) == cores


def test_batches_are_measured_in_all_variants_with_equal_texts(cluster):
    small = dataclasses.replace(
        _plan(8), batches=(1, 2), batch_bases=("llma",), batch_prompts=3, batch_tokens=8, batch_rounds=1
    )
    steps = []
    (figure,) = suite.batches(suite.Bench(cluster.pair, small, cluster, lambda: steps.append(1))).values()
    assert figure.valid
    assert len(figure.values) == len(steps) == 1
    table = figure.detail["batches"]
    assert set(table["1"]) & set(suite.VARIANTS) == {"both"}
    assert {suite.PLAIN, *suite.VARIANTS} < set(table["2"])
    assert table["2"]["plain"]["over_plain"] == 1
    assert table["2"]["both"]["over_plain"] > 0
    assert table["1"]["both"]["over_batch_1"] == table["2"]["vanilla"]["over_vanilla"] == 1
    assert table["2"]["both"]["attention_cells"] == table["1"]["both"]["attention_cells"]
    assert table["2"]["vanilla"]["attention_cells"] > table["2"]["both"]["attention_cells"]
    assert len(set(suite.prompts_of(FULL))) == FULL.batch_prompts >= max(FULL.batches)


def test_all_kinds_of_forwards_give_the_same_tokens(monkeypatch, capsys):
    sizes = (cuda.LlamaShape("large", 2, 64, 128, 4, 2), cuda.LlamaShape("small", 1, 64, 128, 4, 4))
    monkeypatch.setattr(cuda, "CPU", sizes)
    monkeypatch.setattr(cuda, "CACHED", 24)
    monkeypatch.setattr(cuda.torch.cuda, "is_available", lambda: False)
    assert run_bench("--cuda", "--quick", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["device"] == "not run on a GPU: small shapes on one CPU core"
    assert result["bars"] == {}, "the bars are a GPU's"
    for kind in ("decode", "eager", "transformers"):
        for key in (f"{kind}_over_floor{rows}_{size.name}" for rows in ("", "_16_rows") for size in sizes):
            assert result[key]["same_tokens"] == 1, key
            assert result[key]["median"] > 0
    assert result["colocated_gain"]["target"] == "large"
    for size in sizes:
        assert result[f"chain_gain_{size.name}"]["same_tokens"] == 1
        assert result[f"int4_gain_{size.name}"]["median"] > 0
    assert 0 < result["orchestration_toy"]["median"] < 1
    assert 0 < result["orchestration"]["median"] < 1
