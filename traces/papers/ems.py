"""EMS-SD: Table 1 and Figure 7 exactly; Tables 2 to 5 from two rows of each series.

A batch lasts as long as its slowest sample. If the part of a sample's steps above the least is
exponential, with share s of the mean, the slowest of B takes 1 + s (H(B) - 1) times the mean, where
H is the harmonic number. So a speed-up over greedy decoding is tokens / (k (1 + s (H(B) - 1))),
where k is a round's time over greedy decoding's step: the step that the greedy row prints, 94 us
for each row more (Figure 5, for the other models by weights), and the drafter's forwards (profile
A100-OPT). Tokens and s are fitted to batch 8 and the smallest batch of a series; the other batch
sizes are judged. The vanilla method adds w B padding_ratio(B) to a round, because the attention of
every sample reads the padded rows; w is fitted to batch 8.

The expected padding of a batch of samples that accept independently (appendix B): a sample accepts
k + 1 tokens or more with probability p^k, at most `most`. So E[tokens] is the sum of p^k over k <
most, and E[largest of B] the sum of 1 - (1 - p^k)^B.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from specscope.engine.simulate.profile import Profile
from specscope.traces.papers.rows import Paper, Row, bisect, per_cell

PAPER = Paper("ems")
_DATA = PAPER.numbers
_CONTEXT = 745
"""Cached rows of a sequence: the mean input length of CNN/Daily Mail, Table 6."""
FIT = 8
"""Batch size of the second fitted row."""
_COPIED, _DRAFTED = 7, 4
"""Tokens of a step besides the one of greedy decoding: LLMA copies 7, opt-125m drafts 4."""


class Series(NamedTuple):
    """Speed-ups of one model and method over batch sizes."""

    model: str
    drafts: bool
    """Whether opt-125m drafts; else LLMA copies."""
    batches: list[int]
    greedy: list[float]
    """In milliseconds."""
    ours: list[float]
    vanilla: list[float]

    @property
    def most(self) -> int:
        """Most tokens of a step, and rows of a sample."""
        return 1 + (_DRAFTED if self.drafts else _COPIED)

    def round_ms(self, at: int) -> float:
        batch = self.batches[at]
        rows = _row_ms(self.model) * batch * (self.most - 1)
        return self.greedy[at] + rows + (_DRAFTED * _draft_ms(self.model, batch) if self.drafts else 0)


class Fit(NamedTuple):
    """Parameters of a series."""

    tokens: float
    spread: float
    weight: float
    """Milliseconds of a sample for a padding ratio of 1."""


def waiting(batch: int) -> float:
    """Return H(B) - 1, by which the largest of B exponential variables exceeds their mean."""
    return sum(1 / k for k in range(2, batch + 1))


@cache
def _row_ms(model: str) -> float:
    one, five = _DATA["Figure 5"]["batch 16, ms"]
    profile = Profile.load("A100-OPT")
    other, own = (profile.latency(name).target for name in (model, "opt-6.7b"))
    return (five - one) / (4 * 16) * (other.weights / other.gpus) / (own.weights / own.gpus)


@cache
def _draft_ms(model: str, batch: int) -> float:
    latency = Profile.load("A100-OPT").latency(f"opt-125m-{model.removeprefix('opt-')}")
    return latency("drafter", batch, batch * _CONTEXT, batch) / 1e3


def step_ms(model: str, batch: int, rows: int = 1) -> float:
    latency = Profile.load("A100-OPT").latency(model)
    return latency("target", batch * rows, batch * _CONTEXT, batch) / 1e3


def fit(series: Series) -> Fit:
    """Return tokens and spread from the smallest batch and batch 8, and w from batch 8."""
    at = series.batches.index(FIT)
    first, last = (series.ours[i] * series.round_ms(i) / series.greedy[i] for i in (0, at))
    begin, end = waiting(series.batches[0]), waiting(FIT)
    spread = max(0.0, (first - last) / (last * end - first * begin))
    tokens = first * (1 + spread * begin)
    ratio = padding_ratio(accuracy_for(series, tokens), FIT, series.most)
    more = (series.ours[at] / series.vanilla[at] - 1) * series.round_ms(at)
    return Fit(tokens, spread, more / (FIT * ratio))


def predicted(series: Series, at: int) -> tuple[float, float]:
    """Return the speed-ups of our method and of the vanilla method, at an index of `batches`."""
    own, batch, time = fit(series), series.batches[at], series.round_ms(at)
    ours = own.tokens * series.greedy[at] / time / (1 + own.spread * waiting(batch))
    ratio = padding_ratio(accuracy_for(series, own.tokens), batch, series.most)
    return ours, ours * time / (time + own.weight * batch * ratio)


def accuracy_for(series: Series, tokens: float) -> float:
    return accuracy_of(min(tokens, series.most - 0.05), series.most)


def mean_accepted(accuracy: float, most: int) -> float:
    """Return the expected tokens of a sample in one step (equation 7)."""
    return sum(accuracy**k for k in range(most))


def largest_accepted(accuracy: float, batch: int, most: int) -> float:
    """Return the expected largest number of tokens in a batch (equations 8 and 11)."""
    return sum(1 - (1 - accuracy**k) ** batch for k in range(most))


def padding(accuracy: float, batch: int, most: int) -> float:
    """Return the expected padding tokens of a sample (equation 9)."""
    return largest_accepted(accuracy, batch, most) - mean_accepted(accuracy, most)


def padding_ratio(accuracy: float, batch: int, most: int) -> float:
    return padding(accuracy, batch, most) / mean_accepted(accuracy, most)


def padding_share(accuracy: float, batch: int, most: int) -> float:
    """Return the padding over the largest number of tokens (equation 10)."""
    return padding(accuracy, batch, most) / largest_accepted(accuracy, batch, most)


def accuracy_of(tokens: float, most: int) -> float:
    return bisect(lambda p: mean_accepted(p, most), tokens, 0, 1)


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
    columns = dict(zip(table["columns"], zip(*(table[str(b)] for b in batches), strict=True), strict=True))
    return _series({"columns": batches, **columns}, "opt-6.7b", drafts=False)


@PAPER.item("Table 1")
def _table_1() -> Iterator[Row]:
    table = _DATA["Table 1"]
    samples = [table["sample 0"], table["sample 1"]]
    for number, sample in enumerate(samples):
        for i, (column, printed) in enumerate(zip(table["columns"], sample, strict=True)):
            if i % 2:
                ours = max(other[i - 1] for other in samples) - sample[i - 1]
                yield PAPER.row(f"sample {number}, {column}", printed, ours, "largest less own")


@PAPER.item("Figure 2")
def _figure_2() -> Iterator[Row]:
    table, starts, aligned = _DATA["Table 1"], [0, 0], 0
    for step in (1, 2):
        accepted = [table[f"sample {n}"][table["columns"].index(f"accept {step}")] for n in (0, 1)]
        for number, own in enumerate(accepted):
            row, printed = f"step {step}, sample {number}", _DATA["Figure 2"]["padding"][step - 1][number]
            starts[number] += own
            padding = max(accepted) - own
            yield PAPER.row(f"{row}, padding of the aligned cache", printed, padding, "accepted tokens")
            name = f"{row}, start of its own cache"
            if step == 1:
                advance = _DATA["Figure 2"]["advances"][number]
                yield PAPER.row(name, advance, starts[number], "accepted tokens")
            else:
                yield PAPER.row(name, None, starts[number], "accepted tokens, not printed")
        aligned += max(accepted)
        name = f"step {step}, start of the aligned cache"
        yield PAPER.row(name, None, aligned, "accepted tokens, not printed")


def _speed_ups(name: str, series: Series) -> Iterator[Row]:
    why = name if name in PAPER.numbers["why"] else "other series"
    for at, batch in enumerate(series.batches):
        own, vanilla = predicted(series, at)
        row, is_fit = f"{name}, batch {batch}, speed-up of", batch in (series.batches[0], FIT)
        yield PAPER.row(f"{row} our method", series.ours[at], own, "fitted series", why, fitted=is_fit)
        if batch > 1:
            published, is_fit = series.vanilla[at], batch == FIT
            row = f"{row} the vanilla method"
            yield PAPER.row(row, published, vanilla, "fitted padding", why, fitted=is_fit)


def _greedy(name: str, table: Mapping[str, Any]) -> Iterator[Row]:
    for batch, number in zip(table["columns"], table["Greedy Decoding"], strict=True):
        ours = batch * 1e3 / step_ms(name, batch) / (1 + ending(name) * waiting(batch))
        row = f"{name}, batch {batch}, Greedy Decoding"
        yield PAPER.row(row, number, ours, "profile's step", fitted=batch in (1, FIT))
    if name == "opt-13b":
        yield from _endings()


def _endings() -> Iterator[Row]:
    """The share of a step at batch 2 that the model's own data set adds, on two data sets."""
    tables = {"CNN/Daily Mail": _DATA["Table 4"]["opt-13b"], "MT-Bench": _DATA["Table 5"]["MT-Bench"]}
    for data, table in tables.items():
        speed = table["Greedy Decoding"][table["columns"].index(2)]
        yield PAPER.row(f"opt-13b, batch 2, step on {data}, ms", None, 2e3 / speed, "ends of sequences")


