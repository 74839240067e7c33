"""EMS-SD: packing does not change a sequence's text; the cost of packing is counted."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import specscope
from specscope.engine.errors import UsageError
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.metrics import measure
from specscope.traces.view.caches import packings
from tests.engine.methods.pairs import make_pair
from tests.engine.worker.harness import Flat, scripted_cluster

BASES = ("llma", "speculative")
TREES = {"base": "speculative", "width": 3, "gamma": 4}
VARIANTS = {
    "vanilla": {"unpad_inputs": False, "unpad_kv": False},
    "inputs": {"unpad_inputs": True, "unpad_kv": False},
    "kv": {"unpad_inputs": False, "unpad_kv": True},
    "both": {},
}
PROMPTS = (
    "Tell me a story about a dragon.",
    "Hi",
    "One fox, two foxes. One fox, two foxes. One fox,",
    "Once there was a fox. Once there was",
    "Tell me a joke.",
)
SAMPLINGS = (Sampling(), Sampling(0.9, top_k=60, top_p=0.95, seed=11))


def alone(cluster, sampling: Sampling, limits: Limits, **config) -> list[Trace]:
    """Run each prompt alone; sequence i of a batch has the draws of the seed that is i higher."""
    warp = (sampling.temperature, sampling.top_k, sampling.top_p)
    return [
        cluster.run("ems", p, config=config, sampling=Sampling(*warp, seed=sampling.seed + i), limits=limits)
        for i, p in enumerate(PROMPTS)
    ]


def test_plain_batches_draft_nothing_and_write_the_text_of_plain_decoding(cluster):
    for sampling in SAMPLINGS:
        config = {"base": "plain", "batch": 3}
        trace = cluster.run("ems", *PROMPTS, config=config, sampling=sampling, limits=Limits(10))
        assert {(r.drafted, r.emitted) for r in trace.rounds} == {(0, 1)}
        assert not any(s.kind == "draft" or s.model == "drafter" for s in trace.spans)
        for i, prompt in enumerate(PROMPTS):
            seeded = replace(sampling, seed=sampling.seed + i)
            single = cluster.run("autoregressive", prompt, sampling=seeded, limits=Limits(10))
            assert trace.token_ids(i) == single.token_ids()


def verifies(trace: Trace):
    return [s for s in trace.spans if s.kind == "verify"]


@pytest.mark.parametrize(
    ("cluster", "base", "sampling"),
    [
        *itertools.product(["local-thread"], BASES, SAMPLINGS),
        *(("virtual", *both) for both in zip(BASES, SAMPLINGS, strict=True)),
        ("local-process", "trees", SAMPLINGS[1]),
    ],
    ids=lambda x: f"T={x.temperature}" if isinstance(x, Sampling) else x,
    indirect=["cluster"],
    scope="module",
)
def test_a_sequence_has_the_same_text_as_alone(cluster, base, sampling):
    """Trees on threads and in virtual time are in `test_ems_trees.py`."""
    settings = TREES if base == "trees" else {"base": base}
    singles = alone(cluster, sampling, Limits(10), **settings)
    cases = [(3, True, "both"), (24, False, "vanilla")]
    if cluster.placement.runtime == "local-thread" and sampling == SAMPLINGS[base == "speculative"]:
        cases += [(2, True, "vanilla"), (4, False, "inputs"), (3, True, "kv"), (1, True, "vanilla")]
    for batch, dynamic, variant in cases:
        fed = {"dynamic": dynamic, "feed_finished": not dynamic}
        config = {**settings, "batch": batch, **fed, **VARIANTS[variant]}
        trace = cluster.run("ems", *PROMPTS, config=config, sampling=sampling, limits=Limits(10))
        assert trace.status == "done"
        for i, single in enumerate(singles):
            assert trace.token_ids(i) == single.token_ids(), (batch, dynamic, variant, i)
            assert trace.footer.texts[i] == single.text
            assert trace.footer.reasons[i] == single.footer.reasons[0]


@pytest.mark.parametrize("cluster", ["local-thread"], indirect=True, scope="module")
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda s: f"T={s.temperature}")
def test_one_prompt_has_the_rounds_of_the_base_method(cluster, base, sampling):
    config = {"gamma": 4} if base == "speculative" else {}
    plain = cluster.run(base, PROMPTS[2], config=config, sampling=sampling, limits=Limits(16))
    trace = cluster.run("ems", PROMPTS[2], config={"base": base}, sampling=sampling, limits=Limits(16))
    assert trace.token_ids() == plain.token_ids()
    mine, theirs = ([(r.step, r.drafted, r.accepted, r.emitted) for r in t.rounds] for t in (trace, plain))
    assert mine == theirs


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    pair, _ = make_pair(tmp_path_factory.mktemp("pairs"), "mistral-window", "other")
    with specscope.open(pair, runtime="local-thread", device="cpu") as cluster:
        yield cluster


TINY = ([5], [7, 8, 9], list(range(20, 38)), [3, 9])


@pytest.fixture(scope="module")
def tiny_singles(tiny):
    """Return several limits, each with the prompts' runs alone."""
    free = [tiny.run("autoregressive", p, limits=Limits(16)) for p in TINY]
    ends = [
        Limits(16),
        Limits(1),
        Limits(5, stop=(free[0].text[3:5],)),
        Limits(16, stop=(free[2].text[5:7],)),
    ]
    ends += [Limits(16, eos=(token,)) for token in dict.fromkeys(free[2].token_ids()[1:6:2])]
    return [(limits, [tiny.run("autoregressive", p, limits=limits) for p in TINY]) for limits in ends]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("base", "width"), [("llma", 1), ("speculative", 1), ("speculative", 3)])
