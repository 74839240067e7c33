"""DSI in virtual time under the paper's assumptions 1 to 3.

They are constant latencies, a drafter that is not slower than the target, and free preemption.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil

from hypothesis import given, settings
from hypothesis import strategies as st

from specscope.engine.methods.dsi import servers
from specscope.engine.trace.trace import Trace
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
