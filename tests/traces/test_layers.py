"""Layer groups and calibration: the viewer's section of fuzzy drafts."""

import pytest

import specscope
from specscope.engine.types import Limits
from specscope.traces.view.document import view_model
from specscope.traces.view.layers import layers
from specscope.traces.view.tracks import span_fates
from specscope.traces.waiting import sp_degree, wasted
from tests.engine.worker.harness import Flat, scripted_cluster
from tests.traces.samples import sample_trace

PROMPT = [1, 2, 3]


def say(path):
    return (int(path[-1]) * 7 + len(path)) % 500 + 10


def easyspec(new=12, drafter=say, **config):
    """A run in virtual time: calibrations of 0.25 ms, fuzzy forwards of 0.1 ms."""
    with scripted_cluster(say, drafter, Flat(1000, 250, fuzzy_us=100)) as there:
        return there.run("easyspec", PROMPT, config={"size": 3, **config}, limits=there.limits(new))


def test_only_a_run_with_fuzzy_forwards_has_the_view():
    assert layers(easyspec(size=1)) is None
    assert view_model([easyspec(), sample_trace("pearl")])["runs"][0]["layers"]
    assert view_model([easyspec(), sample_trace("pearl")])["runs"][1]["layers"] is None


def test_one_device_has_no_exchanges_and_no_groups():
    with specscope.open(runtime="local-thread", device="cpu") as cluster:
        trace = cluster.run("easyspec", "Hi", config={"devices": 1}, limits=Limits(8))
    view = layers(trace)
    assert (len(view["devices"]), view["groups"]) == (1, [])
    assert set(view["rounds"][0]["parts"]["kind"]) == {"attention"}


def test_a_forward_of_several_devices_is_one_forward_with_one_fate():
    trace = easyspec(24, drafter=lambda path: say(path) if len(path) % 4 else 5, gamma=4)
    fates, spans = span_fates(trace), {s.id: s for s in trace.spans}
    assert {fates[s.id] for s in trace.spans if s.kind == "draft"} == {"kept", "rejected", "discarded"}
    assert all(fates[s.id] == fates[s.id - s.rank] for s in trace.spans)
    lost = {s.id for s in wasted(trace)}
    assert lost
    assert all((s in lost) == (s - spans[s].rank in lost) for s in spans)
    assert sp_degree(trace) == 1, "a target split over two devices is one server"


@pytest.mark.parametrize("steps", [1, 2])
def test_a_growing_trace_has_the_drafts_so_far(steps):
    trace = easyspec(gamma=3)
    trace.spans = [s for s in trace.spans if s.step <= steps]
    trace.footer = None
    assert [r["step"] for r in layers(trace)["rounds"]] == list(range(1, steps + 1))
