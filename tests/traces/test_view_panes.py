"""The texts of a pane: its heading, its plan, its notes on drafts and on speed."""

import re
from dataclasses import replace

import pytest

from engine.trace.trace import Trace
from tests.traces.samples import sample_trace
from traces.view.document import view_model
from traces.view.settings import config_text


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


def slowed(trace, factor: int):
    """Return a copy of a run that takes several times as long."""
    times = {"spans": ("start", "end"), "commits": ("time",), "rounds": ("time",)}
    slow = Trace(trace.header)
    for name, moments in times.items():
        rows = [
            replace(row, **{f: factor * getattr(row, f) for f in moments}) for row in getattr(trace, name)
        ]
        setattr(slow, name, rows)
    slow.decisions = trace.decisions
    slow.footer = replace(trace.footer, time=factor * trace.footer.time)
    return slow


def test_a_run_that_is_not_faster_than_the_baseline_says_why():
    plain, fast = sample_trace("autoregressive"), sample_trace("speculative")
    runs = view_model([plain, fast])["runs"]
    assert [run["slowness"] for run in runs] == ["", ""]
    slow = slowed(fast, 5)
    run = view_model([plain, slow])["runs"][1]
    metrics = run["metrics"]
    brings, faster = metrics["tokens_per_target_forward"], float(run["figures"]["speedup"][:-1])
    found = re.fullmatch(
        r"Not faster than plain decoding: a target forward brings (\S+) tokens \((\d+) % of the drafts accepted\) but "
        r"takes the time of (\S+) plain tokens: (\S+) for its (\S+) rows, (\S+) waiting for drafts \(c = (\S+)\), "
        r"(\S+) for the rest\.",
        run["slowness"],
    )
    assert found, run["slowness"]
    said, accepted, time, verify, rows, draft, c, rest = map(float, found.groups())
    assert said == pytest.approx(brings, abs=0.006)
    assert accepted == round(100 * metrics["acceptance_rate"])
    assert brings / time == pytest.approx(faster, abs=0.02)
    assert verify + draft + rest == pytest.approx(time, abs=0.02)
    assert c == pytest.approx(metrics["c"], abs=0.06)
    assert rows > 1


def test_the_acceptance_of_a_slow_run_with_trees_is_counted_per_tree():
    run = view_model([sample_trace("autoregressive"), slowed(sample_trace("tree"), 5)])["runs"][1]
    accepted = run["metrics"]["mean_accepted_length"]
    assert f"({accepted:.2f} tokens of each tree accepted)" in run["slowness"]
    assert "%" not in run["slowness"]


def test_only_a_finished_run_on_the_baselines_prompt_is_compared_with_it():
    plain, slow = sample_trace("autoregressive"), slowed(sample_trace("speculative"), 5)
    slow.header = replace(slow.header, prompt_ids=((9, 9),))
    assert view_model([plain, slow])["runs"][1]["slowness"] == ""
    slow = slowed(sample_trace("speculative"), 5)
    slow.footer = replace(slow.footer, status="cancelled")
    assert view_model([plain, slow])["runs"][1]["slowness"] == ""
    assert view_model([slow])["runs"][0]["slowness"] == ""
