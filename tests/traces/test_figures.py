"""Every figure of every method against its definition, and against the page's other figures."""

from __future__ import annotations

import threading
from collections import Counter
from math import isclose
from pathlib import Path

import pytest

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.methods import METHODS
from specscope.engine.run.serving import Load
from specscope.engine.trace.events import Span
from specscope.engine.types import Limits, Sampling
from specscope.traces.imported import origin
from specscope.traces.imports.reading import read_traces
from specscope.traces.metrics import measure
from specscope.traces.places import first_rate, level_rate
from specscope.traces.view.document import view_model
from specscope.traces.view.tokens import has_trees
from tests.engine.heads.random_heads import with_heads
from tests.engine.methods.lossless import CASES
from tests.traces import plain_figures
from tests.traces.samples import KINDS, recorded_loop, sample_trace

PROMPTS = ("Once upon a time there was a small town", "The sea is salty because", "Hello, my name is")
WARM = Sampling(temperature=0.9, seed=3)
ENDS = (Limits(20), Limits(20, stop=("s",)), Limits(3))
"""The text ends by its length, by a stop string inside of a draft, or in the first rounds."""
IMPORTED = sorted(Path("tests/traces/imported").iterdir())


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
    """Check what must hold between the figures of a run, and between its rows and its page."""
    fates = Counter(d.outcome for d in trace.decisions)
    own = sum(c.origin != "accepted" for c in trace.commits)
    unplaced = sum(fork.length for fork in trace.forks if not fork.taken)
    cut = m.accepted - sum(c.origin == "accepted" for c in trace.commits)
    assert 0 <= m.accepted <= m.accepted + m.rejected <= m.drafted
    assert m.drafted == m.accepted + m.rejected + m.discarded
    assert m.tokens == m.accepted - cut + own
    ends = Counter(
        max(r.step for r in trace.rounds if r.sequence == s) for s in {r.sequence for r in trace.rounds}
    )
    late = sum(max(0, r.accepted - r.emitted) for r in trace.rounds if r.step in ends)
    assert cut == late, "only the end of a text cuts accepted tokens off"
    assert sum(r.accepted for r in trace.rounds) == m.accepted == fates["accepted"]
    assert sum(s.drafted for s in m.per_position) == m.drafted - unplaced
    assert sum(s.tested for s in m.per_position) == m.accepted + m.rejected
    assert sum(s.accepted for s in m.per_position) == sum(r.accepted for r in m.per_level) == m.accepted
    if m.drafted:
        assert m.rollback_rate in (None, pytest.approx(1 - m.acceptance_rate))
        assert m.acceptance_rate <= (m.acceptance_rate_tested or 0)
    if m.acceptance_rate_tested is not None:
        assert m.acceptance_rate_tested <= level_rate(m.per_level) + 1e-9
        chain = not has_trees(trace.decisions)
        assert not chain or first_rate(trace.decisions) == pytest.approx(m.acceptance_rate_tested)
    if m.wasted_device_seconds is not None:
        assert m.preempted_device_seconds <= m.wasted_device_seconds + 1e-12
    assert (m.sp_degree or 0) <= m.target_forwards
    decided = m.tokens - plain_figures.prefilled(trace, before=False)
    assert (m.tokens_per_target_forward or 0) * m.target_forwards == pytest.approx(decided)
    if not m.drafted and len(trace.header.prompts) == 1 and m.target_forwards and trace.status == "done":
        assert m.tokens_per_target_forward == 1
    on_page(trace, m)


def on_page(trace, m):
    """Check that the page's rows and its texts are of the same run."""
    page = view_model([trace])["runs"][0]
    assert len(page["tokens"]) == m.tokens
    lost = sum(d.outcome in ("rejected", "discarded") for d in trace.decisions)
    assert len(page["ghosts"]) == lost
    texts = page["figures"]
    assert texts["accepted"] == f"{m.accepted:,}"
    assert texts["target_forwards"] == f"{m.target_forwards:,}"
    assert texts["acceptance_rate"].startswith("–" if not m.drafted else f"{100 * m.acceptance_rate:.0f} %")
    for part in page["headline"]:
        assert part["percent"] == round(100 * m.waiting[part["kind"]])
    if page["headline"]:
        assert sum(m.waiting[k] for k in ("both", "draft", "target", "none")) == 1


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


@pytest.mark.parametrize("path", IMPORTED, ids=lambda p: p.name)
def test_the_figures_of_an_imported_file_agree(path):
    for trace in read_traces(path).traces:
        m = measure(trace)
        known = [m.accepted, m.rejected, m.discarded, m.drafted]
        if None not in known:
            assert m.drafted == m.accepted + m.rejected + m.discarded
        for slot, level in zip(m.per_position, m.per_level, strict=False):
            assert slot.accepted <= slot.tested <= (slot.drafted or slot.tested)
            assert level.accepted <= level.reached
        if m.per_position and m.accepted is not None:
            assert sum(slot.accepted for slot in m.per_position) == m.accepted
        if m.mean_accepted_length is not None and m.acceptance_length is not None and trace.rounds:
            emitted = sum(r.emitted for r in trace.rounds)
            assert m.acceptance_length * len(trace.rounds) == pytest.approx(emitted)
