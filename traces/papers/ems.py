"""EMS-SD: Table 1 and Figure 7 exactly; Tables 2 to 5 from two rows of each series."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

from traces.papers.ems_speeds import (
    FIT,
    Series,
    accuracy_for,
    fit,
    largest_accepted,
    mean_accepted,
    padding_ratio,
    padding_share,
    predicted,
    step_ms,
    waiting,
)
from traces.papers.rows import Paper, Row, numbers, published_only, rows

_DATA = numbers("ems")
_TPS = "Greedy decoding is an input; the other rows are judged as speed-ups over it."

_REASONS = {
    "GSM8K": "the fit uses batch 1, whose greedy row (79.11 tokens/s) contradicts the row at batch 2 (89.24).",
    "MT-Bench": "the print hardly falls up to batch 8 (2.55, 2.66, 2.62, 2.49) and fast after it (2.26, 2.00, 1.92, "
    "1.87), which no spread of steps gives.",
    "opt-13b": "the print falls from 1.62 to 1.39 between batch 12 and 16, and then stays (1.37, 1.31).",
}
"""Why predictions of a series miss."""


def _series(table: Mapping[str, Any], model: str, *, drafts: bool) -> Series:
    greedy = table["Greedy Decoding"]
    ours, vanilla = (
        [a / b for a, b in zip(table[name], greedy, strict=True)] for name in ("Our Method", "Vanilla Method")
    )
    steps = [1e3 * batch / speed for batch, speed in zip(table["columns"], greedy, strict=True)]
    return Series(model, drafts, list(table["columns"]), steps, ours, vanilla)


def _table_2_series() -> Series:
    table = _DATA["Table 2"]
    batches = [int(key) for key in table if key != "columns"]
    greedy, vanilla, _, _, ours = zip(*(table[str(b)] for b in batches), strict=True)
    return _series(
        {"columns": batches, "Greedy Decoding": greedy, "Vanilla Method": vanilla, "Our Method": ours},
        "opt-6.7b",
        drafts=False,
    )


def _table_1() -> Iterator[Row]:
    table = _DATA["Table 1"]
    samples = [table["sample 0"], table["sample 1"]]
    for number, sample in enumerate(samples):
        for i, (column, printed) in enumerate(zip(table["columns"], sample, strict=True)):
            if i % 2:
                ours = max(other[i - 1] for other in samples) - sample[i - 1]
                text = "The batch's largest number less the sample's own."
                yield Row(f"sample {number}, {column}", printed, ours, "exact", text)


def _figure_2() -> Iterator[Row]:
    """Where Table 1's samples write their KV rows: aligned (above), or each for itself (below)."""
    table, starts, aligned = _DATA["Table 1"], [0, 0], 0
    text = (
        "Table 1's accepted tokens: a sample's own, less the batch's largest for the padding (section 3.2)."
    )
    for step in (1, 2):
        accepted = [table[f"sample {n}"][table["columns"].index(f"accept {step}")] for n in (0, 1)]
        for number, own in enumerate(accepted):
            row, printed = f"step {step}, sample {number}", _DATA["Figure 2"]["padding"][step - 1][number]
            starts[number] += own
            yield Row(f"{row}, padding of the aligned cache", printed, max(accepted) - own, "exact", text)
            if step == 1:
                printed = _DATA["Figure 2"]["advances"][number]
                yield Row(f"{row}, start of its own cache", printed, starts[number], "exact", text)
            else:
                yield Row(f"{row}, start of its own cache", None, starts[number], "closed form", text)
        aligned += max(accepted)
        yield Row(f"step {step}, start of the aligned cache", None, aligned, "closed form", text)


def _speed_ups(name: str, series: Series) -> Iterator[Row]:
    text = "Tokens and spread fitted to batch 8 and the smallest batch; greedy steps as printed, rows by Figure 5."
    reason = _REASONS.get(
        name, "the samples' steps are not exponential: Figure 6 shows some that are much faster."
    )
    about = "The same, and w B padding_ratio(B) more for a round; w is fitted to batch 8."
    for at, batch in enumerate(series.batches):
        own, vanilla = predicted(series, at)
        is_fit = batch in (series.batches[0], FIT)
        row = f"{name}, batch {batch}, speed-up of"
        yield Row(f"{row} our method", series.ours[at], own, "closed form", text, reason, is_fit)
        if batch > 1:
            published = series.vanilla[at]
            name_2, fit_2 = f"{row} the vanilla method", batch == FIT
            yield Row(name_2, published, vanilla, "closed form", about, reason, fit_2)


