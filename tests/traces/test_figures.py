"""Every figure by hand, and of every method against its definition and the page's rows."""

from __future__ import annotations

import json
import threading
from math import fsum, isclose

import pytest
from hypothesis import given

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.methods import METHODS
from specscope.engine.run.serving import Load
from specscope.engine.trace.events import Commit, Decision, Device, Footer, Header, Occupancy, Round, Span
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.export.report import render_report
from specscope.traces.facts.imported import origin
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.places import LevelRate, Slot, first_rate, has_trees, level_rate
from specscope.traces.view.document import view_model
from specscope.traces.view.figures import USED_BY, acceptance
from tests.engine.heads.random_heads import with_heads
from tests.engine.methods.lossless import CASES
from tests.traces import plain_figures, strategies
from tests.traces.samples import KINDS, MS, recorded_loop, sample_trace, shown

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
        assert not chain or first_rate(trace) == pytest.approx(m.acceptance_rate_tested)
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


# By hand.


def hand_made():
    """Return two rounds with gamma 2: one token accepted and one corrected; both and a bonus."""
    devices = (Device("d", "drafter", "D", "virtual"), Device("t", "target", "T", "virtual"))
    trace = Trace(Header("r", "", "m", "M", {}, ("",), ((1, 2, 3),), {}, {}, "virtual", "p", devices, "", ""))
    work = [("t", "prefill", 0, 10, "target", 0), ("d", "prefill", 0, 4, "drafter", 0)]
    for step, start in ((1, 10), (2, 30)):
        work += [("d", "draft", start + a, start + b, "drafter", step) for a, b in ((0, 3), (3, 5))]
        work += [("t", "verify", start + 5, start + 15, "target", step)]
    for i, (device, kind, start, end, model, step) in enumerate(work):
        trace.add(Span(i, device, kind, start * MS, end * MS, model, step, 0, 1, 0, "done"))
    fates = (
        (1, 0, 3, "accepted", 2, 4),
        (1, 1, 4, "rejected", 3, 4),
        (1, -1, 4, "corrected", -1, 4),
        (2, 0, 5, "accepted", 5, 7),
        (2, 1, 6, "accepted", 6, 7),
        (2, -1, 7, "bonus", -1, 7),
        (2, -1, 8, "discarded", 6, -1),
    )
    for step, node, position, outcome, draft, verify in fates:
        trace.add(Decision(step, 0, node, -1, position, 9, None, None, None, "", outcome, draft, verify))
        if outcome not in ("rejected", "discarded"):
            trace.add(Commit(step, 0, position, 9, outcome, "x", (25 if step == 1 else 45) * MS))
    trace.add(Round(1, 0, "verify", 2, 1, 2, 25 * MS, 4))
    trace.add(Round(2, 0, "verify", 2, 2, 3, 45 * MS, 7))
    trace.add(Footer("done", ("length",), ("xxxxx",), 50 * MS))
    return trace


def test_every_metric_by_hand():
    m = measure(hand_made())
    expected = {
        "tokens": 5,
        "seconds": 0.05,
        "tokens_per_second": 5 / 0.035,
        "tokens_per_second_per_sequence": 5 / 0.035,
        "tokens_per_second_with_prefill": 100,
        "decode_seconds": 0.035,
        "ttft_ms": 25,
        "tpot_ms": 20 / 4,
        "target_forwards": 2,
        "draft_forwards": 4,
        "drafted": 5,
        "accepted": 3,
        "rejected": 1,
        "discarded": 1,
        "acceptance_rate": 3 / 5,
        "acceptance_rate_tested": 3 / 4,
        "rollback_rate": 2 / 5,
        "dsi_acceptance": 1 - 1 / (1 + 1.5),
        "tokens_per_target_forward": 2.5,
        "mean_accepted_length": 1.5,
        "run_length": 1.5,
        "draft_seconds_per_100_tokens": 0.010 / 5 * 100,
        "verify_seconds_per_100_tokens": 0.020 / 5 * 100,
        "c": 10 / 2.5,
        "wasted_device_seconds": 0.002,
    }
    figures = m.to_dict()
    assert {name: figures[name] for name in expected} == pytest.approx(expected)
    slots = [(1, 2, 2, 2, 1.0, 1.0), (2, 2, 2, 1, 0.5, 0.5), (4, 1, 0, 0, None, 0.0)]
    assert m.per_position == tuple(Slot(*slot) for slot in slots)
    assert m.per_level == (LevelRate(1, 2, 2, 1.0), LevelRate(2, 2, 1, 0.5))
    # Decoding lasts from 10 to 45 ms: 10 ms of drafts, 20 of verification, 5 between rounds.
    assert m.occupancy == pytest.approx({"d": 10 / 35, "t": 20 / 35})
    shares = {"both": 0, "draft": 10 / 35, "target": 20 / 35, "none": 5 / 35}
    assert m.waiting == pytest.approx(shares | {"drafter_waits": 20 / 35, "target_waits": 10 / 35})


