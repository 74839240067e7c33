"""EasySpec's Table 2 from times that one data set gives."""

import pytest

from specscope.traces.papers import easyspec
from specscope.traces.papers.rows import numbers


def test_table_2_decomposes_into_the_times_of_a_forward():
    """Milliseconds: an ordinary forward is Table 1's 27.2, a fuzzy one 14.1 to 15.3."""
    llama = easyspec.fitted("llama-3")
    assert 1e3 * llama.exact == pytest.approx(1e3 / 36.76, rel=0.01)
    assert 14.1 <= 1e3 * llama.fuzzy <= 15.3
    assert 82 <= 1e3 * llama.verify <= 86


def test_the_times_of_mmlu_predict_the_other_data_sets():
    judged = [row for row in easyspec.PAPER.items["Table 2"]() if row.predicted]
    assert len(judged) > 150
    assert all(row.hit for row in judged)
    assert not any("temperature 0, MMLU, +sd" in row.row for row in judged)


def test_rounds_count_the_bonus_token():
    assert easyspec.rounds(1.0) == pytest.approx(100 / 6)
    assert easyspec.rounds(0.0) == 100


def test_figure_4s_trends_are_counted_from_all_recorded_combinations():
    found = numbers("easyspec-figure-4")
    for kind in ("calibrated", "not calibrated"):
        for figure in ("accepted", "speed"):
            assert [len(row) for row in found[kind][figure].values()] == [5] * 4
    rows = {row.row: row for row in easyspec.PAPER.items["Figure 4"]()}
    assert rows["SmolLM2, calibrated, width 8, LP size 5, accepted tokens per round"].ours == 3.0
    assert not any("not calibrated" in name and "LP size 1" in name for name in rows)
    trend = rows["combinations of width and LP size in which calibration raises accepted"]
    assert (trend.published, trend.ours) == (None, 16)
