"""EMS-SD: packing changes no sequence's text; the paper's example with every packing."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import specscope
from specscope.engine.errors import UsageError
from specscope.engine.layout import Layout, Packing, Separate
from specscope.engine.methods import METHODS
from specscope.engine.methods.ems import Batch
from specscope.engine.trace.events import Commit, Header, Round
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Draft, DraftToken, Limits, Sampling
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.padding import batches, shortfalls
from specscope.traces.view.caches import packings
from specscope.traces.view.tokens import trees
from tests.engine.methods.pairs import known_cluster, make_pair, ranked, timeless
from tests.engine.methods.test_tree import PerRow, second_is_right
from tests.engine.worker.harness import Flat, scripted_cluster

TREES = {"base": "speculative", "width": 3, "gamma": 4}
BASES = {
    "llma": ("llma", {}, {"base": "llma"}),
    "speculative": ("speculative", {"gamma": 4}, {"base": "speculative"}),
    "trees": ("tree", {"width": 3, "depth": 4}, TREES),
}
"""A method, its settings, and those of `ems` on its base."""
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
NARROW = Sampling(0.9, top_k=4, top_p=0.7, seed=5)
"""Often allows fewer tokens than a level's width: the trees of a round differ in size."""


def alone(cluster, base: str, prompts, sampling: Sampling, new: int) -> list[Trace]:
    """Run the base method for each prompt, with the draws of its sequence in a batch."""
    method, config, _ = BASES[base]
    seeds = [replace(sampling, seed=sampling.seed + i) for i in range(len(prompts))]
    return [
        cluster.run(method, p, config=config, sampling=s, limits=Limits(new))
        for p, s in zip(prompts, seeds, strict=True)
    ]


def story(trace: Trace, sequence: int = 0) -> tuple:
    """Return the decisions of a sequence, its rounds, its text and the reason of its end."""
    decisions = [d for d in trace.decisions if d.sequence == sequence]
    nodes = [(d.position, d.node, d.parent, d.token, d.rule, d.outcome) for d in decisions]
    rounds = [(r.drafted, r.accepted, r.emitted) for r in trace.rounds if r.sequence == sequence]
    texts = trace.token_ids(sequence), trace.footer.texts[sequence], trace.footer.reasons[sequence]
    return nodes, rounds, *texts


def verifies(trace: Trace):
    return [s for s in trace.spans if s.kind == "verify"]


@pytest.mark.parametrize(
    ("cluster", "base", "sampling"),
    [
        *(("local-thread", *case) for case in itertools.product(BASES, SAMPLINGS)),
        *(("virtual", *case) for case in zip(BASES, (*SAMPLINGS, NARROW), strict=True)),
        ("local-thread", "trees", NARROW),
        ("local-process", "trees", SAMPLINGS[1]),
    ],
    ids=lambda x: f"T={x.temperature}-{x.top_k}" if isinstance(x, Sampling) else x,
    indirect=["cluster"],
    scope="module",
)
def test_a_sequence_has_the_drafts_and_the_text_of_the_base_method_alone(cluster, base, sampling):
    singles = [story(trace) for trace in alone(cluster, base, PROMPTS, sampling, 10)]
    assert base == "llma" or any(accepted for _, rounds, *_ in singles for _, accepted, _ in rounds)
    cases = [(3, True, "both"), (24, False, "vanilla")]
    if cluster.placement.runtime == "local-thread" and sampling in (SAMPLINGS[base == "speculative"], NARROW):
        cases += [(2, True, "vanilla"), (4, False, "inputs"), (3, True, "kv"), (1, True, "vanilla")]
    for batch, dynamic, variant in cases:
        fed = {"dynamic": dynamic, "feed_finished": not dynamic}
        config = {**BASES[base][2], "batch": batch, **fed, **VARIANTS[variant]}
        trace = cluster.run("ems", *PROMPTS, config=config, sampling=sampling, limits=Limits(10))
        assert trace.status == "done"
        for i, single in enumerate(singles):
            assert story(trace, i) == single, (batch, dynamic, variant, i)


