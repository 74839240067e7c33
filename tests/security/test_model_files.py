"""Attacks by a model's files: each is refused with one line, before any allocation."""

from __future__ import annotations

import json
import shutil
import struct
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from specscope.engine.checkpoints import catalog, checkpoint
from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import ModelError
from tests.engine.model.tiny import reference, save
from tests.security import odd
from tests.security.odd import BOUNDED, SPECIAL, edit, put, returns_or_refuses, spoiled

torch.set_num_threads(1)
refused = partial(odd.refused, kind=ModelError)
CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
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
        configs[family] = json.loads((folder / family / CONFIG).read_text())
    return folder, configs


@pytest.fixture
def model(models, tmp_path):
    """Return a copy of the Llama model for changes."""
    return shutil.copytree(models[0] / "llama", tmp_path / "model")


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    """Return a copy of the bundled target without weights."""
    folder, skip = tmp_path_factory.mktemp("pair") / "target", shutil.ignore_patterns("*.safetensors")
    return shutil.copytree(catalog.PAIRS / "bundled" / "target", folder, ignore=skip)


@pytest.fixture
def pair(bundled, tmp_path):
    """Return a copy of the bundled target for changes."""
    return shutil.copytree(bundled, tmp_path / "target")


# Ways to spoil a folder.


def wrote(name, content):
    """Return a function that writes a file of a folder; None removes it."""

    def spoil(folder):
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return spoil


def cut(name, keep):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])


def linked(name, to):
    def spoil(folder):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(to)

    return spoil


def shards(*names):
    """Return a function that makes an index the model's only weights, beside a link to a device."""

    def spoil(folder):
        (folder / WEIGHTS).unlink()
        (folder / "zero").symlink_to("/dev/zero")
        index = {"weight_map": {f"t{i}": name for i, name in enumerate(names)}}
        (folder / INDEX).write_text(json.dumps(index))

    return spoil


def tensors(**changes):
    """Return a function that replaces tensors of a model; None removes one."""

    def spoil(folder):
        whole = load_file(folder / WEIGHTS) | changes
        save_file({name: t.clone() for name, t in whole.items() if t is not None}, folder / WEIGHTS)

    return spoil


def rope(**fields):
    return {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0} | fields}


