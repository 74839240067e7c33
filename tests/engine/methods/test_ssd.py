"""SSD: its text is speculative decoding's; rounds of scripted models; its cliff in virtual time."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

import specscope
from specscope.engine.checkpoints.loader import load
from specscope.engine.errors import UsageError
from specscope.engine.methods.ssd import Config, fans, geometric, plan
from specscope.engine.simulate.oracle import Scripted
from specscope.engine.types import Limits, Sampling
from specscope.traces.facts.metrics import measure
from tests.engine.methods.pairs import known_cluster, ranked
from tests.engine.worker.harness import Flat, bundled

PROMPT = "Tell me a story about a fox who lost its hat."
VOCABULARY = 1024


# The text: that of speculative decoding.


@pytest.fixture(scope="module")
def cluster():
    with specscope.open("bundled", runtime="virtual", profile="H100") as opened:
        yield opened


@pytest.mark.parametrize(
    "config",
    [{"forks": 1}, {"forks": 8}, {"fanout": "geometric"}, {"fanout": "[1,2,1,2,9]"}, {"drafts": "greedy"}],
    ids=str,
)
def test_above_temperature_0_the_text_is_that_of_speculative_decoding(cluster, config):
    sampling, limits = Sampling(1.0, top_p=0.95, seed=2), Limits(16)
    drafts = {"drafts": config.get("drafts", "sampled")}
    settings = {"speculative": {"gamma": 4, **drafts}, "ssd": {"gamma": 4, **config}}
    plain, ours = (
        cluster.run(name, PROMPT, config=settings[name], sampling=sampling, limits=limits)
        for name in ("speculative", "ssd")
    )
    assert ours.token_ids() == plain.token_ids()
    rounds = [[(r.step, r.drafted, r.accepted, r.emitted) for r in t.rounds] for t in (ours, plain)]
    assert rounds[0] == rounds[1]


@pytest.mark.parametrize("config", [{"saguaro": 0.3}, {"backup": "none"}, {"backup": "none", "saguaro": 0.1}])
def test_the_text_does_not_depend_on_how_much_was_drafted_in_time(config):
    texts, lengths, results = set(), set(), set()
    for drafter_us in (1, 400, 900, 3000):
        with known_cluster(Flat(1000, drafter_us), **real_models()) as cluster:
            settings, sampling = {"gamma": 3, "forks": 2, **config}, Sampling(1.0, seed=4)
            trace = cluster.run("ssd", PROMPT, config=settings, sampling=sampling, limits=Limits(14))
        texts.add(tuple(trace.token_ids()))
        lengths.add(max(fork.length for fork in trace.forks))
        results |= {measure(trace).hit_rate}
    assert len(texts) == len(results) == 1
    assert lengths == {0, 1, 2, 3}
    assert 0 < results.pop() < 1


@cache
def real_models():
    pair = bundled()
    paths = (("target", pair.target_path), ("drafter", pair.drafter_path))
    return {name: load(str(path), name=name) for name, path in paths}


# Rounds of scripted models: which outcomes hit.


def right(length):
    return 10 + length % 7


def ranked_cluster(wrong, latency=None):
    """Return a target and a drafter; `wrong` maps a position to the rank of the target's token."""

    def ranks(path):
        own, others = right(len(path)), [1, 2, 3]
        return [*others[: wrong.get(len(path), 0)], own, *others[wrong.get(len(path), 0) :]]

    target = Scripted("target", lambda path, _: right(len(path)), VOCABULARY)
    return known_cluster(latency or Flat(1000, 100), target=target, drafter=ranked("drafter", ranks))


def lookups(trace):
    """Return (accepted tokens, whether the outcome had a branch) of each round but the last."""
    taken = {fork.step: fork for fork in trace.forks if fork.taken}
    found = [(r.accepted, r.step in taken) for r in trace.rounds[:-1]]
    for r in trace.rounds[:-1]:
        assert r.step not in taken or taken[r.step].place == r.accepted
    return found


START = (7, 8, 9)
WRONG = {4: 1, 9: 2, 15: 1, 17: 3}
"""Positions of a wrong draft, and the rank of the target's token there."""


