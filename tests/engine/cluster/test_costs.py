"""Times of forwards for draft lengths: a profile's, and those of this machine, measured once."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

import specscope
from specscope import Load
from specscope.engine.cluster import measurements
from specscope.engine.cluster.costs import ROWS, profile_costs
from specscope.engine.cluster.probing import CONTEXT, MANY_ROWS
from specscope.engine.drafting.pace import Curve
from specscope.engine.simulate.profile import Profile, profiles
from specscope.engine.types import Limits
from tests.engine.methods.pairs import make_pair

LOAD, LIMITS = Load((0.0,), batch=1, policy="survival"), Limits(6)
CURVE: Curve = ((1, 0.1), (512, 0.2))


@pytest.fixture
def cluster(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Generator[specscope.Cluster]:
    folder = tmp_path_factory.mktemp("costs")
    monkeypatch.setenv("SPECSCOPE_CACHE", str(folder / "cache"))
    with specscope.open(
        make_pair(folder, "qwen3", "other")[0], runtime="local-thread", device="cpu"
    ) as opened:
        yield opened


@pytest.mark.parametrize("name", profiles())
def test_a_profiles_costs_are_its_latencies(name: str) -> None:
    latency = Profile.load(name).latency()
    costs = profile_costs(latency)
    assert [rows for rows, _ in costs.target] == [*ROWS]
    for rows in (1, 8, 512, 4096):
        assert dict(costs.target)[rows] == latency("target", rows, CONTEXT, rows) / 1e6
    assert bool(costs.drafter) == (latency.drafter is not None)
    assert costs.judging >= (latency.sample_us + latency.communicate_us) / 1e6


def test_target_and_drafter_are_measured_once(
    cluster: specscope.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, asked = list[tuple[str, tuple[int, ...]]](), list[bool]()

    def measure(place: object, cancel: threading.Event, model: str, rows: tuple[int, ...]) -> Curve:
        measured.append((model, rows))
        return CURVE

    monkeypatch.setattr(measurements, "measure_rows", measure)
    for policy in ("survival", "by-batch", "fixed"):
        load = Load((0.0,), batch=1, policy=policy)
        trace = cluster.run(
            "speculative", (5, 9, 23), limits=LIMITS, load=load, measuring=lambda: asked.append(True)
        )
        assert trace.status == "done"
    assert sorted(measured) == [("drafter", MANY_ROWS), ("target", MANY_ROWS)]
    assert asked == [True]


def test_the_measurement_of_real_forwards_gives_a_run(cluster: specscope.Cluster) -> None:
    fixed = cluster.run("speculative", (5, 9, 23), limits=LIMITS, load=Load((0.0,), batch=1))
    trace = cluster.run("speculative", (5, 9, 23), limits=LIMITS, load=LOAD)
    assert trace.token_ids() == fixed.token_ids()


def test_a_run_that_is_stopped_while_it_measures_ends_as_cancelled(
    cluster: specscope.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = threading.Event()

    def measure(*_: object) -> Curve:
        cancel.set()
        return ()

    monkeypatch.setattr(measurements, "measure_rows", measure)
    trace = cluster.run("speculative", (5, 9, 23), limits=LIMITS, load=LOAD, cancel=cancel)
    assert trace.status == "cancelled"
    assert not trace.commits
