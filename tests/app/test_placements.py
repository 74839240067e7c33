"""PEARL's placements: arithmetic of the report, published tables, equal texts of all placements."""

from __future__ import annotations

import json

import pytest

import engine
from app.bench import placements
from app.bench.plan import Plan
from app.main import main
from engine.errors import UsageError

SMALL = Plan(1, 1, 1.0, 1, 24, 1, 100, 1)


def test_the_published_tables_are_complete_and_have_the_papers_averages():
    for pair, average in (("llama-2-7-70", 0.9403), ("llama-3.1-8-70", 0.9577)):
        tables = placements.published()[pair]
        assert list(tables) == ["Table 8", "Table 17", "Table 18"]
        for table in tables.values():
            assert len(table["columns"]) == len(table["separate"]) == len(table["pipeline"])
            assert len(set(table["columns"])) == len(table["columns"])
        assert placements._retained(pair)["Table 8"]["average"] == pytest.approx(average, abs=6e-4)
        mean = tables["Table 8"]["separate"][-1], tables["Table 8"]["pipeline"][-1]
        whole = tables["Table 17"]["separate"][2], tables["Table 17"]["pipeline"][2]
        assert mean == whole, "MT-bench's average is in both"
    shares = [
        s for p in ("llama-2-7-70", "llama-3.1-8-70") for s in placements._retained(p)["Table 8"].values()
    ]
    assert (min(shares), max(shares)) == (pytest.approx(0.89, abs=5e-3), pytest.approx(0.998, abs=1e-3))


@pytest.fixture(scope="module")
def virtual_reports():
    notes: list[str] = []
    reports, left_out = placements.virtual("pearl-4xA100", SMALL, notes.append)
    return {r.title: r for r in reports}, left_out, notes


def test_a_profiles_pairs_under_each_placement(virtual_reports):
    reports, left_out, notes = virtual_reports
    assert list(reports) == ["Codellama 7B / 70B", "Llama 2 7B / 70B", "Llama 3.1 8B / 70B"]
    assert left_out == {}
    assert notes == ["codellama-7-70", "", "llama-2-7-70", "", "llama-3.1-8-70", ""]
    for report in reports.values():
        assert report.clock.startswith("virtual · pearl-4xA100 · ")
        assert report.gamma == 5
        assert list(report.figures) == ["separate", "co-located", "pipeline, 3 stages", "pipeline, 4 stages"]
        assert all(figure.valid for figure in report.figures.values()), "the same tokens everywhere"
        assert report.figures["separate"].values == (1.0,)
        assert report.figures["co-located"].median < 0.7
        for stages in (3, 4):
            figure = report.figures[f"pipeline, {stages} stages"]
            assert 0.95 < figure.median <= 1
            assert figure.detail["devices"] == [f"gpu{i}" for i in range(stages)]


def test_moving_the_drafter_costs_time_only_if_drafting_takes_longer_than_verifying(virtual_reports):
    """Llama 2: 5 x 20.0 ms + 1.3 ms (move) during 108.5 ms. Llama 3.1: 5 x 22.5 ms, 111.1 ms."""
    llama2, llama3 = (virtual_reports[0][title] for title in ("Llama 2 7B / 70B", "Llama 3.1 8B / 70B"))
    assert llama2.figures["pipeline, 4 stages"].median == pytest.approx(1, abs=1e-4)
    assert llama3.figures["pipeline, 4 stages"].median == pytest.approx(0.99, abs=0.004)


def test_the_lines_have_measured_and_published_shares(virtual_reports):
    reports, _, _ = virtual_reports
    text = placements.lines([reports["Llama 2 7B / 70B"]], {"x": "the pair x does not"})
    assert text[0] == "Llama 2 7B / 70B · virtual · pearl-4xA100 · llama-2-7-70 · PEARL, gamma 5"
    (separate,) = [line for line in text if line.strip().startswith("separate")]
    assert separate.split()[2:] == ["1.000", "1.000", "1.000", "gpu0,", "gpu1-3"]
    (row,) = [line for line in text if "published, Table 8" in line]
    assert row.split()[3:] == ["0.939", "0.900", "0.988"]
    assert text[-1] == "left out: the pair x does not"
    plain = reports["Codellama 7B / 70B"].to_dict()
    assert plain["published"] == {}
    json.dumps(plain)


def test_a_profile_without_a_pipeline_is_refused():
    with pytest.raises(
        UsageError, match="no pair of the profile A100-OPT runs in a pipeline: the pair opt-2"
    ):
        placements.virtual("A100-OPT", SMALL, lambda _: None)


def test_a_profile_needs_placements(capsys):
    assert main(["bench", "--profile", "pearl-4xA100"]) == 2
    assert "--profile pearl-4xA100 needs --placements or --heads" in capsys.readouterr().err


def test_this_machine_is_measured_on_the_same_prompts(monkeypatch):
    """On threads, which start faster; tests of the transports start processes."""
    opening = engine.open
    monkeypatch.setattr(
        engine, "open", lambda pair, runtime, **more: opening(pair, runtime="local-thread", **more)
    )
    report = placements.measured(Plan(1, 1, 1.0, 1, 6, 1, 100, 1), lambda _: None)
    assert report.clock == "measured · local-thread"
    assert list(report.figures) == ["separate", "co-located", "pipeline, 2 stages"]
    assert all(figure.valid and len(figure.values) == 1 for figure in report.figures.values())
    assert report.published == {}
