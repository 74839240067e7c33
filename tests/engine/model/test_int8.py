"""Products of drafters with matrices in int8, and rotated models, which int8 rounds better."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from specscope.engine.checkpoints.checkpoint import Checkpoint
from specscope.engine.checkpoints.config import read_config
from specscope.engine.model import int8, weights
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.int8 import (
    PAIRED_STEPS,
    REFINED,
    can_rotate,
    fbgemm_product,
    has_fbgemm,
    rotated,
    rotated_blocks,
    rotated_model,
    weight_only_product,
)
from specscope.engine.model.shape import ModelShape
from specscope.engine.model.slots import Rows
from specscope.engine.model.weights import Linear
from tests.engine.model import tiny


def error(got, exact):
    """Return the error of a product relative to its size."""
    return float((got - exact).std() / exact.std())


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small matrices, too, have the layouts of large ones."""
    monkeypatch.setattr(weights, "PACKED_FROM", 0)


@pytest.mark.parametrize("rows", [1, 8, 9, 40])
@pytest.mark.parametrize("width", [128, 100, 97])
def test_a_matrix_for_drafts_is_rounded_to_int8(rows, width):
    weight, x, bias = torch.randn(512, width), torch.randn(rows, width), torch.randn(512)
    exact = functional.linear(x, weight, bias)
    rounded = Linear(weight, bias, bits=8)(x)
    assert rounded.dtype == torch.float32
    # With one scale for all rows of x, or with 7 bits, it is over 0.03.
    assert 0.001 < error(rounded, exact) < 0.025
    assert error(Linear(weight, bias)(x), exact) < 1e-5


def test_a_few_large_activations_do_not_spoil_the_others():
    weight, x = torch.randn(256, 256), torch.randn(4, 256)
    x[:, 5] *= 50
    assert error(Linear(weight, bits=8)(x), x @ weight.t()) < 0.03, "0.12 without a rotation"


@pytest.mark.parametrize("bias", [False, True])
def test_a_row_does_not_depend_on_the_other_rows(bias):
    linear = Linear(torch.randn(96, 64), torch.randn(96) if bias else None, bits=8)
    x = torch.randn(8, 64) * torch.logspace(-3, 3, 8)[:, None]
    together = linear(x)
    for i in range(8):
        alone = linear(x[i : i + 1])[0]
        steps = (alone - together[i]).abs().max() / alone.abs().max()
        # A tie of two int8 numbers may fall either way.
        assert steps < 2e-2
    assert torch.equal(linear(x.flip(0)), together.flip(0))
    assert torch.equal(linear(x[:5]), together[:5])


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_of_zeros_give_the_bias_and_leave_others_as_they_are(rows):
    weight, bias = torch.randn(48, 64), torch.randn(48)
    weight[7] = 0
    linear, x = Linear(weight, bias, bits=8), torch.randn(rows, 64)
    assert torch.equal(linear(torch.zeros(rows, 64)), bias.expand(rows, -1))
    assert torch.equal(linear(x)[:, 7], bias[7].expand(rows)), "a row of W that is zero"
    mixed = torch.cat([x, torch.zeros(1, 64)])
    assert torch.equal(linear(mixed)[-1], bias)
    torch.testing.assert_close(linear(mixed)[:-1], linear(x), rtol=0, atol=0.1)


@pytest.mark.parametrize("bits", [4, 8])
def test_no_rows_and_all_ways_to_write_give_the_same_product(bits):
    linear = Linear(torch.randn(96, 64), torch.randn(96), bits=bits)
    assert linear(torch.empty(0, 64)).shape == (0, 96)
    for rows in (0, 1, 5):
        x = torch.randn(rows, 64)
        out, total, kept = torch.empty(rows, 96), torch.ones(rows, 96), x.clone()
        linear.into(out, x)
        linear.add_to(total, x)
        torch.testing.assert_close(out, linear(x), rtol=0, atol=0.1)
        torch.testing.assert_close(total - 1, out, rtol=0, atol=0.1)
        assert torch.equal(x, kept), "the inputs are not changed"


def test_the_matrix_is_packed_without_a_second_copy():
    weight = torch.randn(96, 64)
    assert not Linear(weight, bits=8).transposed.numel()
    kept = Linear(weight, keep=True, bits=8)
    assert torch.equal(kept.rows(torch.tensor([3, 90])), weight[[3, 90]])


def test_the_largest_outputs_of_a_kept_matrix_are_exact():
    weight, x = torch.randn(300, 64), torch.randn(3, 64)
    exact = x @ weight.t()
    rounded, refined = Linear(weight, bits=8)(x), Linear(weight, keep=True, bits=8)(x)
    largest = rounded.topk(REFINED).indices
    torch.testing.assert_close(refined.gather(1, largest), exact.gather(1, largest))
    assert not torch.equal(rounded.gather(1, largest), exact.gather(1, largest))
    assert torch.equal(refined.scatter(1, largest, 0), rounded.scatter(1, largest, 0)), "the other outputs"
    few = torch.randn(REFINED - 1, 64)
    torch.testing.assert_close(Linear(few, keep=True, bits=8)(x), x @ few.t())


@pytest.mark.skipif(not has_fbgemm(), reason="torch has no FBGEMM here")
@pytest.mark.parametrize("exact", [True, False])
def test_the_largest_sums_do_not_overflow(exact, monkeypatch):
    if not exact:  # a processor whose instructions add pairs in 16 bits
        monkeypatch.setattr(int8, "fbgemm_steps", lambda: PAIRED_STEPS)
    got = fbgemm_product(torch.ones(8, 64), rotates=False)(torch.ones(2, 64))
    torch.testing.assert_close(got, torch.full((2, 8), 64.0), rtol=0.01, atol=0)


def test_processors_without_fbgemm_round_the_matrix_only():
    weight, x = torch.randn(96, 128), torch.randn(5, 128)
    assert error(weight_only_product(weight)(x), x @ weight.t()) < 0.02


CPU = torch.device("cpu")
ROTATED = [
    "llama",
    "llama-gqa-tied-bias",
    "narrow-heads",
    "mistral",
    "qwen2",
    "qwen3",
    "phi3",
    "smollm3",
    "granite",
]
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
def test_a_rotated_model_has_the_logits_of_the_model(family, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "PACKED_FROM", 1 << 40)
    shape, take = opened(family, tmp_path)
    assert can_rotate(shape)
    turned, plain = Decoder(*rotated_model(shape, take), rotate=True), Decoder(shape, take)
    exact = logits(plain)
    assert (logits(turned) - exact).abs().max() < 1e-4 * exact.abs().max()
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
    lost = {turn: error(fbgemm_product(weight, rotates=turn)(x), x @ weight.t()) for turn in (True, False)}
    assert lost[True] < lost[False] / 3**0.5