def _greedy(name: str, table: Mapping[str, Any]) -> Iterator[Row]:
    text = (
        "A step of the profile, and sequences that end early, with a spread fitted to the model at batch 8. The "
        "profile's step at batch 1 is the printed one."
    )
    for batch, number in zip(table["columns"], table["Greedy Decoding"], strict=True):
        ours = batch * 1e3 / step_ms(name, batch) / (1 + ending(name) * waiting(batch))
        row = f"{name}, batch {batch}, Greedy Decoding"
        yield Row(row, number, ours, "closed form", text, fitted=batch in (1, FIT))
    if name == "opt-13b":
        yield from _endings()


def _endings() -> Iterator[Row]:
    """The share of a step at batch 2 that the model's own data set adds, on two data sets."""
    text = (
        "No number printed: milliseconds of greedy decoding's step at batch 2. The same model and GPUs, 525 cached rows "
        "less: what differs is how unequally the sequences end."
    )
    for data, table in (
        ("CNN/Daily Mail", _DATA["Table 4"]["opt-13b"]),
        ("MT-Bench", _DATA["Table 5"]["MT-Bench"]),
    ):
        speed = table["Greedy Decoding"][table["columns"].index(2)]
        yield Row(f"opt-13b, batch 2, step on {data}, ms", None, 2e3 / speed, "closed form", text)


@cache
def ending(model: str) -> float:
    """Return the spread of a model's output lengths, from greedy decoding at batch 8."""
    table = _DATA["Table 4"][model]
    speed = table["Greedy Decoding"][table["columns"].index(FIT)]
    return (1e3 * FIT / speed / step_ms(model, FIT) - 1) / waiting(FIT)


def _table_2() -> Iterator[Row]:
    yield from _speed_ups("opt-6.7b", _table_2_series())
    for batch, printed in _DATA["Table 2"].items():
        if batch != "columns":
            names = _DATA["Table 2"]["columns"]
            for name, number in zip(names, printed, strict=True):
                yield Row(f"batch {batch}, {name}, tokens/s", number, None, "published only", _TPS)
            ratios = _DATA["Table 2 speed-up"][batch]
            entries = (
                (f"batch {batch}, {name}, printed speed-up", number, round(speed / printed[0], 2))
                for name, number, speed in zip(names[1:], ratios, printed[1:], strict=True)
            )
            yield from rows(entries, "arithmetic", "The row's tokens/s over greedy decoding's.")


def _tables(item: str, *, drafts: bool) -> Iterator[Row]:
    for name, table in _DATA[item].items():
        model = name if name.startswith("opt") else "opt-13b"
        yield from _speed_ups(name, _series(table, model, drafts=drafts))
        if item == "Table 4":
            yield from _greedy(name, table)
        others = ("Our Method", "Vanilla Method", *(("Greedy Decoding",) if item != "Table 4" else ()))
        for row in published_only(table, _TPS, *others):
            yield replace(row, row=f"{name}, {row.row}")


def _table_6() -> Iterator[Row]:
    text = "Mean tokens fitted in Tables 4 and 5; the padding ratio of appendix B at batch 8."
    reason = (
        "appendix B has one accuracy for all samples and steps; the printed ratio is a mean over samples, and GSM8K's "
        "89 % and MT-Bench's 13 % at similar speed-ups show that accuracy differs within a batch."
    )
    tables = {"CNN/Daily Mail": _DATA["Table 4"]["opt-13b"]} | _DATA["Table 5"]
    for name, (_, _, percent, speed_up) in ((k, v) for k, v in _DATA["Table 6"].items() if k != "columns"):
        series = _series(tables[name], "opt-13b", drafts=True)
        ratio = padding_ratio(accuracy_for(series, fit(series).tokens), FIT, series.most)
        yield Row(f"{name}, padding ratio, %", percent, 100 * ratio, "closed form", text, reason)
        ours = round(series.ours[series.batches.index(FIT)], 2)
        about = "Tables 4 and 5 at batch 8, tokens/s over greedy decoding's."
        yield Row(f"{name}, speed-up", speed_up, ours, "arithmetic", about)


