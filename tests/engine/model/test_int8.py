"""Matrices of drafters in int8 and int4, and rotated models, which int8 rounds better."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from specscope.engine.checkpoints.checkpoint import Checkpoint
from specscope.engine.checkpoints.config import read_config
from specscope.engine.model import int4, int8, weights
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.int4 import (
    GROUP,
    arm_product,
    cuda_product,
    fits_int4,
    int4_product,
    quantised,
    x86_product,
)
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
    exact, linear = functional.linear(x, weight, bias), Linear(weight, bias, bits=8)
    rounded = linear(x)
    assert not linear.transposed.numel(), "there is no second copy"
    assert rounded.dtype == torch.float32
    # With one scale for all rows of x, or with 7 bits, it is over 0.03.
    assert 0.001 < error(rounded, exact) < 0.025
    assert error(Linear(weight, bias)(x), exact) < 1e-5


def test_processors_without_fbgemm_round_the_matrix_only():
    weight, x = torch.randn(96, 128), torch.randn(5, 128)
    assert error(weight_only_product(weight)(x), x @ weight.t()) < 0.02


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


def test_the_largest_outputs_of_a_kept_matrix_are_exact():
    weight, x = torch.randn(300, 64), torch.randn(3, 64)
    exact, kept = x @ weight.t(), Linear(weight, keep=True, bits=8)
    assert torch.equal(kept.rows(torch.tensor([3, 90])), weight[[3, 90]])
    rounded, refined = Linear(weight, bits=8)(x), kept(x)
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


def opened(family, folder):
    tiny.save(tiny.reference(family, seed=1), folder)
    shape = ModelShape.of(read_config(folder), folder / "config.json")
    weights = Checkpoint(folder, shape=shape)
    return shape, lambda key: weights.take(key, CPU, torch.float32)


def logits(decoder):
    ids = np.arange(12)
    return decoder.forward(decoder.new_cache(1, 12), Rows.chain(0, ids, 0), ids).logits


OTHERS = ("opt", "gpt2", "gemma2", "gemma3")
"""Their norms commute with no rotation."""


@pytest.mark.parametrize("family", [*ROTATED, *OTHERS])
def test_a_rotated_model_has_the_logits_of_the_model(family, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "PACKED_FROM", 1 << 40)
    shape, take = opened(family, tmp_path)
    assert can_rotate(shape) == (family in ROTATED)
    if family in OTHERS:
        return
    turned, plain = Decoder(*rotated_model(shape, take), rotate=True), Decoder(shape, take)
    exact = logits(plain)
    assert (logits(turned) - exact).abs().max() < 1e-4 * exact.abs().max()
    assert not torch.allclose(turned.layers[0].qkv.transposed, plain.layers[0].qkv.transposed, atol=1e-3)


@pytest.mark.parametrize("size", [8, 64, 96, 576])
@pytest.mark.parametrize("turn", [rotated, rotated_blocks])
def test_a_rotation_keeps_products_and_spreads_a_large_value(size, turn):
    x, y = torch.randn(3, size), torch.randn(5, size)
    torch.testing.assert_close(turn(x) @ turn(y).t(), x @ y.t(), rtol=1e-4, atol=1e-4)
    one = torch.zeros(1, size)
    one[0, 3] = 1.0
    assert turn(one).abs().max() < 0.95


OUT, IN = 48, 96
BF16 = 2.0**-8
"""Largest relative error of rounding to bf16."""


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def grid(*, symmetric):
    """Return weights on a grid of 16 steps per group, and each group's |scale| and |minimum|.

    As in GGUF's files, scales and minima are fp16. `symmetric` is Q4_0: (q - 8) scale, with a q of
    0 in each group; else it is Q4_1: q scale + minimum, with a 0 and a 15.
    """
    groups = (OUT, IN // GROUP, 1)
    scale = (torch.rand(groups) * 0.1 + 0.01).half().float()
    q = torch.randint(0, 16, (*groups[:2], GROUP))
    q[..., 3], q[..., 9] = 0, 11 if symmetric else 15
    if symmetric:
        minimum, scale = torch.zeros(groups), torch.where(torch.rand(groups) < 0.5, scale, -scale)
    else:
        minimum = (torch.randn(groups) * 0.3).half().float()
    weight = (q - 8) * scale if symmetric else q * scale + minimum
    return weight.flatten(1), scale.abs(), minimum.abs()


def matrix_of(product):
    """Return W as a product holds it: its output for the rows of the identity."""
    return product(torch.eye(IN)).float().t()


@pytest.mark.parametrize("symmetric", [False, True])
def test_weights_on_a_grid_of_16_steps_come_back(symmetric):
    weight, scale, minimum = grid(symmetric=symmetric)
    q, step, zero = quantised(weight)
    assert (q.dtype, int(q.min()), int(q.max())) == (torch.int32, 0, 15)
    exact = (q.unflatten(1, (-1, GROUP)) - 8) * step[..., None] + zero[..., None]
    torch.testing.assert_close(exact.flatten(1), weight, rtol=0, atol=1e-6)
    # Scale and zero are rounded to bf16, and so are the products.
    bound = BF16 * (8 * scale + (minimum + 8 * scale) * (not symmetric))
    held = matrix_of(x86_product(weight)).unflatten(1, (-1, GROUP))
    assert bool(((held - weight.unflatten(1, (-1, GROUP))).abs() <= bound + BF16 * held.abs()).all())
    assert float((bound / scale).quantile(0.9)) < 0.25, "half a step would be rounding to int4 again"


def test_other_weights_are_rounded_within_half_a_step_and_equal_ones_are_kept():
    weight = torch.randn(OUT, IN)
    weight[5], weight[6, :GROUP] = 0.0, 0.25
    q, scale, zero = quantised(weight)
    groups = weight.unflatten(1, (-1, GROUP))
    error = ((q.unflatten(1, (-1, GROUP)) - 8) * scale[..., None] + zero[..., None] - groups).abs()
    largest = groups.abs().amax(2)
    assert bool((error.amax(2) <= largest / 8 + 1e-6).all()), "a step of the symmetric grid"
    half = (groups.amax(2) - groups.amin(2)) / 30
    assert bool((error.square().mean(2) <= half.square() + 1e-9).all()), "no worse than 15 equal steps"
    assert not error[5].any()
    assert not error[6, 0].any()


@pytest.mark.parametrize("product", [x86_product, arm_product])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_products_of_processors_are_near_the_exact_one(product, dtype, rows):
    weight, x = torch.randn(OUT, IN), torch.randn(rows, IN)
    held, exact = product(weight.to(dtype)), x @ weight.t()
    got = held(x.to(dtype)).float()
    assert 0.03 < float((got - exact).std() / exact.std()) < 0.13
    for i in range(rows):
        assert torch.equal(held(x[i : i + 1].to(dtype)).float()[0], got[i]), "rows do not depend on others"
    assert held(x[:0].to(dtype)).shape == (0, OUT)
    assert not held(torch.zeros(rows, IN, dtype=dtype)).any()


def test_arms_product_keeps_weights_of_q4_0():
    weight, scale, _ = grid(symmetric=True)
    held = matrix_of(arm_product(weight)).unflatten(1, (-1, GROUP))
    # The rows of x have 8 bits: a one is read as 127 / 128 or so.
    bound = BF16 * 16 * scale
    assert bool(((held - weight.unflatten(1, (-1, GROUP))).abs() <= bound).all())


class Recorded(TorchDispatchMode):
    """Records the arguments of the two operations in int4; the product has the right shape only."""

    def __init__(self):
        super().__init__()
        self.calls = list[tuple[Any, ...]]()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if "int4pack" in str(operation):
            assert all(a.is_contiguous() for a in args if isinstance(a, Tensor))
            facts = [(tuple(a.shape), a.dtype) if isinstance(a, Tensor) else a for a in args]
            self.calls.append((operation.name(), *facts))
        if operation is torch.ops.aten._weight_int4pack_mm.default:  # on this device torch has none
            return args[0].new_empty((len(args[0]), 8 * len(args[1])))
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("width", "tiles"), [(32, 2), (64, 4), (96, 2), (128, 8), (320, 4), (576, 4), (1536, 8)]
)
def test_cudas_kernel_gets_the_shapes_that_it_takes(width, tiles):
    with torch.device("meta"), Recorded() as recorded:
        product = cuda_product(torch.empty(OUT, width, dtype=torch.bfloat16))
        y = product(torch.empty(5, width, dtype=torch.bfloat16))
    assert (tuple(y.shape), y.dtype) == ((5, OUT), torch.bfloat16)
    assert width % (tiles * 16) == 0, "the kernel refuses other widths"
    packed = (OUT // 8, width // (tiles * 16), 32, tiles // 2)
    x, scales = ((5, width), torch.bfloat16), ((width // GROUP, OUT, 2), torch.bfloat16)
    assert recorded.calls == [
        ("aten::_convert_weight_to_int4pack", ((OUT, width // 2), torch.uint8), tiles),
        ("aten::_weight_int4pack_mm", x, (packed, torch.int32), GROUP, scales),
    ]


def test_two_weights_share_a_byte_on_cuda_with_the_first_one_above(monkeypatch):
    weight, packs = grid(symmetric=False)[0].bfloat16(), list[Tensor]()
    monkeypatch.setattr(
        torch.ops.aten, "_convert_weight_to_int4pack", lambda matrix, _: packs.append(matrix) or matrix
    )
    cuda_product(weight)
    q = quantised(weight)[0]
    assert torch.equal(packs[0] >> 4, q[:, ::2].byte())
    assert torch.equal(packs[0] & 15, q[:, 1::2].byte())


@pytest.mark.parametrize(
    ("machine", "kind"), [("x86_64", x86_product), ("arm64", arm_product), ("aarch64", arm_product)]
)
def test_the_processor_chooses_the_product(machine, kind, monkeypatch):
    monkeypatch.setattr(int4.platform, "machine", lambda: machine)
    weight = torch.randn(OUT, IN)
    assert torch.equal(matrix_of(int4_product(weight)), matrix_of(kind(weight)))
    assert not torch.equal(matrix_of(x86_product(weight)), matrix_of(arm_product(weight)))
    for size in ((40, 96), (48, 80), (48, 16)):
        assert not fits_int4(size)
        assert int4_product(torch.randn(size)) is None, "sizes that cannot be packed"