@cache
def ending(model: str) -> float:
    """Return the spread of a model's output lengths, from greedy decoding at batch 8."""
    table = _DATA["Table 4"][model]
    speed = table["Greedy Decoding"][table["columns"].index(FIT)]
    return (1e3 * FIT / speed / step_ms(model, FIT) - 1) / waiting(FIT)


@PAPER.item("Table 2")
def _table_2() -> Iterator[Row]:
    yield from _speed_ups("opt-6.7b", _table_2_series())
    for batch, printed in _DATA["Table 2"].items():
        if batch != "columns":
            names = _DATA["Table 2"]["columns"]
            for name, number in zip(names, printed, strict=True):
                yield PAPER.row(f"batch {batch}, {name}, tokens/s", number, None, "tokens/s")
            ratios = _DATA["Table 2 speed-up"][batch]
            for name, number, speed in zip(names[1:], ratios, printed[1:], strict=True):
                ours = round(speed / printed[0], 2)
                yield PAPER.row(f"batch {batch}, {name}, printed speed-up", number, ours, "over greedy")


@PAPER.item("Table 3", "Table 4", "Table 5")
def _tables(item: str) -> Iterator[Row]:
    for name, table in _DATA[item].items():
        model = name if name.startswith("opt") else "opt-13b"
        yield from _speed_ups(name, _series(table, model, drafts=item != "Table 3"))
        if item == "Table 4":
            yield from _greedy(name, table)
        others = ("Our Method", "Vanilla Method", *(("Greedy Decoding",) if item != "Table 4" else ()))
        yield from PAPER.rows_of(per_cell(table, *others, label=f"{name}, {{}}, {{}}"), "tokens/s")


