"""Progress bars: silent where nobody sees them, a line on a terminal, a bar in a notebook."""

from __future__ import annotations

import sys

import pytest

from specscope.app.bars import DownloadBar, is_watched, new_bar
from specscope.engine.checkpoints.progress import Progress


def test_a_bar_that_nobody_sees_writes_nothing(capsys):
    assert not is_watched()
    with new_bar(total=2) as bar:
        bar.update()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("place", ["terminal", "notebook"])
def test_a_bar_that_someone_sees_counts(capsys, monkeypatch, place):
    if place == "terminal":
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    else:
        monkeypatch.setitem(sys.modules, "ipykernel", sys)
    with new_bar(total=2, unit="run") as bar:
        bar.update(2)
    assert "2/2" in capsys.readouterr().err


def test_a_download_has_its_bar_in_a_notebook(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    with DownloadBar() as bar:
        bar.show(Progress("a/model", "model.safetensors", 512, 1024))
    err = capsys.readouterr().err
    assert err.startswith("downloading a/model; Ctrl-C stops it\n")
    assert "model.safetensors:  50%" in err
