import itertools
import random

import pytest
from hypothesis import given

from specscope.engine.trace.events import Commit, Device, Footer, Header, Span
from specscope.engine.trace.trace import Trace
from specscope.traces.facts import waiting
from specscope.traces.facts.waiting import Band, Wait
from tests.traces import strategies

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
    rebuilt = trace_of(("t", "prefill", 0, 30, "target", 0), ("t", "prefill", 50, 70, "target", 3))
    assert waiting.decode_window(rebuilt) == (30, 70), "a prefill of a rebuilt worker belongs to decoding"


def test_a_device_queues_while_a_forward_it_has_a_stage_of_is_on_another_device():
    roles = {"a": "drafter+target", "b": "target", "c": "drafter+target"}
    devices = tuple(Device(name, role, name, "virtual") for name, role in roles.items())
    trace = trace_of(devices=devices, end=60)
    for rank, name in enumerate("abc"):
        at = (10 * rank, 10 * rank + 10)
        trace.add(Span(3 + rank, name, "verify", *at, "target", 1, 0, 1, 0, "done", rank=rank))
    trace.add(Span(6, "c", "draft", 0, 15, "drafter", 1, 0, 1, 0, "done"))
    trace.add(Span(7, "a", "draft", 30, 45, "drafter", 1, 0, 1, 0, "done"))
    trace.add(Span(8, "c", "verify", 50, 60, "target", 2, 0, 1, 0, "done"))  # by that device alone
    waits = {
        name: [(w.start, w.end, w.reason) for w in waiting.timeline(trace).waits if w.device == name]
        for name in "abc"
    }
    assert waits == {
        "a": [(10, 30, "queue"), (45, 50, "host"), (50, 60, "verify")],
        "b": [(0, 10, "queue"), (20, 30, "queue"), (30, 45, "draft"), (45, 50, "host"), (50, 60, "queue")],
        "c": [(15, 20, "queue"), (30, 45, "draft"), (45, 50, "host")],
    }


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
    host, draft, verify = "host", "draft", "verify"
    assert waiting.timeline(trace).waits == [
        *(Wait("d", *w) for w in ((5, 10, host), (30, 32, host), (32, 52, verify), (60, 70, host))),
        *(
            Wait("t", *w)
            for w in ((5, 10, host), (10, 30, draft), (30, 32, host), (52, 60, draft), (60, 70, host))
        ),
    ]
    kinds, edges = ("none", "draft", "none", "target", "draft", "none"), (5, 10, 30, 32, 52, 60, 70)
    assert waiting.band(trace) == [Band(kind, *edges[i : i + 2]) for i, kind in enumerate(kinds)]
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
    assert waiting.timeline(trace).waits == [Wait("d", 10, 12, "host"), Wait("d", 22, 30, "verify")]


def test_communication_and_queue_are_different_reasons():
    second = Device("t2", "target", "T2", "virtual")
    trace = trace_of(
        ("d", "communicate", 0, 10, "drafter"),
        ("t", "verify", 10, 20, "target"),
        ("t", "sample", 20, 30, "target"),
        devices=(DRAFTER, TARGET, second),
    )
    assert waiting.timeline(trace).waits == [
        Wait("d", 10, 30, "verify"),
        Wait("t", 0, 10, "communication"),
        Wait("t2", 0, 10, "communication"),
        Wait("t2", 10, 30, "queue"),
    ]


def test_an_empty_run_waits_for_nothing():
    trace = trace_of()
    assert waiting.timeline(trace).waits == waiting.band(trace) == []
    assert waiting.overlap(trace) == {"both": 0.0, "draft": 0.0, "target": 0.0, "none": 1.0}
    assert waiting.occupancy(trace) == {"d": 0, "t": 0}


@strategies.many
@given(strategies.work())
def test_bands_fill_the_window_and_waits_fill_the_idle_time(trace):
    shares = list(waiting.overlap(trace).values())
    random.Random(0).shuffle(shares)
    assert sum(shares) == 1, "exactly, in any order"
    assert all(0 <= s <= 1 for s in shares)
    start, end = waiting.decode_window(trace)
    bands = waiting.band(trace)
    assert [start, *(b.end for b in bands)] == [*(b.start for b in bands), end]
    occupancy = waiting.occupancy(trace)
    for device in trace.header.devices:
        idle = [(w.start, w.end) for w in waiting.timeline(trace).waits if w.device == device.name]
        work = [(max(a, start), min(b, end)) for a, b in waiting.busy(trace).get(device.name, ())]
        work = [(a, b) for a, b in work if a < b]
        pieces = sorted(idle + work)
        assert sum(b - a for a, b in pieces) == end - start
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(pieces))
        share = occupancy[device.name] * (end - start)
        assert share == pytest.approx(sum(b - a for a, b in work), rel=1e-6, abs=1e-3)
