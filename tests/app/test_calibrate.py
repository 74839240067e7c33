"""`specscope calibrate`: the profile, the JSON, errors of wrong arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specscope.app import busy
from specscope.app.busy import ProcessorTime
from specscope.app.main import main
from specscope.engine.simulate import calibrate
from specscope.engine.simulate.calibrate import Calibration
from specscope.engine.simulate.profile import Profile
from tests.app.commands import answer, call
from tests.engine.methods.pairs import make_pair


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list[str]:
    pair, _ = make_pair(tmp_path_factory.mktemp("pairs"), "llama", "other")
    return ["--target", str(pair.target_path), "--drafter", str(pair.drafter_path), "--device", "cpu"]


@pytest.fixture(scope="module")
def calibrated() -> list[Calibration]:
    """The calibration of the first test, which the second one uses again."""
    return []


def test_it_writes_a_profile_that_a_virtual_run_can_use(
    capsys, models, calibrated, tmp_path: Path, monkeypatch
):
    path = tmp_path / "mine.toml"

    def keep(*args) -> Calibration:
        calibrated.append(real(*args))
        return calibrated[0]

    real = calibrate.calibrate
    monkeypatch.setattr(calibrate, "calibrate", keep)
    code, out, err = call(capsys, "calibrate", *models, "--quick", "-o", str(path))
    assert code == 0
    assert out.splitlines()[-1] == f"wrote {path}; use it with --profile {path}"
    assert all(line.startswith("specscope: ") for line in err.splitlines())
    assert "turn 3 of 3" in err
    assert Profile.load(str(path)).name == "mine"
    run = ["run", "--method", "pearl", "--set", "gamma=2", "--prompt", "Hi"]
    run += ["--max-new-tokens", "4", "--json"]
    assert main([*run, "--profile", str(path), "--db", str(tmp_path / "t.db")]) == 0
    assert json.loads(capsys.readouterr().out)["runtime"] == "virtual"


def test_json_has_every_cell(capsys, models, calibrated, tmp_path: Path, monkeypatch):
    path = tmp_path / "mine.toml"
    if calibrated:  # measuring again takes seconds
        monkeypatch.setattr(calibrate, "calibrate", lambda *_: calibrated[0])
    result = answer(capsys, "calibrate", *models, "--quick", "--json", "-o", str(path))
    assert result["file"] == str(path)
    assert result["c"] == pytest.approx(Profile.read(path).latency().c)
    cells = result["forwards"]["target"]
    assert len(cells) == 3 * 2  # three row counts, one context of a model of 64 positions, two batches
    assert set(cells[0]) == {"rows", "context", "batch", "us", "least", "most"}


def test_it_tells_the_load_by_other_programs(capsys, models, calibrated, tmp_path: Path, monkeypatch):
    path, readings = tmp_path / "busy.toml", iter([(100.0, 1000.0), (110.0, 1019.0)])
    monkeypatch.setattr(busy, "read_load", lambda: ProcessorTime(*next(readings), {}))
    monkeypatch.setattr(calibrate, "calibrate", lambda *_: calibrated[0])
    code, out, err = call(capsys, "calibrate", *models, "-o", str(path), "--json")
    assert code == 0
    warning = json.loads(out)["warning"]
    assert warning.startswith("Other programs used 1.9 of")
    assert warning in err
    assert path.read_text(encoding="utf-8").startswith(f"# {warning}\n")
    assert Profile.load(str(path)).name == "busy"
