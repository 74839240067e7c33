"""Profiles: what ships is complete and sourced; what is broken says so in one line."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from engine.errors import UsageError
from engine.simulate.profile import FOLDER, Profile, profiles

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


def test_both_clusters_ship_with_all_pairs_of_the_paper():
    assert profiles() == sorted(PAIRS)
    for name, pairs in PAIRS.items():
        profile = Profile.load(name)
        assert profile.name == name
        assert list(profile.pairs) == pairs
        assert profile.default in pairs


def test_models_are_those_of_table_10():
    found = {key: model for name in PAIRS for key, model in Profile.load(name).models.items()}
    assert {k: (m.layers, m.dim, m.ffn, m.speed) for k, m in found.items()} == TABLE_10


def test_weights_agree_with_the_names_of_the_models():
    for name in PAIRS:
        for key, model in Profile.load(name).models.items():
            billions = float(re.findall(r"([\d.]+)b$", key)[0])
            whole = (
                model.weights + model.vocab * model.dim
            )  # and the embedding table, which no forward streams
            assert whole / 1e9 == pytest.approx(billions, rel=0.05), key


@pytest.mark.parametrize("name", PAIRS)
def test_drafter_and_target_have_devices_of_their_own(name: str):
    drafter, target = Profile.load(name).devices
    assert (drafter.role, target.role) == ("drafter", "target")
    assert drafter.name != target.name
    assert {drafter.kind, target.kind} == {"virtual"}


@pytest.mark.parametrize("name", PAIRS)
def test_every_number_has_its_source(name: str):
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    numbers = [line for line in text.splitlines() if re.match(r"\w+ = [\d.]", line)]
    assert len(numbers) > 30
    assert [line for line in numbers if not line.startswith("gpus") and "#" not in line] == []
    document = tomllib.loads(text)
    tables = [document, document["hardware"], document["step"], *document["models"].values()]
    assert all(table["source"] for table in [*tables, *document["pairs"].values()])


def test_a_model_in_two_profiles_is_the_same_model():
    three, four = (Profile.load(name).models for name in PAIRS)
    shared = three.keys() & four.keys()
    assert shared == {"codellama-7b"}
    assert all(three[key] == four[key] for key in shared)


def test_step_costs_are_the_medians_of_table_15():
    latency = Profile.load("pearl-3xA100").latency()
    assert (latency.sample_us, latency.communicate_us) == (1700, 200)


def test_latency_without_a_name_is_that_of_the_default_pair():
    profile = Profile.load("pearl-4xA100")
    assert profile.latency() == profile.latency(None) == profile.latency("llama-2-7-70")
    assert profile.latency("codellama-7-70").pair == "codellama-7-70"


def test_an_unknown_profile_lists_those_there_are():
    with pytest.raises(UsageError, match=r"'../secrets'; choose one of pearl-3xA100, pearl-4xA100$"):
        Profile.load("../secrets")


def test_an_unknown_pair_lists_those_there_are():
    with pytest.raises(UsageError, match=r"no pair 'llama'; choose one of codellama-7-34, deepseek-1\.3-33"):
        Profile.load("pearl-3xA100").latency("llama")


BROKEN = {
    "name": ('name = "pearl-3xA100"', 'name = "other"', "name is 'other'; it must be the file's"),
    "head": ('default = "codellama-7-34"\n', "", "default is missing"),
    "field": ("layers = 24 # Table 10\n", "", r"models.deepseek-1.3b.layers is missing"),
    "hardware": ("link_gb_s = 300", "link = 300", "hardware.link_gb_s is missing"),
    "extra": (
        "sample_ms = 1.7",
        "pause_ms = 1\nsample_ms = 1.7",
        "step.pause_ms is not a key; those there are",
    ),
    "type": ("layers = 24", "layers = 24.5", "models.deepseek-1.3b.layers is 24.5; it must be of type int"),
    "bool": ("layers = 24", "layers = true", "models.deepseek-1.3b.layers is True; it must be of type int"),
    "text": ("bandwidth_gb_s = 2039", 'bandwidth_gb_s = "fast"', "hardware.bandwidth_gb_s is 'fast'"),
    "zero": ("speed = 63.20", "speed = 0", "models.deepseek-1.3b.speed is 0; it must be more than 0"),
    "infinite": ("speed = 63.20", "speed = inf", "models.deepseek-1.3b.speed is inf"),
    "source": ('source = "PEARL Table 1"', 'source = ""', "pairs.codellama-7-34.source is empty"),
    "dtype": ('"bfloat16"', '"int3"', "models.codellama-7b.dtype is 'int3'; choose one of bfloat16"),
    "table": ("[step]", "[[step]]", "step is .* it must be of type dict"),
    "device": ("[[devices]]", "[devices.x]", "cannot be read"),
    "role": (
        'role = "target"',
        'role = "drafter"',
        "roles drafter, drafter; there must be one drafter and one target",
    ),
    "gpus": ("gpus = 2\n\n[hardware]", "gpus = 3\n\n[hardware]", "codellama-34b, on 2 GPUs; gpu1-2 has 3"),
    "default": (
        'default = "codellama-7-34"',
        'default = "x"',
        "default is 'x'; choose one of codellama-7-34",
    ),
    "model": (
        'target = "deepseek-33b"',
        'target = "gpt"',
        "pairs.deepseek-1.3-33.target is 'gpt'; choose one of",
    ),
    "syntax": ("[step]", "[step", "cannot be read: .*line"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_named_with_its_key(case: str, tmp_path: Path):
    old, new, message = BROKEN[case]
    text = (FOLDER / "pearl-3xA100.toml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "pearl-3xA100.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UsageError, match=message) as caught:
        Profile.read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path):
    path = tmp_path / "p.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"p\.toml cannot be read"):
        Profile.read(path)
    with pytest.raises(UsageError, match=r"q\.toml cannot be read"):
        Profile.read(tmp_path / "q.toml")
