"""docs/instrument.md: its code runs, its tables are complete, and its two examples are recorded."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import specscope
from specscope.engine.checkpoints.loader import load_reference
from specscope.engine.trace.recorder import Recorder
from specscope.traces.diff import diff
from specscope.traces.export.report import render_report
from specscope.traces.imports.reading import read_traces
from specscope.traces.metrics import measure
from specscope.traces.view.document import view_model
from specscope.traces.waiting import overlap
from specscope.traces.whatif.replay import Change, what_if
from tests.docs.test_docs import blocks, first_cells, section
from tests.engine.trace.recordings import Event

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "instrument.md").read_text(encoding="utf-8")
EXAMPLES = ("own_loop", "own_parallel_loop")
MOST_LINES = 6


@pytest.mark.parametrize("number", range(len(blocks(TEXT, "python"))))
def test_the_code_runs_and_its_file_is_read(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event())
    block = blocks(TEXT, "python")[number]
    exec(compile(block, "docs/instrument.md", "exec"), {})
    if "specscope.record" in block:
        (trace,) = read_traces("mine.jsonl").traces
        assert trace.status == "done"
        assert trace.spans


def test_five_lines_are_five():
    code = [line for line in blocks(TEXT, "python")[0].splitlines() if "rec" in line.split("#")[0]]
    assert len(code) == 5


def test_every_argument_is_in_a_table():
    calls, judging = section(TEXT, "All calls").split("`rec.round` takes")
    for function, table in ((specscope.record, calls), (Recorder.round, judging)):
        names = [name for name in inspect.signature(function).parameters if name != "self"]
        assert set(names) <= set(first_cells(table)), function
    methods = {name for name, value in vars(Recorder).items() if inspect.isfunction(value) and name[0] != "_"}
    assert methods == set(re.findall(r"`rec\.(\w+)\(", calls))


def load_example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The trace of each example, and the tokens it returned."""
    folder, runs = tmp_path_factory.mktemp("examples"), {}
    for name in EXAMPLES:
        path = folder / f"{name}.jsonl"
        tokens = load_example(name).generate(path)
        (trace,) = read_traces(path).traces
        runs[name] = trace, tokens
    return runs


def greedy_tokens(example):
    """Return the tokens that the target of an example writes alone, by transformers."""
    tokenizer = AutoTokenizer.from_pretrained(example.PAIR / "target")
    chat = [{"role": "user", "content": example.PROMPT}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    settings = {"do_sample": False, "max_new_tokens": 48, "attention_mask": torch.ones_like(ids)}
    return load_reference(example.PAIR / "target").generate(ids, **settings)[0, ids.shape[1] :].tolist()


@pytest.fixture(scope="module")
def greedy():
    return greedy_tokens(load_example("own_loop"))


def numbered_lines(name):
    """Return how many lines of an example are numbered; no other line records anything."""
    lines = (ROOT / "docs" / "examples" / f"{name}.py").read_text().split('"""', 2)[2].splitlines()
    numbered = [line for line in lines if re.search(r"  # \d$", line)]
    recording = r"\brec\.|engine\.(record|watch)|^import specscope$"
    assert not [line for line in lines if line not in numbered and re.search(recording, line)]
    return len(numbered)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_instrumented_in_six_lines(name):
    """Without the numbered lines, `rec` is only an argument that is passed on."""
    assert numbered_lines(name) == MOST_LINES


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_writes_the_targets_text_and_the_trace_has_all_of_it(name, recorded, greedy):
    trace, tokens = recorded[name]
    assert len(tokens) >= 32
    assert tokens == trace.token_ids() == greedy[: len(tokens)]
    assert trace.status == "done"
    assert "sleep" in trace.text
    assert any(d.outcome == "rejected" for d in trace.decisions)
    assert all(d.draft_span >= 0 for d in trace.decisions if d.node >= 0)


def test_the_parallel_example_drafts_while_it_verifies(recorded):
    """Both sides work at once, and drafts after a rejection are wasted work."""
    assert overlap(recorded["own_loop"][0])["both"] == 0
    trace, _ = recorded["own_parallel_loop"]
    assert overlap(trace)["both"] > 0
    assert measure(trace).wasted_device_seconds > 0


@pytest.mark.parametrize("name", EXAMPLES)
def test_all_views_show_an_example(name, recorded):
    trace, _ = recorded[name]
    (run,) = view_model([trace])["runs"]
    assert "fault" not in run["note"]
    lacking = ", probabilities" if name == "own_parallel_loop" else ""
    note = run["note"].replace(", load by other programs", "")  # of an output of less than 0.2 s
    assert note == f"Not recorded: rows cached before each forward{lacking}."
    assert run["badge"] == "measured · own code"
    assert run["figures"]["wasted_device_seconds"] != "unknown"
    page = render_report([trace])
    assert trace.header.title in page
    assert "There are many ways to sleep" in page


def test_two_examples_differ_in_time_only(recorded):
    first, second = (trace for trace, _ in recorded.values())
    found = diff(first, second)
    least = min(found.tokens)
    assert found.first_difference is None or found.first_difference.index == least
    assert "target" in [waterfall.role for waterfall in found.waterfalls]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_replayed_under_another_method(name, recorded):
    trace, tokens = recorded[name]
    result = what_if(trace, Change(method="pearl", profile="pearl-3xA100"))
    assert result.replay.token_ids() == tokens
    assert result.decided > 0
