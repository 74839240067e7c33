"""PEARL: the paper's examples step by step, and the pipeline of its appendix G."""

from __future__ import annotations

import numpy as np
import pytest

import specscope
from specscope.engine.types import Limits, Sampling
from specscope.traces.facts.metrics import measure
from tests.engine.worker.harness import Flat, scripted_cluster

TABLE_9 = {
    "": "Great , I ’ m",
    "I": "’ m glad you could",
    "I ’ m glad you could": "are interested in exploring more",
    "I ’ m happy": "to help you with this",
    "I ’ m happy to help you with this": "equation ! However , I",
    "I ’ m happy to help you with your": "question ! However , I",
    "I ’ m happy to help you with your question ! However , I": "notice that the equation you",
    "I ’ m happy to help you with your question ! However , I notice that the equation you": "provided is not correct .",
}
TEXT_9 = "I ’ m happy to help you with your question ! However , I notice that the equations"


def _ids(text: str, words: dict[str, int]) -> list[int]:
    return [words.setdefault(w, len(words) + 10) for w in text.split()]


@pytest.mark.parametrize(
    ("gamma", "script", "text", "emits", "modes"),
    [
        (5, TABLE_9, TEXT_9, [1, 1, 2, 1, 4, 1, 5, 3], ["pre-verify"] * 2 + ["post-verify", "pre-verify"] * 2 + ["post-verify"] * 2),
        (
            3,
            {
                "": "x1 x2 x3",
                "y1": "x4 x5 x6",
                "y1 x4 x5 x6": "x7 x8 x9",
                "y1 x4 x5 x6 x7 x8 x9": "x10 x11 x12",
            },
            "y1 x4 x5 x6 x7 x8 y2",
            [1, 1, 3, 2],
            ["pre-verify", "pre-verify", "post-verify", "post-verify"],
        ),
    ],
    ids=["table 9", "figure 3"],
)  # fmt: skip
def test_prefix_and_mode_of_every_step(gamma, script, text, emits, modes):
    words: dict[str, int] = {}
    prompt = [1, 2, 3]
    truth = _ids(text, words)
    drafts = [(_ids(before, words), _ids(then, words)) for before, then in script.items()]

    def target(path: np.ndarray) -> int:
        out = path[len(prompt) :].tolist()
        return truth[len(out)] if out == truth[: len(out)] and len(out) < len(truth) else 5

    def drafter(path: np.ndarray) -> int:
        out = path[len(prompt) :].tolist()
        for before, then in drafts:
            rest = out[len(before) :]
            if out[: len(before)] == before and len(rest) < len(then) and rest == then[: len(rest)]:
                return then[len(rest)]
        return 6

    with scripted_cluster(target, drafter) as cluster:
        # one token more than the text, so that the last step is not cut short
        limits = cluster.limits(len(truth) + gamma)
        trace = cluster.run("pearl", prompt, config={"gamma": gamma}, limits=limits)
    rounds = trace.rounds[: len(emits)]
    assert [r.emitted for r in rounds] == emits
    assert [r.mode for r in rounds] == modes
    assert trace.token_ids()[: len(truth)] == truth


# The pipeline.

STEP = 1000
"""Microseconds of a sub-step: eta in the paper."""
APPENDIX_G = Flat(target_us=20 * STEP, drafter_us=4 * STEP)
FORWARDS = ("verify", "pre-verify")
M_P = "0, 0, 0, 0, 0; 1, 1, 1, 1, 1; 2, 2, 2, 2, 2; 3, 3, 3, 3, 3"
M_Q = "3, 3, 3, 3; 3, 3, 3, 3; 3, 3, 3, 3; 0, 0, 0, 0; 0, 0, 0, 0"


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.replace(";", ",").split(",")]


def right(path: np.ndarray) -> int:
    return int(path[-1]) % 50 + 10


def wrong(path: np.ndarray) -> int:
    return 7


def run(latency: Flat, drafter=right, new: int = 41, **config: object):
    config = {"gamma": 5, "placement": "pipeline", "stages": 4, **config}
    with scripted_cluster(right, drafter, latency) as cluster:
        return cluster.run("pearl", [1, 2, 3], config=config, limits=cluster.limits(new))