ANY = "config.json: "
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
PARTIAL = {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": -64}, "head_dim is -64; it must be a whole number, at least 2 and at most 4096"),
        ({"head_dim": 7}, "head_dim is 7; it must be even"),
        ({"head_dim": None, "num_attention_heads": 64, "num_key_value_heads": 1}, ANY),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000; it must be a whole number, at least 1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it must be a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0; it must be a whole number, at least 1"),
        ({"num_attention_heads": 5}, ANY),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0; it must be a whole number, at least 1"),
        ({"num_key_value_heads": 3}, ANY),
        ({"intermediate_size": -1}, "intermediate_size is -1; it must be a whole number, at least 1"),
        ({"vocab_size": 10**12}, "vocab_size is 1000000000000; it must be a whole number, at least 1"),
        ({"max_position_embeddings": -5}, "max_position_embeddings is -5; it must be a whole number"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps is -1e-05; it must be a number, at least 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; it must be a number"),
        ({"sliding_window": -1}, "sliding_window is -1; it must be a whole number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; it must be true or false"),
        ({"attention_bias": 1}, "attention_bias is 1; it must be true or false"),
        ({"eos_token_id": "2"}, "eos_token_id is '2'; it must be a token id"),
        ({"eos_token_id": list(range(97)) * 1000}, "or a list of at most 64"),
        ({"bos_token_id": {"a": 1}}, "bos_token_id is {'a': 1}; it must be a whole number"),
        ({"layer_types": ["chunked"] * 3}, "layer_types.0 is 'chunked'; supported are full_attention"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries; num_hidden_layers is 3"),
        ({"model_type": "mistral"}, "model_type is 'mistral'; it must be 'llama' for LlamaForCausalLM"),
        ({"hidden_act": "s\ni\nl\nu"}, r"hidden_act 's\ni\nl\nu' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized weights ('gptq') are not supported; use the unquantized model, or a server"),
        (rope(factor=0), "rope_parameters.factor is 0; it must be a number, at least 1"),
        (rope(rope_theta=1), "rope_parameters.rope_theta is 1; it must be a number"),
        (rope(beta_fast=[]), "rope_parameters.beta_fast is []; it must be a number"),
        (rope(original_max_position_embeddings=0), "original_max_position_embeddings is 0; it must be"),
        (rope(truncate="x"), "rope_parameters.truncate is 'x'; it must be true or false"),
        (rope(rope_type=5), "rope_parameters.rope_type is 5; it must be a text"),
        (rope(rope_type="linear", factor=None), "rope_parameters lacks factor"),
        (rope(rope_type="llama3", low_freq_factor=4.0, high_freq_factor=1.0), "low_freq_factor is 4.0; it must be less than high_freq_factor, 1.0"),
        ({"rope_parameters": "x"}, "rope_parameters is 'x'; it must be an object"),
        ({"rope_parameters": DYNAMIC}, "rope_type 'dynamic' is not supported; supported are default, linear"),
        ({"rope_parameters": PARTIAL}, "only a part of each head is rotated"),
        ({"rope_scaling": {"type": "linear", "factor": -2}}, "rope_scaling.factor is -2; it must be a number"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters.full_attention is an object"),
        ({"architectures": ["BloomForCausalLM"], "model_type": "bloom"}, "'BloomForCausalLM' is not supported; supported are LlamaForCausalLM, Mistral"),
    ],
)  # fmt: skip
def test_a_config_field_of_wrong_type_or_out_of_range_is_refused(model, change, message):
    edit(model / CONFIG, **change)
    error = refused(lambda: load(model))
    assert message in error
    assert str(model / CONFIG) in error


def test_sizes_are_checked_before_torch_or_transformers_use_them_and_beside_the_tensors(model, monkeypatch):
    def never(*_args, **_options):
        pytest.fail("the size was used")

    monkeypatch.setattr(checkpoint.Checkpoint, "take", never)
    edit(model / CONFIG, vocab_size=1 << 22, hidden_size=1 << 17)
    assert "has shape [97, 32]; config.json asks for [4194304, 131072]" in refused(lambda: load(model))
    monkeypatch.setattr(transformers.AutoConfig, "for_model", never)
    monkeypatch.setattr("specscope.engine.checkpoints.loader.Checkpoint", never)
    edit(model / CONFIG, num_hidden_layers=10**9, rope_theta=5)
    assert "num_hidden_layers" in refused(lambda: load(model))


def test_weights_larger_than_the_memory_are_refused(model, monkeypatch):
    monkeypatch.setattr(checkpoint.psutil, "virtual_memory", lambda: SimpleNamespace(total=1000))
    assert "the weights take 0.0 GB in memory; this machine has 0.0 GB" in refused(lambda: load(model))


HUGE_TENSOR = json.dumps({"x": {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4 * 10**12]}})
NORM, MLP, OTHER = "model.norm.weight", "model.layers.1.mlp.", "model.layers.0.adapter.weight"
FOUR = dict.fromkeys([NORM, *(f"{MLP}{name}_proj.weight" for name in ("gate", "up", "down"))])
UNSUPPORTED = "is not supported; supported are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3"
OUTSIDE, MISSING = "weight_map must name the shards beside it", "this shard is missing"
FILES = [
    (wrote(CONFIG, None), "{model}/config.json is missing"),
    *((wrote(CONFIG, text), "config.json is not valid JSON") for text in ("", "{", b"\xff\xfe", '{"a": }')),
    *((wrote(CONFIG, text), UNSUPPORTED) for text in ("[]", "{}", "7", '{"architectures": null}', '{"architectures": 3}')),
    *((wrote(CONFIG, text), "config.json") for text in ("[" * 100_000, '{"a":' * 100_000, "9" * 5000, " " * (1 << 21))),
    *((partial(put, kind=kind), name) for name in (CONFIG, WEIGHTS, INDEX) for kind in SPECIAL[:-2]),
    (wrote(WEIGHTS, None), f"there is no {WEIGHTS} and no {INDEX}"),
    *((cut(WEIGHTS, keep), f"{{model}}/{WEIGHTS} is not a complete safetensors file") for keep in (0, 5, 200, -100)),
    (lambda model: wrote(WEIGHTS, (old := (model / WEIGHTS).read_bytes())[:8] + bytes(16) + old[24:])(model), "is not a complete safetensors file"),
    (wrote(WEIGHTS, struct.pack("<Q", len(HUGE_TENSOR)) + HUGE_TENSOR.encode() + bytes(64)), "is not a complete safetensors file"),
    *((wrote(WEIGHTS, struct.pack("<Q", n) + b" " * 100), f"its header has {n} bytes; the limit is 16777216") for n in (1 << 63, 1 << 40, (1 << 24) + 1)),
    *((lambda model, name=name: (model / WEIGHTS).rename(model / name), f"{{model}}/{name}") for name in ("pytorch_model.bin", "model.pt", "consolidated.00.pth")),
    (lambda model: (model / WEIGHTS).rename(model / "model.pt"), "convert them to safetensors"),
    (wrote(INDEX, "{"), f"{INDEX} is not valid JSON"),
    *((wrote(INDEX, text), f"{INDEX}: {OUTSIDE}") for text in ("{}", "[]", '{"weight_map": {}}', '{"weight_map": ["a"]}', '{"weight_map": {"a": "../../x.safetensors"}}')),
    *((shards(name), f"{INDEX}: {OUTSIDE}") for name in ("../x.safetensors", "/etc/passwd")),
    *((shards(name), MISSING) for name in ("..", "x" * 5000, "a\x00b", "a\nb", "\ud800", "zero", {"a": 1})),
    (shards(*(f"{i}.safetensors" for i in range(1001))), "names 1001 shards; there may be at most 1000"),
    (tensors(**FOUR), f"the weights lack {NORM}, {MLP}gate_proj.weight, {MLP}up_proj.weight and 1 more"),
    (tensors(**{OTHER: torch.zeros(2)}), f"the weights hold {OTHER}, unknown to config.json"),
    (tensors(**{NORM: torch.zeros(31)}), f"{NORM} has shape [31]; config.json asks for [32]"),
    (tensors(**{NORM: torch.zeros(32).int()}), f"{NORM} is of type I32; supported are F64, F32, F16, BF16"),
    *((tensors(**{name: torch.zeros(1)}), "the weights hold ") for name in ("x\ny", "\x1b[2J", "x" * 100_000)),
    *((lambda model, change=change: edit(model / CONFIG, **change), message) for change, message in (
        ({"num_hidden_layers": 4}, "the weights lack model.layers.3."),
        ({"num_hidden_layers": 2}, "the weights hold model.layers.2."),
        ({"attention_bias": True}, "the weights lack model.layers.0.self_attn.q_proj.bias"),
        ({"vocab_size": 98}, "model.embed_tokens.weight has shape [97, 32]; config.json asks for [98, 32]"),
    )),
]  # fmt: skip
"""What spoils a model's folder, and what its refusal says; `{model}` is the folder."""


@pytest.mark.parametrize(("spoil", "message"), FILES)
def test_a_missing_broken_or_hostile_file_is_refused_by_its_name(model, spoil, message):
    if isinstance(spoil, partial):
        spoil(model / message)
    else:
        spoil(model)
    assert message.replace("{model}", str(model)) in refused(lambda: load(model))


def test_fields_that_refer_to_other_files_or_code_do_not_reach_transformers(model):
    (model / "config.99.json").write_text('{"num_hidden_layers": 1000000000}')
    (model / "evil.py").write_text("raise SystemExit('remote code ran')")
    code = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
    other = {"configuration_files": ["config.99.json"], "num_labels": 10**9, "validate_rope": 5}
    edit(model / CONFIG, auto_map=code, **other)
    assert load(model).depth == 3
    edit(model / CONFIG, model_type="evil")
    assert str(model / CONFIG) in refused(lambda: load(model))


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


def grown(pair):
    with (pair / "tokenizer.json").open("r+b") as file:
        file.truncate(1 << 30)


def refers(kind, change):
    def spoil(pair):
        (pair / "evil.py").write_text("raise SystemExit('remote code ran')")
        edit(pair / "tokenizer_config.json", tokenizer_class=kind, **change)

    return spoil


def normalizer(count, text):
    part = {"type": "Replace", "pattern": {"String": "a"}, "content": text}
    whole = {"type": "Sequence", "normalizers": [part] * count}
    return lambda pair: edit(pair / "tokenizer.json", normalizer=whole)


TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "vocab.json")  # fmt: skip
REFERENCES = (
    {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}},
    {"auto_map": ["evil.Evil", None]},
    {"gguf_file": "/dev/zero"},
    {"vocab": "/dev/zero", "merges": "/dev/zero"},
    {"fast_tokenizer_files": ["tokenizer.4.json"]},
)
BROKEN = ("{}", "[]", "", "null", '{"model": {}}', "[" * 100_000, "x" * 1000, b"\xed\xa0\x80")
IDS = ({"1000000000000": {"content": "x"}}, {"x": {}}, {"-1": {}}, [5], "x")
PAIRS = [
    *((wrote("tokenizer.json", text), "{pair}") for text in BROKEN),
    *((cut("tokenizer.json", keep), "its tokenizer cannot be loaded") for keep in (1, 5000, -1)),
    *((linked(n, to), f"{{pair}}/{n}") for n in TOKENIZER for to in ("/dev/zero", "/dev/stdin", "/nowhere")),
    (grown, "has 1073741824 bytes; the limit is 67108864"),
    *(
        (refers(kind, change), f"{next(iter(change))} refers to code or other files")
        for kind in ("TokenizersBackend", "LlamaTokenizer")
        for change in REFERENCES
    ),
    *((normalizer(*n), "its normalizer makes a text ") for n in ((40, "aa"), (1, "a" * 100_000), (3000, "b"))),
    *((lambda p, i=i: edit(p / "tokenizer_config.json", added_tokens_decoder=i), "added_tokens_decoder is ") for i in IDS),
]  # fmt: skip
"""What spoils a tokenizer, and what its refusal says; `{pair}` is the folder."""


