"""Times of forwards: the roofline, by hand and against Table 10, and times on a grid."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from specscope.engine.errors import UsageError
from specscope.engine.heads.work import Work
from specscope.engine.simulate.grid import Grid
from specscope.engine.simulate.latency import Latency
from specscope.engine.simulate.profile import Profile, profiles
from specscope.engine.simulate.roofline import Hardware, PublishedModel

ALL = [(name, pair) for name in profiles() for pair in Profile.load(name).pairs]
GRIDS = ("A100-OPT", "ssd-5xH100")
ROOFLINE = [(name, pair) for name, pair in ALL if name not in GRIDS]
"""Pairs with published speeds; `test_parallel.py` has the points of EMS-SD's grid."""
PEARL = [(name, pair) for name, pair in ALL if name.startswith("pearl-")]
C = {
    "codellama-7-34": (49.34 / 18.58, 3),  # 2.66
    "codellama-7-70": (49.34 / 9.20, 5),  # 5.36
    "deepseek-1.3-33": (63.20 / 17.37, 4),  # 3.64
    "deepseek-6.7-33": (50.05 / 17.37, 3),  # 2.88
    "llama-2-7-70": (49.94 / 9.22, 5),  # 5.42
    "llama-3.1-8-70": (44.37 / 9.00, 5),  # 4.93
}
"""T(target) / T(drafter) from PEARL's Table 10 by hand, and the paper's gamma, the rounded c."""


def codellama() -> Latency:
    return Profile.load("pearl-3xA100").latency("codellama-7-34")


@pytest.mark.parametrize(("name", "pair"), ROOFLINE)
def test_one_row_takes_the_published_time_and_verifying_a_draft_little_more(name: str, pair: str):
    """EasySpec's pairs have its measured verifications instead of the roofline."""
    latency = Profile.load(name).latency(pair)
    assert latency("target", 1, 0) == round(1e6 / latency.target.speed)
    if latency.drafter:
        assert latency("drafter", 1, 0) == round(1e6 / latency.drafter.speed)
    most = 1.15 if latency.verify_us else 1.001 if name.startswith("pearl-") else 1.005
    assert latency("target", 9, 500) < most * latency("target", 1, 500)


@pytest.mark.parametrize(("name", "pair"), PEARL)
def test_c_follows_from_table_10(name: str, pair: str):
    latency = Profile.load(name).latency(pair)
    assert (latency.c, round(latency.c)) == (pytest.approx(C[pair][0], rel=1e-12), C[pair][1])


def test_hand_computed_sums():
    """Codellama 7B and 34B: weights and KV bytes per row."""
    latency = codellama()
    assert latency.drafter.weights == 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32016 * 4096 == 6_607_142_912
    assert latency.drafter.kv_bytes == 2 * 32 * 4096 * 2 == 524_288
    assert latency.target.weights == 33_481_031_680
    assert latency.target.kv_bytes == 2 * 48 * 1024 * 2 == 196_608
    # one row: 1 / 49.34 s = 20,267.53 us; a cached row adds 524,288 / 2,039,000 = 0.25713 us
    assert latency("drafter", 1, 0) == 20_268
    assert latency("drafter", 1, 1000) == round(20_267.531 + 257.130)
    # eight rows stream the same weights: 0.34 ms of products hide behind 6.48 ms of streaming
    assert latency("drafter", 8, 1000) == round(20_267.531 + 257.130 + 7 * 0.257130)
    # 1 / 18.58 s = 53,821.31 us. Per row: 196,608 / 2,039,000 = 0.09642 us of KV,
    # 16,384 / 300,000 = 0.05461 us of link.
    assert latency("target", 4, 200) == round(53_821.313 + 203 * 0.096424 + 3 * 0.054613)
    # 512 rows: (2 * 6,607,142,912 * 512 + 4 * 32 * 4096 * 512 * 256.5) / 312e6 = 21,905.67 us
    # of products instead of 6,480.77 us of streaming; the cache grows by 511 rows.
    assert latency("drafter", 512, 0) == round(20_267.531 + 21_905.666 - 6_480.768 + 511 * 0.257130)