@pytest.mark.parametrize("base", BASES)
def test_one_prompt_has_the_events_of_the_base_method(threads, base):
    for sampling in SAMPLINGS:
        (plain,) = alone(threads, base, PROMPTS[2:3], sampling, 16)
        trace = threads.run("ems", PROMPTS[2], config=BASES[base][2], sampling=sampling, limits=Limits(16))
        assert timeless(trace) == timeless(plain)


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
    ends = [Limits(1), Limits(5, stop=(free[0].text[3:5],)), Limits(16, stop=(free[2].text[5:7],))]
    ends += [Limits(16, eos=(token,)) for token in dict.fromkeys(free[2].token_ids()[1:6:2])]
    return [(limits, [tiny.run("autoregressive", p, limits=limits) for p in TINY]) for limits in ends]


ENDS = [
    (*case, variant, False)
    for case in (("llma", 1), ("speculative", 1), ("speculative", 3))
    for variant in VARIANTS
]
ENDS += [("llma", 1, "vanilla", True), ("speculative", 3, "inputs", True), ("plain", 1, "both", True)]


@pytest.mark.parametrize(("base", "width", "variant", "feeds"), ENDS)
def test_an_end_inside_a_draft_ends_only_its_sequence(tiny, tiny_singles, base, width, variant, feeds):
    """The target has a sliding window: padding must not change its masks.

    If finished sequences are fed, a forward has the rows of the whole batch until the batch ends.
    """
    config = {"base": base, "width": width, "match": 1, **VARIANTS[variant]}
    config |= {"batch": 2, "feed_finished": True} if feeds else {}
    reasons, fewest = set(), 2
    for limits, singles in tiny_singles:
        trace = tiny.run("ems", *TINY, config=config, limits=limits)
        for i, single in enumerate(singles):
            assert trace.token_ids(i) == single.token_ids()
            assert (trace.footer.texts[i], trace.footer.reasons[i]) == (single.text, single.footer.reasons[0])
        reasons |= set(trace.footer.reasons)
        shares = {forward["span"]: forward["shares"] for forward in packings(trace)}
        for span in verifies(trace) if feeds else ():
            assert sorted(share["sequence"] for share in shares[span.id]) in ([0, 1], [2, 3])
            assert sum(share["padded_rows"] for share in shares[span.id]) == span.rows
            assert sum(share["padded_cached"] for share in shares[span.id]) == span.context
            active = [r.sequence for r in trace.rounds if r.span == span.id]
            assert [share["sequence"] for share in shares[span.id] if share["rows"]] == active
            fewest = min(fewest, len(active))
    assert reasons == {"eos", "stop", "length"}
    assert fewest == 1 or not feeds, "some forwards had a row of a finished sequence"


def test_a_batch_ends_before_the_next_one_begins_unless_batching_is_dynamic():
    def next_token(path: np.ndarray) -> int:
        """Return 100 rising tokens, or 10 if the prompt begins with 9, then 1."""
        return 1 if len(path) >= (104 if path[0] == 9 else 14) else int(path[-1]) + 1

    prompts = [[8, 20, 21], [9, 30, 31], [8, 40, 41], [8, 50, 51]]
    with scripted_cluster(next_token, next_token, Flat(1000, 100)) as cluster:
        asked = {"limits": cluster.limits(200, eos=(1,))}
        configs = [{"base": "speculative", "batch": 2, "dynamic": dynamic} for dynamic in (False, True)]
        runs = {config["dynamic"]: cluster.run("ems", *prompts, config=config, **asked) for config in configs}
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


# EMS-SD with a token tree per sequence (limitation 4): trees and texts equal `tree`'s.


