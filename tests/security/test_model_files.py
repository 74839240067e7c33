"""Attacks by a model's files: each is refused with one line, before any allocation."""

from __future__ import annotations

import json
import shutil
import struct
from functools import partial

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from specscope.engine.checkpoints import catalog, checkpoint
from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import ModelError
from tests.engine.model.tiny import reference, save
from tests.security import odd
from tests.security.odd import BOUNDED, SPECIAL, edit, put, returns_or_refuses, spoiled

torch.set_num_threads(1)
refused = partial(odd.refused, kind=ModelError)
INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"
FAMILIES = (
    *("llama", "llama3-rope", "yarn-rope", "linear-rope", "mistral-window", "qwen2-window", "qwen3"),
    *("phi3", "phi3-longrope", "gemma2", "gemma3", "smollm3", "granite", "opt", "gpt2"),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a folder with a tiny model of each family, and the models' configs."""
    folder, configs = tmp_path_factory.mktemp("models"), {}
    for family in FAMILIES:
        save(reference(family), folder / family)
        configs[family] = json.loads((folder / family / "config.json").read_text())
    return folder, configs


@pytest.fixture
def model(models, tmp_path):
    """Return a copy of the Llama model for changes."""
    return shutil.copytree(models[0] / "llama", tmp_path / "model")


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    """Return a copy of the bundled target without weights."""
    folder = tmp_path_factory.mktemp("pair") / "target"
    return shutil.copytree(
        catalog.PAIRS / "bundled" / "target", folder, ignore=shutil.ignore_patterns("*.safetensors")
    )


def write(path, document) -> None:
    path.write_text(json.dumps(document))


def rope(**fields):
    return {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0} | fields}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": -64}, "head_dim is -64; it must be a whole number, at least 2 and at most 4096"),
        ({"head_dim": 7}, "head_dim is 7; it must be even"),
        (
            {"head_dim": None, "num_attention_heads": 64, "num_key_value_heads": 1},
            "config.json: ",
        ),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000; it must be a whole number, at least 1"),
        ({"hidden_size": 10**400}, "hidden_size is 1000000"),
        ({"hidden_size": 32.0}, "hidden_size is 32.0; it must be a whole number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it must be a whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True; it must be a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0; it must be a whole number, at least 1"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0; it must be a whole number, at least 1"),
        ({"intermediate_size": -1}, "intermediate_size is -1; it must be a whole number, at least 1"),
        ({"vocab_size": 10**12}, "vocab_size is 1000000000000; it must be a whole number, at least 1"),
        ({"vocab_size": None}, "vocab_size is None; it must be a whole number"),
        ({"max_position_embeddings": -5}, "max_position_embeddings is -5; it must be a whole number"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps is -1e-05; it must be a number, at least 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; it must be a number"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps is 'x'; it must be a number"),
        ({"sliding_window": -1}, "sliding_window is -1; it must be a whole number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; it must be true or false"),
        ({"attention_bias": 1}, "attention_bias is 1; it must be true or false"),
        ({"eos_token_id": "2"}, "eos_token_id is '2'; it must be a token id"),
        ({"eos_token_id": [2, None]}, "eos_token_id is [2, None]; it must be a token id"),
        ({"eos_token_id": list(range(97)) * 1000}, "or a list of at most 64"),
        ({"bos_token_id": {"a": 1}}, "bos_token_id is {'a': 1}; it must be a whole number"),
        ({"layer_types": ["chunked"] * 3}, "layer_types.0 is 'chunked'; supported are full_attention"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries; num_hidden_layers is 3"),
        ({"model_type": "mistral"}, "model_type is 'mistral'; it must be 'llama' for LlamaForCausalLM"),
        ({"hidden_act": "s\ni\nl\nu"}, r"hidden_act 's\ni\nl\nu' is not supported"),
        (rope(factor="x"), "rope_parameters.factor is 'x'; it must be a number, at least 1"),
        (rope(factor=0), "rope_parameters.factor is 0; it must be a number, at least 1"),
        (rope(rope_theta=-1.0), "rope_parameters.rope_theta is -1.0; it must be a number"),
        (rope(rope_theta=1), "rope_parameters.rope_theta is 1; it must be a number"),
        (rope(beta_fast=[]), "rope_parameters.beta_fast is []; it must be a number"),
        (rope(original_max_position_embeddings=0), "original_max_position_embeddings is 0; it must be"),
        (rope(truncate="x"), "rope_parameters.truncate is 'x'; it must be true or false"),
        (rope(rope_type=5), "rope_parameters.rope_type is 5; it must be a text"),
        (rope(rope_type="linear", factor=None), "rope_parameters lacks factor"),
        (
            rope(rope_type="llama3", low_freq_factor=4.0, high_freq_factor=1.0),
            "low_freq_factor is 4.0; it must be less than high_freq_factor, 1.0",
        ),
        ({"rope_parameters": "x"}, "rope_parameters is 'x'; it must be an object"),
        (
            {"rope_scaling": {"type": "linear", "factor": -2}},
            "rope_scaling.factor is -2; it must be a number",
        ),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters.full_attention is an object"),
    ],
)
def test_a_config_field_of_wrong_type_or_out_of_range_is_refused(model, change, message):
    edit(model / "config.json", **change)
    error = refused(lambda: load(model))
    assert message in error
    assert str(model / "config.json") in error


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        (
            "phi3-longrope",
            {"original_max_position_embeddings": 1},
            "rope_parameters.original_max_position_embeddings is 1; longrope divides by its logarithm",
        ),
        ("smollm3", {"no_rope_layers": [0]}, "no_rope_layers is [0]; it must hold 0 or 1 for each of the 3"),
    ],
)
def test_a_config_field_that_only_one_family_has_is_refused(models, tmp_path, family, change, message):
    folder = shutil.copytree(models[0] / family, tmp_path / "model")
    write(folder / "config.json", models[1][family] | change)
    assert message in refused(lambda: load(folder))


