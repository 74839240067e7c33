"""Loading: one file, shards, older configs and int8 matrices; what is refused, in one line."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from specscope.engine.checkpoints.checkpoint import Checkpoint, pack
from specscope.engine.checkpoints.loader import load, load_reference
from specscope.engine.errors import ModelError
from specscope.engine.heads.config import HeadConfig
from specscope.engine.heads.files import check_head, read_head, write_head
from specscope.engine.heads.kinds import KINDS
from specscope.engine.model.int8 import dequantised
from specscope.engine.model.slots import Rows
from tests.engine.heads.forms import SHAPE, D, V, drawn
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
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    assert f"{shard}: this shard is missing" in refused(lambda: load(sharded))


def overwrite(file, start=0):
    """Fill a file with zeros in its place."""
    with file.open("r+b") as opened:
        size = opened.seek(0, 2)
        opened.seek(start)
        opened.write(bytes(size - start))


def test_a_loaded_model_does_not_depend_on_its_file(model):
    decoder = load(str(model), dtype=torch.float64, name="drafter")
    assert (decoder.name, decoder.dtype, decoder.device.type) == ("drafter", torch.float64, "cpu")
    assert (decoder.vocab_size, decoder.context) == (97, 64)
    before = logits(decoder)
    overwrite(model / WEIGHTS)
    torch.testing.assert_close(logits(decoder), before)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *(
            (name, "there is no such directory")
            for name in ("no-such-directory", "./x", "/no/such/directory", "../bundled", "a/b/c")
        ),
        ("", "config.json is missing"),  # the current directory
        ("file", "file is a file"),
    ],
)
def test_a_missing_directory_is_refused(name, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert message in refused(lambda: load(name))


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


def test_stored_frequencies_and_a_second_tied_head_are_ignored(tmp_path):
    save(reference("llama-gqa-tied-bias"), tmp_path)
    before = logits(load(tmp_path))
    extra = {"lm_head.weight": torch.zeros(97, 32)}
    extra["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    save_file(load_file(tmp_path / WEIGHTS) | extra, tmp_path / WEIGHTS)
    torch.testing.assert_close(logits(load(tmp_path)), before)


def test_the_embeddings_of_the_cache_folder_are_the_files_memory(model, monkeypatch):
    monkeypatch.setenv("SPECSCOPE_CACHE", str(model.parent))
    decoder = load(model)
    before = decoder.embedding.clone()
    overwrite(model / WEIGHTS, 8 + int.from_bytes((model / WEIGHTS).read_bytes()[:8], "little"))
    assert not torch.equal(decoder.embedding, before)


def test_each_number_is_read_within_half_a_step_of_its_row():
    matrix = torch.randn(40, 24) * torch.logspace(-6, 3, 40)[:, None]
    matrix[3] = 0
    packed = pack({"a": matrix, "norm": torch.ones(24), "ids": torch.arange(4)})
    types = {"a": torch.int8, "a.scale": torch.bfloat16, "norm": torch.float32, "ids": torch.int64}
    assert {name: t.dtype for name, t in packed.items()} == types
    read, step = dequantised(packed["a"], packed["a.scale"]), packed["a.scale"].float()[:, None]
    # A scale that bf16 rounds down moves the largest number of a row by up to 127 / 256 of a step.
    assert bool(((read - matrix).abs() <= 0.51 * step).all())
    assert not read[3].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_of_int8_is_half_as_large_and_read_by_the_same_code(kind, tmp_path):
    config = HeadConfig(kind, D, V, heads=2, masks=3 if kind[0] == "p" else 0, shape=SHAPE, draft_vocab=9)
    config = replace(config, features=(0, 1)) if kind == "eagle3" else config
    config = replace(config, block=3) if kind == "dflash" else config
    tensors = drawn(KINDS[kind].tensors(config)) | {"d2t": torch.arange(9) * 2}
    for int8 in (False, True):
        (folder := tmp_path / str(int8)).mkdir()
        write_head(folder, config, tensors, int8=int8)
    head = read_head(tmp_path / "True")
    assert (head.config, head.tensors.keys()) == (config, tensors.keys())
    for name, tensor in tensors.items():
        error = (head.tensors[name] - tensor).abs().max() / tensor.abs().max()
        assert error < (0.006 if tensor.ndim == 2 else 0.004), name
    assert torch.equal(head.tensors["d2t"], tensors["d2t"])
    stored = load_file(tmp_path / "True" / "model.safetensors")
    assert {t.dtype for t in stored.values() if t.ndim == 2} == {torch.int8}


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_target_of_int8_is_loaded_as_the_matrices_it_represents(family, tmp_path):
    """By our loader and into transformers' classes."""
    save(reference(family), tmp_path)
    file, ids = tmp_path / WEIGHTS, torch.tensor([[1, 5, 9, 2]])
    before = load_reference(tmp_path)(input_ids=ids).logits
    packed = pack(load_file(file))
    save_file(packed, file, {"format": "pt"})
    model, decoder = load_reference(str(tmp_path)), load(tmp_path)
    down = "model.layers.1.mlp.down_proj.weight"
    exact = dequantised(packed[down], packed[down + ".scale"])
    assert torch.equal(decoder.layers[1].down.rows(torch.arange(32)), exact)
    assert torch.equal(Checkpoint(tmp_path).take(down, torch.device("cpu"), torch.float32), exact)
    rows = Rows.chain(0, ids[0].tolist(), 0)
    expected = decoder.forward(decoder.new_cache(1, 4), rows, np.arange(4)).logits
    torch.testing.assert_close(model(input_ids=ids).logits[0], expected, rtol=0, atol=1e-4)
    assert not torch.equal(model(input_ids=ids).logits, before)
    packed.pop("model.norm.weight")
    save_file(packed, file, {"format": "pt"})
    assert "the weights differ from config.json in model.norm.weight" in refused(
        lambda: load_reference(tmp_path)
    )


AT = "1.0.linear.weight"
SCALE = f"{AT}.scale"


def filled(row, value):
    scales = torch.ones(D)
    scales[row] = value
    return scales


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({SCALE: None}, f"{AT} is of type I8, but there is no {SCALE} with its scales$"),
        ({SCALE: torch.ones(3)}, rf"{SCALE} has shape \[3\]; {AT} of shape \[16, 16\] needs one scale per row$"),
        ({SCALE: torch.ones(D, 1)}, rf"{SCALE} has shape \[16, 1\]; {AT} of shape \[16, 16\] needs one"),
        ({SCALE: filled(5, torch.nan)}, f"{SCALE} is nan in row 5; it must be a finite number above 0$"),
        ({SCALE: filled(2, torch.inf)}, f"{SCALE} is inf in row 2; it must be"),
        ({SCALE: filled(2, -0.5)}, f"{SCALE} is -0.5 in row 2; it must be"),
        ({SCALE: torch.ones(D).long()}, f"{SCALE} is of type I64; supported are F64, F32, F16, BF16$"),
        ({AT: torch.ones(D, D)}, f"tensors unknown to a head of kind medusa: {SCALE}$"),
        ({AT: torch.ones(D, D).to(torch.uint8)}, f"unknown to a head .*: {SCALE}$"),
    ],
)  # fmt: skip
def test_broken_scales_are_refused_by_name(changes, message, tmp_path):
    config = HeadConfig("medusa", D, V, heads=2)
    write_head(tmp_path, config, drawn(KINDS["medusa"].tensors(config)), int8=True)
    tensors = load_file(tmp_path / "model.safetensors") | changes
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=message) as error:
        check_head(tmp_path)
    assert "\n" not in str(error.value)
