"""The texts of a pane: its heading, its plan, its notes on drafts and on speed."""

from dataclasses import replace

import pytest

from specscope.traces.view.document import view_model
from specscope.traces.view.settings import config_text, planned_text
from tests.traces.samples import sample_trace


def run_of(trace, **options):
    return view_model([trace], **options)["runs"][0]


@pytest.mark.parametrize(
    ("method", "config", "text"),
    [
        ("autoregressive", {}, ""),
        ("speculative", {"gamma": 5, "drafts": "sampled"}, "γ 5"),
        ("speculative", {"gamma": 5, "drafts": "greedy"}, "γ 5 · drafts greedy"),
        ("pearl", {"gamma": 4, "pre_verify": False, "post_verify": True}, "γ 4 · pre_verify off"),
        ("eagle", {"tree": "eagle", "drafts": "sampled"}, ""),
        ("eagle", {"tree": "[[0],[1],[0,0]]", "drafts": "sampled"}, "tree 3 nodes in 2 levels"),
        ("eagle", {"tree": "[[0],[9]]", "drafts": "sampled"}, "tree [[0],[9]]"),
        ("eagle2", {"top": 4, "depth": 6, "total": 7}, "top 4 · total 7"),
        ("llma", {"reference": "[[0],[1]]"}, "reference [[0],[1]]"),
        ("not known here", {"width": 3}, "width 3"),
    ],
)
def test_headings_show_gamma_and_settings_that_are_not_the_default(method, config, text):
    assert config_text(method, config) == text


PLAN = {"nodes": 7, "levels": 3, "tokens_per_forward": 1.93, "speedup": 1.6}


@pytest.mark.parametrize(
    ("planned", "text"),
    [
        (PLAN, "planned: 7 nodes in 3 levels, predicted 1.9 tokens per forward, 1.60×"),
        (
            {**PLAN, "nodes": 1, "levels": 1, "speedup": 0.91},
            "planned: 1 node in 1 level, predicted 1.9 tokens per forward, 0.91×: plain decoding is faster",
        ),
        (
            {**PLAN, "others": 1.26},
            "planned: 7 nodes in 3 levels, predicted 1.9 tokens per forward, 1.60×; "
            "measured while other programs used 1.3 cores",
        ),
        (
            {**PLAN, "nodes": 16, "levels": 16, "tokens_per_forward": 9.0},
            "planned: 16 tokens in a row, predicted 9.0 tokens per forward, 1.60×",
        ),
        (None, ""),
        ([1], ""),
        ({**PLAN, "nodes": "<b>"}, ""),
        ({**PLAN, "levels": float("inf")}, ""),
    ],
)
def test_a_planned_draft_is_shown_with_its_prediction(planned, text):
    trace = sample_trace("tree")
    environment = trace.header.environment | {"planned": planned}
    (run,) = view_model([replace(trace, header=replace(trace.header, environment=environment))])["runs"]
    assert run["planned"] == text
    (without,) = view_model([trace])["runs"]
    assert without["planned"] == ""


@pytest.mark.parametrize(
    ("environment", "gamma", "shown"),
    [
        ({"open": {"gamma": 0}, "c": 22.3}, 22, True),
        ({"open": {"gamma": 0}, "c": 22.3}, 5, False),
        ({"open": {}, "c": 22.3}, 22, False),
        ({"open": {"gamma": 0}}, 22, False),
        ({"open": 3, "c": "x"}, 22, False),
        ({"open": {"gamma": 0}, "c": float("nan")}, 22, False),
        ({"open": {"gamma": 0}, "c": 22.3}, 10**400, False),
    ],
)
def test_a_draft_chosen_by_speed_says_why_it_is_so_long(environment, gamma, shown):
    header = sample_trace("pearl").header
    header = replace(header, environment=environment, config={**header.config, "gamma": gamma})
    why = "γ 22, because one target forward was measured to take as long as 22.3 drafter forwards"
    assert planned_text(header).startswith(why) == shown
    assert bool(planned_text(header)) == shown


def test_a_run_without_drafts_has_a_note_with_the_reason():
    plain = sample_trace("autoregressive")
    assert "the method has no drafter" in run_of(plain)["note"]
    assert "target busy" in [part["label"] for part in run_of(plain)["headline"]]
    assert run_of(sample_trace("pearl"))["note"] == ""
    plain.header = replace(plain.header, method="pearl", drafter_path="there")
    assert "every round was a plain target forward" in run_of(plain)["note"]
    plain.header = replace(plain.header, drafter_path="")
    assert "no drafter was given" in run_of(plain)["note"]
    plain.rounds.clear()
    assert "ended before its first round" in run_of(plain)["note"]