def test_sizes_are_checked_before_torch_or_transformers_use_them(model, monkeypatch):
    def never(*_args, **_options):
        raise AssertionError("the size was used")

    edit(model / "config.json", num_hidden_layers=10**9, rope_theta=5)
    monkeypatch.setattr(transformers.AutoConfig, "for_model", never)
    monkeypatch.setattr("specscope.engine.checkpoints.loader.Checkpoint", never)
    assert "num_hidden_layers" in refused(lambda: load(model))


def test_sizes_that_differ_from_the_tensors_are_refused_before_a_tensor_is_read(model, monkeypatch):
    monkeypatch.setattr(
        checkpoint.Checkpoint, "take", lambda *_: (_ for _ in ()).throw(AssertionError("a tensor was read"))
    )
    edit(model / "config.json", vocab_size=1 << 22, hidden_size=1 << 17)
    assert "has shape [97, 32]; config.json asks for [4194304, 131072]" in refused(lambda: load(model))


def test_weights_larger_than_the_memory_are_refused(model, monkeypatch):
    monkeypatch.setattr(checkpoint.psutil, "virtual_memory", lambda: type("Memory", (), {"total": 1000})())
    assert "the weights take 0.0 GB in memory; this machine has 0.0 GB" in refused(lambda: load(model))


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, " " * (1 << 21)])
def test_deeply_nested_or_too_long_json_is_refused(model, content):
    (model / "config.json").write_text(content)
    refused(lambda: load(model))


@pytest.mark.parametrize("name", ["config.json", WEIGHTS, INDEX])
@pytest.mark.parametrize("kind", SPECIAL[:-2])
def test_anything_else_in_place_of_a_file_is_refused(model, name, kind):
    put(model / name, kind)
    refused(lambda: load(model))


@pytest.mark.parametrize("header", [1 << 63, 1 << 40, (1 << 24) + 1])
def test_a_huge_safetensors_header_is_refused_unread(model, header):
    (model / WEIGHTS).write_bytes(struct.pack("<Q", header) + b" " * 100)
    assert f"its header has {header} bytes; the limit is 16777216" in refused(lambda: load(model))


