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

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from specscope.engine.simulate.profile import Profile
from specscope.traces.facts.closed_forms import rate_of_tokens, speculative_tokens
from specscope.traces.papers.rows import Paper, TableCell, numbers, row_of

_DATA = numbers("ems")
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
    greedy: dict[int, float]
    """Milliseconds of a step."""
    ours: dict[int, float]
    vanilla: dict[int, float]

    @property
    def most(self) -> int:
        """Most tokens of a step, and rows of a sample."""
        return 1 + (_DRAFTED if self.drafts else _COPIED)

    def round_ms(self, batch: int) -> float:
        rows = _row_ms(self.model) * batch * (self.most - 1)
        return self.greedy[batch] + rows + (_DRAFTED * _draft_ms(self.model, batch) if self.drafts else 0)


class SeriesFit(NamedTuple):
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


def fit(series: Series) -> SeriesFit:
    """Return tokens and spread from the smallest batch and batch 8, and w from batch 8."""
    least = min(series.ours)
    first, last = (series.ours[n] * series.round_ms(n) / series.greedy[n] for n in (least, FIT))
    begin, end = waiting(least), waiting(FIT)
    spread = max(0.0, (first - last) / (last * end - first * begin))
    tokens = first * (1 + spread * begin)
    more = (series.ours[FIT] / series.vanilla[FIT] - 1) * series.round_ms(FIT)
    return SeriesFit(tokens, spread, more / (FIT * _ratio_at(series, tokens, FIT)))


def predicted(series: Series, batch: int) -> tuple[float, float]:
    """Return the speed-ups of our method and of the vanilla method at a batch size."""
    own, time = fit(series), series.round_ms(batch)
    ours = own.tokens * series.greedy[batch] / time / (1 + own.spread * waiting(batch))
    return ours, ours * time / (time + own.weight * batch * _ratio_at(series, own.tokens, batch))


def _ratio_at(series: Series, tokens: float, batch: int) -> float:
    """Return the padding ratio of samples with so many tokens in one step."""
    accuracy = rate_of_tokens(min(tokens, series.most - 0.05), series.most - 1)
    return padding_ratio(accuracy, batch, series.most)


def largest_accepted(accuracy: float, batch: int, most: int) -> float:
    """Return the expected largest number of tokens in a batch (equations 8 and 11)."""
    return sum(1 - (1 - accuracy**k) ** batch for k in range(most))


def padding(accuracy: float, batch: int, most: int) -> float:
    """Return the expected padding tokens of a sample: the largest number less the mean (9)."""
    return largest_accepted(accuracy, batch, most) - speculative_tokens(accuracy, most - 1)


def padding_ratio(accuracy: float, batch: int, most: int) -> float:
    return padding(accuracy, batch, most) / speculative_tokens(accuracy, most - 1)


def padding_share(accuracy: float, batch: int, most: int) -> float:
    """Return the padding over the largest number of tokens (equation 10)."""
    return padding(accuracy, batch, most) / largest_accepted(accuracy, batch, most)


def _series(table: Mapping[str, Any], model: str, *, drafts: bool) -> Series:
    greedy = {int(batch): speed for batch, speed in row_of(table, "Greedy Decoding").items()}
    ours, vanilla = (
        {batch: speed / greedy[batch] for batch, speed in zip(greedy, table[name], strict=True)}
        for name in ("Our Method", "Vanilla Method")
    )
    steps = {batch: 1e3 * batch / speed for batch, speed in greedy.items()}
    return Series(model, drafts, steps, ours, vanilla)


def _table_2_series() -> Series:
    parts = {int(name): part["tokens/s"] for name, part in _DATA["Table 2"].items() if name != "columns"}
    columns = dict(zip(_DATA["Table 2"]["columns"], zip(*parts.values(), strict=True), strict=True))
    return _series({"columns": list(parts), **columns}, "opt-6.7b", drafts=False)


def _series_of(cell: TableCell) -> Series:
    """Return the series of a cell's table; a cell without one is of Table 2."""
    if not cell.part:
        return _table_2_series()
    model = cell.part if cell.part.startswith("opt") else "opt-13b"
    return _series(cell.table, model, drafts="drafter" not in cell.line)


def _speed_up(cell: TableCell, *, ours: bool) -> Mapping[str, Any]:
    series, name, batch = _series_of(cell), cell.part or "opt-6.7b", int(cell.column)
    return {
        "published": (series.ours if ours else series.vanilla)[batch],
        "ours": predicted(series, batch)[0 if ours else 1],
        "why": name if name in _DATA["why"] else "other series",
        "fitted": batch == FIT or (ours and batch == min(series.ours)),
    }


