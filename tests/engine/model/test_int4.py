"""Matrices in int4: grids of GGUF files are kept, and every processor's product is near x W'."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specscope.engine.model import int4
from specscope.engine.model.int4 import (
    GROUP,
    arm_product,
    cuda_product,
    fits_int4,
    int4_product,
    quantised,
    x86_product,
)

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
