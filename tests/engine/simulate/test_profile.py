"""Profiles: shipped files are complete and have sources; broken files are one-line errors."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest

from specscope.engine.errors import UsageError
from specscope.engine.simulate.profile import FOLDER, Profile, profiles
from specscope.traces.papers import dsi, easyspec

# PEARL Table 10, typed again from the paper: layers, dim, FFN dim, tokens/s.
TABLE_10 = {
    "codellama-7b": (32, 4096, 11008, 49.34),
    "codellama-34b": (48, 8192, 22016, 18.58),
    "codellama-70b": (80, 8192, 28672, 9.20),
    "deepseek-1.3b": (24, 2048, 5504, 63.20),
    "deepseek-6.7b": (32, 4096, 11008, 50.05),
    "deepseek-33b": (62, 7168, 19200, 17.37),
    "llama-2-7b": (32, 4096, 11008, 49.94),
    "llama-2-70b": (80, 8192, 28672, 9.22),
    "llama-3.1-8b": (32, 4096, 14336, 44.37),
    "llama-3.1-70b": (80, 8192, 28672, 9.00),
}
PAIRS = {
    "pearl-3xA100": ["codellama-7-34", "deepseek-1.3-33", "deepseek-6.7-33"],
    "pearl-4xA100": ["codellama-7-70", "llama-2-7-70", "llama-3.1-8-70"],
}


DRAFTERS = {"llama-3-8-70": ("L3-70B", 36.50), "qwen2-7-72": ("Q2-72B", 40.75)}
"""EasySpec's pairs: the target in its Table 1, and the drafter's tokens/s, fitted to Table 2."""
TABLE_1 = [f"{pair}-tp{gpus}" for pair in DRAFTERS for gpus in (2, 4, 8)]
TABLE_2 = [
    *(f"vicuna-{size}-{data}" for size in ("13b", "7b") for data in ("cnndm", "alpaca")),
    *("starcoder-15b-humaneval", "starcoder-15b-mbpp"),
    *(f"phi-3-14b-{data}" for data in ("humaneval", "mbpp", "cnndm", "alpaca")),
]
OPT = ["opt-2.7b", "opt-6.7b", "opt-13b", "opt-125m-2.7b", "opt-125m-6.7b", "opt-125m-13b"]
VANILLA = {"llama-3-70-vanilla": 100 / 11.61, "qwen2-72-vanilla": 100 / 11.88}
CARDS = ["A100-40G", "H100", "H200", "RTX-3090", "RTX-4090"]
SHIPPED = {
    "8xA100": [*TABLE_1, *VANILLA, *TABLE_2],
    "A100-OPT": OPT,
    **PAIRS,
    **{card: ["vicuna-7b"] for card in CARDS},
    "ratios": [f"c{c}" for c in (2, 3, 5, 8, 12, 20)],
    "ssd-5xH100": ["qwen3-0.6-32"],
}


def test_all_clusters_ship_with_all_pairs_of_their_papers():
    assert profiles() == sorted(SHIPPED)
    for name, pairs in SHIPPED.items():
        profile = Profile.load(name)
        assert profile.name == name
        assert list(profile.pairs) == pairs
        assert profile.default in pairs


def test_the_pairs_of_8xa100_have_the_published_speeds_and_gpus():
    profile = Profile.load("8xA100")
    speeds, columns = easyspec.PAPER.numbers["Table 1"], [1, 2, 4, 8]
    for key in TABLE_1:
        latency, (pair, gpus) = profile.latency(key), key.split("-tp")
        name, drafter = DRAFTERS[pair]
        target = speeds[name][columns.index(int(gpus))]
        found = latency.target.speed, latency.target.gpus, latency.target.split
        assert found == (target, int(gpus), "tensor")
        assert (latency.drafter.speed, latency.drafter.gpus) == (drafter, 1)
    times = [row for name, row in dsi.PAPER.numbers["Table 2"].items() if name != "columns"]
    for key, (target, drafter, *_) in zip(TABLE_2, times, strict=True):
        latency = profile.latency(key)
        assert (latency.target.gpus, latency.drafter.gpus) == (1, 1)
        assert 1000 / latency.target.speed == pytest.approx(target, rel=1e-4)
        assert 1000 / latency.drafter.speed == pytest.approx(drafter, rel=1e-4)
        assert (latency.sample_us, latency.communicate_us) == (0, 0)  # Assumption 1 of DSI
    for key, speed in VANILLA.items():
        latency = profile.latency(key)
        assert latency.drafter is None
        assert latency.target.speed == pytest.approx(speed, rel=1e-4)


def test_ems_pairs_run_with_and_without_a_drafter():
    """EMS-SD Tables 3 and 4, batch 1, tokens/s; section 4.1: two GPUs for the largest."""
    profile = Profile.load("A100-OPT")
    for size, speed, gpus in (("2.7b", 128.31, 1), ("6.7b", 79.44, 1), ("13b", 59.51, 2)):
        alone, drafted = profile.latency(f"opt-{size}"), profile.latency(f"opt-125m-{size}")
        assert alone.drafter is None
        assert alone.c == 1
        assert alone.target == drafted.target
        assert (alone.target.speed, alone.target.gpus) == (pytest.approx(speed, rel=1e-6), gpus)
        assert drafted.drafter == profile.models["opt-125m"]


@pytest.mark.parametrize("card", CARDS)
def test_a_card_has_the_streaming_of_its_data_sheet_and_the_host_of_dsis_a100(card):
    """One row takes DSI's 26.0 and 2.5 ms, with the streaming of the A100 80 GB exchanged."""
    source, here = Profile.load("8xA100"), Profile.load(card)
    for name, us in (("target", 26_000), ("drafter", 2_500)):
        model = getattr(here.latency(), name)
        streaming = model.roofline_us(here.hardware, 1, 0) - model.roofline_us(source.hardware, 1, 0)
        assert 1e6 / model.speed == pytest.approx(us + streaming, rel=1e-3)


