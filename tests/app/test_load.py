"""`specscope load` and `sweep`, and the Load tab: figures, tables, charts, runs, refusals."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import gradio as gr
import pytest

from specscope.app.cli import common
from specscope.app.experiments.load import poisson, read_arrivals
from specscope.app.jobs.service import Service
from specscope.app.tabs.load import AT_ONCE, RATE, TIMES, LoadSettings, build_load, load_plan, servable
from specscope.app.tabs.settings import HERE
from specscope.engine.errors import UsageError
from specscope.traces.database.store import Store
from specscope.traces.export.assets import plotly_script
from specscope.traces.facts.requests import figures, load_of
from tests.app.commands import answer, call, printed, prompt_file

CLUSTER = ["--profile", "pearl-4xA100", "--max-new-tokens", "6"]
LOAD = ["load", "--methods", "speculative", *CLUSTER, "--requests", "4", "--batch", "2,1"]
SVG = "http://www.w3.org/2000/svg"
"""A namespace, which no browser requests."""
commands = pytest.mark.usefixtures("shared_clusters")
"""Not of the Load tab, whose service closes its clusters."""


def loaded(db, *names):
    """Return stored runs."""
    with Store(Path(db[1]), readonly=True) as store:
        return [store.load(name) for name in names]


@commands
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


@commands
def test_the_table_says_where_a_method_stops_paying(capsys, db, tmp_path):
    file = tmp_path / "load.html"
    words = ["--set", "speculative.gamma=16", "--prompt", "Hi", "-o", str(file)]
    out = printed(capsys, *LOAD, *words, *db)
    assert out.startswith("bundled · 4 requests · virtual · pearl-4xA100")
    assert "speculative stops paying at batch size" in out or "speculative pays at every batch size" in out
    page = file.read_text(encoding="utf-8")
    assert ("<svg" in page, page.count("<tr>")) == (True, 5)
    assert "http" not in page.replace("http-equiv", "").replace(SVG, "")


@commands
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


@commands
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


@commands
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


@commands
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


@commands
def test_models_decode_the_prompts_of_a_file_and_the_table_names_the_clock(capsys, db, tmp_path):
    file = prompt_file(tmp_path / "prompts.jsonl", "Hi", "A story")
    words = f"sweep --method tree --over width=2 --over depth=1:2 --prompt-file {file}".split()
    first, head, *rows = printed(capsys, *words, *CLUSTER, *db).splitlines()
    assert first == "tree · bundled · virtual · pearl-4xA100 · llama-2-7-70 · samples 2 · passes 1"
    assert head.split() == ["depth", "/", "width", "2"]
    assert [row.split()[0] for row in rows] == ["1", "2"]
    with Store(Path(db[1])) as store:
        assert store.runs()[1] == 2 * 2 + 2 * 2, "each depth has its own comparison"


@commands
def test_drafters_are_rows_with_runs_of_their_own(capsys, db):
    words = ["sweep", "--method", "speculative", "--over", "drafter=int8,usual", "--over", "gamma=2"]
    words += ["--prompt", "Hi", "--passes", "1", "--max-new-tokens", "4", "--runtime", "local-thread"]
    result = answer(capsys, *words, "--json", *db)
    assert result["rows"] == {"field": "drafter", "values": ["int8", "usual"]}
    runs = loaded(db, *(name for cell in result["cells"] for (name,) in cell["runs"]))
    assert [Path(run.header.drafter_path).name for run in runs] == ["int8"] * 2 + ["drafter"] * 2


# The Load tab.


GIVEN = LoadSettings(
    methods=["speculative", "medusa"],
    models="bundled",
    profile="A100-40G",
    pair="",
    arriving=AT_ONCE,
    rate=4,
    times="",
    requests=4,
    sizes="2, 1",
    tokens=5,
    ttft=1000,
    tpot=100,
    prompts="",
)


def served(page, **changed):
    """Press Serve with these values of the controls."""
    return page.run(*(changed.get(name, getattr(GIVEN, name)) for name in page.controls.made))


@pytest.fixture(scope="module")
def service():
    made = Service(None)
    yield made
    made.close()


@pytest.fixture(scope="module")
def page(service):
    with gr.Blocks():
        return build_load(service)


def test_every_method_is_served_with_every_batch_size_beside_plain_decoding(page, service):
    states = list(served(page))
    assert 'data-done="0" data-total="6"' in states[0].message
    assert any("Speculative decoding, batch 1:" in state.message for state in states)
    assert "6 runs." in states[-1].message
    shown = states[-1].result
    assert "virtual · A100-40G" in shown
    assert len(re.findall(r"<li>(?:Speculative decoding|Medusa) (?:pays|stops paying)", shown)) == 2
    assert shown.count("app-figure") == 4
    runs = re.findall(r'href="/\?run=([^"]+)"', shown)
    traces = [service.trace(name) for name in runs]
    assert [(t.header.method, load_of(t.header).batch) for t in traces] == [
        (method, batch) for method in ("autoregressive", "speculative", "medusa") for batch in (1, 2)
    ]
    assert len({tuple(t.footer.texts) for t in traces}) == 1, "every text is that of its prompt alone"
    assert all(len(t.header.prompts) == 4 for t in traces)


def test_each_policy_is_a_line_and_what_it_cannot_serve_is_named(page, service):
    given = {"policies": ["fixed", "minedraft"], "sizes": "1", "requests": 2}
    *_, last = served(page, **given)
    assert "4 runs." in last.message
    assert re.findall(r"<li>([^<]+?) pays at every", last.result) == [
        "Speculative decoding", "Speculative decoding, minedraft", "Medusa",
    ]  # fmt: skip
    assert "medusa, minedraft is left out: medusa drafts on the target" in last.result
    runs = [service.trace(name) for name in re.findall(r'href="/\?run=([^"]+)"', last.result)]
    assert [load_of(t.header).policy for t in runs] == ["fixed", "fixed", "minedraft", "fixed"]


def test_stop_keeps_the_finished_runs(page):
    states = served(page, requests=8, tokens=16, sizes="1,2,4")
    for state in states:
        if 'data-done="3"' in state.message:
            page.stops.end("another")
            page.stops.end(state.name)
            break
    *_, last = states
    assert "Stopped: the finished runs are shown." in last.message
    assert 3 <= len(re.findall(r'href="/\?run=', last.result)) < 9


def test_a_closed_page_ends_its_run(page, service):
    states = served(page, requests=16, tokens=64, sizes="1")
    next(state for state in states if "first token" in state.message)
    states.close()
    run = list(service._runs.values())[-1]
    assert run.wait(20)
    assert run.state == "cancelled"


def test_requests_arrive_at_once_at_a_rate_or_at_given_times():
    assert load_plan(GIVEN).serving.arrivals == (0, 0, 0, 0)
    drawn = load_plan(replace(GIVEN, arriving=RATE)).serving.arrivals
    assert drawn[0] == 0
    assert sorted(drawn) == list(drawn)
    plan = load_plan(replace(GIVEN, arriving=TIMES, times="0\n\n1.5\n", prompts="One\n\nTwo"))
    assert plan.serving.arrivals == (0, 1.5)
    texts = [plan.request.prompt, *plan.request.further]
    assert [messages[0]["content"] for messages in texts] == ["One", "Two"]
    assert load_plan(replace(GIVEN, profile=HERE)).request.profile is None


def test_a_refusal_is_above_the_results_and_what_cannot_be_served_is_not_offered(page):
    (state,) = served(page, sizes="0")
    assert ('role="alert"' in state.message, "a batch size is 0" in state.message) == (True, True)
    assert state.result == ""
    assert "dsi" not in servable()
    assert {"autoregressive", "speculative", "pearl", "ems", "medusa", "tree"} <= {*servable()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": []}, "the number of methods is 0; it must be at least 1 and at most 5"),
        ({"methods": ["dsi"]}, "'dsi' does not run under load; choose one of"),
        ({"methods": ["eagle3"]}, "'eagle3' does not run under load"),
        ({"policies": []}, "the list of policies has ''; choose among fixed, by-batch, survival, minedraft"),
        ({"policies": ["fast"]}, "the list of policies has 'fast'; choose among fixed"),
        ({"methods": ["medusa"], "policies": ["minedraft"]}, "medusa drafts on the target's devices"),
        ({"policies": ["fixed", "by-batch", "survival"]}, "methods times policies is 6; it must be at least 1 and at most 5"),
        ({"models": "/etc"}, "there are no models '/etc'; choose one of"),
        ({"profile": "/etc/passwd"}, "there is no profile '/etc/passwd'"),
        ({"pair": "x"}, "x"),
        ({"sizes": "1,many"}, "a batch size is '1,many'; it must be whole numbers, as in 1,2,4"),
        ({"sizes": "65"}, "a batch size is 65; it must be at least 1 and at most 64"),
        ({"sizes": "1,2,3,4,5,6,7,8,9"}, "the number of batch sizes is 9; it must be at least 1 and at most 8"),
        ({"requests": None}, "requests is 0; it must be at least 1 and at most 256"),
        ({"tokens": 1e9}, "new tokens is 1000000000; it must be at least 1 and at most 256"),
        ({"arriving": RATE, "rate": -1}, "the rate is -1; it must be at least 1e-06 requests/s"),
        ({"arriving": TIMES, "times": "0\nsoon"}, "the list of times line 2 is 'soon'; it must be a time in seconds"),
        ({"arriving": TIMES}, "the list of times has no arrival"),
        ({"arriving": "now"}, "requests arrive 'now'; choose at once, rate or times"),
        ({"ttft": 0}, "the limit of TTFT in ms is 0"),
        ({"tpot": float("inf")}, "the limit of TPOT in ms is inf"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_in_one_line(change, message):
    with pytest.raises(UsageError) as error:
        load_plan(replace(GIVEN, **change))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
