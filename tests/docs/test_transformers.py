"""docs/transformers.md: its code runs, its table is complete, and its example is recorded."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.trace.watched import TITLES
from specscope.engine.types import Limits
from specscope.traces.diff import diff
from specscope.traces.export.report import render_report
from specscope.traces.imports.reading import read_traces
from specscope.traces.view.document import view_model
from tests.docs.test_docs import blocks, first_cells, section
from tests.docs.test_instrument import MOST_LINES, greedy_tokens, load_example, numbered_lines

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "transformers.md").read_text(encoding="utf-8")
NEW_TOKENS = 48


def test_the_code_runs_and_its_file_is_read(tmp_path, monkeypatch, capsys):
    (tmp_path / "assets").symlink_to(ROOT / "assets")
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks(TEXT, "python")[0], "docs/transformers.md", "exec"), {})
    (trace,) = read_traces("mine.jsonl").traces
    assert capsys.readouterr().out.strip() == f"{trace.text} {len(trace.rounds)}".strip()
    assert trace.header.title == "prompt lookup"
    assert (trace.status, len(trace.token_ids())) == ("done", 32)
    assert trace.header.environment["threads"] == torch.get_num_threads()


def test_every_argument_and_every_title_is_in_a_table():
    assert set(inspect.signature(specscope.watch).parameters) == set(first_cells(section(TEXT, "Use")))
    recorded = section(TEXT, "What is recorded")
    assert all(f"| {title} |" in recorded for title in TITLES.values())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The trace of the example, and the tokens that it returned."""
    path = tmp_path_factory.mktemp("example") / "assisted.jsonl"
    tokens = load_example("assisted").generate(path)
    (trace,) = read_traces(path).traces
    return trace, tokens


def test_the_example_is_instrumented_in_six_lines_at_most():
    assert 0 < numbered_lines("assisted") <= MOST_LINES


def test_the_example_writes_the_targets_text_and_all_views_show_it(recorded):
    trace, tokens = recorded
    assert tokens == trace.token_ids() == greedy_tokens(load_example("assisted"))
    assert any(d.outcome == "rejected" for d in trace.decisions)
    assert all(None not in (d.p, d.q) and d.draft_span >= 0 for d in trace.decisions if d.node >= 0)
    (run,) = view_model([trace])["runs"]
    assert run["note"] == ""
    assert run["badge"] == "measured · transformers"
    page = render_report([trace])
    assert "assisted generation" in page
    assert "There are many ways to sleep" in page


def test_the_difference_to_speculative_decoding_is_time_only(recorded):
    """The recipe beside SpecScope's methods: same prompt, models and gamma, the same rounds."""
    trace, tokens = recorded
    with specscope.open(Pair.find("bundled"), runtime="local-thread", device="cpu") as cluster:
        prompt = load_example("assisted").PROMPT
        ours = cluster.run("speculative", prompt, config={"gamma": 4}, limits=Limits(NEW_TOKENS))
    assert ours.header.prompt_ids == trace.header.prompt_ids
    assert ours.token_ids() == tokens
    before, after = ([r.accepted for r in run.rounds] for run in (ours, trace))
    assert before[:-1] == after[:-1]  # at the end transformers drafts one token less
    found = diff(trace, ours)
    assert found.first_difference is None or found.first_difference.index == NEW_TOKENS
    labels = {step.label for waterfall in found.waterfalls for step in waterfall.steps}
    assert {"draft", "verify"} <= labels