@PAPER.item("Table 6")
def _table_6() -> Iterator[Row]:
    tables = {"CNN/Daily Mail": _DATA["Table 4"]["opt-13b"]} | _DATA["Table 5"]
    for name, (_, _, percent, speed_up) in ((k, v) for k, v in _DATA["Table 6"].items() if k != "columns"):
        series = _series(tables[name], "opt-13b", drafts=True)
        ratio = padding_ratio(accuracy_for(series, fit(series).tokens), FIT, series.most)
        yield PAPER.row(f"{name}, padding ratio, %", percent, 100 * ratio, "fitted tokens")
        ours = round(series.ours[series.batches.index(FIT)], 2)
        yield PAPER.row(f"{name}, speed-up", speed_up, ours, "batch 8")


@PAPER.item("Figure 4")
def _figure_4() -> Iterator[Row]:
    cases = {
        "opt-13b, LLMA, batch 12": (_series(_DATA["Table 3"]["opt-13b"], "opt-13b", drafts=False), 12),
        "opt-6.7b, LLMA, batch 8": (_table_2_series(), 8),
        "opt-6.7b, opt-125m, batch 8": (_series(_DATA["Table 4"]["opt-6.7b"], "opt-6.7b", drafts=True), 8),
    }
    for name, (series, batch) in cases.items():
        ours = padding_ratio(accuracy_for(series, fit(series).tokens), batch, series.most)
        yield PAPER.row(f"padding ratio, {name}", _DATA["Figure 4"][name], ours, "appendix B")


@PAPER.item("Figure 5")
def _figure_5() -> Iterator[Row]:
    figure = _DATA["Figure 5"]
    for n, number in zip(figure["columns"], figure["batch 16, ms"], strict=True):
        yield PAPER.row(f"batch 16, {n} tokens a sample, ms", number, step_ms("opt-6.7b", 16, n), "profile")


@PAPER.item("Figure 6")
def _figure_6() -> Iterator[Row]:
    for item, drafts in (("Table 3", False), ("Table 4", True)):
        for model, table in _DATA[item].items():
            own, way = fit(_series(table, model, drafts=drafts)), "opt-125m" if drafts else "LLMA"
            yield PAPER.row(f"{model}, {way}, mean tokens of a step", None, own.tokens, "fit")
            yield PAPER.row(f"{model}, {way}, spread of steps", None, own.spread, "fit")


@PAPER.item("Figure 7")
def _figure_7() -> Iterator[Row]:
    figure = _DATA["Figure 7"]
    most, low, batch = figure["most"], figure["ratio_accuracy"], figure["ratio_batch"]
    ratio = min(padding_ratio(p / 100, batch, most) for p in range(10, round(100 * low)))
    exceeds = int(ratio > figure["ratio"])
    yield PAPER.row("ratio exceeds 0.5 below 0.8, above batch 8", 1, exceeds, "least ratio")
    share = padding_share(figure["share_accuracy"], 24, most)
    yield PAPER.row("share of padding at 0.9", figure["share"], share, "batch 24")
    for size, accuracy in product((2, 4, 8, 16, 24), (0.5, 0.6, 0.7, 0.8, 0.9)):
        largest = largest_accepted(accuracy, size, most)
        added, ratio = largest - mean_accepted(accuracy, most), padding_ratio(accuracy, size, most)
        for name, ours in (("largest", largest), ("padding", added), ("ratio", ratio)):
            yield PAPER.row(f"accuracy {accuracy}, batch {size}, {name}", None, ours, "expectations")
