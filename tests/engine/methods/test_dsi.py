"""DSI in virtual time under the paper's assumptions 1 to 3, and with several drafters.

They are constant latencies, a drafter that is not slower than the target, and free preemption.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.local_devices import local_devices
from specscope.engine.cluster.options import Options
from specscope.engine.cluster.placement import Placement
from specscope.engine.cluster.session import Cluster
from specscope.engine.errors import UsageError
from specscope.engine.layout import Layout
from specscope.engine.methods.dsi import servers
from specscope.engine.trace.events import Device
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from tests.engine.methods.pairs import make_pair
from tests.engine.worker.harness import Flat, TestCluster, scripted_cluster

PROMPT = [1, 2, 3]
T = 840  # microseconds of a target forward; divisible by 1 to 8
FORWARDS = ("verify", "pre-verify")


def target_token(path) -> int:
    return (int(path[-1]) * 7 + len(path)) % 500 + 10


def drafter(right: list[bool], wrong: int = 5):
    """Return a drafter that is right at output position i if right[i], else drafts `wrong`."""

    def draft(path) -> int:
        position = len(path) - len(PROMPT)
        return target_token(path) if position < len(right) and right[position] else wrong

    return draft


def open_cluster(right: list[bool], drafter_us: int, preempts: bool = True) -> TestCluster:
    return scripted_cluster(target_token, drafter(right), Flat(T, drafter_us, preempts=preempts))


def run(cluster: TestCluster, method: str, new: int, **config: object) -> Trace:
    return cluster.run(method, PROMPT, config=config, limits=cluster.limits(new))


def times(trace: Trace) -> list[int]:
    """Return the commit time of each token, in microseconds after prefill."""
    return [commit.time // 1000 - T for commit in trace.commits]


patterns = st.lists(st.booleans(), min_size=1, max_size=14)
speeds = st.sampled_from([T // 8, T // 7, T // 5, T // 4, T // 3, T // 2, 2 * T // 3, T - 1, T])


def whole_work_is_covered(trace: Trace) -> None:
    """Check that whenever the verified prefix grows, a forward covers the next position."""
    forwards = [s for s in trace.spans if s.kind in FORWARDS]
    for commit in trace.commits[:-1]:
        position = commit.position + 1
        # rows fed are those not cached; a forward's last row sees all up to context + rows
        running = [s for s in forwards if s.start <= commit.time < s.end]
        decided = [c for c in trace.commits if c.position == position and c.time == commit.time]
        assert decided or any(s.context + s.rows >= position for s in running), (position, commit.time)


@settings(deadline=None, max_examples=25)
@given(patterns, speeds, st.integers(1, 9))
def test_never_slower_than_autoregressive_or_speculative(right, drafter_us, lookahead):
    new = len(right) + lookahead  # shorter blocks at the end of the output would need more servers
    with open_cluster(right, drafter_us) as cluster:
        sp = servers(lookahead, T / drafter_us)
        trace = run(cluster, "dsi", new, lookahead=lookahead, sp=sp)
        whole_work_is_covered(run(cluster, "dsi", len(right), lookahead=lookahead, sp=sp))
        plain = run(cluster, "autoregressive", new)
        serial = run(cluster, "speculative", new, gamma=lookahead)
    mine = times(trace)
    assert trace.token_ids() == plain.token_ids() == serial.token_ids()
    assert all(a <= b for a, b in zip(mine, times(plain), strict=True)), "later than autoregressive"
    whole = list(zip(mine, times(serial), strict=True))[: len(right)]
    assert all(a <= b for a, b in whole), "later than speculative"


def test_table_1():
    """Tokens committed by t0 to t4, in target forwards, with a drafter of 1/7 and lookahead 1."""
    t, new = [0, 2, 32 / 7, 8, 64 / 7], 60
    worst, best = [False] * new, [True] * new
    expected = {
        ("autoregressive", "worst"): [0, 2, 4, 8, 9],
        ("speculative", "worst"): [0, 1, 4, 7, 8],
        ("dsi", "worst"): [0, 2, 4, 8, 9],
        ("autoregressive", "best"): [0, 2, 4, 8, 9],
        ("speculative", "best"): [0, 2, 8, 14, 16],
        ("dsi", "best"): [0, 8, 26, 50, 58],
    }
    config = {"autoregressive": {}, "speculative": {"gamma": 1}, "dsi": {"lookahead": 1, "sp": 7}}
    for (method, case), counts in expected.items():
        with open_cluster(worst if case == "worst" else best, T // 7) as cluster:
            done = times(run(cluster, method, new, **config[method]))
        assert [sum(time <= at * T for time in done) for at in t] == counts, (method, case)


@settings(deadline=None, max_examples=25)
@given(patterns, speeds, st.integers(1, 4), st.integers(1, 9))
def test_never_slower_than_autoregressive_with_too_few_servers(right, drafter_us, sp, more):
    lookahead = ceil(T / drafter_us / sp) + more - 1
    with open_cluster(right, drafter_us) as cluster:
        mine = times(run(cluster, "dsi", len(right), lookahead=lookahead, sp=sp))
        plain = times(run(cluster, "autoregressive", len(right)))
    assert all(a <= b for a, b in zip(mine, plain, strict=True))


@settings(deadline=None, max_examples=25)
@given(patterns, speeds)
def test_proposition_1_bounds_the_time_of_every_text(right, drafter_us):
    """t1 p (N - 1) + t2 ((1 - p)(N - 1) + 1), p the share of right drafts, for each text."""
    new = len(right)
    with open_cluster(right, drafter_us) as cluster:
        mine = times(run(cluster, "dsi", new, lookahead=1, sp=servers(1, T / drafter_us)))
    hits = sum(right[: new - 1])
    assert mine[-1] <= drafter_us * hits + T * (new - 1 - hits + 1)


def test_a_drafter_that_is_always_wrong_costs_nothing():
    with open_cluster([], T // 4) as cluster:
        trace = run(cluster, "dsi", 10, lookahead=2, sp=4)
    assert times(trace) == [T * (i + 1) for i in range(10)]
    assert {s.model for s in trace.spans if s.outcome == "cancelled"} == {"drafter", "target"}


def test_a_drafter_that_is_always_right_hides_all_verification():
    # after the first target forward every draft of T / 4 commits a token
    with open_cluster([True] * 40, T // 4) as cluster:
        trace = run(cluster, "dsi", 24, lookahead=1, sp=servers(1, 4))
    assert times(trace) == [T + i * T // 4 for i in range(24)]
    assert {s.device for s in trace.spans if s.kind in FORWARDS} == {
        "gpu-target", "gpu-target-1", "gpu-target-2", "gpu-target-3"
    }  # fmt: skip
    with scripted_cluster(target_token, drafter([True] * 40), Flat(T, T // 4, sample_us=T // 2)) as cluster:
        drafts = [s for s in run(cluster, "dsi", 40, lookahead=2, sp=4).spans if s.kind == "draft"]
    assert len(drafts) >= 40
    assert {later.start - earlier.end for earlier, later in pairwise(drafts)} == {0}, "no wait for a verdict"


def test_without_free_preemption_a_server_stays_busy_until_its_forward_ends():
    with open_cluster([], T // 4, preempts=False) as cluster:
        trace = run(cluster, "dsi", 6, lookahead=2, sp=4)
    for device in {s.device for s in trace.spans}:
        work = sorted((s.start, s.end) for s in trace.spans if s.device == device and s.kind != "sample")
        assert all(a[1] <= b[0] for a, b in pairwise(work)), "one forward at a time"
    assert all(s.end - s.start == 1000 * T for s in trace.spans if s.kind in FORWARDS)


# Several drafters: races in virtual time, texts on all runtimes, settings.


D = T // 4


@dataclass(frozen=True)
class Uneven(Flat):
    """Drafters of different speeds."""

    others: tuple[int, ...] = ()

    def __call__(self, model: str, rows: int, context: int, batch: int = 1) -> int:
        speeds = dict(zip(("drafter-2", "drafter-3"), self.others, strict=False))
        return speeds.get(model, super().__call__(model, rows, context, batch))


def open_race(rights: list[list[bool]], drafter_us: int, preempts: bool = True, others: tuple[int, ...] = ()):
    first, *further = (drafter(right, 2 + i) for i, right in enumerate(rights))
    return scripted_cluster(
        target_token, first, Uneven(T, drafter_us, preempts=preempts, others=others), further
    )


def race(rights: list[list[bool]], drafter_us: int, new: int, lookahead: int = 1, **config: int) -> Trace:
    enough = {"lookahead": lookahead, "sp": len(rights) * servers(lookahead, T / drafter_us)}
    with open_race(rights, drafter_us) as cluster:
        return run(cluster, "dsi", new, drafters=len(rights), **(enough | config))


lines = st.integers(1, 12).flatmap(
    lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=2, max_size=3)
)


@settings(deadline=None, max_examples=15)
@given(lines, speeds)
def test_no_token_is_later_than_with_the_best_drafter_alone(rights, drafter_us):
    new = len(rights[0]) + 1
    mine = times(race(rights, drafter_us, new))
    for right in rights:
        alone = times(race([right], drafter_us, new))
        assert all(a <= b for a, b in zip(mine, alone, strict=True))


@settings(deadline=None, max_examples=15)
@given(lines, speeds, st.tuples(speeds, speeds), st.integers(1, 6), st.integers(1, 5), st.booleans())
def test_never_slower_than_autoregressive_with_any_speeds_and_servers(
    rights, drafter_us, others, lookahead, sp, preempts
):
    new = len(rights[0]) + 2
    lookahead = max(lookahead, -(-T // (drafter_us * sp)))
    with open_race(rights, drafter_us, preempts, others) as cluster:
        trace = run(cluster, "dsi", new, lookahead=lookahead, sp=sp, drafters=len(rights))
        plain = run(cluster, "autoregressive", new)
    assert trace.token_ids() == plain.token_ids()
    drafts = {s.id for s in trace.spans if s.kind == "draft" and s.outcome == "done"}
    assert drafts == {d.draft_span for d in trace.decisions if d.draft_span >= 0}, (
        "every draft has an outcome"
    )
    if preempts:
        assert all(a <= b for a, b in zip(times(trace), times(plain), strict=True))


def test_a_line_survives_the_rejection_of_another_and_no_token_waits():
    # The first drafter is wrong at 1, the second at 6, both at 8.
    # The forward that decides position i starts when position i - 1 is drafted.
    first = [i not in (1, 8) for i in range(12)]
    second = [i not in (6, 8) for i in range(12)]
    trace = race([first, second], D, 12)
    restart = T + 8 * D
    assert times(trace) == [T + i * D for i in range(9)] + [restart + T + i * D for i in range(3)]
    # Alone, each drafter would restart once more: a target forward instead of a draft.
    assert times(race([first], D, 12))[2] == T + D + T
    origins = {c.position - len(PROMPT): c.origin for c in trace.commits}
    assert [i for i, origin in origins.items() if origin != "accepted"] == [8]
    device = {s.id: s.device for s in trace.spans}
    decided = {
        (d.position - len(PROMPT), device[d.draft_span]): d.outcome
        for d in trace.decisions
        if d.position - len(PROMPT) in (1, 6) and d.outcome != "discarded"
    }
    assert decided == {
        (1, "gpu-drafter"): "rejected", (1, "gpu-drafter-1"): "accepted",
        (6, "gpu-drafter"): "accepted", (6, "gpu-drafter-1"): "rejected",
    }  # fmt: skip


@pytest.fixture(scope="module")
def trio(tmp_path_factory):
    """A tiny target with two drafters: one always wrong, one mostly right."""
    folder = tmp_path_factory.mktemp("trio")
    wrong, other = (make_pair(folder, "qwen2", kind)[0] for kind in ("wrong", "other"))
    return Pair.of(wrong.target_path, wrong.drafter_path, other.drafter_path)


def three_threads(pair: Pair) -> Cluster:
    """Return a cluster of three workers on one core."""
    core, runtime = min(os.sched_getaffinity(0)), "local-thread"
    devices = tuple(Device(f"cpu:{core}/{name}", "", f"CPU core {core} {name}", "cpu") for name in "abc")
    return Cluster(pair, Placement(replace(local_devices(pair, Options(runtime), devices), c=3.0), Layout()))


def second_drafter_counts(trace: Trace) -> bool:
    """Return whether a token of the second drafter was accepted."""
    second = max(s.device for s in trace.spans if s.kind == "draft")
    drafted = {s.id for s in trace.spans if s.device == second}
    return any(d.draft_span in drafted and d.outcome == "accepted" for d in trace.decisions)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, top_k=20, seed=3)], ids=["greedy", "warm"])
def test_the_text_is_the_targets_on_threads_and_in_virtual_time(trio, sampling):
    texts, asked = [], {"sampling": sampling, "limits": Limits(24)}
    for opening in (three_threads(trio), specscope.open(trio, runtime="virtual", profile="8xA100")):
        with opening as opened:
            trace = opened.run("dsi", [5, 6], config={"drafters": 2}, **asked)
            assert trace.token_ids() == opened.run("autoregressive", [5, 6], **asked).token_ids()
            drafting = {s.device for s in trace.spans if s.kind == "draft"}
            labels = {d.name: d.label for d in trace.header.devices}
            assert [labels[name].split(" · ")[1] for name in sorted(drafting)] == ["drafter", "drafter 2"]
            texts.append(trace.token_ids())
    assert second_drafter_counts(trace)  # on threads it may come too late
    assert texts[0] == texts[1]


def test_bernoulli_drafters_err_independently():
    def rate(tokens: str, **config: int) -> tuple[float, list[int]]:
        place = {"runtime": "virtual", "profile": "8xA100", "profile_pair": "starcoder-15b-humaneval"}
        with specscope.open(**place, tokens=tokens) as cluster:
            trace = cluster.run("dsi", "Hello", config=config, limits=Limits(100))
        return times(trace)[-1], trace.token_ids()

    alone, text = rate("bernoulli:0.6")
    (two, same), (better, again) = rate("bernoulli:0.6", drafters=2), rate("bernoulli:0.6,0.95", drafters=2)
    assert text == same == again
    assert better < two < alone
    with pytest.raises(UsageError, match=r"drafters is 3; it must be at most 2"):
        rate("bernoulli:0.6,0.9", drafters=3)
    with pytest.raises(UsageError, match=r"tokens is 'bernoulli:0.6,2'; .* rate from 0 to 1"):
        rate("bernoulli:0.6,2")
