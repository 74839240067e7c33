"""Times on a grid: at its points, between them, below and above."""

from __future__ import annotations

from pathlib import Path

import pytest

from specscope.engine.errors import UsageError
from specscope.engine.simulate.profile import Profile
from specscope.engine.simulate.roofline import Grid

# rows 1, 3; context 0, 100; batch 1, 4: a plane 1000 + 100 (rows - 1) + context + 50 (batch - 1)
POINTS = [
    [rows, context, batch, 1000 + 100 * (rows - 1) + context + 50 * (batch - 1)]
    for rows in (1, 3)
    for context in (0, 100)
    for batch in (1, 4)
]


BENT = [[1, 0, 1, 10], [2, 0, 1, 20], [4, 0, 1, 80]]


@pytest.mark.parametrize(
    ("points", "at", "expected"),
    [
        *((POINTS, (rows, context, batch), us) for rows, context, batch, us in POINTS),
        pytest.param(POINTS, (2, 0, 1), 1100, id="linear between points"),
        pytest.param(POINTS, (2.5, 30, 2), 1000 + 150 + 30 + 50, id="in three dimensions"),
        pytest.param(BENT, (1.5, 0, 1), 15, id="bent, first part"),
        pytest.param(BENT, (3, 0, 1), 50, id="bent, second part"),
        pytest.param([[2, 64, 1, 10], [4, 64, 1, 30]], (1, 0, 1), 10, id="constant below the first point"),
        pytest.param(
            [[1, 0, 1, 10], [2, 0, 1, 20], [4, 0, 1, 60]], (10, 0, 1), 180, id="the last line goes on"
        ),
        pytest.param([[1, 0, 1, 10], [2, 0, 1, 9]], (50, 0, 1), 9, id="unless it falls"),
    ],
)
def test_times_of_a_grid(points, at, expected):
    assert Grid.of(points)(*at) == pytest.approx(expected)


def test_one_row_is_the_median_over_the_contexts():
    assert Grid.of([[1, 0, 1, 10], [1, 50, 1, 11], [1, 100, 1, 30]]).one_row == 11


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([[1, 0, 5]], r"\[1, 0, 5\] is no point"),
        ([[1, 0, 1, "x"]], "is no point"),
        ([[1, 0, 1, True]], "is no point"),
        ([[0, 0, 1, 5]], "out of range"),
        ([[1, 0, 1, 0]], "out of range"),
        ([[1, 0, 1, float("nan")]], "out of range"),
        ([[1, 0, 1, 5], [1, 0, 1, 6]], "measured twice"),
        ([[1, 0, 1, 5], [2, 10, 1, 6]], r"no time for rows, context, batch = \[1, 10, 1\]"),
    ],
)
def test_points_that_are_no_grid_are_refused(points: list[list[float]], message: str):
    with pytest.raises(UsageError, match=message):
        Grid.of(points)


MODEL = 'dim = 128, ffn = 256, kv_heads = 1, vocab = 100, dtype = "float32", source = "measured"'
BIG = "measured = [[1, 0, 1, 2000], [5, 0, 1, 2400], [1, 0, 2, 2100.5], [5, 0, 2, 3000]]"
SMALL = "measured = [[1, 0, 1, 500]]"
MEASURED = f"""
name = "here"
title = "this machine"
source = "measured on a test"
default = "toy"
devices = [
    {{ name = "cpu:0", role = "drafter", label = "CPU core 0", gpus = 1 }},
    {{ name = "cpu:1", role = "target", label = "CPU core 1", gpus = 1 }},
]
hardware = {{ name = "test", link_gb_s = 1, source = "measured" }}
step = {{ communicate_ms = 0.5, sample_ms = 0.25, move_ms = 0.5, source = "measured" }}
[models]
big = {{ title = "big", layers = 2, {BIG}, {MODEL} }}
small = {{ title = "small", layers = 1, {SMALL}, {MODEL} }}
[pairs]
toy = {{ title = "toy", drafter = "small", target = "big", source = "measured" }}
"""


def write(tmp_path: Path, text: str = MEASURED) -> Path:
    path = tmp_path / "here.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_measured_profile_loads_by_path_and_has_the_grids_times(tmp_path: Path):
    profile = Profile.load(str(write(tmp_path)))
    latency = profile.latency()
    assert (profile.name, profile.gpus) == ("here", ("cpu:0", "cpu:1"))
    assert [latency("target", r, 0) for r in (1, 2, 5, 9)] == [2000, 2100, 2400, 2800]
    # ten rows of two sequences are five each
    assert latency("target", 10, 0, batch=2) == 3000
    assert latency("drafter", 7, 300) == 500
    assert latency.c == 4
    # 1,024 bytes of KV a row and layer, two layers: 20.48 us for ten rows, and the hop
    assert latency.move_us("target", 10) == round(500 + 20.48)


def test_a_measured_profile_has_no_times_of_layers(tmp_path: Path):
    latency = Profile.read(write(tmp_path)).latency()
    assert latency.parallel("target", 1, 0, 1) == 2000
    with pytest.raises(UsageError, match=r"measured in whole forwards.*such as 8xA100"):
        latency.parallel("target", 1, 0, 2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (SMALL, "measured = [[1, 0, 500]]", r"models.small.measured: \[1, 0, 500\] is no"),
        (f"{SMALL}, ", "", "drafter_speed is missing; the model small has no speed"),
        (SMALL, "speed = 3", "does not say hardware.bandwidth_gb_s"),
        (SMALL, f"speed = 3, {SMALL}", "leave the speed out"),
        (SMALL, "measured = []", "models.small.measured is empty"),
        (SMALL, "measured = [1]", "is no point"),
        ('default = "toy"', 'default = "toy"\ngpus = 2', "devices is missing, or gpus"),
    ],
)
def test_a_broken_measured_profile(old: str, new: str, message: str, tmp_path: Path):
    assert old in MEASURED
    with pytest.raises(UsageError, match=message):
        Profile.read(write(tmp_path, MEASURED.replace(old, new)))
