"""EMS-SD's appendix B by enumeration, its example, and the fit of a series."""

from itertools import product

import pytest

from specscope.traces.papers import ems


@pytest.mark.parametrize("accuracy", [0.3, 0.8, 0.9])
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_figure_7_equals_the_enumeration_of_all_batches(accuracy, batch):
    most = 5
    lengths = {k: accuracy ** (k - 1) * (1 - accuracy) for k in range(1, most)} | {
        most: accuracy ** (most - 1)
    }
    largest = 0.0
    for sample in product(lengths, repeat=batch):
        share = 1.0
        for length in sample:
            share *= lengths[length]
        largest += share * max(sample)
    assert ems.largest_accepted(accuracy, batch, most) == pytest.approx(largest)
    mean = sum(length * share for length, share in lengths.items())
    assert ems.mean_accepted(accuracy, most) == pytest.approx(mean)
    assert ems.padding_ratio(accuracy, batch, most) == pytest.approx(largest / mean - 1, abs=1e-12)


def test_the_largest_of_two_exponential_variables_exceeds_the_mean_by_half():
    assert ems.waiting(1) == 0
    assert ems.waiting(2) == pytest.approx(0.5)
    assert ems.waiting(4) == pytest.approx(1 / 2 + 1 / 3 + 1 / 4)
