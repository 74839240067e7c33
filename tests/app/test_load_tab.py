"""The Load tab: runs by method and batch size, Stop, and refusals in one line."""

from __future__ import annotations

import re

import gradio as gr
import pytest

from specscope.app.service import Service
from specscope.app.tabs.experiments import AT_ONCE, HERE, RATE, TIMES, LoadSettings, load_plan, servable
from specscope.app.tabs.lab import LoadTab
from specscope.engine.errors import UsageError
from specscope.traces.requests import load_of

GIVEN = LoadSettings(
    methods=["speculative", "medusa"],
    models="bundled",
    profile="A100-40G",
    profile_pair="",
    arriving=AT_ONCE,
    rate=4,
    times="",
    requests=4,
    sizes="2, 1",
    tokens=5,
    ttft_ms=1000,
    tpot_ms=100,
    prompts="",
)


@pytest.fixture(scope="module")
def service():
    made = Service(None)
    yield made
    made.close()


@pytest.fixture(scope="module")
def page(service):
    with gr.Blocks():
        return LoadTab(service)


def test_every_method_is_served_with_every_batch_size_beside_plain_decoding(page, service):
    states = list(page.run(*GIVEN))
    assert 'data-done="0" data-total="6"' in states[0].message
    assert any("Speculative decoding, batch 1:" in state.message for state in states)
    assert "6 runs." in states[-1].message
    shown = states[-1].result
    assert "virtual · A100-40G" in shown
    assert len(re.findall(r"<li>(?:Speculative decoding|Medusa) (?:pays|stops paying)", shown)) == 2
    assert shown.count("app-figure") == 4
    runs = re.findall(r'href="/\?run=([^"]+)"', shown)
    traces = [service.trace(name) for name in runs]
    assert [(t.header.method, load_of(t.header).batch) for t in traces] == [
        (method, batch) for method in ("autoregressive", "speculative", "medusa") for batch in (1, 2)
    ]
    assert len({tuple(t.footer.texts) for t in traces}) == 1, "every text is that of its prompt alone"
    assert all(len(t.header.prompts) == 4 for t in traces)


def test_each_policy_is_a_line_and_what_it_cannot_serve_is_named(page, service):
    given = GIVEN._replace(policies=["fixed", "minedraft"], sizes="1", requests=2)
    *_, last = page.run(*given)
    assert "4 runs." in last.message
    assert re.findall(r"<li>([^<]+?) pays at every", last.result) == [
        "Speculative decoding", "Speculative decoding, minedraft", "Medusa",
    ]  # fmt: skip
    assert "medusa, minedraft is left out: medusa drafts on the target" in last.result
    runs = [service.trace(name) for name in re.findall(r'href="/\?run=([^"]+)"', last.result)]
    assert [load_of(t.header).policy for t in runs] == ["fixed", "fixed", "minedraft", "fixed"]


def test_stop_keeps_the_finished_runs(page):
    states = page.run(*GIVEN._replace(requests=4, tokens=8, sizes="1,2,4"))
    for state in states:
        if 'data-done="3"' in state.message:
            page.stops.end("another")
            page.stops.end(state.name)
            break
    *_, last = states
    assert "Stopped: the finished runs are shown." in last.message
    assert 3 <= len(re.findall(r'href="/\?run=', last.result)) < 9


def test_a_closed_page_ends_its_run(page, service):
    states = page.run(*GIVEN._replace(requests=16, tokens=64, sizes="1"))
    next(state for state in states if "first token" in state.message)
    states.close()
    run = list(service._runs.values())[-1]
    assert run.wait(20)
    assert run.state == "cancelled"


def test_requests_arrive_at_once_at_a_rate_or_at_given_times():
    assert load_plan(GIVEN).arrivals == (0, 0, 0, 0)
    drawn = load_plan(GIVEN._replace(arriving=RATE)).arrivals
    assert drawn[0] == 0
    assert sorted(drawn) == list(drawn)
    plan = load_plan(GIVEN._replace(arriving=TIMES, times="0\n\n1.5\n", prompts="One\n\nTwo"))
    assert plan.arrivals == (0, 1.5)
    texts = [plan.request.prompt, *plan.request.further]
    assert [messages[0]["content"] for messages in texts] == ["One", "Two"]
    assert load_plan(GIVEN._replace(profile=HERE)).request.profile is None


def test_a_refusal_is_above_the_results_and_what_cannot_be_served_is_not_offered(page):
    (state,) = page.run(*GIVEN._replace(sizes="0"))
    assert ('role="alert"' in state.message, "a batch size is 0" in state.message) == (True, True)
    assert state.result == ""
    assert "dsi" not in servable()
    assert {"autoregressive", "speculative", "pearl", "ems", "medusa", "tree"} <= {*servable()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": []}, "the number of methods is 0; it must be at least 1 and at most 5"),
        ({"methods": ["dsi"]}, "'dsi' does not run under load; choose one of"),
        ({"methods": ["eagle3"]}, "'eagle3' does not run under load"),
        ({"policies": []}, "the list of policies has ''; choose among fixed, by-batch, survival, minedraft"),
        ({"policies": ["fast"]}, "the list of policies has 'fast'; choose among fixed"),
        ({"methods": ["medusa"], "policies": ["minedraft"]}, "medusa drafts on the target's devices"),
        ({"policies": ["fixed", "by-batch", "survival"]}, "methods times policies is 6; it must be at least 1 and at most 5"),
        ({"models": "/etc"}, "there are no models '/etc'; choose one of"),
        ({"profile": "/etc/passwd"}, "there is no profile '/etc/passwd'"),
        ({"profile_pair": "x"}, "x"),
        ({"sizes": "1,many"}, "a batch size is '1,many'; it must be whole numbers, as in 1,2,4"),
        ({"sizes": "65"}, "a batch size is 65; it must be at least 1 and at most 64"),
        ({"sizes": "1,2,3,4,5,6,7,8,9"}, "the number of batch sizes is 9; it must be at least 1 and at most 8"),
        ({"requests": None}, "requests is 0; it must be at least 1 and at most 256"),
        ({"tokens": 1e9}, "new tokens is 1000000000; it must be at least 1 and at most 256"),
        ({"arriving": RATE, "rate": -1}, "the rate is -1; it must be at least 1e-06 requests/s"),
        ({"arriving": TIMES, "times": "0\nsoon"}, "the list of times line 2 is 'soon'; it must be a time in seconds"),
        ({"arriving": TIMES}, "the list of times has no arrival"),
        ({"arriving": "now"}, "requests arrive 'now'; choose at once, rate or times"),
        ({"ttft_ms": 0}, "the limit of TTFT in ms is 0"),
        ({"tpot_ms": float("inf")}, "the limit of TPOT in ms is inf"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_in_one_line(change, message):
    with pytest.raises(UsageError) as error:
        load_plan(GIVEN._replace(**change))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
