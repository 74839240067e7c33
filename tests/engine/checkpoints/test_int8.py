"""Matrices of int8 with scales: what is read, and which files are refused."""

from __future__ import annotations

from dataclasses import replace

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
from tests.engine.model import tiny

CPU = torch.device("cpu")


def test_each_number_is_read_within_half_a_step_of_its_row():
    matrix = torch.randn(40, 24) * torch.logspace(-6, 3, 40)[:, None]
    matrix[3] = 0
    packed = pack({"a": matrix, "norm": torch.ones(24), "ids": torch.arange(4)})
    assert {name: t.dtype for name, t in packed.items()} == {
        "a": torch.int8,
        "a.scale": torch.bfloat16,
        "norm": torch.float32,
        "ids": torch.int64,
    }
    read, step = dequantised(packed["a"], packed["a.scale"]), packed["a.scale"].float()[:, None]
    # A scale that bf16 rounds down moves the largest number of a row by up to 127 / 256 of a step.
    assert bool(((read - matrix).abs() <= 0.51 * step).all())
    assert not read[3].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_of_int8_is_half_as_large_and_read_by_the_same_code(kind, tmp_path):
    config = HeadConfig(kind, D, V, heads=2, masks=3 if kind[0] == "p" else 0, shape=SHAPE, draft_vocab=9)
    config = replace(config, features=(0, 1)) if kind == "eagle3" else config
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


def test_a_target_of_int8_is_loaded_as_the_matrices_it_represents(tmp_path):
    tiny.save(tiny.reference("llama"), tmp_path / "target")
    file = tmp_path / "target" / "model.safetensors"
    packed = pack(load_file(file))
    save_file(packed, file, {"format": "pt"})
    down = "model.layers.1.mlp.down_proj.weight"
    expected = dequantised(packed[down], packed[down + ".scale"])
    assert torch.equal(load(tmp_path / "target").layers[1].down.rows(torch.arange(32)), expected)
    assert torch.equal(Checkpoint(tmp_path / "target").take(down, CPU, torch.float32), expected)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_transformers_classes_hold_the_matrices_that_int8_represents(family, tmp_path):
    tiny.save(tiny.reference(family), tmp_path)
    file, ids = tmp_path / "model.safetensors", torch.tensor([[1, 5, 9, 2]])
    before = load_reference(tmp_path)(input_ids=ids).logits
    packed = pack(load_file(file))
    save_file(packed, file, {"format": "pt"})
    model, decoder = load_reference(str(tmp_path)), load(tmp_path)
    rows = Rows.chain(0, ids[0].tolist(), 0)
    expected = decoder.forward(decoder.new_cache(1, 4), rows, np.arange(4)).logits
    torch.testing.assert_close(model(input_ids=ids).logits[0], expected, rtol=0, atol=1e-4)
    assert not torch.equal(model(input_ids=ids).logits, before)
    packed.pop("model.norm.weight")
    save_file(packed, file, {"format": "pt"})
    with pytest.raises(ModelError, match=r"the weights differ from config\.json in model\.norm\.weight"):
        load_reference(tmp_path)


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
