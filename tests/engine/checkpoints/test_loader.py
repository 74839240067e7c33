"""Loading: valid models load; for others, the error is one line that names the file."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from specscope.engine.checkpoints.loader import load
from specscope.engine.errors import ModelError
from specscope.engine.model.slots import Rows
from tests.engine.model.tiny import reference, save

torch.set_num_threads(1)
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source")
    save(reference("llama"), path)
    return path


@pytest.fixture
def model(source, tmp_path):
    """Return a copy of the model for changes."""
    return shutil.copytree(source, tmp_path / "model")


@pytest.fixture
def sharded(tmp_path):
    save(reference("llama"), tmp_path / "sharded", max_shard_size="40KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    return tmp_path / "sharded"


def logits(decoder):
    ids = np.arange(5)
    return decoder.forward(decoder.new_cache(1, 5), Rows.chain(0, ids, 0), ids).logits


def refused(path) -> str:
    """Return the error of a refused model, checked to be one line."""
    with pytest.raises(ModelError) as error:
        load(path)
    message = str(error.value)
    assert "\n" not in message
    return message


def edit(path, change):
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def edit_weights(model, changes):
    """Replace tensors of a model; None removes one."""
    tensors = load_file(model / WEIGHTS) | changes
    save_file({name: t.clone() for name, t in tensors.items() if t is not None}, model / WEIGHTS)


def test_shards_give_the_same_model_as_one_file(source, sharded):
    torch.testing.assert_close(logits(load(sharded)), logits(load(source)))


def test_name_device_and_dtype(source):
    decoder = load(str(source), dtype=torch.float64, name="drafter")
    assert (decoder.name, decoder.dtype, decoder.device.type) == ("drafter", torch.float64, "cpu")
    assert (decoder.vocab_size, decoder.context) == (97, 64)


def test_a_loaded_model_does_not_depend_on_its_file(model):
    decoder = load(model)
    before = logits(decoder)
    weights = model / WEIGHTS
    with weights.open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(0)
        file.write(bytes(size))
    torch.testing.assert_close(logits(decoder), before)


@pytest.mark.parametrize(
    "name", ["no-such-directory", "./x", "/no/such/directory", "../bundled", "a/b/c", ""]
)
def test_a_missing_directory_is_refused(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if name == "":
        assert "config.json is missing" in refused(name)  # the current directory
    else:
        assert "there is no such directory" in refused(name)


def test_a_file_instead_of_a_directory_is_refused(model):
    assert f"{model / WEIGHTS} is a file" in refused(model / WEIGHTS)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "config.json is missing"),
        *(
            ("config.json", text, "config.json is not valid JSON")
            for text in ("", "{", "\xff\xfe", '{"a": }')
        ),
        *(
            ("config.json", text, "is not supported; supported are LlamaForCausalLM, Mistral")
            for text in ("[]", "{}", '{"architectures": null}', '{"architectures": 3}', "7")
        ),
        (WEIGHTS, None, f"there is no {WEIGHTS} and no {INDEX}"),
        (INDEX, "{", f"{INDEX} is not valid JSON"),
        *(
            (INDEX, text, f"{INDEX}: weight_map must name the shards beside it")
            for text in (
                *("{}", "[]", '{"weight_map": {}}', '{"weight_map": ["a"]}'),
                '{"weight_map": {"a": "../../x.safetensors"}}',
            )
        ),
    ],
)
def test_a_missing_or_broken_file_is_refused_by_its_name(model, name, content, message):
    (model / name).unlink(missing_ok=True)
    if content is not None:
        (model / name).write_bytes(content.encode("latin-1"))
    assert message in refused(model)


def test_an_unsupported_architecture_is_refused(model):
    edit(model / "config.json", lambda c: c.update(architectures=["BloomForCausalLM"], model_type="bloom"))
    message = refused(model)
    assert "config.json: architecture 'BloomForCausalLM' is not supported" in message
    assert "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM" in message


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
PARTIAL = {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized weights are not supported"),
        ({"rope_parameters": DYNAMIC}, "rope_type 'dynamic' is not supported; supported are default, linear"),
        ({"rope_parameters": PARTIAL}, "only a part of each head is rotated"),
        ({"hidden_size": "wide"}, "config.json: "),
        ({"num_attention_heads": 5}, "config.json: "),
        ({"num_key_value_heads": 3}, "config.json: "),
        ({"model_type": "no-such-type"}, "config.json: "),
        ({"num_hidden_layers": 4}, "the weights lack model.layers.3."),
        ({"num_hidden_layers": 2}, "the weights hold model.layers.2."),
        ({"attention_bias": True}, "the weights lack model.layers.0.self_attn.q_proj.bias"),
        ({"vocab_size": 98}, "model.embed_tokens.weight has shape [97, 32]; config.json asks for [98, 32]"),
    ],
)
def test_an_unsupported_or_contradictory_config_is_refused(model, change, message):
    edit(model / "config.json", lambda c: c.update(change))
    assert message in refused(model)


@pytest.mark.parametrize(
    ("family", "scaling"),
    [
        ("linear-rope", {"type": "linear", "factor": 4.0}),
        ("llama3-rope", LLAMA3 | {"rope_type": "llama3", "original_max_position_embeddings": 16}),
    ],
)
def test_rotary_parameters_of_older_configs_are_read(tmp_path, family, scaling):
    save(reference(family), tmp_path)
    before = logits(load(tmp_path))

    def use_older_names(config):
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        config["rope_scaling"] = scaling

    edit(tmp_path / "config.json", use_older_names)
    torch.testing.assert_close(logits(load(tmp_path)), before)


def test_remote_code_does_not_run(model):
    (model / "evil.py").write_text("raise SystemExit('remote code ran')")
    auto = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
    edit(model / "config.json", lambda c: c.update(auto_map=auto))
    load(model)
    edit(model / "config.json", lambda c: c.update(model_type="evil"))
    assert str(model / "config.json") in refused(model)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickled_weights_are_not_read(model, name):
    (model / WEIGHTS).rename(model / name)
    message = refused(model)
    assert str(model / name) in message
    assert "convert them to safetensors" in message


def test_a_missing_shard_is_refused(sharded):
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    assert f"{shard}: this shard is missing" in refused(sharded)


@pytest.mark.parametrize("keep", [0, 5, 200, -100])
def test_truncated_weights_and_corrupt_headers_are_refused(model, keep):
    content = (model / WEIGHTS).read_bytes()
    for broken in (content[:keep], content[:8] + b"\x00" * 16 + content[24:]):
        (model / WEIGHTS).write_bytes(broken)
        assert f"{model / WEIGHTS} is not a complete safetensors file" in refused(model)


NORM, MLP = "model.norm.weight", "model.layers.1.mlp."
FOUR = dict.fromkeys([NORM, *(f"{MLP}{name}_proj.weight" for name in ("gate", "up", "down"))])
OTHER = "model.layers.0.adapter.weight"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (FOUR, f"the weights lack {NORM}, {MLP}gate_proj.weight, {MLP}up_proj.weight and 1 more"),
        ({OTHER: torch.zeros(2)}, f"the weights hold {OTHER}, unknown to config.json"),
        ({NORM: torch.zeros(31)}, f"{NORM} has shape [31]; config.json asks for [32]"),
        ({NORM: torch.zeros(32).int()}, f"{NORM} is of type I32; supported are F64, F32, F16, BF16"),
    ],
)
def test_tensors_that_differ_from_the_config_are_named(model, changes, message):
    edit_weights(model, changes)
    assert message in refused(model)


def test_stored_frequencies_and_a_second_tied_head_are_ignored(tmp_path):
    save(reference("llama-gqa-tied-bias"), tmp_path)
    before = logits(load(tmp_path))
    extra = {
        "lm_head.weight": torch.zeros(97, 32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
    }
    edit_weights(tmp_path, extra)
    torch.testing.assert_close(logits(load(tmp_path)), before)


def test_the_embeddings_of_the_cache_folder_are_the_files_memory(model, monkeypatch):
    monkeypatch.setenv("SPECSCOPE_CACHE", str(model.parent))
    decoder = load(model)
    before = decoder.embedding.clone()
    data = 8 + int.from_bytes((model / WEIGHTS).read_bytes()[:8], "little")
    with (model / WEIGHTS).open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(data)
        file.write(bytes(size - data))
    assert not torch.equal(decoder.embedding, before)
