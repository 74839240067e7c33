"""The largest numbers of long rows are those of `Tensor.topk`."""

from __future__ import annotations

import pytest
import torch

from specscope.engine.sampling.draws import LONG, SPREAD, largest


@pytest.mark.parametrize("width", [1, 100, LONG, LONG + SPREAD, LONG + 1, 49152])
@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("k", [1, 5, 16, 64])
def test_they_are_those_of_topk(width: int, count: int, k: int) -> None:
    rows, k = torch.randn(count, width), min(k, width)
    values, columns = largest(rows, k)
    assert torch.equal(values, rows.topk(k).values)
    assert torch.equal(rows.gather(1, columns), values)
    assert all(len(set(row)) == k for row in columns.tolist()), "no column twice"


def test_equal_numbers_are_listed_once_each_and_what_is_no_number_is_first() -> None:
    rows = torch.zeros(2, LONG)
    _, columns = largest(rows, 7)
    assert all(len(set(row)) == 7 for row in columns.tolist())
    rows[1, 3000] = torch.nan
    values, columns = largest(rows, 2)
    assert values[1, 0].isnan()
    assert int(columns[1, 0]) == 3000
