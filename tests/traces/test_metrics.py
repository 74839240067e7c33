from __future__ import annotations

import json
import math

import pytest
from hypothesis import given

from specscope.engine.trace.events import Commit, Decision, Device, Footer, Header, Occupancy, Round, Span
from specscope.engine.trace.trace import Trace
from specscope.traces.export.report import render_report
from specscope.traces.metrics import measure
from specscope.traces.places import Level, Slot
from specscope.traces.view.figures import USED_BY, acceptance
from tests.traces import strategies
from tests.traces.samples import sample_trace

MS = 1_000_000


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
    assert m.per_level == (Level(1, 2, 2, 1.0), Level(2, 2, 1, 0.5))
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
    assert math.fsum(figures["waiting"][k] for k in ("both", "draft", "target", "none")) == 1
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
