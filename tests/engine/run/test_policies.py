"""Policies of a load: equal texts, MineDraft's two batches in virtual time, lengths, refusals."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import specscope
import specscope.engine.cluster.open
from specscope import Load
from specscope.engine.cluster.local_devices import devices_of
from specscope.engine.drafting.admission import Costs
from specscope.engine.errors import UsageError
from specscope.engine.layout import LayerParallel, Layout
from specscope.engine.run.policies import BY_BATCH, FIXED, LENGTHS, MINEDRAFT, POLICIES, SURVIVAL, with_policy
from specscope.engine.simulate.profile import Profile
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits
from tests.engine.run.test_serving import LIMITS, PROMPTS, SAMPLINGS

LOAD = Load((0.0, 0.0, 0.03, 0.3, 4.0), batch=2, chunk=6)
DRAFTERS = [
    ("speculative", {"gamma": 3}),
    ("assisted", {"start": 3}),
    ("tree", {"width": 3, "depth": 3}),
    ("ems", {"base": "speculative", "width": 2}),
]
SEPARATE = [*DRAFTERS, ("ouroboros", {"gamma": 3})]
HEADS = [("medusa", {}), ("eagle2", {"depth": 3, "total": 9}), ("parallelspec_eagle", {})]
CASES = [
    *((MINEDRAFT, *case) for case in SEPARATE),
    *((policy, *case) for policy in LENGTHS for case in (*DRAFTERS, *HEADS)),
]


def served(cluster, method: str, policy: str, load: Load = LOAD, **options: Any) -> Trace:
    asked = {"limits": LIMITS, "load": replace(load, policy=policy), **options}
    trace = cluster.run(method, *(PROMPTS[i % len(PROMPTS)] for i in range(len(load.arrivals))), **asked)
    assert trace.status == "done"
    return trace


def texts(trace: Trace) -> list[list[int]]:
    return [trace.token_ids(i) for i in range(len(trace.header.prompts))]


# Texts.


@pytest.mark.parametrize(("policy", "method", "config"), CASES, ids=str)
def test_at_temperature_0_every_policy_gives_the_same_texts(cluster, policy, method, config):
    plain = served(cluster, "autoregressive", FIXED)
    assert texts(served(cluster, method, policy, config=config)) == texts(plain)


@pytest.mark.parametrize(("method", "config"), SEPARATE, ids=str)
def test_the_draws_do_not_depend_on_the_batch_that_a_request_is_in(cluster, method, config):
    fixed, minedraft = (
        served(cluster, method, policy, config=config, sampling=SAMPLINGS[1]) for policy in (FIXED, MINEDRAFT)
    )
    assert texts(minedraft) == texts(fixed)
    assert minedraft.footer.reasons == fixed.footer.reasons


def test_measured_runs_have_the_texts_of_virtual_ones(cluster):
    with specscope.open(cluster.pair, runtime="local-thread", device="cpu") as threads:
        for policy in POLICIES:
            found = served(threads, "speculative", policy, config={"gamma": 3})
            assert texts(found) == texts(served(cluster, "autoregressive", FIXED)), policy


# MineDraft's two batches.


def verified(trace: Trace) -> dict[int, set[int]]:
    """Return the sequences whose drafts each step verified; first tokens are left out."""
    steps = defaultdict[int, set[int]](set)
    for r in trace.rounds:
        if r.drafted:
            steps[r.step].add(r.sequence)
    return steps


def steps_of(trace: Trace) -> dict[int, dict[str, tuple[int, int]]]:
    steps = defaultdict[int, dict[str, tuple[int, int]]](dict)
    for s in trace.spans:
        start, end = steps[s.step].get(s.model, (s.start, s.end))
        steps[s.step][s.model] = min(start, s.start), max(end, s.end)
    return steps


MANY = Load((0.0,) * 8, batch=4, chunk=256)


@pytest.mark.parametrize("gamma", [2, 8])
def test_max_of_v_and_d_exactly(cluster, gamma):
    """With gamma 2 the target is slower, with gamma 8 the drafter."""
    trace = served(cluster, "speculative", MINEDRAFT, MANY, config={"gamma": gamma}, limits=Limits(34))
    steps = steps_of(trace)
    numbers = sorted(step for step, models in steps.items() if len(models) == 2)[2:-6]
    assert len(numbers) >= 3
    for step in numbers:
        spent = {
            model: sum(s.end - s.start for s in trace.spans if (s.step, s.model) == (step, model))
            for model in ("target", "drafter")
        }
        start = min(start for start, _ in steps[step].values())
        assert min(start for start, _ in steps[step + 1].values()) - start == max(spent.values())
        assert (spent["target"] > spent["drafter"]) == (gamma == 2)


def test_two_batches_alternate(cluster):
    trace = served(cluster, "speculative", MINEDRAFT, MANY, config={"gamma": 2}, limits=Limits(24))
    batches = verified(trace)
    assert len({s for step in batches.values() for s in step}) == 8
    assert [len(batches[step]) for step in sorted(batches)[:4]] == [4, 4, 4, 4]
    parity: dict[int, int] = {}
    for step, sequences in batches.items():
        for sequence in sequences:
            assert parity.setdefault(sequence, step % 2) == step % 2, "a request stays in its batch"
    together = [s for s in trace.spans if s.kind == "verify"]
    assert max(s.rows for s in together) == 4 * 3
    assert trace.header.environment["load"]["policy"] == MINEDRAFT


def test_a_new_request_joins_the_smaller_batch(cluster):
    load = Load((0.0, 0.0, 0.6, 0.6, 0.6), batch=3, chunk=256)
    trace = served(cluster, "speculative", MINEDRAFT, load, config={"gamma": 2}, limits=Limits(30))
    batches = verified(trace)
    sizes = {step: len(sequences) for step, sequences in batches.items()}
    joined = [step for step in sizes if batches[step] & {2, 3, 4}]
    first = min(joined)
    assert {sizes[step] for step in sizes if step < first} == {1}
    pairs = [(sizes[a], sizes[b]) for a, b in pairwise(sorted(sizes)) if a > first + 2][:4]
    assert all(abs(a - b) == 1 and a + b == 5 for a, b in pairs)
    first_tokens = {c.sequence: c.time for c in reversed(trace.commits)}
    fixed = served(cluster, "speculative", FIXED, load, config={"gamma": 2}, limits=Limits(30))
    waits = {c.sequence: c.time for c in reversed(fixed.commits)}
    assert all(first_tokens[i] <= waits[i] for i in (2, 3, 4)), "a first token waits for no batch"


def test_one_request_decodes_as_without_the_policy(cluster):
    asked = {"load": Load((0.0,), batch=1), "config": {"gamma": 3}}
    fixed, minedraft = (
        [(s.kind, s.start, s.end, s.rows) for s in served(cluster, "speculative", policy, **asked).spans]
        for policy in (FIXED, MINEDRAFT)
    )
    assert minedraft == fixed


def test_an_empty_batch_leaves_ordinary_turns(cluster):
    """The second request ends first; then draft and verification of the other one take turns."""
    eos = cluster.run("autoregressive", PROMPTS[1], limits=Limits(5)).token_ids()[-1]
    load, limits = Load((0.0, 0.0), batch=1, chunk=256), Limits(30, eos=(eos,))
    trace = served(cluster, "speculative", MINEDRAFT, load, config={"gamma": 2}, limits=limits)
    ends = sorted(max(c.time for c in trace.commits if c.sequence == i) for i in range(2))
    assert ends[0] < ends[1]
    after = [models for models in steps_of(trace).values() if min(t for t, _ in models.values()) > ends[0]]
    assert after
    assert all(len(models) == 1 for models in after[1:])


def test_slots_are_those_of_both_batches(cluster):
    load = Load((0.0,) * 12, batch=2, chunk=256)
    trace = served(cluster, "speculative", MINEDRAFT, load, config={"gamma": 2})
    begins = {i: min(s.start for s in trace.spans if s.sequence == i) for i in range(12)}
    ends = {i: max(c.time for c in trace.commits if c.sequence == i) for i in range(12)}
    held = [sum(begins[i] <= time < ends[i] for i in range(12)) for time in begins.values()]
    assert max(held) == 4
    assert max(map(len, verified(trace).values())) <= 3


# Lengths.


@pytest.mark.parametrize("policy", LENGTHS)
def test_hopeless_drafts_are_dropped_and_good_ones_are_not(cluster, policy):
    """On this profile a draft token costs 0.18 verifications."""
    load = Load((0.0,) * 5, batch=5, chunk=256)
    drafted = dict[str, list[int]]()
    for tokens in ("bernoulli:0.0", "bernoulli:1.0"):
        with specscope.open(cluster.pair, runtime="virtual", profile="pearl-4xA100", tokens=tokens) as opened:
            trace = served(opened, "speculative", policy, load, config={"gamma": 4}, limits=Limits(34))
        drafted[tokens] = [r.drafted for r in trace.rounds if r.step > 1]
        stops = {chain.stop for chain in trace.chains if chain.drafted < chain.asked} - {"end"}
        assert stops == ({"load"} if tokens == "bernoulli:0.0" else set())
    assert set(drafted["bernoulli:0.0"][-50:]) == {0}, "speculation is off"
    assert set(drafted["bernoulli:1.0"][:10]) == {4}


def test_by_survival_each_request_has_its_own_length(cluster):
    load, asked = Load((0.0,) * 5, batch=5, chunk=256), {"config": {"gamma": 5}, "limits": Limits(34)}
    with specscope.open(
        cluster.pair, runtime="virtual", profile="pearl-4xA100", tokens="bernoulli:0.8"
    ) as opened:
        steep = Costs(((1, 1.0), (64, 20.0)), ((1, 0.05), (64, 0.1)))
        opened.placement.pool = replace(opened.placement.pool, costs=lambda: steep)
        found = {policy: served(opened, "speculative", policy, load, **asked) for policy in LENGTHS}
    lengths = {policy: defaultdict[int, set[int]](set) for policy in LENGTHS}
    for policy, trace in found.items():
        last = max(r.step for r in trace.rounds) - 8
        for r in trace.rounds:
            if 1 < r.step < last:
                lengths[policy][r.step].add(r.drafted)
    assert all(len(step) == 1 for step in lengths[BY_BATCH].values())
    assert any(len(step) > 1 for step in lengths[SURVIVAL].values())


# Refusals.


@pytest.mark.parametrize(
    ("method", "policy", "config", "words"),
    [
        ("pearl", MINEDRAFT, {}, "pearl drafts and verifies at once by itself, so the policy minedraft"),
        ("pearl", SURVIVAL, {}, "pearl drafts and verifies at once by itself"),
        ("autoregressive", MINEDRAFT, {}, "autoregressive drafts without a model"),
        ("llma", SURVIVAL, {}, "llma drafts without a model, so the policy survival has no effect"),
        ("medusa", MINEDRAFT, {}, "medusa drafts on the target's devices"),
        ("ouroboros", BY_BATCH, {}, "ouroboros insists on its own draft length"),
        ("dsi", MINEDRAFT, {}, "dsi cannot run under load"),
    ],
)
def test_refusals(cluster, method, policy, config, words):
    with pytest.raises(UsageError, match=words):
        served(cluster, method, policy, config=config)


def test_a_drafter_on_several_devices_is_refused():
    for policy, words in ((MINEDRAFT, "on the target's devices"), (BY_BATCH, "on several devices together")):
        with pytest.raises(UsageError, match=f"m drafts {words}"):
            with_policy("m", Layout(LayerParallel(2)), policy)


def test_minedraft_needs_a_device_for_the_drafter(cluster):
    profile = Profile.load("A100-40G")
    profile = replace(profile, gpus=profile.gpus[:1])
    words = "the policy minedraft needs a device for the drafter alone: .*; the profile A100-40G has 1"
    with specscope.open(cluster.pair, runtime="virtual", profile=profile) as opened:
        assert served(opened, "speculative", FIXED).status == "done"
        with pytest.raises(UsageError, match=words):
            served(opened, "speculative", MINEDRAFT)
        with pytest.raises(UsageError, match=words):
            opened.check("speculative", replace(LOAD, policy=MINEDRAFT))


def test_minedraft_is_refused_on_one_local_device(cluster, monkeypatch):
    one = devices_of("cpu")[:1]
    monkeypatch.setattr(specscope.engine.cluster.open, "devices_of", lambda _: one)
    with specscope.open(cluster.pair, runtime="local-thread", device="cpu") as opened:
        with pytest.raises(UsageError, match=f"and {one[0].name} holds the target, too"):
            served(opened, "speculative", MINEDRAFT)