def test_a_tensor_larger_than_its_file_is_refused(model):
    header = json.dumps({"x": {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4 * 10**12]}})
    (model / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(64))
    assert "is not a complete safetensors file" in refused(lambda: load(model))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["../x.safetensors"], "must name the shards beside it"),
        (["/etc/passwd"], "must name the shards beside it"),
        ([".."], "this shard is missing"),
        ([f"{i}.safetensors" for i in range(1001)], "names 1001 shards; there may be at most 1000"),
        (["x" * 5000], "this shard is missing"),
        (["a\x00b"], "this shard is missing"),
        (["a\nb"], "this shard is missing"),
        (["\ud800"], "this shard is missing"),
        (["zero"], "this shard is missing"),
        ([{"a": 1}], "this shard is missing"),
    ],
)
def test_an_index_of_paths_outside_the_folder_or_of_devices_is_refused(model, names, message):
    (model / WEIGHTS).unlink()
    (model / "zero").symlink_to("/dev/zero")
    write(model / INDEX, {"weight_map": {f"t{i}": name for i, name in enumerate(names)}})
    assert message in refused(lambda: load(model))


@pytest.mark.parametrize("name", ["x\ny", "\x1b[2J", "x" * 100_000])
def test_an_error_shows_no_control_characters_of_a_tensor_name(model, name):
    from safetensors.torch import load_file, save_file

    tensors = {key: tensor.clone() for key, tensor in load_file(model / WEIGHTS).items()}
    save_file(tensors | {name: torch.zeros(1)}, model / WEIGHTS)
    assert "the weights hold " in refused(lambda: load(model))


def test_fields_that_refer_to_other_files_or_code_do_not_reach_transformers(model):
    (model / "config.99.json").write_text('{"num_hidden_layers": 1000000000}')
    edit(
        model / "config.json",
        configuration_files=["config.99.json"],
        num_labels=10**9,
        auto_map={"AutoConfig": "evil.Evil"},
        validate_rope=5,
    )
    assert load(model).depth == 3


@pytest.mark.parametrize(
    ("ends", "eos"), [([2, 3], (2, 3)), (2, (2,)), (None, ()), ([], ()), ([0], (0,)), ([4095], (4095,))]
)
def test_eos_ids_are_read_from_the_generation_config(bundled, ends, eos):
    edit(bundled / "generation_config.json", eos_token_id=ends)
    assert Pair.of(bundled).eos == eos


@pytest.mark.parametrize("ends", ["2", True, 2.0, [[2]], {"a": 1}, -1, 4096, 10**12, [2, "x"], [2] * 65])
def test_eos_ids_of_wrong_type_or_outside_the_vocabulary_are_refused(bundled, ends):
    edit(bundled / "generation_config.json", eos_token_id=ends)
    error = refused(lambda: Pair.of(bundled))
    edit(bundled / "generation_config.json", eos_token_id=2)
    assert "generation_config.json: eos_token_id is " in error
    assert "it must be a token id, at least 0 and at most 4095" in error


@pytest.fixture
def pair(bundled, tmp_path):
    """Return a copy of the bundled target for changes."""
    return shutil.copytree(bundled, tmp_path / "target")


@pytest.mark.parametrize(
    "content", ["{}", "[]", "", "null", '{"model": {}}', "[" * 100_000, "x" * 1000, "\ud800"]
)
def test_an_invalid_tokenizer_is_refused(pair, content):
    (pair / "tokenizer.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    assert str(pair) in refused(lambda: Pair.of(pair))


@pytest.mark.parametrize("keep", [1, 5000, -1])
def test_a_truncated_tokenizer_is_refused(pair, keep):
    content = (pair / "tokenizer.json").read_bytes()
    (pair / "tokenizer.json").write_bytes(content[:keep])
    assert "its tokenizer cannot be loaded" in refused(lambda: Pair.of(pair))


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "vocab.json",
    ],
)
@pytest.mark.parametrize("target", ["/dev/zero", "/dev/stdin", "/nowhere"])
def test_a_tokenizer_file_that_links_to_a_device_is_refused(pair, name, target):
    (pair / name).unlink(missing_ok=True)
    (pair / name).symlink_to(target)
    assert str(pair / name) in refused(lambda: Pair.of(pair))


