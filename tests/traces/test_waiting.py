import itertools
import random

import pytest
from hypothesis import given

from specscope.engine.trace.events import Commit, Decision, Device, Footer, Header, Span
from specscope.engine.trace.trace import Trace
from specscope.traces import waiting
from specscope.traces.waiting import Band, Wait
from tests.traces import strategies
from tests.traces.samples import KINDS, sample_trace

DRAFTER = Device("d", "drafter", "D", "virtual")
TARGET = Device("t", "target", "T", "virtual")


def trace_of(*work, devices=(DRAFTER, TARGET), end=None, commits=()):
    """A trace of (device, kind, start, end, model[, step[, outcome]])."""
    header = Header("r", "", "m", "M", {}, ("",), ((),), {}, {}, "virtual", "p", devices, "", "")
    rows = []
    for i, (device, kind, start, stop, model, *rest) in enumerate(work):
        step, outcome = (*rest, *(1, "done")[len(rest) :])
        rows.append(Span(i, device, kind, start, stop, model, step, 0, 1, 0, outcome))
    footer = None if end is None else Footer("done", ("",), ("",), end)
    return Trace(
        header, spans=rows, commits=[Commit(1, 0, 0, 0, "plain", "", t) for t in commits], footer=footer
    )


def test_the_decode_window_begins_after_the_last_prefill_and_ends_with_the_last_work():
    trace = trace_of(
        ("t", "prefill", 0, 30, "target", 0),
        ("d", "prefill", 0, 12, "drafter", 0),
        ("d", "draft", 30, 40, "drafter"),
        ("t", "verify", 40, 60, "target"),
        commits=[65],
    )
    assert waiting.decode_window(trace) == (30, 65)
    trace.footer = Footer("done", ("",), ("",), 62)
    assert waiting.decode_window(trace) == (30, 62)
    assert waiting.decode_window(trace_of(("t", "verify", 5, 9, "target"))) == (0, 9)
    assert waiting.decode_window(trace_of(("t", "prefill", 5, 9, "target", 0))) == (9, 9)


def test_a_later_prefill_of_a_rebuilt_worker_belongs_to_decoding():
    trace = trace_of(("t", "prefill", 0, 30, "target", 0), ("t", "prefill", 50, 70, "target", 3))
    assert waiting.decode_window(trace) == (30, 70)


def test_a_device_queues_while_a_forward_it_has_a_stage_of_is_on_another_device():
    devices = tuple(Device(name, role, name, "virtual") for name, role in (("a", "drafter+target"), ("b", "target"), ("c", "drafter+target")))  # fmt: skip
    trace = trace_of(devices=devices, end=60)
    for rank, name in enumerate("abc"):
        trace.add(Span(3 + rank, name, "verify", 10 * rank, 10 * rank + 10, "target", 1, 0, 1, 0, "done", rank=rank))  # fmt: skip
    trace.add(Span(6, "c", "draft", 0, 15, "drafter", 1, 0, 1, 0, "done"))
    trace.add(Span(7, "a", "draft", 30, 45, "drafter", 1, 0, 1, 0, "done"))
    trace.add(Span(8, "c", "verify", 50, 60, "target", 2, 0, 1, 0, "done"))  # by that device alone
    waits = [(w.device, w.start, w.end, w.reason) for w in waiting.waits(trace)]
    assert waits == [
        ("a", 10, 30, "queue"),
        ("a", 45, 50, "host"),
        ("a", 50, 60, "verify"),
        ("b", 0, 10, "queue"),
        ("b", 20, 30, "queue"),
        ("b", 30, 45, "draft"),
        ("b", 45, 50, "host"),
        ("b", 50, 60, "queue"),
        ("c", 15, 20, "queue"),
        ("c", 30, 45, "draft"),
        ("c", 45, 50, "host"),
    ]


def test_busy_merges_touching_spans_and_skips_empty_ones():
    trace = trace_of(
        ("d", "draft", 10, 20, "drafter"),
        ("d", "draft", 20, 30, "drafter"),
        ("d", "draft", 25, 27, "drafter"),
        ("d", "draft", 33, 33, "drafter"),
        ("d", "draft", 40, 50, "drafter"),
        ("t", "verify", 0, 99, "target"),
    )
    assert waiting.busy(trace)["d"] == [(10, 30), (40, 50)]


def test_a_speculative_round_by_hand():
    trace = trace_of(
        ("t", "prefill", 0, 5, "target", 0),
        ("d", "draft", 10, 20, "drafter"),
        ("d", "draft", 20, 30, "drafter"),
        ("t", "verify", 32, 52, "target"),
        ("d", "draft", 52, 60, "drafter", 2),
        end=70,
        commits=[70],
    )
    assert waiting.waits(trace) == [
        Wait("d", 5, 10, "host"),
        Wait("d", 30, 32, "host"),
        Wait("d", 32, 52, "verify"),
        Wait("d", 60, 70, "host"),
        Wait("t", 5, 10, "host"),
        Wait("t", 10, 30, "draft"),
        Wait("t", 30, 32, "host"),
        Wait("t", 52, 60, "draft"),
        Wait("t", 60, 70, "host"),
    ]
    assert waiting.band(trace) == [
        Band("none", 5, 10),
        Band("draft", 10, 30),
        Band("none", 30, 32),
        Band("target", 32, 52),
        Band("draft", 52, 60),
        Band("none", 60, 70),
    ]
    shares = waiting.overlap(trace)
    assert shares == pytest.approx({"both": 0, "draft": 28 / 65, "target": 20 / 65, "none": 17 / 65})
    assert sum(shares.values()) == 1