@pytest.mark.parametrize(
    ("config", "hits"),
    [
        ({"forks": 1}, "yynyyny"),
        ({"forks": 2}, "yyyyyny"),
        ({"forks": 3}, "yyyyyyy"),
        ({"fanout": "[2,1,1,1]"}, "yyyyyny"),
    ],
    ids=str,
)
def test_an_outcome_hits_if_its_token_is_among_the_guesses_of_its_place(config, hits):
    """Drafts of 3 tokens: from 3, wrong at 4; from 5, right; from 9, wrong; from 10, right; ..."""
    with ranked_cluster(WRONG) as cluster:
        trace = cluster.run("ssd", START, config={"gamma": 3, **config}, limits=Limits(22))
    assert trace.token_ids() == [right(i) for i in range(3, 25)]
    found = lookups(trace)
    assert found[:7] == [(n, hit == "y") for n, hit in zip((1, 3, 0, 3, 1, 1, 3), hits, strict=True)]
    assert measure(trace).hit_rate == sum(hit for _, hit in found) / len(found)


def test_without_a_backup_a_miss_verifies_one_row_whose_bonus_place_is_guessed():
    config = {"gamma": 3, "forks": 1, "backup": "none"}
    with ranked_cluster(WRONG) as cluster:
        trace = cluster.run("ssd", START, config=config, limits=Limits(22))
    drafted = [r.drafted for r in trace.rounds]
    assert drafted[0] == 0, "a run begins like a miss"
    for before, (_, hit), after in zip(trace.rounds, lookups(trace), trace.rounds[1:], strict=False):
        assert after.mode == ("verify" if hit else "plain"), before
    assert [r.accepted for r in trace.rounds if r.mode == "plain"] == [0] * drafted.count(0)
    assert not [span for span in trace.spans if span.kind == "draft"]
    (own,) = [fork for fork in trace.forks if fork.step == 1]
    assert own.place == 0
    assert own.token == right(3)
    assert own.taken


@pytest.mark.parametrize("new", [1, 2, 4, 5, 8])
def test_no_branch_is_drafted_beyond_the_end_of_the_output(new):
    with ranked_cluster({}) as cluster:
        trace = cluster.run("ssd", START, config={"gamma": 3, "forks": 1}, limits=Limits(new))
    assert trace.token_ids() == [right(i) for i in range(3, 3 + new)]
    for fork in trace.forks:
        done = sum(r.emitted for r in trace.rounds if r.step < fork.step)
        assert 1 <= fork.length <= min(3, new - done - fork.place - 1)
    assert not [span for span in trace.spans if span.kind == "glue"] or new > 1


# The verdict ends the branches.


def test_a_verdict_stops_the_branches_and_their_forwards_are_recorded_as_done():
    with ranked_cluster(WRONG, Flat(1000, 400)) as cluster:
        trace = cluster.run("ssd", START, config={"gamma": 4, "forks": 1}, limits=Limits(22))
    assert trace.token_ids() == [right(i) for i in range(3, 25)]
    middle = trace.rounds[:-3]
    for r in middle:
        spans = [s for s in trace.spans if s.step == r.step and s.kind in ("glue", "branch")]
        # at 1000 us the second step of 400 us runs, after the glue
        assert [s.kind for s in spans] == ["glue", "branch", "branch"]
        assert {s.outcome for s in spans} == {"done"}
        assert {fork.length for fork in trace.forks if fork.step == r.step} == {2}
    hits = {fork.step for fork in trace.forks if fork.taken}
    for r in middle:
        rest = [s for s in trace.spans if s.step == r.step + 1 and s.kind == "draft"]
        assert len(rest) == (2 if r.step in hits else 4)
        assert [s.rows for s in rest][:1] == [1]


def test_a_cancelled_run_ends_with_its_rows():
    cancel = threading.Event()
    stop_at_3 = lambda e: cancel.set() if getattr(e, "kind", "") == "verify" and e.step == 3 else None  # noqa: E731
    with ranked_cluster(WRONG) as cluster:
        asked = {"limits": Limits(22), "listener": stop_at_3, "cancel": cancel}
        trace = cluster.run("ssd", START, config={"gamma": 3}, **asked)
    assert trace.status == "cancelled"
    assert trace.token_ids() == [right(i) for i in range(3, 3 + len(trace.commits))]


def test_rows_of_q_are_free_again_after_their_round():
    """Each of these rounds takes three quarters of the buffer."""
    with ranked_cluster({}, Flat(1000, 10)) as cluster:
        config = {"gamma": 32, "forks": 3}
        trace = cluster.run("ssd", START, config=config, limits=Limits(140), sampling=Sampling(0.1))
    assert trace.status == "done"
    assert [r.step for r in trace.rounds] == list(range(1, len(trace.rounds) + 1))
    assert len({fork.step for fork in trace.forks if fork.length == 32}) > 2


# Virtual time: the times of an independent reproduction on H100s.

VERIFY, BRANCH, GLUE, SERVICE = 11_450, 2_540, 2_830, 710


