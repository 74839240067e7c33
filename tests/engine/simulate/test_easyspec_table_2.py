"""EasySpec's Table 2: three times per drafter, fitted to MMLU, predict the four other data sets."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

import pytest

from specscope.engine.simulate.profile import Profile
from specscope.traces.papers.easyspec import PAPER, rounds

PAIRS = {"llama-3": "llama-3-8-70-tp8", "qwen2": "qwen2-7-72-tp8"}
KINDS = ("drafting", "verification", "total")


def cells(model: str, on_mmlu: bool) -> Iterator[tuple[bool, float, float, float]]:
    """Yield (fuzzy drafts, seconds of drafting, of verification, rounds), per 100 tokens."""
    for name, table in PAPER.numbers["Table 2"].items():
        if name.startswith(model) and name.endswith("MMLU") == on_mmlu:
            for method in ("+sd", "+tree", "EasySpec"):
                drafting, verification, _, share = table[method]
                yield method == "EasySpec", drafting, verification, rounds(share)


def times(model: str) -> tuple[float, float, float]:
    """Return the profile's T_exact, T_fuzzy and T_verify of five drafts, in seconds."""
    latency = Profile.load("8xA100").latency(PAIRS[model])
    verify = latency("target", 6, 0) + latency.sample_us + latency.communicate_us
    return latency("drafter", 1, 0) / 1e6, latency.parallel("drafter", 1, 0, 4) / 1e6, verify / 1e6


@pytest.mark.parametrize("model", PAIRS)
def test_the_profile_has_the_times_fitted_to_mmlu(model: str):
    known = list(cells(model, on_mmlu=True))
    exact = fmean(d / n / 5 for fuzzy, d, _, n in known if not fuzzy)
    four = fmean((d / n - exact) / 4 for fuzzy, d, _, n in known if fuzzy)
    verify = fmean(v / n for _, _, v, n in known)
    assert times(model) == pytest.approx((exact, four, verify), rel=0.002)


@pytest.mark.parametrize(("model", "most"), [("llama-3", (0.05, 0.08, 0.055)), ("qwen2", (0.06, 0.05, 0.05))])
def test_the_fit_predicts_the_other_data_sets(model: str, most: tuple[float, ...]):
    """Nothing is fitted here: 24 cells of each kind, the largest difference and the mean one."""
    (exact, fuzzy, verify), found = times(model), list[tuple[float, ...]]()
    for is_fuzzy, d, v, n in cells(model, on_mmlu=False):
        drafting, verification = n * (exact + 4 * (fuzzy if is_fuzzy else exact)), n * verify
        found.append((drafting / d - 1, verification / v - 1, (drafting + verification) / (d + v) - 1))
    assert len(found) == 24
    for kind, values, bound in zip(KINDS, zip(*found, strict=True), most, strict=True):
        assert max(map(abs, values)) < bound, kind
        assert abs(fmean(values)) < 0.03, kind
