"""EasySpec's Table 2: three times per drafter, fitted to MMLU, predict the four other data sets."""

from __future__ import annotations

from statistics import fmean

import pytest

from specscope.engine.simulate.profile import Profile

METHODS = ("+sd", "+tree", "EasySpec")
PAIRS = {"Llama": "llama-3-8-70-tp8", "Qwen2": "qwen2-7-72-tp8"}
# Models, data set, temperature | of each method: seconds of drafting and of verification per
# 100 tokens, accepted share.
TABLE_2 = """
Llama MMLU 0 | 3.52 2.15 0.57 | 2.52 1.59 0.88 | 1.70 1.73 0.82
Llama MMLU 0.8 | 3.09 1.93 0.67 | 2.49 1.54 0.94 | 1.59 1.63 0.89
Llama HumanEval 0 | 2.93 1.79 0.74 | 2.53 1.58 0.92 | 1.61 1.57 0.87
Llama HumanEval 0.8 | 2.94 1.81 0.73 | 2.47 1.49 0.96 | 1.53 1.49 0.94
Llama MATH 0 | 2.96 1.74 0.73 | 2.50 1.47 0.95 | 1.58 1.55 0.91
Llama MATH 0.8 | 2.81 1.65 0.78 | 2.44 1.45 0.97 | 1.52 1.48 0.94
Llama IFEval 0 | 3.68 2.16 0.55 | 2.53 1.55 0.89 | 1.68 1.65 0.82
Llama IFEval 0.8 | 3.08 1.87 0.67 | 2.45 1.46 0.97 | 1.52 1.50 0.92
Llama MGSM 0 | 2.66 1.61 0.80 | 2.45 1.48 0.96 | 1.55 1.51 0.93
Llama MGSM 0.8 | 2.54 1.55 0.84 | 2.30 1.44 0.98 | 1.52 1.49 0.96
Qwen2 MMLU 0 | 3.32 2.25 0.52 | 2.38 1.62 0.85 | 1.65 1.70 0.80
Qwen2 MMLU 0.8 | 2.90 1.93 0.65 | 2.14 1.48 0.95 | 1.49 1.54 0.93
Qwen2 HumanEval 0 | 2.82 1.83 0.69 | 2.26 1.51 0.95 | 1.48 1.54 0.91
Qwen2 HumanEval 0.8 | 2.54 1.63 0.80 | 2.08 1.45 0.97 | 1.45 1.46 0.97
Qwen2 MATH 0 | 2.48 1.65 0.78 | 2.20 1.45 0.96 | 1.44 1.47 0.95
Qwen2 MATH 0.8 | 2.44 1.54 0.85 | 2.09 1.40 0.99 | 1.43 1.44 0.98
Qwen2 IFEval 0 | 4.24 2.80 0.39 | 2.80 1.84 0.72 | 1.87 1.94 0.67
Qwen2 IFEval 0.8 | 3.24 2.14 0.56 | 2.17 1.51 0.91 | 1.53 1.58 0.87
Qwen2 MGSM 0 | 2.62 1.75 0.72 | 2.12 1.50 0.94 | 1.54 1.57 0.88
Qwen2 MGSM 0.8 | 2.68 1.72 0.76 | 2.08 1.45 0.97 | 1.46 1.50 0.94
"""

Cell = tuple[float, float, float]


def cells(model: str, datasets: str) -> list[tuple[str, Cell]]:
    """Return (method, (drafting, verification, accepted share)) of a model's rows."""
    rows = [[part.split() for part in row.split("|")] for row in TABLE_2.strip().splitlines()]
    return [
        (method, (float(cell[0]), float(cell[1]), float(cell[2])))
        for (name, dataset, _), *found in rows
        if name == model and dataset in datasets.split()
        for method, cell in zip(METHODS, found, strict=True)
    ]


def rounds(share: float) -> float:
    """Return the rounds per 100 tokens: five drafts, and a token of the target's own."""
    return 100 / (1 + 5 * share)


def fitted(model: str) -> tuple[float, float, float]:
    """Return T_exact, T_fuzzy and T_verify on MMLU, in milliseconds."""
    drafting = [(method, 1000 * d / rounds(a)) for method, (d, _, a) in cells(model, "MMLU")]
    exact = fmean(ms / 5 for method, ms in drafting if method != "EasySpec")
    fuzzy = fmean((ms - exact) / 4 for method, ms in drafting if method == "EasySpec")
    return exact, fuzzy, fmean(1000 * v / rounds(a) for _, (_, v, a) in cells(model, "MMLU"))


def times(model: str) -> tuple[float, float, float]:
    """Return the profile's T_exact, T_fuzzy and T_verify of five drafts, in milliseconds."""
    latency = Profile.load("8xA100").latency(PAIRS[model])
    verify = latency("target", 6, 0) + latency.sample_us + latency.communicate_us
    exact, fuzzy = latency("drafter", 1, 0), latency.parallel("drafter", 1, 0, 4)
    return exact / 1000, fuzzy / 1000, verify / 1000


@pytest.mark.parametrize("model", PAIRS)
def test_the_profile_has_the_times_fitted_to_mmlu(model: str):
    assert times(model) == pytest.approx(fitted(model), rel=0.002)


def differences(model: str, datasets: str) -> dict[str, list[float]]:
    """Return predicted / published - 1 of all cells: of drafting, verification and their sum."""
    exact, fuzzy, verify = times(model)
    found: dict[str, list[float]] = {"drafting": [], "verification": [], "total": []}
    for method, (d, v, share) in cells(model, datasets):
        n = rounds(share) / 1000
        drafting = n * (exact + 4 * fuzzy if method == "EasySpec" else 5 * exact)
        found["drafting"].append(drafting / d - 1)
        found["verification"].append(n * verify / v - 1)
        found["total"].append((drafting + n * verify) / (d + v) - 1)
    return found


@pytest.mark.parametrize(
    ("model", "most"),
    [
        ("Llama", {"drafting": 0.05, "verification": 0.08, "total": 0.055}),
        ("Qwen2", {"drafting": 0.06, "verification": 0.05, "total": 0.05}),
    ],
)
def test_the_fit_predicts_the_other_data_sets(model: str, most: dict[str, float]):
    """Nothing is fitted here: 24 cells of each kind, the largest difference and the mean one."""
    found = differences(model, "HumanEval MATH IFEval MGSM")
    assert {kind: len(values) for kind, values in found.items()} == dict.fromkeys(most, 24)
    for kind, values in found.items():
        assert max(map(abs, values)) < most[kind], kind
        assert abs(fmean(values)) < 0.03, kind