def test_gpus_are_listed_in_order_and_may_have_names(tmp_path: Path):
    assert Profile.load("8xA100").gpus == tuple(f"gpu{i}" for i in range(8))
    assert Profile.load("pearl-4xA100").gpus == ("gpu0", "gpu1", "gpu2", "gpu3")
    text = (FOLDER / "8xA100.toml").read_text(encoding="utf-8")
    path = tmp_path / "8xA100.toml"
    path.write_text(text.replace("gpus = 8", f"gpus = {list('abcdefgh')}", 1), encoding="utf-8")
    assert Profile.read(path).gpus == tuple("abcdefgh")


def test_models_agree_with_table_10():
    models = {key: model for name in PAIRS for key, model in Profile.load(name).models.items()}
    assert {k: (m.layers, m.dim, m.ffn, m.speed) for k, m in models.items()} == TABLE_10
    latency = Profile.load("pearl-3xA100").latency()
    assert (latency.sample_us, latency.communicate_us) == (1700, 200), "medians of table 15"


def test_weights_agree_with_the_names_of_the_models():
    for name in SHIPPED.keys() - {"ratios"}:  # models that nobody has
        latencies = Profile.load(name).latencies.values()
        for model in {m for latency in latencies for m in (latency.target, latency.drafter) if m}:
            key = model.title
            number, unit = re.findall(r"([\d.]+)([BM])\b", key)[0]
            billions = float(number) / (1 if unit == "B" else 1000)
            # the head is the embedding table, which is counted already
            tied = key.startswith(("OPT", "StarCoder", "Qwen3 0.6B"))
            whole = model.weights + (0 if tied else model.vocab * model.dim)
            assert whole / 1e9 == pytest.approx(billions, rel=0.09), key


@pytest.mark.parametrize("name", SHIPPED)
def test_every_number_has_its_source(name: str):
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    numbers = [line for line in text.splitlines() if re.match(r"\w+ = [\d.]", line)]
    assert len(numbers) > (15 if len(SHIPPED[name]) == 1 else 20)
    assert [line for line in numbers if not line.startswith("gpus") and "#" not in line] == []
    document = tomllib.loads(text)
    tables = [document, document["hardware"], document["step"], *document["models"].values()]
    assert all(table["source"] for table in [*tables, *document["pairs"].values()])


THREE, EIGHT = "pearl-3xA100", "8xA100"


