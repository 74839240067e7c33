"""DSI with several drafters: races in virtual time, texts on all runtimes, settings."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.local_devices import LocalDevices
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
from tests.engine.methods.test_dsi import PROMPT, T, drafter, run, speeds, target_token, times
from tests.engine.worker.harness import Flat, scripted_cluster

D = T // 4


@dataclass(frozen=True)
class Uneven(Flat):
    """Drafters of different speeds."""

    others: tuple[int, ...] = ()

    def __call__(self, model: str, rows: int, context: int, batch: int = 1) -> int:
        speeds = dict(zip(("drafter-2", "drafter-3"), self.others, strict=False))
        return speeds.get(model, super().__call__(model, rows, context, batch))


def open_cluster(
    rights: list[list[bool]], drafter_us: int, preempts: bool = True, others: tuple[int, ...] = ()
):
    first, *further = (drafter(right, 2 + i) for i, right in enumerate(rights))
    return scripted_cluster(
        target_token, first, Uneven(T, drafter_us, preempts=preempts, others=others), further
    )


def race(rights: list[list[bool]], drafter_us: int, new: int, lookahead: int = 1, **config: int) -> Trace:
    enough = {"lookahead": lookahead, "sp": len(rights) * servers(lookahead, T / drafter_us)}
    with open_cluster(rights, drafter_us) as cluster:
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
    with open_cluster(rights, drafter_us, preempts, others) as cluster:
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
    return Cluster(pair, Placement(runtime, LocalDevices(pair, Options(runtime), devices), Layout(), c=3.0))


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
