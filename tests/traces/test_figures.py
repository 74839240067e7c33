"""Every figure of every method against its definition, and against the page's other figures."""

from __future__ import annotations

import threading
from math import isclose

import pytest

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.methods import METHODS
from specscope.engine.run.serving import Load
from specscope.engine.trace.events import Span
from specscope.engine.types import Limits, Sampling
from specscope.traces.imported import origin
from specscope.traces.metrics import measure
from specscope.traces.places import first_rate, level_rate
from specscope.traces.view.document import view_model
from specscope.traces.view.tokens import has_trees
from tests.engine.heads.random_heads import with_heads
from tests.engine.methods.lossless import CASES
from tests.traces import plain_figures
from tests.traces.samples import KINDS, recorded_loop, sample_trace, shown

PROMPTS = ("Once upon a time there was a small town", "The sea is salty because", "Hello, my name is")
WARM = Sampling(temperature=0.9, seed=3)
ENDS = (Limits(20), Limits(20, stop=("s",)), Limits(3))
"""The text ends by its length, by a stop string inside of a draft, or in the first rounds."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    pair = with_heads(Pair.find("bundled"), tmp_path_factory.mktemp("pair") / "heads")
    with specscope.open(pair, profile="pearl-4xA100", runtime="virtual") as opened:
        yield opened


@pytest.fixture(scope="module")
def run(cluster):
    def decode(method, config, sampling=WARM, limits=ENDS[0], **more):
        prompts = PROMPTS if METHODS[method].batched or "load" in more else PROMPTS[:1]
        return cluster.run(method, *prompts, config=config, sampling=sampling, limits=limits, **more)

    return decode


def check(trace):
    """Compare the figures of a run with plain ones and with each other."""
    plain, metrics, imported = plain_figures.figures(trace), measure(trace), origin(trace.header)
    for key in imported.figures if imported else ():
        plain.pop(key, None)
    found = metrics.to_dict()
    found["places"] = {s.slot: (s.drafted, s.tested, s.accepted) for s in metrics.per_position}
    found["levels"] = {row.level: (row.reached, row.accepted) for row in metrics.per_level}
    found["shares"] = {part: found["waiting"][part] for part in plain["shares"]}
    wrong = {key: (found[key], value) for key, value in plain.items() if not same(found[key], value)}
    assert not wrong, (trace.header.method, trace.header.config)
    agree(trace, metrics)


def same(a, b):
    if isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in b)
    if a is None or b is None or isinstance(b, tuple):
        return a == b
    return isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)


def agree(trace, m):
    """Check what must hold between the figures of a run and its rows."""
    cut = m.accepted - sum(c.origin == "accepted" for c in trace.commits)
    ends = {max(r.step for r in trace.rounds if r.sequence == s) for s in {r.sequence for r in trace.rounds}}
    late = sum(max(0, r.accepted - r.emitted) for r in trace.rounds if r.step in ends)
    assert cut == late, "only the end of a text cuts accepted tokens off"
    assert m.tokens == m.accepted - cut + sum(c.origin != "accepted" for c in trace.commits)
    assert sum(r.accepted for r in trace.rounds) == m.accepted
    assert sum(s.accepted for s in m.per_position) == sum(r.accepted for r in m.per_level) == m.accepted
    assert sum(s.tested for s in m.per_position) == m.accepted + m.rejected
    if m.acceptance_rate_tested is not None:
        assert (m.acceptance_rate or 0) <= m.acceptance_rate_tested <= level_rate(m.per_level) + 1e-9
        chain = not has_trees(trace.decisions)
        assert not chain or first_rate(trace.decisions) == pytest.approx(m.acceptance_rate_tested)
    assert (m.preempted_device_seconds or 0) <= (m.wasted_device_seconds or 0) + 1e-12
    if not m.drafted and len(trace.header.prompts) == 1 and m.target_forwards and trace.status == "done":
        assert m.tokens_per_target_forward == 1
    page = shown(trace)
    lost = sum(d.outcome in ("rejected", "discarded") for d in trace.decisions)
    assert (len(page["tokens"]), len(page["ghosts"])) == (m.tokens, lost)
    assert [part["percent"] for part in page["headline"]] == [
        round(100 * m.waiting[part["kind"]]) for part in page["headline"]
    ]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda i: f"{CASES[i][0]}-{i}")
def test_figures_are_what_their_definitions_say(run, number):
    method, config = CASES[number]
    check(run(method, config, (Sampling(), WARM)[number % 2], ENDS[number % 3]))


@pytest.mark.parametrize(
    "method", ["autoregressive", "speculative", "pearl", "tree", "prompt_lookup", "eagle"]
)
def test_figures_under_load(run, method):
    trace = run(method, {}, load=Load((0.0, 0.01, 0.4), batch=2))
    check(trace)
    assert plain_figures.prefilled(trace, before=False) == 3
    if method == "autoregressive":
        single = run(method, {}, load=Load((0.0, 10.0, 20.0), batch=2))
        assert measure(single).tokens_per_target_forward == 1


@pytest.mark.parametrize("method", ["speculative", "pearl", "dsi", "ssd", "specbranch", "eagle2"])
def test_figures_of_a_cancelled_run(cluster, method):
    stop, seen = threading.Event(), 0

    def listen(event):
        nonlocal seen
        seen += isinstance(event, Span)
        if seen == 20:
            stop.set()

    trace = cluster.run(method, PROMPTS[0], limits=Limits(400), sampling=WARM, listener=listen, cancel=stop)
    assert trace.status == "cancelled"
    check(trace)


@pytest.mark.parametrize("kind", KINDS)
def test_figures_of_a_sample(kind):
    check(sample_trace(kind, tokens=40))


@pytest.mark.parametrize("first", ["prefill", "draft in the prefill", "decoding"])
def test_a_prefill_and_its_token_are_both_left_out(tmp_path, store, first):
    plain = recorded_loop(tmp_path / "a.jsonl", [(0, 0)] * 12, first="prefill" if "draft" in first else first)
    loop = recorded_loop(tmp_path / "b.jsonl", [(2, 1), (2, 2), (2, 0)], first=first)
    for trace in (plain, loop):
        check(trace)
        store.insert(trace)
    found = [measure(trace) for trace in (plain, loop)]
    assert found[0].tokens_per_target_forward == 1
    assert found[0].tokens_per_second == pytest.approx(1 / 0.006)
    assert found[1].tokens_per_target_forward == 2
    assert found[1].tokens_per_second == pytest.approx(6 / 0.024)
    listed = {row.header.run_id: row for row in store.runs()[0]}
    page = view_model([plain, loop])
    faster = found[1].tokens_per_second / found[0].tokens_per_second
    row = listed[loop.header.run_id]
    assert row.tokens_per_second == pytest.approx(found[1].tokens_per_second)
    assert row.speedup == pytest.approx(faster)
    assert page["runs"][1]["figures"]["speedup"] == f"{faster:.2f}×"
    assert f"brought {found[1].tokens_per_target_forward:.2f} tokens" in page["runs"][1]["verdict"]["summary"]