def test_a_small_model_by_hand():
    hardware = Hardware("toy", bandwidth_gb_s=1, peak_tflops=1, link_gb_s=1, source="test")
    # Layer: 2 * 128^2 + 2 * 128 * 128 + 3 * 128 * 256 = 163,840; LM head: 128 * 1,000 = 128,000.
    shape = PublishedModel("toy", 1, 128, 256, 1, 1000, "float32", 2, 500, "test")
    latency = Latency("toy", shape, shape, hardware, 1, 1)
    assert shape.weights == 291_840
    # Streaming: 4 * 291,840 / 1e3 = 1,167.36 us; KV: 1,024 bytes = 1.024 us;
    # hop: 512 bytes = 0.512 us; launch: the rest of 2,000 us.
    assert shape.launch_us(hardware) == pytest.approx(2000 - 1167.36 - 1.024 - 0.512)
    assert latency("target", 11, 89) == round(2000 + 99 * 1.024 + 10 * 0.512)
    # 4,000 rows: (2 * 291,840 * 4,000 + 4 * 128 * 4,000 * 2,000.5) / 1e6 = 6,431.744 us of products
    assert latency("target", 4000, 0) == round(2000 - 1167.36 + 6431.744 + 3999 * (1.024 + 0.512))
    # four sequences of 1,000 rows: each row meets 500.5 keys on average
    assert latency("target", 4000, 0, batch=4) == round(2000 - 1167.36 + 3359.744 + 3999 * (1.024 + 0.512))


@pytest.mark.parametrize(("name", "pair"), [one for one in ALL if one[0] != "ssd-5xH100"])
def test_more_work_never_takes_less_time(name: str, pair: str):
    """In SSD's printed times a step of many branches takes less than the glue's few rows."""
    latency = Profile.load(name).latency(pair)
    for model in ("target", "drafter") if latency.drafter else ("target",):
        by_rows = [latency(model, rows, 256) for rows in (1, 2, 5, 12, 64, 128, 160, 200, 512, 2048)]
        by_context = [latency(model, 4, context) for context in (0, 1, 100, 1000, 4000, 100_000)]
        by_batch = [latency(model, 2048, 0, batch) for batch in (64, 8, 2, 1)]
        for times in (by_rows, by_context, by_batch):
            assert all(a <= b for a, b in pairwise(times))
        assert by_rows[0] < by_rows[-1]
        assert by_context[0] < by_context[-1]
        # in a grid attention between its rows has no cost, in `ratios` only launches have one
        assert by_batch[0] < by_batch[-1] or name in (*GRIDS, "ratios")


def test_section_3_1_six_drafts_take_twice_a_verification():
    """Codellama 7B & 34B: 'even 2 times than the time consumption for one verification step'."""
    latency = codellama()
    assert 2 < 6 * latency("drafter", 1, 300) / latency("target", 7, 300) < 2.5


def table_10() -> dict[str, tuple[PublishedModel, Hardware]]:
    pearl = [Profile.load(name) for name in profiles() if name.startswith("pearl-")]
    return {key: (model, profile.hardware) for profile in pearl for key, model in profile.models.items()}


def test_the_errors_of_one_launch_time_for_all_models_and_of_none():
    """The figures of the module's docstring."""
    shapes = table_10()
    launch = {key: model.launch_us(hardware) for key, (model, hardware) in shapes.items()}
    assert len(launch) == 10
    assert sum(405 <= round(us) <= 474 for us in launch.values()) == 6
    assert all(513 <= round(us) <= 537 for key, us in launch.items() if "70b" in key)
    assert round(launch["deepseek-1.3b"]) == 607
    stack = median(launch.values())
    assert round(stack) == 456
    errors = {
        key: (model.roofline_us(hardware, 1, 0) + model.layers * stack) * model.speed / 1e6 - 1
        for key, (model, hardware) in shapes.items()
    }
    assert errors.pop("deepseek-1.3b") == pytest.approx(-0.23, abs=0.005)
    assert max(map(abs, errors.values())) < 0.06
    errors = {key: 1 - m.roofline_us(hardware, 1, 0) * m.speed / 1e6 for key, (m, hardware) in shapes.items()}
    assert min(errors.values()) == pytest.approx(0.38, abs=0.005)
    assert max(errors.values()) == pytest.approx(0.92, abs=0.005)