def test_gaps_between_the_forwards_of_one_draft_are_the_hosts():
    trace = trace_of(
        ("t", "verify", 0, 40, "target"),
        ("d", "draft", 0, 10, "drafter"),
        ("d", "draft", 12, 22, "drafter"),
        ("d", "draft", 30, 40, "drafter", 2),
    )
    assert waiting.waits(trace) == [Wait("d", 10, 12, "host"), Wait("d", 22, 30, "verify")]


def test_only_two_devices_are_busy_for_both_sides():
    apart = trace_of(("d", "draft", 0, 10, "drafter"), ("t", "verify", 4, 14, "target"))
    assert waiting.band(apart) == [Band("draft", 0, 4), Band("both", 4, 10), Band("target", 10, 14)]
    both = Device("g", "drafter+target", "G", "virtual")
    shared = trace_of(("g", "draft", 0, 10, "drafter"), ("g", "verify", 4, 14, "target"), devices=(both,))
    assert waiting.band(shared) == [Band("draft", 0, 10), Band("target", 10, 14)]


def test_communication_and_queue_are_different_reasons():
    second = Device("t2", "target", "T2", "virtual")
    trace = trace_of(
        ("d", "communicate", 0, 10, "drafter"),
        ("t", "verify", 10, 20, "target"),
        ("t", "sample", 20, 30, "target"),
        devices=(DRAFTER, TARGET, second),
    )
    assert waiting.waits(trace) == [
        Wait("d", 10, 30, "verify"),
        Wait("t", 0, 10, "communication"),
        Wait("t2", 0, 10, "communication"),
        Wait("t2", 10, 30, "queue"),
    ]


def test_an_empty_run_waits_for_nothing():
    trace = trace_of()
    assert waiting.waits(trace) == waiting.band(trace) == []
    assert waiting.overlap(trace) == {"both": 0.0, "draft": 0.0, "target": 0.0, "none": 1.0}
    assert waiting.occupancy(trace) == {"d": 0, "t": 0}


def test_occupancy_by_hand():
    prefill = ("t", "prefill", 0, 10, "target", 0)
    trace = trace_of(prefill, ("d", "draft", 0, 15, "drafter"), ("t", "verify", 15, 30, "target"))
    assert waiting.occupancy(trace) == {"d": 0.25, "t": 0.75}


def test_wasted_work_is_cancelled_or_drafts_without_accepted_tokens():
    trace = trace_of(
        ("d", "draft", 0, 10, "drafter"),
        ("d", "draft", 10, 20, "drafter"),
        ("d", "draft", 20, 30, "drafter"),
        ("d", "draft", 30, 40, "drafter"),
        ("t", "verify", 20, 40, "target", 1, "cancelled"),
    )
    for span, outcome in ((0, "accepted"), (1, "rejected"), (2, "discarded")):
        trace.add(Decision(1, 0, 0, -1, 0, 5, None, None, None, "", outcome, span, 4))
    assert [s.id for s in waiting.wasted(trace)] == [1, 2, 4]  # 3 is not decided yet
    trace.footer = Footer("done", ("",), ("",), 40)
    assert [s.id for s in waiting.wasted(trace)] == [1, 2, 3, 4]


@strategies.many
@given(strategies.work())
def test_shares_sum_to_exactly_one_in_any_order(trace):
    shares = list(waiting.overlap(trace).values())
    random.Random(0).shuffle(shares)
    assert sum(shares) == 1
    assert all(0 <= s <= 1 for s in shares)


@strategies.many
@given(strategies.work())
def test_bands_fill_the_window_and_waits_fill_the_idle_time(trace):
    start, end = waiting.decode_window(trace)
    bands = waiting.band(trace)
    edges = [start, *(b.end for b in bands)]
    assert edges[-1] == end
    assert [b.start for b in bands] == edges[:-1]
    for device in trace.header.devices:
        idle = [(w.start, w.end) for w in waiting.waits(trace) if w.device == device.name]
        work = [(max(a, start), min(b, end)) for a, b in waiting.busy(trace).get(device.name, ())]
        pieces = sorted(idle + [(a, b) for a, b in work if a < b])
        assert sum(b - a for a, b in pieces) == end - start
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(pieces))


@strategies.many
@given(strategies.work())
def test_occupancy_is_the_busy_time_of_the_window(trace):
    start, end = waiting.decode_window(trace)
    for device, share in waiting.occupancy(trace).items():
        work = sum(max(0, min(b, end) - max(a, start)) for a, b in waiting.busy(trace).get(device, ()))
        assert 0 <= share <= 1
        assert share * (end - start) == pytest.approx(work, rel=1e-6, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_overlapping_method_is_busy_on_both_sides(kind):
    assert (waiting.overlap(sample_trace(kind))["both"] > 0.5) is (kind == "pearl")