@pytest.mark.parametrize(("spoil", "message"), PAIRS)
def test_a_hostile_tokenizer_is_refused(pair, spoil, message):
    spoil(pair)
    assert message.replace("{pair}", str(pair)) in refused(lambda: Pair.of(pair))


def test_a_pattern_that_backtracks_endlessly_refuses_the_prompt(pair, capfd):
    pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    edit(pair / "tokenizer.json", pre_tokenizer=pattern)
    opened = Pair.of(pair)
    assert "the tokenizer of target fails" in refused(lambda: opened.encode("a" * 40 + "b"))
    assert "retry-limit-in-match over" in capfd.readouterr().err  # printed by the library


@pytest.mark.parametrize("family", FAMILIES)
def test_any_odd_value_of_a_config_loads_or_is_refused(models, family):
    folder, configs = models

    @BOUNDED
    @given(spoiled(configs[family]))
    def check(config):
        (folder / family / CONFIG).write_text(json.dumps(config))
        returns_or_refuses(lambda: load(folder / family))

    check()


@contextmanager
def kept(path):
    """Yield a file's bytes, and write them again at the end."""
    content = path.read_bytes()
    try:
        yield content
    finally:
        path.write_bytes(content)


@BOUNDED
@given(data=st.data())
def test_any_odd_value_of_a_pair_loads_or_is_refused(bundled, data):
    path = bundled / data.draw(st.sampled_from((CONFIG, "generation_config.json", "tokenizer_config.json")))
    with kept(path) as content:
        path.write_text(json.dumps(data.draw(spoiled(json.loads(content)))))
        returns_or_refuses(lambda: Pair.of(bundled).encode("Hi"))


@BOUNDED
@given(at=st.integers(0, 40_000), junk=st.binary(min_size=1, max_size=9))
def test_any_changed_bytes_of_a_safetensors_file_load_or_are_refused(models, at, junk):
    path = models[0] / "qwen3" / WEIGHTS
    path.with_name(CONFIG).write_text(json.dumps(models[1]["qwen3"]))
    with kept(path) as content:
        at %= len(content)
        path.write_bytes(content[:at] + junk + content[at + len(junk) :])
        returns_or_refuses(lambda: load(path.parent))
