"""The bench of the viewer: repeated runs, keys, refusals. Times are not tested."""

from __future__ import annotations

import argparse

import pytest

from app.bench import viewer
from app.cli import bench
from engine.errors import UsageError
from tests.traces.samples import sample_trace
from traces.checks import check
from traces.view.document import view_model


def test_a_repeated_run_is_a_run_of_that_many_spans():
    base = sample_trace("speculative")
    trace = viewer.repeated(base, 500)
    check(trace)
    assert 500 <= len(trace.spans) < 500 + len(base.spans)
    times = len(trace.commits) // len(base.commits)
    assert trace.text == base.text * times
    (run,) = view_model([trace])["runs"]
    assert all(track["lanes"] == 1 for track in run["tracks"]), "the copies do not overlap"
    assert run["headline"] == view_model([base])["runs"][0]["headline"]


@pytest.mark.browser
def test_the_figures_are_measured_in_chromium(monkeypatch):
    monkeypatch.setattr(viewer, "virtual_run", lambda: sample_trace("speculative", tokens=40))
    for name, few in {"PANES": 2, "TOKENS": 60, "DELTAS": 3}.items():
        monkeypatch.setattr(viewer, name, few)
    figures = viewer.measure((200,), 1, lambda _: None)
    moved = (
        *("answer_ms", "window_ms", "open_ms", "open_cpu_ms"),
        *("zoom_cpu_ms", "zoom_fps", "pan_cpu_ms", "pan_fps"),
    )
    grown = ("viewer_live_cpu_ms", "viewer_live_worst_cpu_ms", "viewer_live_fps")
    assert list(figures) == [*(f"viewer_{name}_200" for name in moved), *grown]
    assert all(figure.median > 0 for figure in figures.values())
    assert figures["viewer_open_ms_200"].detail["spans"] >= 200
    assert figures["viewer_live_fps"].detail["tokens"] >= viewer.TOKENS


def _run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.run(parser.parse_args(argv))


def test_without_playwright_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(viewer, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs Playwright.*pip install -e '\.\[dev\]'$"):
        _run("--viewer")


@pytest.mark.browser
def test_without_chromium_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(viewer.shutil, "which", lambda name: str(tmp_path / "nothing"))
    with pytest.raises(
        UsageError, match=r"^--viewer needs Chromium \([^\n]*\); playwright install chromium$"
    ):
        _run("--viewer")


def test_the_viewer_is_measured_alone():
    with pytest.raises(UsageError, match="--placements and --viewer exclude each other"):
        _run("--viewer", "--placements")
    with pytest.raises(UsageError, match="leave out --pair"):
        _run("--viewer", "--pair", "bundled")