def _figure_4() -> Iterator[Row]:
    text = "The padding ratio of appendix B; the accuracy follows from the tokens fitted to the series."
    reason = "the text prints a bound that the ratio exceeds, not the ratio."
    cases = {
        "opt-13b, LLMA, batch 12": (_series(_DATA["Table 3"]["opt-13b"], "opt-13b", drafts=False), 12),
        "opt-6.7b, LLMA, batch 8": (_table_2_series(), 8),
        "opt-6.7b, opt-125m, batch 8": (_series(_DATA["Table 4"]["opt-6.7b"], "opt-6.7b", drafts=True), 8),
    }
    for name, (series, batch) in cases.items():
        ours = padding_ratio(accuracy_for(series, fit(series).tokens), batch, series.most)
        yield Row(f"padding ratio, {name}", _DATA["Figure 4"][name], ours, "closed form", text, reason)


def _figure_5() -> Iterator[Row]:
    figure = _DATA["Figure 5"]
    steps = (
        (f"batch 16, {n} tokens a sample, ms", number, step_ms("opt-6.7b", 16, n))
        for n, number in zip(figure["columns"], figure["batch 16, ms"], strict=True)
    )
    text = "An input of the profile A100-OPT, which is measured there."
    return rows(steps, "closed form", text, fitted=True)


def _figure_6() -> Iterator[Row]:
    for item, drafts in (("Table 3", False), ("Table 4", True)):
        for model, table in _DATA[item].items():
            own = fit(_series(table, model, drafts=drafts))
            way = "opt-125m" if drafts else "LLMA"
            text = "No numbers in the text: what the fit of the series gives."
            yield Row(f"{model}, {way}, mean tokens of a step", None, own.tokens, "closed form", text)
            yield Row(f"{model}, {way}, spread of steps", None, own.spread, "closed form", text)


def _figure_7() -> Iterator[Row]:
    figure = _DATA["Figure 7"]
    most, low, batch = figure["most"], figure["ratio_accuracy"], figure["ratio_batch"]
    ratio = min(padding_ratio(p / 100, batch, most) for p in range(10, round(100 * low)))
    text = "Least ratio over accuracies 0.10 to 0.79 at batch 9: the claim is that it exceeds 0.5."
    yield Row("ratio exceeds 0.5 below 0.8, above batch 8", 1, int(ratio > figure["ratio"]), "exact", text)
    share = padding_share(figure["share_accuracy"], 24, most)
    text = "Padding over the largest number of tokens at batch 24."
    yield Row("share of padding at 0.9", figure["share"], share, "closed form", text)
    text = "E[largest] is the sum of 1 - (1 - p^k)^B, exact; the figure prints no numbers."
    for size, accuracy in product((2, 4, 8, 16, 24), (0.5, 0.6, 0.7, 0.8, 0.9)):
        largest = largest_accepted(accuracy, size, most)
        added, ratio = largest - mean_accepted(accuracy, most), padding_ratio(accuracy, size, most)
        for name, ours in (("largest", largest), ("padding", added), ("ratio", ratio)):
            yield Row(f"accuracy {accuracy}, batch {size}, {name}", None, ours, "closed form", text)


PAPER = Paper(
    "ems",
    {
        "Table 1": _table_1,
        "Table 2": _table_2,
        "Table 3": lambda: _tables("Table 3", drafts=False),
        "Table 4": lambda: _tables("Table 4", drafts=True),
        "Table 5": lambda: _tables("Table 5", drafts=True),
        "Table 6": _table_6,
        "Figure 2": _figure_2,
        "Figure 4": _figure_4,
        "Figure 5": _figure_5,
        "Figure 6": _figure_6,
        "Figure 7": _figure_7,
    },
)