@dataclass(frozen=True)
class Reproduced(Flat):
    """Microseconds: the drafter's forward with `glue_rows` rows is the glue, others are steps."""

    glue_rows: int = 0

    def __call__(self, model: str, rows: int, context: int, batch: int = 1) -> int:
        return VERIFY if model == "target" else GLUE if rows == self.glue_rows else BRANCH


@pytest.mark.parametrize(("gamma", "forks"), [(1, 3), (2, 2), (3, 2), (4, 3), (5, 3), (6, 3), (7, 3)])
def test_a_round_of_hits_has_a_cliff_where_the_branches_outlast_the_verdict(gamma, forks):
    """The branches go on while the verdict is drawn and moved, which the formula adds to V."""
    latency = Reproduced(sample_us=SERVICE, glue_rows=gamma + 1)
    with ranked_cluster({}, latency) as cluster:
        trace = cluster.run("ssd", START, config={"gamma": gamma, "forks": forks}, limits=Limits(60))
    times = [r.time for r in trace.rounds if r.accepted == gamma]
    periods = set(np.diff(times[1:-2]).tolist())
    expected = max(VERIFY + SERVICE, GLUE + BRANCH * gamma)
    assert periods == {1000 * expected}
    assert (expected == VERIFY + SERVICE) == (gamma <= 3)


def test_a_miss_waits_for_the_step_in_progress_and_drafts_anew():
    latency = Reproduced(sample_us=SERVICE, glue_rows=6)
    with ranked_cluster({9: 3}, latency) as cluster:
        trace = cluster.run("ssd", START, config={"gamma": 5, "forks": 2}, limits=Limits(24))
    assert lookups(trace)[:2] == [(5, True), (0, False)]
    second, third = trace.rounds[1:3]
    waited = GLUE + 4 * BRANCH  # the fourth step runs at the time of the verdict
    assert waited > VERIFY + SERVICE
    drafted = 5 * BRANCH
    assert third.time - second.time == 1000 * (waited - (VERIFY + SERVICE) + drafted + VERIFY + SERVICE)


# Settings.


def test_geometric_fan_out_is_proportional_and_the_last_place_has_more():
    counts = geometric(4, 100, 0.8, 1.0)
    shares = [0.8 ** (j / 2) for j in range(5)]
    shares[4] *= 0.2**-0.5
    assert counts == pytest.approx([100 * share / sum(shares) for share in shares], abs=1)
    assert sum(counts) == 100
    assert geometric(3, 4, 0.5, 0.0) == (1, 1, 1, 1)
    assert fans(Config(gamma=3, fanout="geometric", forks=3)) == (3, 2, 2, 5)
    assert fans(Config(gamma=2, forks=5)) == (5, 5, 5)
    assert fans(Config(gamma=2, fanout="[4, 1,2]")) == (4, 1, 2)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"fanout": "round"}, "fanout is 'round'; it must be uniform, geometric, or a list of numbers"),
        ({"fanout": "[3,x]"}, "it must be uniform, geometric, or a list of numbers such as"),
        ({"fanout": "[3,0,2]"}, "fanout at place 1 is 0; it must be at least 1 and at most 64"),
        ({"fanout": "[3]"}, "the number of places of fanout is 1; it must be at least 2 and at most 33"),
        ({"fanout": "[3,2]", "gamma": 3}, "fanout has 2 numbers; with gamma 3 it must have 4"),
        ({"gamma": 32, "forks": 5}, "165 branches of gamma 32 are 5280 tokens; they must be at most 3968"),
        ({"saguaro": 0.5, "drafts": "greedy"}, "saguaro is 0.5; it changes how drafts are sampled"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_line(config, message):
    with ranked_cluster({}) as cluster, pytest.raises(UsageError, match=message) as caught:
        cluster.run("ssd", START, config=config, limits=Limits(3))
    assert "\n" not in str(caught.value)


def test_gamma_0_is_that_of_a_list_or_the_branches_that_about_fit_beside_a_verification():
    with ranked_cluster({}) as cluster:
        trace = cluster.run("ssd", START, config={"fanout": "[1,1,2]"}, limits=Limits(6))
    assert trace.header.config["gamma"] == 2
    assert trace.header.environment["open"] == {"gamma": 0}
    for c, gamma in ((11.45 / 2.54, 4), (1.0, 1), (2.9, 2), (8.0, 7), (99.0, 32)):
        with ranked_cluster({}, Flat(round(1000 * c), 1000)) as cluster:
            assert plan(Config(), cluster.situation).gamma == gamma
