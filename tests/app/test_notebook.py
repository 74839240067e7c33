"""What a notebook shows and calls: frames, data frames, comparisons, sweeps, differences."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from base64 import b64decode
from dataclasses import replace
from gzip import decompress
from html import unescape

import pytest

import specscope
from specscope.app.render.shown import MOST_BYTES, script_bytes, viewer
from specscope.engine.errors import UsageError
from specscope.traces.export.tables import rows_of
from specscope.traces.view.beginning import beginning, end_of
from tests.app.commands import IMPORTED, VIRTUAL, answer
from tests.traces.samples import read_file, sample_trace

PROMPTS = ["Tell me a story.", "How can I sleep better at night?"]
PLACE = {"profile": "pearl-4xA100"}
SHORT = specscope.Limits(8)


def page_of(html: str) -> str:
    """Return the page in the frame of an output."""
    (source,) = re.findall(r'srcdoc="([^"]*)"', html)
    (packed,) = re.findall(r'atob\("([^"]*)"\)', unescape(source))
    return decompress(b64decode(packed)).decode()


@pytest.fixture(scope="module")
def cluster():
    with specscope.open("bundled", runtime="virtual", **PLACE) as opened:
        yield opened


@pytest.fixture(scope="module")
def comparison(cluster):
    return specscope.compare("speculative,pearl", PROMPTS, cluster=cluster, limits=SHORT)


def test_a_trace_is_a_line_a_table_and_the_viewer_in_a_frame_without_an_origin():
    trace = sample_trace("pearl")
    html = trace._repr_html_()
    assert repr(trace) == "Trace(pearl, 24 tokens, done, virtual · sample-2xGPU, run sample-pearl)"
    assert re.findall(r'sandbox="([^"]*)"', html) == ["allow-scripts"]
    assert html.index("<table") < html.index("<iframe")
    page = page_of(html)
    assert "SpecScope.mount" in page
    assert not re.findall(r'(?:src|href)="[^"#d]', html + page), "a frame requests nothing"


@pytest.mark.parametrize("kind", ["speculative", "pearl"])
def test_all_texts_of_a_run_are_escaped(kind):
    hostile = '</script><script>alert(1)</script>"><img src=x onerror=alert(1)>{{packed}}'
    trace = sample_trace(kind)
    trace.header = replace(trace.header, prompts=(hostile,), title=hostile, run_id=hostile)
    trace.footer = replace(trace.footer, texts=(hostile,), error=hostile)
    other = sample_trace("speculative", tokens=20)
    for html in (trace._repr_html_(), specscope.diff(trace, other)._repr_html_()):
        assert "<img" not in html
        assert "<script" not in html
        assert html.count("<iframe") == html.count("</iframe>") == 1
        assert "<img" not in page_of(html)
        assert "alert(1)</script>" not in page_of(html)


def test_the_frame_of_a_long_run_is_small_and_draws_its_beginning():
    trace = sample_trace("pearl", tokens=12_000)
    assert len(trace.spans) > 4000
    html = viewer([trace, sample_trace("speculative", tokens=6000)])
    assert len(html) <= MOST_BYTES + script_bytes()
    assert re.search(r"first [\d,]+ of [\d,]+ spans", html)
    assert "12,000" in page_of(html), "the figures are those of the whole run"


def test_runs_of_unknown_tokens_and_frames_without_pandas(monkeypatch):
    trace = read_file(IMPORTED / "sglang-profile.json")
    assert repr(trace).startswith("Trace(imported, done, imported · SGLang, run ")
    assert trace._repr_html_().startswith("<p>SGLang · profile · done · imported")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError) as raised:
        sample_trace("pearl").frame()
    advice = "a frame needs pandas, which is not installed; install it: pip install pandas"
    assert str(raised.value) == advice


def test_a_beginning_has_the_rows_until_a_time():
    trace = sample_trace("pearl", tokens=200)
    end = end_of([trace], 50)
    cut = beginning(trace, end)
    assert len(cut.spans) == sum(span.end <= end for span in trace.spans) >= 50
    assert 0 < len(cut.commits) < len(trace.commits)
    assert {(d.step, d.sequence) for d in cut.decisions} == {(r.step, r.sequence) for r in cut.rounds}
    assert max(row.time for row in cut.commits) <= end


def test_comparisons_and_sweeps_are_those_of_the_commands_also_inside_a_running_event_loop(
    cluster, comparison, capsys, db
):
    words = [*VIRTUAL, "--prompt", PROMPTS[0], "--pair", "bundled", *db, "--json"]
    printed = answer(capsys, "compare", "--methods", "speculative,pearl", *words)
    swept_there = answer(capsys, "sweep", "--method", "pearl", "--over", "gamma=1,2", *words)

    async def cell():
        place = {"pair": "bundled", "limits": SHORT, **PLACE}
        found = specscope.compare(["speculative", "pearl"], PROMPTS[0], **place)
        return found, specscope.sweep("pearl", {"gamma": "1,2"}, PROMPTS[0], cluster=cluster, limits=SHORT)

    found, swept = asyncio.run(cell())
    mine, swept_here = (json.loads(json.dumps(one.to_dict())) for one in (found, swept))
    assert printed.pop("bounds") == []
    for row in (row for result in (printed, mine) for row in result["methods"].values()):
        row.pop("runs"), row.pop("advice")
    for row in (row for result in (swept_there, swept_here) for row in result["cells"]):
        row.pop("runs")
    assert mine == printed
    assert swept_here == swept_there
    assert swept.frame()["gamma"].tolist() == [1, 2]
    assert repr(swept).startswith("Swept(PEARL over gamma · 2 cells · bundled · virtual")
    assert repr(comparison).startswith("Comparison(pearl 1.97×, speculative ")
    html = comparison._repr_html_()
    assert "The timeline has the first of 2 prompts" in html
    assert page_of(html).count('"title":"') >= 3


def test_a_sweep_over_rates_needs_a_profile_and_no_models():
    over = {"gamma": [1, 2], "acceptance_rate": [0.5, 0.9]}
    found = specscope.sweep("speculative", over, limits=SHORT, seeds=1, **PLACE)
    table = found.frame()
    assert list(table.columns[:3]) == ["gamma", "acceptance_rate", "speedup"]
    assert len(table) == 4
    assert "app-heat" in page_of(found._repr_html_())
    for more in ({}, {**PLACE, "pair": "bundled"}):
        with pytest.raises(UsageError, match="give profile, profile_pair or neither a cluster nor models"):
            specscope.sweep("speculative", over, limits=SHORT, **more)


def test_differences_and_data_frames_have_the_rows_of_devices_and_exports(comparison):
    runs = comparison.traces
    found = specscope.diff(runs["speculative"][0], runs["pearl"][0])
    table = found.frame()
    sums = table.groupby("role")["change_ms"].sum()
    assert sums.tolist() == pytest.approx([found.found.difference / 1e6] * 2)
    assert re.search(r"PEARL.* decoded [\d.]+ ms (shorter|longer) than Speculative", repr(found))
    assert "Waterfalls" in page_of(found._repr_html_())
    trace = comparison.traces["pearl"][0]
    for name, rows in (("tokens", trace.commits), ("spans", trace.spans)):
        table = trace.frame(name)
        assert list(table.columns) == next(iter(rows_of(trace, name)))
        assert len(table) == len(rows)
        assert table["step"].tolist() == [row.step for row in rows]
    with pytest.raises(UsageError, match="there is no table 'words'; choose one of tokens, decisions"):
        trace.frame("words")
    assert comparison.frame()["method"].tolist() == ["autoregressive", "speculative", "pearl"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: specscope.compare("pearl", [], cluster=c), "no prompt was given"),
        (lambda c: specscope.compare("pearl", "Hi", cluster=c, pair="bundled"), "a cluster and pair were given"),
        (lambda c: specscope.compare("pearl", "Hi", cluster=c, settings={"dsi": {}}), "settings of 'dsi'"),
        (lambda c: specscope.compare("pearl", "Hi", cluster=c, passes=2), "passes is 2; virtual times do not vary"),
        (lambda c: specscope.sweep("pearl", {}, "Hi", cluster=c), "the sweep is over 0 fields"),
        (lambda c: specscope.sweep("pearl", {"gamma": [1]}, cluster=c), "no prompt was given"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_with_one_line(cluster, call, message):
    with pytest.raises(UsageError, match=message) as raised:
        call(cluster)
    assert "\n" not in str(raised.value)


def test_objects_show_themselves_where_gradio_plotly_and_the_database_are_absent():
    code = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"gradio", "plotly", "sqlmodel", "sqlalchemy", "fastapi"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
import specscope
assert {"compare", "sweep", "diff", "open"} <= set(dir(specscope))
found = specscope.compare("pearl", "Hi", pair="bundled", profile="pearl-4xA100", limits=specscope.Limits(8))
runs = found.traces
swept = specscope.sweep("pearl", {"gamma": [2]}, "Hi", pair="bundled", profile="pearl-4xA100", limits=specscope.Limits(8))
for one in (found, runs["pearl"][0], swept, specscope.diff(runs["autoregressive"][0], runs["pearl"][0])):
    assert "<iframe sandbox" in one._repr_html_(), one
    one.frame()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