def test_measured_occupancy_is_the_mean_of_the_samples_while_decoding():
    trace = hand_made()
    assert measure(trace).measured_occupancy == {}
    # decoding lasts from 10 to 45 ms; the target has no sample in it
    for device, ms, share in (("d", 5, 1.0), ("d", 10, 0.2), ("d", 30, 0.6), ("d", 46, 1.0), ("t", 2, 0.5)):
        trace.add(Occupancy(device, ms * MS, share, 0))
    assert measure(trace).measured_occupancy == pytest.approx({"d": 0.4})
    assert measure(trace).occupancy == pytest.approx({"d": 10 / 35, "t": 20 / 35})


@strategies.many
@given(strategies.work())
def test_any_trace_can_be_measured(trace):
    figures = measure(trace).to_dict()
    json.dumps(figures, allow_nan=False)
    assert figures["drafted"] == figures["accepted"] + figures["rejected"] + figures["discarded"]
    assert fsum(figures["waiting"][k] for k in ("both", "draft", "target", "none")) == 1
    for name in ("acceptance_rate", "acceptance_rate_tested", "rollback_rate", "dsi_acceptance"):
        assert figures[name] is None or 0 <= figures[name] <= 1


def test_every_run_has_a_text_for_every_definition():
    traces = [sample_trace("speculative", tokens=40), sample_trace("autoregressive", tokens=40)]
    found, metrics = acceptance(traces), measure(traces[0])
    assert len(found) == len(USED_BY)
    assert all(len(row.values) == 2 and row.used_by and row.definition for row in found)
    values = {row.label: row.values[0] for row in found}
    for label, text in {
        "accepted / drafted": f"{100 * metrics.acceptance_rate:.0f} %",
        "accepted / drafted levels": f"{100 * metrics.acceptance_rate:.0f} %",  # the drafts are chains
        "accepted / tested": f"{100 * metrics.acceptance_rate_tested:.0f} %",
        "rolled back / drafted": f"{100 * metrics.rollback_rate:.0f} %",
        "tokens per verification": f"{metrics.acceptance_length:.2f}",
        "acceptance by level": f"1: {100 * metrics.per_level[0].rate:.0f} %",
        "conditional, by place": f"1: {100 * metrics.per_position[0].conditional:.0f} %",
    }.items():
        assert values[label].startswith(text)


def test_siblings_of_a_tree_count_once_as_a_level():
    """And the report has the table."""
    trace = sample_trace("tree", tokens=40)
    nodes = [d for d in trace.decisions if d.node >= 0]
    levels = len({(d.step, d.position) for d in nodes})
    accepted = sum(d.outcome == "accepted" for d in nodes)
    values = {row.label: row.values[0] for row in acceptance([trace])}
    assert values["accepted / drafted levels"] == f"{100 * accepted / levels:.0f} %"
    assert levels < len(nodes)
    page = render_report([trace])
    assert "<h2>Acceptance by definition</h2>" in page
    assert "PEARL, table 7: mean accepted tokens" in page
