"""Calibration: all cells are measured, the file loads, the process is unchanged."""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster import calibrate as measuring
from specscope.engine.cluster.calibrate import (
    FULL,
    QUICK,
    CalibrationPlan,
    Cell,
    Times,
    calibrate,
    profile_text,
)
from specscope.engine.errors import UsageError
from specscope.engine.simulate.profile import Profile
from tests.engine.methods.pairs import make_pair
from tests.engine.model.tiny import CONTEXT

PLAN = CalibrationPlan((1, 3, 8), (0, 16), (1, 2), 3)


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pairs"), "llama-gqa-tied-bias", "other")[0]


@pytest.fixture(scope="module")
def calibration(pair):
    lines: list[str] = []
    result = calibrate(pair, PLAN, "cpu", lines.append)
    assert lines[0].startswith(f"loading {pair.name} on cpu:")
    assert lines[1:5] == ["warming up", "turn 1 of 3", "turn 2 of 3", "turn 3 of 3"]
    return result


def test_every_cell_of_both_models_is_measured(calibration):
    cells = {Cell(r, c, b) for r in PLAN.rows for c in PLAN.contexts for b in PLAN.batches}
    assert calibration.forwards.keys() == {"target", "drafter"}
    for times in calibration.forwards.values():
        assert times.keys() == cells
        assert all(0 < us.least <= us.median <= us.most for us in times.values())
    for times in (calibration.hop, calibration.sample):
        assert 0 < times.least <= times.median <= times.most
    assert calibration.link_gb_s > 0
    assert calibration.dtype == "float32"
    assert calibration.devices == tuple(f"cpu:{core}" for core in sorted(os.sched_getaffinity(0)))


def test_the_file_loads_with_the_measured_times(calibration, tmp_path: Path):
    path = tmp_path / "here.toml"
    path.write_text(profile_text(calibration, "here"), encoding="utf-8")
    profile = Profile.load(str(path))
    latency = profile.latency()
    assert profile.gpus == calibration.devices
    assert profile.source == f"measured on {calibration.processor} on {calibration.date}"
    for model, times in calibration.forwards.items():
        for (rows, context, batch), us in times.items():
            loaded = latency(model, rows * batch, context * batch, batch)
            assert loaded == pytest.approx(us.median, abs=0.6)
    assert latency.communicate_us == pytest.approx(calibration.hop.median, rel=1e-3, abs=0.6)
    assert latency.sample_us == pytest.approx(calibration.sample.median, rel=1e-3, abs=0.6)
    assert latency.target.kv_bytes == 2 * 3 * 2 * 8 * 4
    assert latency.c == pytest.approx(latency.drafter.speed / latency.target.speed)

    odd = replace(calibration, processor='A "fast"\\one\n#', pair=replace(calibration.pair, name="täst"))
    path.write_text(profile_text(odd, "here"), encoding="utf-8")
    assert Profile.read(path).hardware.name == odd.processor, "quotes are written so that they load"
    text = profile_text(calibration, "here")
    assert len(tomllib.loads(text)["models"]["target"]["measured"]) == 12
    us = calibration.forwards["target"][Cell(3, 16, 2)]
    assert f"[3, 16, 2, {us.median:.1f}], # {us.least:.1f} to {us.most:.1f} us" in text


def test_a_target_alone_has_a_pair_without_a_drafter(pair, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(measuring, "_hop", lambda _: Times(3.0, 2.0, 4.0))  # starts a process, as above
    alone = replace(pair, drafter_path=None)
    calibration = calibrate(alone, CalibrationPlan((1,), (0,), (1,), 1), "cpu", lambda _: None)
    path = tmp_path / "alone.toml"
    path.write_text(profile_text(calibration, "alone"), encoding="utf-8")
    assert Profile.read(path).latency().drafter is None


def test_threads_and_cores_are_restored(calibration):
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    torch.set_num_threads(2)
    try:
        with measuring._one_thread(calibration.devices):
            assert torch.get_num_threads() == 1
            assert len(os.sched_getaffinity(0)) == 1
        assert (torch.get_num_threads(), os.sched_getaffinity(0)) == (2, cores)
    finally:
        torch.set_num_threads(threads)


def test_a_plan_keeps_within_positions_and_memory(pair, monkeypatch):
    model = measuring.load(pair.target_path)
    assert CONTEXT == 64
    assert FULL.within([model]) == replace(FULL, rows=(1, 2, 4, 8, 16, 32), contexts=(0,))
    assert QUICK.within([model]).contexts == (0,)
    # A row takes 2 * 3 layers * 2 heads * 8 * 4 bytes = 384; 16 rows fit 4 times, not 16 times.
    monkeypatch.setattr(measuring, "KV_LIMIT", 384 * 16 * 5)
    assert CalibrationPlan((16,), (0,), (1, 4, 16), 1).within([model]).batches == (1, 4)
    monkeypatch.setattr(measuring, "KV_LIMIT", 1)
    assert CalibrationPlan((16,), (0,), (1, 4, 16), 1).within([model]).batches == (1,)


def test_a_timed_forward_removes_its_rows_and_computes_logits_like_a_verification(pair, monkeypatch):
    model = measuring.load(pair.target_path)
    forwards: list[tuple[int, int, list[int]]] = []
    forward = type(model).forward

    def watch(self, cache, rows: object, want: np.ndarray, hidden=()):
        forwards.append((len(rows), len(want), [cache.length(slot) for slot in range(cache.slots)]))
        return forward(self, cache, rows, want, hidden)

    monkeypatch.setattr(type(model), "forward", watch)
    monkeypatch.setattr(measuring, "READ", 4)
    cells = [cell for cell, _ in measuring._turn(model, CalibrationPlan((2, 8), (0, 5), (2,), 1))]
    assert cells == [Cell(2, 0, 2), Cell(8, 0, 2), Cell(2, 5, 2), Cell(8, 5, 2)]
    fill = (10, 0, [0, 0])
    assert forwards == [(4, 4, [0, 0]), (16, 0, [0, 0]), fill, (4, 4, [5, 5]), (16, 0, [5, 5])]


def test_an_unknown_device(pair):
    with pytest.raises(UsageError, match="no device 'tpu'; choose auto, cpu or cuda"):
        calibrate(pair, PLAN, "tpu", pytest.fail)