def test_a_level_of_all_trees_is_one_forward_and_all_trees_are_verified_in_one():
    """Levels have 2, 4 and 4 nodes after 1, 2 and 4 rows, as with `tree`; fewer near the end.

    The target's token, 100 + the position, is always the drafter's second choice.
    """
    target, drafter = ranked("target", lambda x: [100 + len(x)]), ranked("drafter", second_is_right)
    config = {"base": "speculative", "width": 4, "gamma": 3, "batch": 2}
    with known_cluster(PerRow(), target=target, drafter=drafter) as cluster:
        prompts = [1, 2, 3], [1, 2, 3, 4, 5]
        trace = cluster.run("ems", *prompts, config=config, limits=cluster.limits(8))
    assert [(r.step, r.sequence, r.drafted, r.accepted, r.emitted) for r in trace.rounds] == [
        (step, sequence, *row)
        for step, row in ((1, (10, 2, 3)), (2, (10, 2, 3)), (3, (6, 2, 2)))
        for sequence in (0, 1)
    ]
    drafts = [(s.rows, s.context) for s in trace.spans if s.kind == "draft"]
    cached = [(2 + 4, 3 + 5, 5 + 7), (5 + 7, 6 + 8, 8 + 10), (8 + 10, 9 + 11)]
    rows = (2 * 1, 2 * 2, 2 * 4)
    assert drafts == [(n, c) for round_ in cached for n, c in zip(rows, round_, strict=False)]
    assert [(s.rows, s.context) for s in verifies(trace)] == [(22, 6), (22, 12), (14, 18)]
    shown = [(t["step"], t["sequence"], t["drafted"], max(t["nodes"]["level"])) for t in trees(trace)]
    assert shown == [(r.step, r.sequence, r.drafted, 2 if r.drafted == 10 else 1) for r in trace.rounds]


def test_24_sequences_with_the_largest_trees_have_enough_rows_of_q(tmp_path):
    pair, _ = make_pair(tmp_path, "qwen3", "other")
    config = {"base": "speculative", "batch": 24, "width": 4, "gamma": 16}
    sampling, prompts = Sampling(1.0, seed=3), [[3 + i, 7] for i in range(24)]
    with specscope.open(pair, runtime="local-thread", device="cpu") as cluster:
        trace = cluster.run("ems", *prompts, config=config, sampling=sampling, limits=Limits(20))
        last = cluster.run("tree", prompts[23], config={"width": 4, "depth": 16},
                           sampling=replace(sampling, seed=26), limits=Limits(20))  # fmt: skip
    assert max(r.drafted for r in trace.rounds) > 60
    assert story(trace, 23) == story(last)


# The example of Table 1 and Figure 2: two samples, two steps.


PREDICTED = [(5, 2), (2, 5)]
"""Per step: the draft tokens of sample 0 and of sample 1."""
ACCEPTED = [(4, 1), (2, 6)]
"""Per step: the emitted tokens, the target's own included."""
EXAMPLE = ([10, 11], [500, 501])
PACKINGS = [Packing(inputs, kv) for inputs in (False, True) for kv in (False, True)]


def successor(path: np.ndarray) -> int:
    return int(path[-1]) + 1


def draft(x, length: int, right: int) -> Draft:
    """Return a chain whose first `right` tokens are the target's."""
    ids = [int(x.tokens[-1]) + 1 + i if i < right else 7 for i in range(length)]
    return Draft(tuple(DraftToken(token, i - 1) for i, token in enumerate(ids)))