def occupied(trace, model: str) -> list[list[int]]:
    starts = sorted({s.start for s in trace.spans if s.kind in FORWARDS and s.rank == 0})
    rounds = []
    for start in starts:
        steps = []
        for i in range(20):
            at = start + (i * STEP + STEP // 2) * 1000
            running = [s for s in trace.spans if s.model == model and s.start <= at < s.end]
            assert len(running) <= 1, "a model is on one device at a time"
            steps += [int(s.device.removeprefix("gpu")) for s in running]
        rounds.append(steps)
    return rounds


def test_the_schedule_of_appendix_g_sub_step_by_sub_step():
    trace = run(APPENDIX_G)
    assert [r.emitted for r in trace.rounds] == [1] + [5] * 8
    target, drafter = occupied(trace, "target"), occupied(trace, "drafter")
    assert target == [numbers(M_P)] * 9
    assert drafter == [numbers(M_Q)] * 8 + [[3] * 4]  # the last round has room for one draft more
    assert all(p != q for p, q in zip(numbers(M_P), numbers(M_Q), strict=True))
    metrics = measure(trace)
    assert metrics.target_forwards == len(trace.rounds), "a forward over all stages counts once"
    assert metrics.verify_seconds_per_100_tokens == pytest.approx(len(trace.rounds) * 0.020 / 41 * 100)
    assert (metrics.c, metrics.sp_degree) == (pytest.approx(5), 1)


@pytest.mark.parametrize("drafter", [right, wrong])
@pytest.mark.parametrize(("gamma", "c", "stages"), [(5, 5, 4), (4, 4, 2), (3, 3, 3), (8, 8, 5)])
def test_drafter_and_target_are_never_on_one_device_at_once(gamma, c, stages, drafter):
    latency = Flat(target_us=60 * STEP, drafter_us=60 * STEP // c)
    trace = run(latency, drafter, gamma=gamma, stages=stages)
    for a in trace.spans:
        for b in trace.spans:
            if a.model == "drafter" and b.model == "target" and a.device == b.device:
                assert a.end <= b.start or b.end <= a.start
    prefill = latency.drafter_us + latency.target_us  # one after the other: both need the first device
    without_waiting = prefill + latency.target_us * len(trace.rounds)
    assert trace.footer.time == 1000 * without_waiting


def test_an_odd_gamma_on_two_devices_makes_the_target_wait_for_the_drafter():
    """3 of 5 drafts take 12 of 20 sub-steps, but the second of two stages could start after 10."""
    trace = run(APPENDIX_G, stages=2)
    first = [s for s in trace.spans if s.step == 1 and s.kind in FORWARDS]
    assert [(s.start - first[0].start) // 1_000_000 for s in first] == [0, 12]


def test_halves_are_drafted_at_the_ends_and_rows_are_copied_between():
    trace = run(Flat(20 * STEP, 4 * STEP, row_move_us=STEP))
    spans = [s for s in trace.spans if s.step == 2 and s.model == "drafter"]
    begin = spans[0].start
    copied = [
        (s.kind, s.device, (s.start - begin) // 1_000_000, (s.end - begin) // 1_000_000, s.rows)
        for s in spans
    ]
    assert copied == [
        ("draft", "gpu3", 0, 4, 3),  # the other half of the round before was drafted elsewhere
        ("draft", "gpu3", 4, 8, 1),
        ("draft", "gpu3", 8, 12, 1),
        ("communicate", "gpu0", 12, 15, 3),
        ("draft", "gpu0", 15, 19, 1),
        ("draft", "gpu0", 19, 23, 1),
    ]
    moved = [s for s in trace.spans if s.kind == "communicate" and s.model == "drafter"]
    drafts = [s for s in trace.spans if s.kind == "draft" and s.device == "gpu0"]
    assert len(moved) == len(trace.rounds) - 1
    assert {s.rows for s in drafts} == {1}, "the rows drafted at the other end were copied"


@pytest.mark.parametrize(
    ("gamma", "new", "last", "first"),
    [(1, 41, 1, 0), (2, 41, 1, 1), (3, 41, 2, 1), (7, 41, 4, 3), (5, 3, 3, 0)],
)
def test_the_larger_half_and_a_draft_that_ends_with_the_output_are_on_the_last_device(
    gamma, new, last, first
):
    trace = run(APPENDIX_G, gamma=gamma, new=new)
    drafts = [s.device for s in trace.spans if s.kind == "draft" and s.step == 1]
    assert [drafts.count("gpu3"), drafts.count("gpu0")] == [last, first]
    copied = [s for s in trace.spans if s.kind == "communicate" and s.model == "drafter" and s.step == 1]
    assert len(copied) == (new == 41 and first > 0)


@pytest.mark.parametrize("drafter", [right, wrong])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"pre_verify": False},
        {"post_verify": False},
        {"pre_verify": False, "post_verify": False},
        {"guesses": 3},
    ],
    ids=str,
)
def test_a_pipeline_gives_the_trace_rows_of_separate_devices(config, drafter):
    def rows(placement: str):
        trace = run(APPENDIX_G, drafter, 26, placement=placement, **config)
        rounds = [(r.step, r.mode, r.drafted, r.accepted, r.emitted) for r in trace.rounds]
        return rounds, [(d.position, d.token, d.node, d.outcome) for d in trace.decisions], trace.token_ids()

    assert rows("pipeline") == rows("separate")


# Settings.


def test_q_of_sampled_drafts_comes_from_both_ends():
    """Rule 1 judges drafts by the q of the device that drew them."""
    with specscope.open(runtime="virtual", profile="pearl-4xA100") as cluster:
        warm = Sampling(0.9, seed=4)
        traces = [
            cluster.run("pearl", "Hi", config={"gamma": 4, "placement": p}, sampling=warm, limits=Limits(40))
            for p in ("separate", "pipeline")
        ]
    decisions = [[(d.position, d.token, d.rule, d.outcome, d.u) for d in trace.decisions] for trace in traces]
    assert decisions[0] == decisions[1]
    assert "ratio" in {d.rule for d in traces[1].decisions}
    for a, b in zip(traces[0].decisions, traces[1].decisions, strict=True):
        assert (a.q is None) == (b.q is None)
        assert a.q is None or a.q == pytest.approx(b.q, abs=1e-4)
