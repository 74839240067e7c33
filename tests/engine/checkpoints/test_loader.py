"""Loading: valid models load; for others, the error is one line that names the file."""

from __future__ import annotations

import json
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from specscope.engine.checkpoints.loader import load
from specscope.engine.errors import ModelError
from specscope.engine.model.slots import Rows
from tests.engine.model.tiny import reference, save
from tests.security import odd

torch.set_num_threads(1)
WEIGHTS = "model.safetensors"


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


refused = partial(odd.refused, kind=ModelError)


def edit(path, change):
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


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
        assert "config.json is missing" in refused(lambda: load(name))  # the current directory
    else:
        assert "there is no such directory" in refused(lambda: load(name))


def test_a_file_instead_of_a_directory_is_refused(model):
    assert f"{model / WEIGHTS} is a file" in refused(lambda: load(model / WEIGHTS))


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


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


def test_a_missing_shard_is_refused(sharded):
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    assert f"{shard}: this shard is missing" in refused(lambda: load(sharded))


def test_stored_frequencies_and_a_second_tied_head_are_ignored(tmp_path):
    save(reference("llama-gqa-tied-bias"), tmp_path)
    before = logits(load(tmp_path))
    extra = {
        "lm_head.weight": torch.zeros(97, 32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
    }
    save_file(load_file(tmp_path / WEIGHTS) | extra, tmp_path / WEIGHTS)
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
