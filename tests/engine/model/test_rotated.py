"""A rotated model computes what the model computes, and int8 rounds its states better."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specscope.engine.checkpoints.checkpoint import Checkpoint
from specscope.engine.checkpoints.config import read_config
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.int8 import can_rotate, fbgemm_product, rotated, rotated_blocks, rotated_model
from specscope.engine.model.shape import ModelShape
from specscope.engine.model.slots import Rows
from tests.engine.model import tiny

CPU = torch.device("cpu")
ROTATED = (
    "llama",
    "llama-gqa-tied-bias",
    "narrow-heads",
    "mistral",
    "qwen2",
    "qwen3",
    "phi3",
    "smollm3",
    "granite",
)
OTHERS = ("opt", "gpt2", "gemma2", "gemma3")


def opened(family, folder):
    tiny.save(tiny.reference(family, seed=1), folder)
    shape = ModelShape.of(read_config(folder), folder / "config.json")
    weights = Checkpoint(folder, shape=shape)
    return shape, lambda key: weights.take(key, CPU, torch.float32)


def logits(decoder):
    ids = np.arange(12)
    return decoder.forward(decoder.new_cache(1, 12), Rows.chain(0, ids, 0), ids).logits


@pytest.mark.parametrize("family", ROTATED)
def test_a_rotated_model_has_the_logits_of_the_model(family, tmp_path):
    shape, take = opened(family, tmp_path)
    assert can_rotate(shape)
    turned = Decoder(*rotated_model(shape, take), rotate=True)
    exact = logits(Decoder(shape, take))
    assert (logits(turned) - exact).abs().max() < 1e-4 * exact.abs().max()
    plain = Decoder(shape, take)
    assert not torch.allclose(turned.layers[0].qkv.transposed, plain.layers[0].qkv.transposed, atol=1e-3)


@pytest.mark.parametrize("family", OTHERS)
def test_norms_that_no_rotation_commutes_with_are_recognized(family, tmp_path):
    assert not can_rotate(opened(family, tmp_path)[0])


@pytest.mark.parametrize("size", [8, 64, 96, 576])
@pytest.mark.parametrize("turn", [rotated, rotated_blocks])
def test_a_rotation_keeps_products_and_spreads_a_large_value(size, turn):
    x, y = torch.randn(3, size), torch.randn(5, size)
    torch.testing.assert_close(turn(x) @ turn(y).t(), x @ y.t(), rtol=1e-4, atol=1e-4)
    one = torch.zeros(1, size)
    one[0, 3] = 1.0
    assert turn(one).abs().max() < 0.95


def test_a_row_with_one_large_value_loses_less_when_it_is_rotated():
    torch.manual_seed(0)
    weight, x = torch.randn(32, 256), torch.randn(1, 256)
    x[0, 7] = 200.0
    exact = x @ weight.t()

    def error(*, rotates):
        return float((fbgemm_product(weight, rotates=rotates)(x) - exact).square().mean())

    assert error(rotates=True) < error(rotates=False) / 3