def test_an_end_inside_a_draft_ends_only_its_sequence(tiny, tiny_singles, base, width, variant):
    """The target has a sliding window: padding must not change its masks."""
    config = {"base": base, "width": width, "match": 1, **VARIANTS[variant]}
    reasons = set()
    for limits, singles in tiny_singles:
        trace = tiny.run("ems", *TINY, config=config, limits=limits)
        for i, single in enumerate(singles):
            assert trace.token_ids(i) == single.token_ids()
            assert trace.footer.texts[i] == single.text
        reasons |= set(trace.footer.reasons)
    assert reasons == {"eos", "stop", "length"}


def own(trace: Trace) -> list[list[tuple[int, int]]]:
    """Return (new rows, cached rows) of each sequence in each verification."""
    lengths, steps = [len(ids) for ids in trace.header.prompt_ids], dict[int, list[tuple[int, int]]]()
    for r in trace.rounds:
        steps.setdefault(r.step, []).append((r.drafted + 1, lengths[r.sequence] - 1))
        lengths[r.sequence] += r.emitted
    return list(steps.values())


def test_a_batch_ends_before_the_next_one_begins_unless_batching_is_dynamic():
    def next_token(path: np.ndarray) -> int:
        """Return 100 rising tokens, or 10 if the prompt begins with 9, then 1."""
        return 1 if len(path) >= (104 if path[0] == 9 else 14) else int(path[-1]) + 1

    prompts = [[8, 20, 21], [9, 30, 31], [8, 40, 41], [8, 50, 51]]
    with scripted_cluster(next_token, next_token, Flat(1000, 100)) as cluster:
        limits = cluster.limits(200, eos=(1,))
        config = {"base": "speculative", "batch": 2}
        runs = {
            dynamic: cluster.run("ems", *prompts, config={**config, "dynamic": dynamic}, limits=limits)
            for dynamic in (False, True)
        }
    assert runs[False].footer.texts == runs[True].footer.texts
    assert runs[False].footer.reasons == ("eos",) * 4
    for dynamic, trace in runs.items():
        spans = {s.id: s.step for s in verifies(trace)}
        steps = [[r.step for r in trace.rounds if r.sequence == i] for i in range(4)]
        assert set(itertools.chain(*steps)) == set(spans.values())
        assert max(len([r for r in trace.rounds if r.step == step]) for step in spans.values()) == 2
        if dynamic:
            assert steps[2][0] == steps[0][-1] + 1
            assert steps[3][0] == steps[2][-1] + 1
        else:
            assert steps[2][0] == steps[3][0] == steps[1][-1] + 1
        joined = [s for s in trace.spans if s.kind == "prefill" and s.step > 1 and s.model == "target"]
        assert [s.rows for s in joined] == ([2, 2] if dynamic else [4])
    assert measure(runs[True]).seconds < measure(runs[False]).seconds