@pytest.mark.parametrize(
    ("profile", "old", "new", "message"),
    [
        (THREE, 'name = "pearl-3xA100"', 'name = "other"', "name is 'other'; it must be the file's"),
        (THREE, 'default = "codellama-7-34"\n', "", "default is missing"),
        (THREE, "layers = 24 # Table 10\n", "", r"models.deepseek-1.3b.layers is missing"),
        (THREE, "sample_ms = 1.7", "pause_ms = 1\nsample_ms = 1.7", "step.pause_ms is not a key; those"),
        (THREE, "layers = 24", "layers = 24.5", "deepseek-1.3b.layers is 24.5; it must be of type int"),
        (THREE, "bandwidth_gb_s = 2039", 'bandwidth_gb_s = "fast"', "hardware.bandwidth_gb_s is 'fast'"),
        (THREE, "speed = 63.20", "speed = 0", "deepseek-1.3b.speed is 0; it must be at least 0.001"),
        (THREE, 'source = "PEARL Table 1"', 'source = ""', "pairs.codellama-7-34.source is empty"),
        (THREE, '"bfloat16"', '"int3"', "models.codellama-7b.dtype is 'int3'; choose one of bfloat16"),
        (THREE, "[step]", "[[step]]", "step is .* it must be of type dict"),
        (THREE, "[[devices]]", "[devices.x]", "cannot be read"),
        (THREE, 'role = "target"', 'role = "drafter"', "roles drafter, drafter; there must be one drafter"),
        (THREE, "gpus = 2\n\n[hard", "gpus = 3\n\n[hard", "codellama-34b, on 2 GPUs; gpu1-2 has 3"),
        (THREE, 'target = "deepseek-33b"', 'target = "gpt"', "deepseek-1.3-33.target is 'gpt'; choose one"),
        (EIGHT, "gpus = 8", "gpus = 1", "target is llama-3-70b, on 2 GPUs; there are 1"),
        (EIGHT, "target_speed = 13.00", "target_speed = 130", "130 tokens/s; this hardware allows at most 29"),
        (EIGHT, "drafter_speed = 36.50", "# none", "drafter_speed is missing; the model llama-3-8b has no sp"),
        (EIGHT, "gpus = 8", 'gpus = ["cpu:0", "cpu:0"]', "each name may appear once"),
        (EIGHT, "gpus = 8", "gpus = []", "gpus is empty"),
        (EIGHT, "collective_us = 93", "collective_us = -1", "hardware.collective_us is -1"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named_with_its_key(profile: str, old: str, new: str, message: str, tmp_path: Path):
    text = (FOLDER / f"{profile}.toml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / f"{profile}.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UsageError, match=message) as caught:
        Profile.read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_loaded_is_named(tmp_path: Path):
    (tmp_path / "p.toml").write_bytes(b"\xff\xfe\x00")
    known = "8xA100, A100-40G, A100-OPT, H100, .*, pearl-3xA100, pearl-4xA100, ratios, ssd-5xH100, or a"
    for load, argument, message in (
        (Profile.read, tmp_path / "p.toml", r"p\.toml is not text"),
        (Profile.read, tmp_path / "q.toml", r"cannot read .*q\.toml"),
        (Profile.load, "../secrets", f"'../secrets'; choose one of {known}"),
        (
            Profile.load(THREE).latency,
            "llama",
            r"no pair 'llama'; choose one of codellama-7-34, deepseek-1\.3",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            load(argument)


# EasySpec's Table 2: three times per drafter, fitted to MMLU, predict the four other data sets.


FITTED = {"llama-3": "llama-3-8-70-tp8", "qwen2": "qwen2-7-72-tp8"}
KINDS = ("drafting", "verification", "total")


def cells(model: str, on_mmlu: bool) -> Iterator[tuple[bool, float, float, float]]:
    """Yield (fuzzy drafts, seconds of drafting, of verification, rounds), per 100 tokens."""
    for name, table in easyspec.PAPER.numbers["Table 2"].items():
        if name.startswith(model) and name.endswith("MMLU") == on_mmlu:
            for method in ("+sd", "+tree", "EasySpec"):
                drafting, verification, _, share = table[method]
                yield method == "EasySpec", drafting, verification, easyspec.rounds(share)


def times(model: str) -> tuple[float, float, float]:
    """Return the profile's T_exact, T_fuzzy and T_verify of five drafts, in seconds."""
    latency = Profile.load("8xA100").latency(FITTED[model])
    verify = latency("target", 6, 0) + latency.sample_us + latency.communicate_us
    return latency("drafter", 1, 0) / 1e6, latency.parallel("drafter", 1, 0, 4) / 1e6, verify / 1e6


@pytest.mark.parametrize("model", FITTED)
def test_the_profile_has_the_times_fitted_to_mmlu(model: str):
    known = list(cells(model, on_mmlu=True))
    exact = fmean(d / n / 5 for fuzzy, d, _, n in known if not fuzzy)
    four = fmean((d / n - exact) / 4 for fuzzy, d, _, n in known if fuzzy)
    verify = fmean(v / n for _, _, v, n in known)
    assert times(model) == pytest.approx((exact, four, verify), rel=0.002)


@pytest.mark.parametrize(("model", "most"), [("llama-3", (0.05, 0.08, 0.055)), ("qwen2", (0.06, 0.05, 0.05))])
def test_the_fit_predicts_the_other_data_sets(model: str, most: tuple[float, ...]):
    """Nothing is fitted here: 24 cells of each kind, the largest difference and the mean one."""
    (exact, fuzzy, verify), found = times(model), list[tuple[float, ...]]()
    for is_fuzzy, d, v, n in cells(model, on_mmlu=False):
        drafting, verification = n * (exact + 4 * (fuzzy if is_fuzzy else exact)), n * verify
        found.append((drafting / d - 1, verification / v - 1, (drafting + verification) / (d + v) - 1))
    assert len(found) == 24
    for kind, values, bound in zip(KINDS, zip(*found, strict=True), most, strict=True):
        assert max(map(abs, values)) < bound, kind
        assert abs(fmean(values)) < 0.03, kind
