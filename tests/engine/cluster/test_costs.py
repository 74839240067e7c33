"""Times of forwards, and predictions that learn from earlier runs."""

import threading
from dataclasses import replace

import pytest

import specscope
from specscope import Load
from specscope.engine.cluster import measurements
from specscope.engine.cluster.measurements import FEWEST, KEPT, learn, scaled
from specscope.engine.cluster.probing import CONTEXT, MANY_ROWS
from specscope.engine.cluster.profile_devices import ROWS, profile_costs
from specscope.engine.drafting.planner import Plan
from specscope.engine.errors import UsageError
from specscope.engine.simulate.profile import Profile, profiles
from specscope.engine.trace.events import OTHERS, Occupancy
from specscope.engine.types import Limits
from tests.engine.methods.pairs import make_pair
from tests.traces.samples import sample_trace

LOAD, LIMITS = Load((0.0,), batch=1, policy="survival"), Limits(6)
CURVE = ((1, 0.1), (512, 0.2))


@pytest.fixture
def cluster(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("costs")
    monkeypatch.setenv("SPECSCOPE_CACHE", str(folder / "cache"))
    pair = make_pair(folder, "qwen3", "other")[0]
    with specscope.open(pair, runtime="local-thread", device="cpu") as opened:
        yield opened


@pytest.mark.parametrize("name", profiles())
def test_a_profiles_costs_are_its_latencies(name):
    latency = Profile.load(name).latency()
    costs = profile_costs(latency)
    assert [rows for rows, _ in costs.target] == [*ROWS]
    for rows in (1, 8, 512, 4096):
        assert dict(costs.target)[rows] == latency("target", rows, CONTEXT, rows) / 1e6
    assert bool(costs.drafter) == (latency.drafter is not None)
    assert costs.judging >= (latency.sample_us + latency.communicate_us) / 1e6


def test_target_and_drafter_are_measured_once(cluster, monkeypatch):
    measured, asked = list[tuple[str, tuple[int, ...]]](), list[int]()
    monkeypatch.setattr(measurements, "measure_rows", lambda _, __, *asked: measured.append(asked) or CURVE)
    for policy in ("survival", "by-batch", "fixed"):
        more = {"load": Load((0.0,), batch=1, policy=policy), "measuring": lambda: asked.append(1)}
        assert cluster.run("speculative", (5, 9, 23), limits=LIMITS, **more).status == "done"
    assert sorted(measured) == [("drafter", MANY_ROWS), ("target", MANY_ROWS)]
    assert asked == [1]


def test_the_measurement_of_real_forwards_gives_a_run(cluster):
    fixed = cluster.run("speculative", (5, 9, 23), limits=LIMITS, load=Load((0.0,), batch=1))
    trace = cluster.run("speculative", (5, 9, 23), limits=LIMITS, load=LOAD)
    assert trace.token_ids() == fixed.token_ids()


def test_a_run_that_is_stopped_while_it_measures_ends_as_cancelled(cluster, monkeypatch):
    cancel = threading.Event()

    def measure(*_):
        cancel.set()
        return ()

    monkeypatch.setattr(measurements, "measure_rows", measure)
    trace = cluster.run("speculative", (5, 9, 23), limits=LIMITS, load=LOAD, cancel=cancel)
    assert trace.status == "cancelled"
    assert not trace.commits


VERIFY = ((1, 0.1), (8, 0.2))
PLAN = Plan(3, 3, 2.5, 2.0, seconds=0.05)


def trace_of(kind, seconds, temperature=0):
    """Return a run with this time per token."""
    trace = sample_trace(kind, tokens=24)
    start = max(s.end for s in trace.spans if s.kind == "prefill")
    end = start + int(seconds * len(trace.commits) * 1e9)
    trace.commits[:] = [replace(c, time=end) for c in trace.commits]
    sampling = {**trace.header.sampling, "temperature": temperature}
    trace.header = replace(trace.header, sampling=sampling)
    return trace


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "learned.json"


def test_a_prediction_has_the_median_and_the_range_of_earlier_runs(path):
    for seconds in (0.1, 0.05, 0.025):  # half as fast as predicted, as fast, twice as fast
        learn(path, trace_of("speculative", seconds), PLAN, VERIFY)
    found = scaled(path, PLAN, "speculative", VERIFY, greedy=True)
    assert (found.low, found.speedup, found.high) == pytest.approx((1.0, 2.0, 4.0))
    assert found.runs == found.facts()["runs"] == 3


def test_other_methods_and_sampled_runs_are_kept_apart(path):
    learn(path, trace_of("speculative", 0.05), PLAN, VERIFY)
    assert scaled(path, PLAN, "pearl", VERIFY, greedy=True) == PLAN
    assert scaled(path, PLAN, "speculative", VERIFY, greedy=False) == PLAN
    assert "runs" not in PLAN.facts()
    learn(path, trace_of("autoregressive", 0.12), None, VERIFY)  # plain decoding is learned too
    assert scaled(path, PLAN, "speculative", VERIFY, greedy=True).speedup == pytest.approx(0.12 / 0.05)


def test_disturbed_short_and_failed_runs_do_not_count(path):
    busy, short, failed = (trace_of("speculative", 0.025) for _ in range(3))
    busy.header.environment["cores"] = 2
    busy.occupancy.append(Occupancy(OTHERS, 0, 0.5, 0))
    del short.commits[FEWEST - 1 :]
    failed.footer = replace(failed.footer, status="failed")
    for trace in (busy, short, failed):
        learn(path, trace, PLAN, VERIFY)
    learn(path, trace_of("speculative", 0.025), None, VERIFY)  # a draft that was not planned
    assert not path.exists()


def test_the_last_runs_are_kept_and_a_broken_file_counts_as_none(path):
    for seconds in (0.1, *[0.05] * KEPT):
        learn(path, trace_of("speculative", seconds), PLAN, VERIFY)
    found = scaled(path, PLAN, "speculative", VERIFY, greedy=True)
    assert (found.low, found.runs) == (pytest.approx(2.0), KEPT)
    for broken in ("", "[1]", '{"speculative": [0]}', '{"speculative": "x"}', '{"speculative": [NaN]}'):
        path.write_text(broken)
        assert scaled(path, PLAN, "speculative", VERIFY, greedy=True) == PLAN, broken


@pytest.mark.parametrize(
    ("profile", "pair", "step_us"),
    [("A100-OPT", "opt-6.7b", 12_397), ("8xA100", "llama-3-70-vanilla", 116_104)],
)
def test_a_profiles_pair_without_a_drafter_runs_the_methods_that_need_none(profile, pair, step_us):
    place = {"runtime": "virtual", "profile": profile, "profile_pair": pair, "tokens": "bernoulli:0.5"}
    with specscope.open(**place) as cluster:
        plain = cluster.run("autoregressive", [5, 6], limits=Limits(3))
        (first, *_) = (s for s in plain.spans if s.kind == "verify")
        assert (first.end - first.start) // 1000 == step_us
        for method, config in (("llma", {}), ("ems", {"base": "plain"})):
            assert cluster.run(method, [5, 6], config=config, limits=Limits(3)).status == "done"
        message = rf"the pair {pair} of the profile {profile} has no drafter; choose"
        with pytest.raises(UsageError, match=message):
            cluster.run("speculative", [5, 6], limits=Limits(3))


def virtual(tokens):
    return specscope.open(runtime="virtual", profile="8xA100", tokens=tokens)


@pytest.mark.parametrize(
    ("tokens", "chances"),
    [("bernoulli:0.6", {1.0}), ("bernoulli:0.6:doubt=0.5:misses=0.5", {0.3, 0.8})],
)
def test_scripted_drafts_doubt_if_asked(tokens, chances):
    with virtual(tokens) as cluster:
        trace = cluster.run("speculative", [5, 6], config={"gamma": 3}, limits=Limits(30))
    assert {round(d.q, 3) for d in trace.decisions if d.node >= 0 and d.q is not None} == chances


@pytest.mark.parametrize("rest", ["", ":1.5", ":0.5:spread=1", ":0.5:doubt"])
def test_a_wrong_token_source_is_refused(rest):
    message = f"tokens is 'bernoulli{rest}'; it must be pair or bernoulli:RATE"
    with pytest.raises(UsageError, match=message):
        virtual(f"bernoulli{rest}")
