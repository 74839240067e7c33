"""DFlash, DSpark and P-EAGLE: speed-ups from printed tokens of a round that drafts in one forward.

A round takes tau tokens over the time of one draft forward and one verification, in plain steps:
the draft's is the share of its layers. Under Transformers the rest of a round is fitted once, to a
drafter of three layers; in SGLang a verification of 16 rows takes as long as the printed plain step
of 16 sequences. Tokens follow from the acceptance of each place.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from specscope.traces.facts.closed_forms import rate_of_tokens, speculative_tokens
from specscope.traces.papers.rows import Paper, TableCell, numbers, parts, row_of

_DATA = numbers("block")
_QWEN_LAYERS, _GPT_OSS_LAYERS = 36, 24
_FITTED = "3 layers", 0
_BLOCK = 16
"""Rows of a DFlash block: the last token, and a mask for each draft."""
_PEAGLE_LAYERS = 4
_TESTS = {"Math": slice(0, 3), "Code": slice(3, 6), "Chat": slice(6, 9)}
"""A domain's data sets among the columns of DSpark's Table 1."""


def one_forward(layers: int) -> float:
    """Return the plain steps of a round under Transformers, whose drafter has so many layers."""
    row, column = _FITTED
    table = _DATA["DFlash, Table 6"]
    fitted = table["tau"][row][column] / table["speed-up"][row][column]
    return fitted + (layers - int(row[0])) / _QWEN_LAYERS


def _speed_up(cell: TableCell) -> float:
    return _row(cell.line["item"], "tau", cell.row)[cell.column] / one_forward(cell.line["layers"])


def _row(item: str, part: str, row: str) -> dict[str, float]:
    return row_of(dict(parts(_DATA[item]))[part], row)


def _by_printed_steps(cell: TableCell) -> Mapping[str, float]:
    item, (target, drafter) = "DFlash, Table 3", _DATA["layers"][cell.row.partition(",")[0]]
    plain = _row(item, "plain", cell.row)
    verify, draft = _BLOCK * plain["1"] / plain[str(_BLOCK)], drafter / target
    tau = _DATA[item]["tau"][cell.row]
    return {"ours": tau / (verify + draft), "verify": verify, "draft": draft}


def _shorter_block(cell: TableCell) -> float:
    tokens = _row("DFlash, Table 6", "tau", "8 layers")[cell.column]
    return speculative_tokens(rate_of_tokens(tokens, _BLOCK - 1), _BLOCK // 2 - 1)


def _by_place(cell: TableCell, *, first: bool = False) -> Mapping[str, Any]:
    rates = _DATA["DSpark, figure 2"][f"{cell.row}, {cell.column}"]
    table = _DATA["DSpark, Table 1"][f"Qwen3 4B, {cell.column}"]
    own = rates[0] if first else tuple(rates)
    return {"published": fmean(table[_TESTS[cell.row]]), "ours": speculative_tokens(own, len(rates))}


def later_places() -> float:
    """Return DFlash's acceptance at later places over that at the first, the mean of domains."""
    rows = [row for name, row in _DATA["DSpark, figure 2"].items() if name.endswith("DFlash")]
    return fmean(fmean(row[1:]) / row[0] for row in rows)


def _gain(cell: TableCell) -> float:
    own, base = (fmean(_DATA["DSpark, Table 1"][f"{cell.column}, {name}"]) for name in ("DSpark", cell.row))
    return round(100 * (own / base - 1), 1)


def _over_eagle(cell: TableCell) -> float:
    """Return P-EAGLE's speed over EAGLE-3's, each at its best K."""
    tokens = _DATA["P-EAGLE, acceptance lengths"]

    def best(name: str, layers_of: Mapping[int, int]) -> float:
        found = zip(tokens[f"{name}, {cell.row}"], layers_of.values(), strict=True)
        return max(tau / (1 + layers / _GPT_OSS_LAYERS) for tau, layers in found)

    return best("P-EAGLE", dict.fromkeys((3, 7), _PEAGLE_LAYERS)) / best("EAGLE-3", {3: 3, 7: 7})


PAPER = Paper(
    "block",
    {
        "one forward": _speed_up,
        "printed steps": _by_printed_steps,
        "shorter block": _shorter_block,
        "by place": _by_place,
        "by the first place": lambda c: _by_place(c, first=True),
        "gain": _gain,
        "longer draft": lambda c: speculative_tokens(rate_of_tokens(c.others["K=3"], 3), 7),
        "over EAGLE-3": _over_eagle,
    },
)
