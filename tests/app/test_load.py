"""`specscope load` and `sweep`: figures, tables, charts, pages and stored runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specscope.app.cli import common
from specscope.app.loaded import poisson, read_arrivals
from specscope.engine.errors import UsageError
from specscope.traces.export.assets import plotly_script
from specscope.traces.requests import figures
from specscope.traces.store import Store
from tests.app.commands import answer, call, printed, prompt_file

CLUSTER = ["--profile", "pearl-4xA100", "--max-new-tokens", "6"]
LOAD = ["load", "--methods", "speculative", *CLUSTER, "--requests", "4", "--batch", "2,1"]
SVG = "http://www.w3.org/2000/svg"
"""A namespace, which no browser requests."""
pytestmark = pytest.mark.usefixtures("shared_clusters")


def loaded(db, *names):
    """Return stored runs."""
    with Store(Path(db[1]), readonly=True) as store:
        return [store.load(name) for name in names]


def test_figures_of_each_method_and_batch_size_are_those_of_stored_runs(capsys, db, tmp_path):
    file = tmp_path / "load.svg"
    code, out, err = call(capsys, *LOAD, "--rate", "20", "-o", str(file), "--json", *db)
    result = json.loads(out)
    assert (code, err.count("is done"), result["virtual"]) == (0, 4, True)
    assert result["arrivals"] == pytest.approx(poisson(20, 4, 0), abs=1e-6)
    assert list(result["methods"]) == ["autoregressive", "speculative"]
    for method in result["methods"].values():
        assert list(method["batches"]) == ["1", "2"]
        for batch, row in method["batches"].items():
            (trace,) = loaded(db, row["run"])
            assert trace.header.environment["load"]["batch"] == int(batch)
            assert row == {"run": row["run"], **figures(trace, 1000, 100)}
    assert file.read_text(encoding="utf-8").startswith("<svg")
    printed(capsys, "report", row["run"], "-o", str(tmp_path / "r.html"), *db)


def test_the_table_says_where_a_method_stops_paying(capsys, db, tmp_path):
    file = tmp_path / "load.html"
    words = ["--set", "speculative.gamma=16", "--prompt", "Hi", "-o", str(file)]
    out = printed(capsys, *LOAD, *words, *db)
    assert out.startswith("bundled · 4 requests · virtual · pearl-4xA100")
    assert "speculative stops paying at batch size" in out or "speculative pays at every batch size" in out
    page = file.read_text(encoding="utf-8")
    assert ("<svg" in page, page.count("<tr>")) == (True, 5)
    assert "http" not in page.replace("http-equiv", "").replace(SVG, "")


def test_each_policy_of_a_method_is_a_line(capsys, db, tmp_path):
    file = tmp_path / "load.svg"
    words = ["--policy", "fixed,survival,minedraft", "--methods", "speculative,llma", "-o", str(file)]
    result = answer(capsys, *LOAD, *words, "--json", *db)
    lines = ["autoregressive", "speculative", "speculative, survival", "speculative, minedraft", "llma"]
    assert list(result["methods"]) == lines
    for line, row in result["methods"].items():
        assert (row["method"], row["policy"]) == tuple(f"{line}, fixed".split(", ")[:2])
    assert list(result["left_out"]) == ["llma, survival", "llma, minedraft"]
    (run,) = loaded(db, result["methods"]["speculative, minedraft"]["batches"]["2"]["run"])
    assert run.header.environment["load"]["policy"] == "minedraft"
    assert all(line in file.read_text(encoding="utf-8") for line in lines)


def test_requests_of_a_file_have_its_times_and_prompts(capsys, db, tmp_path):
    file = tmp_path / "arrivals.jsonl"
    file.write_text('{"arrival": 0.5, "prompt": "Hi"}\n\n{"arrival": 0, "prompt": "A story"}\n')
    words = ["load", "--methods", "autoregressive", *CLUSTER, "--arrivals", str(file), "--batch", "1"]
    result = answer(capsys, *words, "--json", *db)
    assert result["arrivals"] == [0.5, 0]
    (run,) = loaded(db, result["methods"]["autoregressive"]["batches"]["1"]["run"])
    assert run.header.prompts == ("Hi", "A story")
    first = {i: min(c.time for c in run.commits if c.sequence == i) for i in range(2)}
    assert first[1] < 5e8 < first[0]


def test_ctrl_c_shows_what_is_finished(capsys, db, monkeypatch):
    recorded, done = common.recorded, []

    def interrupted(*args):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(args)
        return recorded(*args)

    monkeypatch.setattr(common, "recorded", interrupted)
    code, out, err = call(capsys, *LOAD, *db)
    assert (code, err.splitlines()[-1]) == (130, "specscope: stopped")
    assert "stopped before the end" in out
    assert sum(line.startswith(("autoregressive ", "speculative ")) for line in out.splitlines()) == 3


def test_poisson_arrivals_follow_from_the_seed_and_have_the_rate():
    times = poisson(5, 2000, 3)
    assert times == poisson(5, 2000, 3) != poisson(5, 2000, 4)
    assert times[0] == 0
    assert times == sorted(times)
    assert times[-1] / 1999 == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("a.txt", "0.5\n\nsoon\n", "a.txt line 3 is 'soon'; it must be a time in seconds"),
        ("a.txt", "0\n-1\n", "a.txt line 2 has the time -1; it must be at least 0"),
        ("a.txt", "1e999\n", "a.txt line 1 has the time inf"),
        ("a.txt", "\n", "a.txt has no arrival"),
        ("a.jsonl", '{"arrival": 0}\n{', "a.jsonl line 2 is not JSON"),
        ("a.jsonl", "[1]\n", "a.jsonl line 1 is [1]; it must be an object"),
        ("a.jsonl", '{"prompt": "x"}\n', "a.jsonl line 1 has arrival None"),
        ("a.jsonl", '{"arrival": 1, "prompt": 3}\n', "a.jsonl line 1 has prompt 3"),
        ("a.jsonl", '{"arrival": 1, "prompt": "x"}\n{"arrival": 2}\n', "has a prompt in 1 of 2 rows"),
    ],
)
def test_a_wrong_file_of_arrivals_is_refused_with_its_line(tmp_path, name, text, error):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as raised:
        read_arrivals(tmp_path / name, 1 << 20)
    assert error in str(raised.value)


# `specscope sweep`.


def test_a_sweep_over_rates_has_cells_stored_runs_points_and_a_page(capsys, db, tmp_path):
    file = tmp_path / "sweep.html"
    words = [
        "sweep",
        "--method",
        "speculative",
        "--over",
        "gamma=3:4",
        "--over",
        "acceptance_rate=0.9",
        "--seeds",
        "1",
        "--json",
    ]
    words += ["--profile", "8xA100", "--profile-pair", "llama-3-8-70-tp8", "--max-new-tokens", "8"]
    code, out, err = call(capsys, *words, "-o", str(file), *db)
    result = json.loads(out)
    cells = result["cells"]
    assert (code, err.count("\n"), len(result["points"])) == (0, 2, 5)
    assert result["clock"] == "virtual · 8xA100 · llama-3-8-70-tp8"
    assert [(cell["row"], cell["column"]) for cell in cells] == [(0.9, 3), (0.9, 4)]
    assert all(cell["low"] <= cell["speedup"] <= cell["high"] for cell in cells)
    assert all(loaded(db, *(run for cell in cells for (run,) in cell["runs"])))
    with Store(Path(db[1])) as store:
        assert store.runs()[1] == 3, "plain decoding is the same for both cells"
    page, run = file.read_text(encoding="utf-8"), cells[0]["runs"][0][0]
    assert (page.count("<small>"), page.count('class="app-figure"')) == (2, 1)
    assert all(part in page for part in (run, "EasySpec (2025), Table 2", plotly_script()))
    assert "://" not in page.replace(plotly_script(), "").replace(SVG, "")


def test_models_decode_the_prompts_of_a_file_and_the_table_names_the_clock(capsys, db, tmp_path):
    file = prompt_file(tmp_path / "prompts.jsonl", "Hi", "A story")
    words = f"sweep --method tree --over width=2 --over depth=1:2 --prompt-file {file}".split()
    first, head, *rows = printed(capsys, *words, *CLUSTER, *db).splitlines()
    assert first == "tree · bundled · virtual · pearl-4xA100 · llama-2-7-70 · samples 2 · passes 1"
    assert head.split() == ["depth", "/", "width", "2"]
    assert [row.split()[0] for row in rows] == ["1", "2"]
    with Store(Path(db[1])) as store:
        assert store.runs()[1] == 2 * 2 + 2 * 2, "each depth has its own comparison"


def test_drafters_are_rows_with_runs_of_their_own(capsys, db):
    words = ["sweep", "--method", "speculative", "--over", "drafter=int8,usual", "--over", "gamma=2"]
    words += ["--prompt", "Hi", "--passes", "1", "--max-new-tokens", "4", "--runtime", "local-thread"]
    result = answer(capsys, *words, "--json", *db)
    assert result["rows"] == {"field": "drafter", "values": ["int8", "usual"]}
    runs = loaded(db, *(name for cell in result["cells"] for (name,) in cell["runs"]))
    assert [Path(run.header.drafter_path).name for run in runs] == ["int8"] * 2 + ["drafter"] * 2