def test_a_tokenizer_file_of_a_gigabyte_is_refused_unread(pair):
    with (pair / "tokenizer.json").open("r+b") as file:
        file.truncate(1 << 30)
    assert "has 1073741824 bytes; the limit is 67108864" in refused(lambda: Pair.of(pair))


@pytest.mark.parametrize(
    "change",
    [
        {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}},
        {"auto_map": ["evil.Evil", None]},
        {"gguf_file": "/dev/zero"},
        {"vocab": "/dev/zero", "merges": "/dev/zero"},
        {"fast_tokenizer_files": ["tokenizer.4.json"]},
    ],
)
@pytest.mark.parametrize("kind", ["TokenizersBackend", "LlamaTokenizer"])
def test_a_tokenizer_that_refers_to_code_or_other_files_is_refused(pair, change, kind):
    (pair / "evil.py").write_text("raise SystemExit('remote code ran')")
    edit(pair / "tokenizer_config.json", tokenizer_class=kind, **change)
    assert f"{next(iter(change))} refers to code or other files" in refused(lambda: Pair.of(pair))


def sequence(count, text):
    part = {"type": "Replace", "pattern": {"String": "a"}, "content": text}
    return {"type": "Sequence", "normalizers": [part] * count}


@pytest.mark.parametrize("normalizer", [sequence(40, "aa"), sequence(1, "a" * 100_000), sequence(3000, "b")])
def test_a_normalizer_that_multiplies_the_text_is_refused(pair, normalizer):
    edit(pair / "tokenizer.json", normalizer=normalizer)
    assert "its normalizer makes a text " in refused(lambda: Pair.of(pair))


def test_a_pattern_that_backtracks_endlessly_refuses_the_prompt(pair, capfd):
    pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    edit(pair / "tokenizer.json", pre_tokenizer=pattern)
    opened = Pair.of(pair)
    assert "the tokenizer of target fails" in refused(lambda: opened.encode("a" * 40 + "b"))
    assert "retry-limit-in-match over" in capfd.readouterr().err  # printed by the library


@pytest.mark.parametrize("ids", [{"1000000000000": {"content": "x"}}, {"x": {}}, {"-1": {}}, [5], "x"])
def test_added_tokens_with_invalid_ids_are_refused(pair, ids):
    edit(pair / "tokenizer_config.json", added_tokens_decoder=ids)
    assert "added_tokens_decoder is " in refused(lambda: Pair.of(pair))


@pytest.mark.parametrize("family", FAMILIES)
def test_any_odd_value_of_a_config_loads_or_is_refused(models, family):
    folder, configs = models

    @BOUNDED
    @given(spoiled(configs[family]))
    def check(config):
        write(folder / family / "config.json", config)
        returns_or_refuses(lambda: load(folder / family))

    check()


@BOUNDED
@given(data=st.data())
def test_any_odd_value_of_a_pair_loads_or_is_refused(bundled, data):
    names = ("config.json", "generation_config.json", "tokenizer_config.json")
    path = bundled / data.draw(st.sampled_from(names))
    content = path.read_text()
    try:
        write(path, data.draw(spoiled(json.loads(content))))
        returns_or_refuses(lambda: Pair.of(bundled).encode("Hi"))
    finally:
        path.write_text(content)


@BOUNDED
@given(at=st.integers(0, 40_000), junk=st.binary(min_size=1, max_size=9))
def test_any_changed_bytes_of_a_safetensors_file_load_or_are_refused(models, at, junk):
    path = models[0] / "qwen3" / WEIGHTS
    content = path.read_bytes()
    at %= len(content)
    write(path.with_name("config.json"), models[1]["qwen3"])
    try:
        path.write_bytes(content[:at] + junk + content[at + len(junk) :])
        returns_or_refuses(lambda: load(path.parent))
    finally:
        path.write_bytes(content)
