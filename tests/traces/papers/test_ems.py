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


def test_a_series_is_fitted_to_its_smallest_batch_and_batch_8_only():
    rows = [row for row in ems.PAPER.items["Table 5"]() if "our method" in row.row]
    fitted = [row.row.split(", ")[1] for row in rows if row.fitted]
    assert fitted == ["batch 1", "batch 8"] * 2
    assert all(row.ours == pytest.approx(row.published) for row in rows if row.fitted)


def test_the_largest_of_two_exponential_variables_exceeds_the_mean_by_half():
    assert ems.waiting(1) == 0
    assert ems.waiting(2) == pytest.approx(0.5)
    assert ems.waiting(4) == pytest.approx(1 / 2 + 1 / 3 + 1 / 4)


def test_figure_2_writes_each_samples_rows_where_its_own_cache_ends():
    rows = {row.row: row for row in ems.PAPER.items["Figure 2"]()}
    assert [rows[f"step 2, sample {n}, start of its own cache"].ours for n in (0, 1)] == [6, 7]
    assert rows["step 2, start of the aligned cache"].ours == 10


def test_greedy_decoding_is_predicted_for_all_batch_sizes_but_two():
    """The spread of output lengths is fitted at batch 8; a model's other batch sizes are judged."""
    rows = [row for row in ems.PAPER.items["Table 4"]() if row.row.endswith("Greedy Decoding")]
    assert [row.row.split(", ")[1] for row in rows if row.fitted] == ["batch 1", "batch 8"] * 3
    assert all(abs(row.difference) < 0.1 for row in rows)
    assert ems.ending("opt-13b") > 3 * ems.ending("opt-6.7b")
