"""docs/instrument.md and docs/transformers.md: code, tables and examples."""

from __future__ import annotations

import importlib.util
import inspect
import re
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import specscope
from specscope.engine.checkpoints.loader import load_reference
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.trace.generators import TITLES
from specscope.engine.trace.recorder import Recorder
from specscope.engine.types import Limits
from specscope.traces.export.report import render_report
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.waiting import overlap
from specscope.traces.imports.reading import read_traces
from specscope.traces.judge.diff import diff
from specscope.traces.view.document import view_model
from specscope.traces.whatif.replay import Change, what_if
from tests.docs.test_docs import blocks, first_cells, section
from tests.engine.trace.recordings import Event

ROOT = Path(__file__).parents[2]
OWN, WATCHED = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("instrument", "transformers")
)
CODE = [*blocks(OWN, "python"), blocks(WATCHED, "python")[0]]
LOOPS, NEW_TOKENS = ("own_loop", "own_parallel_loop"), 48
EXAMPLES = {
    "own_loop": ("measured · own code", "Not recorded: rows cached before each forward."),
    "own_parallel_loop": (
        "measured · own code",
        "Not recorded: rows cached before each forward, probabilities.",
    ),
    "assisted": ("measured · transformers", ""),
    "mtp": ("measured · transformers", ""),
}
"""Example -> its badge and its note."""


@pytest.mark.parametrize("number", range(len(CODE)))
def test_the_code_runs_and_its_file_is_read(number, tmp_path, monkeypatch, capsys):
    (tmp_path / "assets").symlink_to(ROOT / "assets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event())
    exec(compile(CODE[number], "the document", "exec"), {})
    if "specscope.record" in CODE[number]:
        (trace,) = read_traces("mine.jsonl").traces
        assert trace.status == "done"
        assert trace.spans
    if "specscope.watch" in CODE[number]:
        (trace,) = read_traces("mine.jsonl").traces
        assert capsys.readouterr().out.strip() == f"{trace.text} {len(trace.rounds)}".strip()
        assert (trace.header.title, trace.status, len(trace.token_ids())) == ("prompt lookup", "done", 32)
        assert trace.header.environment["threads"] == torch.get_num_threads()


def test_five_lines_are_five():
    code = [line for line in CODE[0].splitlines() if "rec" in line.split("#")[0]]
    assert len(code) == 5


def test_every_argument_method_and_title_is_in_a_table():
    calls, judging = section(OWN, "All calls").split("`rec.round` takes")
    for function, table in ((specscope.record, calls), (Recorder.round, judging)):
        names = [name for name in inspect.signature(function).parameters if name != "self"]
        assert set(names) <= set(first_cells(table)), function
    methods = {name for name, value in vars(Recorder).items() if inspect.isfunction(value) and name[0] != "_"}
    assert methods == set(re.findall(r"`rec\.(\w+)\(", calls))
    assert set(inspect.signature(specscope.watch).parameters) == set(first_cells(section(WATCHED, "Use")))
    recorded = section(WATCHED, "What is recorded")
    assert all(f"| {title} |" in recorded for title in TITLES.values())


@cache
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
        tokens = load_example(name).generate(folder / f"{name}.jsonl")
        (trace,) = read_traces(folder / f"{name}.jsonl").traces
        runs[name] = trace, tokens
    return runs


@cache
def greedy_tokens(pair, prompt):
    """Return the tokens that the target of an example writes alone, by transformers."""
    tokenizer = AutoTokenizer.from_pretrained(pair / "target")
    chat = [{"role": "user", "content": prompt}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    settings = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "attention_mask": torch.ones_like(ids)}
    return load_reference(pair / "target").generate(ids, **settings)[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_instrumented_in_six_lines(name):
    """No other line records anything: there `rec` is only an argument that is passed on."""
    lines = (ROOT / "docs" / "examples" / f"{name}.py").read_text().split('"""', 2)[2].splitlines()
    numbered = [line for line in lines if re.search(r"  # \d$", line)]
    recording = r"\brec\.|engine\.(record|watch)|^import specscope$"
    assert not [line for line in lines if line not in numbered and re.search(recording, line)]
    assert len(numbered) == 6 if name in LOOPS else 0 < len(numbered) <= 6


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_writes_the_targets_text_and_all_views_show_it(name, recorded):
    trace, tokens = recorded[name]
    greedy = greedy_tokens(load_example(name).PAIR, load_example(name).PROMPT)
    assert len(tokens) >= 32
    assert tokens == trace.token_ids() == greedy[: len(tokens)]
    assert trace.status == "done"
    assert any(d.outcome == "rejected" for d in trace.decisions)
    assert all(d.draft_span >= 0 for d in trace.decisions if d.node >= 0)
    if name not in LOOPS:
        assert all(None not in (d.p, d.q) for d in trace.decisions if d.node >= 0)
    (run,) = view_model([trace])["runs"]
    note = run["note"].replace(", load by other programs", "")  # of an output of less than 0.2 s
    assert (run["badge"], note) == EXAMPLES[name]
    assert run["figures"]["wasted_device_seconds"] != "unknown"
    page = render_report([trace])
    assert trace.header.title in page
    assert "There are many ways to sleep" in page


def test_the_parallel_example_drafts_while_it_verifies(recorded):
    """Both sides work at once, and drafts after a rejection are wasted work."""
    assert overlap(recorded["own_loop"][0])["both"] == 0
    trace, _ = recorded["own_parallel_loop"]
    assert overlap(trace)["both"] > 0
    assert measure(trace).wasted_device_seconds > 0


def test_two_examples_differ_in_time_only(recorded):
    found = diff(*(recorded[name][0] for name in LOOPS))
    assert found.first_difference is None or found.first_difference.index == min(found.tokens)
    assert "target" in [waterfall.role for waterfall in found.waterfalls]


def test_the_difference_to_speculative_decoding_is_time_only(recorded):
    """The recipe beside SpecScope's methods: same prompt, models and gamma, the same rounds."""
    trace, tokens = recorded["assisted"]
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


@pytest.mark.parametrize("name", LOOPS)
def test_an_example_is_replayed_under_another_method(name, recorded):
    trace, tokens = recorded[name]
    result = what_if(trace, Change(method="pearl", profile="pearl-3xA100"))
    assert result.replay.token_ids() == tokens
    assert result.decided > 0