def _greedy(cell: TableCell) -> Mapping[str, Any]:
    model, batch = cell.part, int(cell.column)
    speed = batch * 1e3 / step_ms(model, batch) / (1 + ending(model) * waiting(batch))
    return {"ours": speed, "fitted": batch in (1, FIT)}


def _step_at_2(cell: TableCell) -> float:
    """Return a step at batch 2 on the data of a cell, or of Table 5: other data add to it."""
    table = _DATA["Table 5"]["MT-Bench"] if "data" in cell.line else cell.table
    return 2e3 / row_of(table, "Greedy Decoding")["2"]


@cache
def ending(model: str) -> float:
    """Return the spread of a model's output lengths, from greedy decoding at batch 8."""
    speed = row_of(_DATA["Table 4"][model], "Greedy Decoding")[str(FIT)]
    return (1e3 * FIT / speed / step_ms(model, FIT) - 1) / waiting(FIT)


def _fitted_ratio(series: Series, batch: int) -> float:
    return _ratio_at(series, fit(series).tokens, batch)


def _table_6_series(name: str) -> Series:
    tables = {"CNN/Daily Mail": _DATA["Table 4"]["opt-13b"]} | _DATA["Table 5"]
    return _series(tables[name], "opt-13b", drafts=True)


def _figure_4(cell: TableCell) -> float:
    model, way, batch = cell.row.split(", ")
    table = _DATA["Table 3" if way == "LLMA" else "Table 4"].get(model)
    series = _series(table, model, drafts=way != "LLMA") if table else _table_2_series()
    return _fitted_ratio(series, int(batch.removeprefix("batch ")))


def _accepted(step: int) -> list[int]:
    """Return the tokens that each sample of Table 1 accepts in a step."""
    table = _DATA["Table 1"]
    return [row_of(table, f"sample {number}")[f"accept {step}"] for number in (0, 1)]


def _aligned(cell: TableCell, *, padding: bool = False) -> Mapping[str, Any]:
    """Return a sample's padding of a step, or where its own cache starts after it (Figure 2)."""
    step, sample = int(cell.row), int(cell.column)
    if padding:
        accepted = _accepted(step)
        printed = _DATA["Figure 2"]["padding"][step - 1][sample]
        return {"published": printed, "ours": max(accepted) - accepted[sample]}
    ours = sum(_accepted(number)[sample] for number in range(1, step + 1))
    return {"published": _DATA["Figure 2"]["advances"][sample], "ours": ours}


def _exceeds(figure: Mapping[str, Any]) -> int:
    low, batch = round(100 * figure["ratio_accuracy"]), figure["ratio_batch"]
    return int(min(padding_ratio(p / 100, batch, figure["most"]) for p in range(10, low)) > figure["ratio"])


def _largest_less_own(cell: TableCell) -> float:
    at = cell.table["columns"].index(cell.column) - 1
    return max(_DATA["Table 1"][f"sample {number}"][at] for number in (0, 1)) - cell.table[cell.row][at]


_MOST = _DATA["Figure 7"]["most"]
PAPER = Paper(
    "ems",
    {
        "largest less own": _largest_less_own,
        "our speed-up": lambda c: _speed_up(c, ours=True),
        "vanilla speed-up": lambda c: _speed_up(c, ours=False),
        "over greedy": lambda c: round(c.column_of("tokens/s") / c.table["tokens/s"][0], 2),
        "profile's step": _greedy,
        "step": _step_at_2,
        "padding ratio, %": lambda c: 100 * _fitted_ratio(_table_6_series(c.row), FIT),
        "speed-up at batch 8": lambda c: round(_table_6_series(c.row).ours[FIT], 2),
        "padding": lambda c: _aligned(c, padding=True),
        "start": _aligned,
        "aligned start": lambda c: sum(max(_accepted(step)) for step in range(1, int(c.row) + 1)),
        "padding ratio": _figure_4,
        "step of samples": lambda c: step_ms("opt-6.7b", 16, int(c.column)),
        "fitted tokens": lambda c: fit(_series_of(c)).tokens,
        "fitted spread": lambda c: fit(_series_of(c)).spread,
        "least ratio": lambda _: _exceeds(_DATA["Figure 7"]),
        "share of padding": lambda c: padding_share(c.table["share_accuracy"], 24, _MOST),
        "largest": lambda c: largest_accepted(float(c.column), int(c.row), _MOST),
        "expected padding": lambda c: padding(float(c.column), int(c.row), _MOST),
        "expected ratio": lambda c: padding_ratio(float(c.column), int(c.row), _MOST),
    },
)