@pytest.mark.parametrize(
    ("base", "width", "variant"), [("llma", 1, "vanilla"), ("speculative", 3, "inputs"), ("plain", 1, "both")]
)
def test_finished_sequences_are_fed_on_request_and_change_no_text(tiny, tiny_singles, base, width, variant):
    """Each forward has the rows of the whole batch until the batch ends."""
    config = {
        "base": base,
        "width": width,
        "match": 1,
        "batch": 2,
        "feed_finished": True,
        **VARIANTS[variant],
    }
    fewest = 2
    for limits, singles in tiny_singles:
        trace = tiny.run("ems", *TINY, config=config, limits=limits)
        for i, single in enumerate(singles):
            assert trace.token_ids(i) == single.token_ids()
            assert trace.footer.reasons[i] == single.footer.reasons[0]
        shares = {forward["span"]: forward["shares"] for forward in packings(trace)}
        for span in verifies(trace):
            assert sorted(share["sequence"] for share in shares[span.id]) in ([0, 1], [2, 3])
            assert sum(share["padded_rows"] for share in shares[span.id]) == span.rows
            assert sum(share["padded_cached"] for share in shares[span.id]) == span.context
            active = [r.sequence for r in trace.rounds if r.span == span.id]
            assert [share["sequence"] for share in shares[span.id] if share["rows"]] == active
            fewest = min(fewest, len(active))
    assert fewest == 1  # some forwards had a row of a finished sequence


def test_virtual_time_counts_the_padding():
    """Bernoulli drafts have equal lengths until the end, so only the KV padding differs."""
    opened = {"profile": "A100-OPT", "profile_pair": "opt-125m-6.7b", "tokens": "bernoulli:0.7"}
    config = {"base": "speculative", "batch": len(PROMPTS)}
    with specscope.open(runtime="virtual", **opened) as cluster:
        traces = {
            name: cluster.run("ems", *PROMPTS, config={**config, **variant}, limits=Limits(100))
            for name, variant in VARIANTS.items()
        }
    assert len({t.footer.texts for t in traces.values()}) == 1
    measured = {name: measure(trace) for name, trace in traces.items()}
    assert measured["both"].seconds < measured["vanilla"].seconds
    assert measured["both"].padding_ratio == measured["vanilla"].padding_ratio > 0.2


@pytest.mark.parametrize(
    ("method", "config", "prompts", "message"),
    [
        (
            "ems",
            {"base": "speculative", "width": 16, "gamma": 5},
            ("a", "b"),
            "width 16 times gamma 5 is 80 nodes; it must be at most 64: at this width gamma is at most 4",
        ),
        ("ems", {}, ("a", "b", ""), "prompt 2 of 3 (counted from 0): the prompt is empty"),
        ("ems", {}, (), "ems was given no prompt; give it at least one"),
        ("speculative", {}, ("a", "b"), "speculative decodes one prompt in a run, not 2; give one, or choose a method for batches"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_at_once(tiny, method, config, prompts, message):
    with pytest.raises(UsageError) as caught:
        tiny.run(method, *prompts, config=config, limits=Limits(4))
    assert str(caught.value).startswith(message)