def test_a_heads_forward_is_a_roofline_of_its_matrices():
    """By hand for the 70B of PEARL's Table 10: three GPUs, split by layers, 2039 GB/s."""
    latency = Profile.load("pearl-4xA100").latency()
    target, hardware = latency.target, latency.hardware
    launch = target.launch_us(hardware)
    layer, square, head = target.layer_weights, target.dim**2, target.vocab * target.dim

    def streamed(weights: float) -> float:
        return 2 * weights / (2039 * 1e3)

    medusa = streamed(4 * square + head) + launch * 5 / 40
    assert latency.head(Work(0, 4, 1, 4), 1, 0) == round(medusa)
    own = streamed(4 * square + 4 * head) + launch * 8 / 40
    assert latency.head(Work(0, 4, 4, 4), 1, 0) == round(own)
    row = 2 * target.kv_heads * target.head_dim
    eagle = streamed(layer + 2 * square + head + row * 105) + launch * (1 + 3 / 40)
    assert latency.head(Work(1, 2), 5, 100) == round(eagle)
    quarter = streamed(layer + 4.5 * square + head / 4 + row * 105) + launch * (1 + 4.75 / 40)
    assert latency.head(Work(1, 4.5, 0.25), 5, 100) == round(quarter)
    busy = 2 * 5000 * (layer + head / 4) + 4 * target.dim * 5000 * 2500.5
    computed = hardware.compute_us(busy) + streamed(row * 5000) + launch * (1 + 0.25 / 40)
    assert latency.head(Work(1, 0, 0.25), 5000, 0) == round(computed)


def test_a_heads_forward_beside_a_measured_target_is_its_share_of_the_weights():
    latency = Profile.load("pearl-4xA100").latency()
    grid = Grid.of([[rows, context, 1, 1000.0] for rows in (1, 8) for context in (0, 64)])
    measured = replace(latency, target=replace(latency.target, measured=grid))
    target = latency.target
    share = (target.layer_weights + target.vocab * target.dim) / target.weights
    assert measured.head(Work(1, 0), 4, 32) == round(measured("target", 4, 32) * share)


# Times on a grid: at its points, between them, below and above.


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
        pytest.param(POINTS, (2.5, 30, 2), 1000 + 150 + 30 + 50, id="in three dimensions"),
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
        (f"{SMALL}, ", "", "drafter_speed is missing; the model small has no speed"),
        (SMALL, "speed = 3", "does not say hardware.bandwidth_gb_s"),
        (SMALL, f"speed = 3, {SMALL}", "leave the speed out"),
        (SMALL, "measured = []", "models.small.measured is empty"),
        ('default = "toy"', 'default = "toy"\ngpus = 2', "devices is missing, or gpus"),
        ("[1, 0, 1, 500]", "[1, 0, 500]", r"models.small.measured: \[1, 0, 500\] is no point"),
        ("[1, 0, 1, 500]", '[1, 0, 1, "x"]', "is no point"),
        ("[1, 0, 1, 500]", "[0, 0, 1, 5]", "out of range"),
        ("[1, 0, 1, 500]", "[1, 0, 1, nan]", "out of range"),
        ("[1, 0, 1, 500]", "[1, 0, 1, 5], [1, 0, 1, 6]", "measured twice"),
        ("[1, 0, 1, 500]", "[1, 0, 1, 5], [2, 10, 1, 6]", r"no time for rows, context, batch = \[1, 10, 1\]"),
    ],
)
def test_a_broken_measured_profile(old: str, new: str, message: str, tmp_path: Path):
    assert old in MEASURED
    with pytest.raises(UsageError, match=message):
        Profile.read(write(tmp_path, MEASURED.replace(old, new)))
