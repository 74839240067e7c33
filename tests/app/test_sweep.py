"""`specscope sweep`: the table, the JSON object, the page, stored runs, and errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specscope.traces.export.assets import plotly_script
from specscope.traces.store import Store
from tests.app.commands import answer, call

CLUSTER = ["--profile", "pearl-4xA100", "--max-new-tokens", "8"]
RATES = ["sweep", "--method", "speculative", "--over", "gamma=3:4", "--over", "acceptance_rate=0.9"]


SVG = "http://www.w3.org/2000/svg"
"""A namespace, which no browser requests."""


def test_a_sweep_over_rates_has_cells_stored_runs_points_and_a_page(capsys, db, tmp_path):
    file = tmp_path / "sweep.html"
    easy = ["--profile", "8xA100", "--profile-pair", "llama-3-8-70-tp8", "--max-new-tokens", "8"]
    code, out, err = call(capsys, *RATES, *easy, "--seeds", "1", "-o", str(file), "--json", *db)
    assert (code, err.count("\n")) == (0, 2)
    result = json.loads(out)
    assert result["clock"] == "virtual · 8xA100 · llama-3-8-70-tp8"
    assert [(cell["row"], cell["column"]) for cell in result["cells"]] == [(0.9, 3), (0.9, 4)]
    assert all(cell["low"] <= cell["speedup"] <= cell["high"] for cell in result["cells"])
    assert len(result["points"]) == 5
    with Store(Path(db[1])) as store:
        assert store.runs()[1] == 3, "plain decoding is the same for both cells"
        for cell in result["cells"]:
            assert all(store.load(run) for (run,) in cell["runs"])
    page = file.read_text(encoding="utf-8")
    assert page.count("<small>") == 2
    assert result["cells"][0]["runs"][0][0] in page
    assert "EasySpec (2025), Table 2" in page
    assert page.count('class="app-figure"') == 1
    assert plotly_script() in page
    assert "://" not in page.replace(plotly_script(), "").replace(SVG, "")
    code, _, _ = call(capsys, "report", result["cells"][0]["runs"][0][0], "-o", str(tmp_path / "r.html"), *db)
    assert code == 0


@pytest.mark.usefixtures("shared_clusters")
def test_models_decode_the_prompts_of_a_file_and_the_table_names_the_clock(capsys, db, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Hi"}\n{"prompt": "A story"}\n')
    words = f"sweep --method tree --over width=2 --over depth=1:2 --prompt-file {file}".split()
    code, out, _ = call(capsys, *words, *CLUSTER, *db)
    assert code == 0
    first, head, *rows = out.splitlines()
    assert first == "tree · bundled · virtual · pearl-4xA100 · llama-2-7-70 · samples 2 · passes 1"
    assert head.split() == ["depth", "/", "width", "2"]
    assert [row.split()[0] for row in rows] == ["1", "2"]
    with Store(Path(db[1])) as store:
        assert store.runs()[1] == 2 * 2 + 2 * 2, "each depth has its own comparison"


@pytest.mark.usefixtures("shared_clusters")
def test_drafters_are_rows_with_runs_of_their_own(capsys, db, tmp_path):
    words = ["sweep", "--method", "speculative", "--over", "drafter=int8,usual", "--over", "gamma=2"]
    more = ["--prompt", "Hi", "--passes", "1", "--max-new-tokens", "4", "--runtime", "local-thread"]
    result = answer(capsys, *words, *more, "--json", *db)
    assert result["rows"] == {"field": "drafter", "values": ["int8", "usual"]}
    with Store(Path(db[1])) as store:
        runs = [store.load(name) for cell in result["cells"] for (name,) in cell["runs"]]
    assert [Path(run.header.drafter_path).name for run in runs] == ["int8"] * 2 + ["drafter"] * 2
