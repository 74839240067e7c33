"""The Advise tab: its answers and their traces, Stop, and what it refuses."""

from __future__ import annotations

import base64
import re
from dataclasses import replace

import gradio as gr
import pytest

from specscope.app.jobs.service import Service
from specscope.app.tabs.advise import build_advise, question_of, usual_settings
from specscope.engine.errors import UsageError

GIVEN = replace(
    usual_settings(), target="qwen3-8b", drafter="qwen3-0.6b", batches="1", context=32, tokens=16, rates="0.7"
)


@pytest.fixture(scope="module")
def service():
    made = Service(None)
    yield made
    made.close()


@pytest.fixture(scope="module")
def page(service):
    with gr.Blocks():
        return build_advise(service)


def asked(page, **change):
    given = replace(GIVEN, **change)
    return page.run(*(getattr(given, name) for name in page.controls.made))


def test_an_answer_has_bars_that_open_their_traces_cards_and_a_page_to_save(page, service):
    states = list(asked(page))
    assert all("<progress" in state.message for state in states[:-1])
    shown, total = states[-1].result, re.search(r"data-total=\"(\d+)\"", states[-2].message)[1]
    assert f"{total} places, in virtual time." in states[-1].message
    runs = re.findall(r'href="/\?run=([^"]+)"', shown)
    assert len(runs) == int(total)
    headers = [service.trace(run).header for run in runs]
    assert {header.profile for header in headers} == {"advice"}
    assert {"autoregressive", "speculative", "pearl", "ssd", "dsi", "easyspec", "specbranch"} == {
        h.method for h in headers
    }
    assert shown.count('app-gpu"') in (1, 2)
    saved = base64.b64decode(re.search(r"base64,([^\"]+)", shown)[1]).decode()
    assert "Qwen3 8B in fp8 with Qwen3 0.6B on 2 × H100" in saved
    assert "/?run=" not in saved


def test_stop_keeps_the_places_that_are_done(page):
    states = asked(page)
    name, _, _ = next(states)
    next(states)
    page.stops.end(name)
    *_, last = states
    assert re.search(r"Stopped after [1-3] of \d+ places", last.message)
    assert "app-bars" in last.result


def test_a_target_that_fits_nowhere_is_refused_with_its_sums_and_other_cards(page):
    *_, last = asked(page, target="llama-3.1-70b", dtype="bfloat16", count=1)
    assert "weights 141.1 GB" in last.message
    assert "1 × H200 or MI300X would hold it" in last.message
    assert last.result == ""


@pytest.mark.parametrize(
    ("change", "where", "message"),
    [
        ({"card": "H999"}, "card", "the card is 'H999'; choose one of H100, H200"),
        ({"target": "gpt-9"}, "target", "the target's shape is 'gpt-9'; choose one of"),
        ({"drafter": "/none/config.json"}, "drafter", "there is no such file"),
        ({"dtype": "fp3"}, "dtype", "the dtype is 'fp3'; choose one of bfloat16"),
        ({"drafter_dtype": "fp3"}, "drafter-dtype", "the drafter's dtype is 'fp3'"),
        ({"rates": "0.8:0.6"}, "rates", "the lowest one comes first"),
        ({"rates": "often"}, "rates", "the acceptance rate is 'often'; write a rate as in 0.7"),
        ({"rates": "7"}, "rates", "the acceptance rate is 7; it must be at least 0.01 and at most 0.99"),
        ({"recorded": "none"}, "recorded", "run none has no trace"),
        ({"head": "0.8:0.6"}, "head", "the lowest one comes first"),
        ({"ngrams": "1"}, "ngrams", "the acceptance rate is 1; it must be at least 0.01 and at most 0.99"),
        ({"batches": "many"}, "batches", "the batch is 'many'; write whole numbers"),
        ({"batches": "65"}, "batches", "the batch is 65; it must be at least 1 and at most 64"),
        ({"engine": "fast"}, "engine", "the engine is 'fast'; choose one of graphs, eager"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line_at_its_control(service, change, where, message):
    with pytest.raises(UsageError) as error:
        question_of(replace(GIVEN, **change), service)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.where == f"advise-{where}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 0}, "the number of cards is 0; it must be at least 1 and at most 64"),
        ({"context": 2**21}, "the context is 2097152; it must be at least 1 and at most 1048576"),
        ({"tokens": 8}, "new tokens is 8; it must be at least 16 and at most 512"),
    ],
)
def test_a_number_out_of_range_is_refused(change, message):
    with pytest.raises(UsageError, match=message):
        replace(GIVEN, **change)
