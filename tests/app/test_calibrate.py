"""`specscope calibrate`: the profile, the JSON, and the load by other programs."""

from __future__ import annotations

import pytest

from specscope.app import busy
from specscope.app.busy import ProcessorTime
from specscope.engine.simulate import calibrate
from specscope.engine.simulate.profile import Profile
from tests.app.commands import answer, call
from tests.engine.methods.pairs import make_pair


def test_a_calibration_is_a_profile_for_virtual_runs_and_json_of_every_cell(
    capsys, db, tmp_path, monkeypatch
):
    """It is measured once; the second command, on a busy machine, has the same measurement."""
    pair, _ = make_pair(tmp_path / "pairs", "llama", "other")
    words = ["calibrate", "--target", str(pair.target_path), "--drafter", str(pair.drafter_path)]
    words += ["--device", "cpu", "--quick", "-o"]
    path, measured, made = tmp_path / "mine.toml", calibrate.calibrate, []
    monkeypatch.setattr(calibrate, "calibrate", lambda *args: made.append(measured(*args)) or made[0])
    code, out, err = call(capsys, *words, str(path))
    assert (code, out.splitlines()[-1]) == (0, f"wrote {path}; use it with --profile {path}")
    assert all(line.startswith("specscope: ") for line in err.splitlines())
    assert "turn 3 of 3" in err
    assert Profile.load(str(path)).name == "mine"
    run = ["run", "--method", "pearl", "--set", "gamma=2", "--prompt", "Hi", "--max-new-tokens", "4"]
    assert answer(capsys, *run, "--profile", str(path), *db, "--json")["runtime"] == "virtual"

    busy_file, readings = tmp_path / "busy.toml", iter([(100.0, 1000.0), (110.0, 1019.0)])
    monkeypatch.setattr(busy, "read_load", lambda: ProcessorTime(*next(readings), {}))
    monkeypatch.setattr(calibrate, "calibrate", lambda *_: made[0])
    result = answer(capsys, *words, str(busy_file), "--json")
    cells = result["forwards"]["target"]
    assert result["file"] == str(busy_file)
    assert result["c"] == pytest.approx(Profile.read(path).latency().c)
    assert len(cells) == 3 * 2  # three row counts, one context of a model of 64 positions, two batches
    assert set(cells[0]) == {"rows", "context", "batch", "us", "least", "most"}
    assert result["warning"].startswith("Other programs used 1.9 of")
    assert busy_file.read_text(encoding="utf-8").startswith(f"# {result['warning']}\n")
    assert Profile.load(str(busy_file)).name == "busy"