async def decode(run, cfg) -> None:
    batch = Batch(run, 2)
    for lengths, accepted in zip([*PREDICTED, (0, 0)], [*ACCEPTED, (1, 1)], strict=True):
        drafts = [draft(x, n, min(a - 1, n)) for x, n, a in zip(batch.xs, lengths, accepted, strict=True)]
        batch.commit(await batch.verify(drafts))


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_the_example_has_the_tokens_padding_cells_and_ratios_of_the_table(packing, monkeypatch):
    """A third step shows the KV padding of the second one."""
    layout = Layout(Separate(drafters=0), batch=2, packing=packing)
    monkeypatch.setitem(METHODS, "ems", replace(METHODS["ems"], decode=decode, layout=lambda _: layout))
    with scripted_cluster(successor, successor) as cluster:
        trace = cluster.run("ems", *EXAMPLE, limits=cluster.limits(40))
    by_step = [[r for r in trace.rounds if r.step == step] for step in (1, 2)]
    assert [tuple(r.drafted for r in rounds) for rounds in by_step] == PREDICTED
    assert [tuple(r.emitted for r in rounds) for rounds in by_step] == ACCEPTED
    assert [trace.token_ids(i) for i in (0, 1)] == [[*range(12, 19)], [*range(502, 510)]]

    steps = {forward["step"]: forward["shares"] for forward in packings(trace)}
    inputs = [tuple(share["padded_rows"] - share["rows"] for share in steps[step]) for step in (1, 2)]
    assert inputs == ([(0, 0), (0, 0)] if packing.unpad_inputs else [(0, 3), (3, 0)])
    kv_padding = [[s["padded_cached"] - s["cached"] for s in steps[step]] for step in (1, 2, 3)]
    after = [tuple(b - a for a, b in zip(before, now, strict=True)) for before, now in pairwise(kv_padding)]
    assert after == ([(0, 0), (0, 0)] if packing.unpad_kv else [(0, 3), (4, 0)])
    assert shortfalls(trace) == {1: {0: 0, 1: 3}, 2: {0: 4, 1: 0}, 3: {}}  # no padding after the last step

    rows = [(6, 3), (3, 6), (1, 1)] if packing.unpad_inputs else [(6, 6), (6, 6), (1, 1)]
    cached = [(1, 1), (5, 2), (7, 8)] if packing.unpad_kv else [(1, 1), (5, 5), (11, 11)]
    cells = [sum(r * (c + r) for r, c in zip(*both, strict=True)) for both in zip(rows, cached, strict=True)]
    spans = [s for s in trace.spans if s.kind == "verify"]
    expected = list(zip(map(sum, rows), map(sum, cached), cells, [-1] * 3, strict=True))
    assert [(s.rows, s.context, s.cells, s.sequence) for s in spans] == expected

    m = measure(trace)
    assert m.padding_ratio == pytest.approx((4 / (4 + 2 + 1) + 3 / (1 + 6 + 1)) / 2)
    assert m.padding_share == pytest.approx((3 + 4) / (3 + 4 + 7 + 8))
    assert m.acceptance_length == pytest.approx((4 + 1 + 2 + 6 + 1 + 1) / 6)
    assert m.least_acceptance_length == pytest.approx((4 + 2 + 1) / 3)


def test_the_least_acceptance_length_is_a_batchs_and_the_mean_over_the_batches():
    """Samples 0 and 1, then 2 and 3: the slowest have 2 and 4 tokens per verification."""
    trace = _trace([[2, 6], [2, 6], [], []])
    later = _trace([[], [], [5, 4], [7, 4]])
    trace.header = replace(trace.header, prompts=("",) * 4, prompt_ids=((1,),) * 4)
    for r in later.rounds:
        trace.add(replace(r, sequence=r.sequence + 2))
    assert batches(trace) == [[0, 1], [2, 3]]
    assert measure(trace).least_acceptance_length == pytest.approx((2 + 4) / 2)


def _trace(lengths: list[list[int]]):

    n = max(len(counts) for counts in lengths)
    ids = ((1,),) * n
    trace = Trace(
        Header("run", "", "ems", "EMS-SD", {}, ("",) * n, ids, {}, {}, "virtual", "flat", (), "", "")
    )
    for step, counts in enumerate(lengths, 1):
        for sequence, count in enumerate(counts):
            trace.add(Round(step, sequence, "verify", 7, count - 1, count, step, 0))
            for _ in range(count):
                trace.add(Commit(step, sequence, 1, 7, "accepted", "", step))
    return trace
