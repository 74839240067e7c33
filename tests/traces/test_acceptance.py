"""All definitions of acceptance side by side."""

from __future__ import annotations

import pytest

from tests.traces.samples import sample_trace
from traces.acceptance import USED_BY, acceptance
from traces.definitions import DEFINITIONS
from traces.export.report import render_report
from traces.imports.reading import read_traces
from traces.metrics import measure


def test_every_run_has_a_text_for_every_definition():
    traces = [sample_trace("speculative", tokens=40), sample_trace("autoregressive", tokens=40)]
    found = acceptance(traces)
    assert len(found) == len(USED_BY)
    assert all(len(row.values) == 2 and row.used_by and row.definition for row in found)
    metrics = measure(traces[0])
    values = {row.label: row.values[0] for row in found}
    assert values["accepted / drafted"] == f"{100 * metrics.acceptance_rate:.0f} %"
    assert values["accepted / tested"] == f"{100 * metrics.acceptance_rate_tested:.0f} %"
    assert values["tokens per verification"] == f"{metrics.acceptance_length:.2f}"
    assert values["acceptance by level"].startswith(f"1: {100 * metrics.per_level[0].rate:.0f} %")
    first = metrics.per_position[0]
    assert values["conditional, by place"].startswith(f"1: {100 * first.conditional:.0f} %")
    assert values["accepted / drafted levels"] == values["accepted / drafted"], "the drafts are chains"
    assert found[0].definition == DEFINITIONS["acceptance_rate"]


def test_siblings_of_a_tree_count_once_as_a_level():
    trace = sample_trace("tree", tokens=40)
    nodes = [d for d in trace.decisions if d.node >= 0]
    levels = len({(d.step, d.position) for d in nodes})
    accepted = sum(d.outcome == "accepted" for d in nodes)
    values = {row.label: row.values[0] for row in acceptance([trace])}
    assert values["accepted / drafted levels"] == f"{100 * accepted / levels:.0f} %"
    assert levels < len(nodes)


def test_what_an_imported_file_lacks_is_unknown():
    (trace,) = read_traces("tests/traces/imported/sglang.json").traces
    values = {row.label: row.values[0] for row in acceptance([trace])}
    assert values["run length"] == "unknown"
    assert values["tokens per verification"] != "unknown"


@pytest.mark.parametrize("kind", ["speculative", "tree"])
def test_the_report_has_the_table(kind: str):
    page = render_report([sample_trace(kind, tokens=20)])
    assert "<h2>Acceptance by definition</h2>" in page
    assert "PEARL, table 7: mean accepted tokens" in page
