"""PEARL: all tables from the four rates of Table 7, and the speeds of Table 10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

from specscope.traces.facts.closed_forms import pearl_tokens, speculative_tokens
from specscope.traces.papers import pearl_speeds as speeds
from specscope.traces.papers.pearl_speeds import PublishedPair, latency, pair_of
from specscope.traces.papers.rows import Paper, TableCell, numbers, row_of

_DATA = numbers("pearl")
_SD = "Speculative Decoding"
_WAYS = {
    "PEARL w/o pre-verify": speeds.without_pre_verify,
    "PEARL w/o post-verify": speeds.without_post_verify,
    "PEARL": speeds.pearl,
}
_FITS = {"HumanEval": ("Table 1", 2), "GSM8K": ("Table 2", 0), "MT-Bench": ("Table 3", -1)}
"""Speculative decoding's speed-up on the data of Table 6: table and column."""


def _llama(cell: TableCell) -> tuple[str, float]:
    """Return a table's Llama pair, and the mean of speculative decoding there."""
    return "llama-3.1-8-70" if "3.1" in cell.part else "llama-2-7-70", float(cell.table[_SD][-1])


def _mean(cell: TableCell) -> Mapping[str, Any]:
    pair = pair_of(*_llama(cell))
    name = f"{cell.part} {_SD}".strip()
    return {"ours": speeds.best_speculative(pair) if cell.row == _SD else speeds.pearl(pair), "mean": name}


def _varying(pair: PublishedPair, speed_up: float) -> float:
    return speeds.pearl_varying(pair, speeds.runs_of_speed(pair, speed_up))


def _run(pair: str) -> float:
    """Return the mean run of accepted tokens, which Table 7 prints."""
    return row_of(_DATA["Table 7"], "Ours")[pair]


def _ablation(cell: TableCell) -> float:
    fit = float(_DATA["Table 2"][_SD][0]) if cell.column.startswith("llama") else None
    return _WAYS[cell.row](pair_of(cell.column, fit))


def _of_data(cell: TableCell) -> Mapping[str, Any]:
    table, at = _FITS[cell.column]
    pair = pair_of("llama-2-7-70", float(_DATA[table][_SD][at]))
    return {"ours": speeds.pearl(pair, int(cell.row)) * 1e3 / pair.target, "table": table}


def _competition(cell: TableCell) -> Mapping[str, Any]:
    return {
        "published": (cell.number or 0.0) / cell.column_of("separate"),
        "ours": speeds.pipeline(cell.part),
    }


def _ratio_of_runs(cell: TableCell) -> float:
    rate, window = pair_of(cell.column).rate, pair_of(cell.column).window
    return speculative_tokens(rate, window) / pearl_tokens(rate, window)


def _part_of_a_step(cell: TableCell) -> float:
    pair, times = pair_of(cell.column), latency(cell.column)
    parts = {
        "communication": times.communicate_us / 1e3,
        "verify": times.sample_us / 1e3,
        "draft": pair.window * pair.drafter,
        "target": pair.target,
    }
    return parts[cell.row]


def _idle(cell: TableCell) -> float:
    """Return the target's idle share, which shows Figure 1's claim that waiting ends."""
    pair = pair_of(cell.row)
    serial = speeds.best_gamma(cell.row) * pair.drafter + pair.target + pair.step
    return 1 - pair.target / (serial if cell.column == "SD" else speeds.together(pair, pair.window))


class PearlStep(NamedTuple):
    """A step of PEARL: tokens by which the output grows, and whether post-verify is next."""

    added: int
    post: bool


def followed(chunks: Sequence[Sequence[object]], text: Sequence[object]) -> list[PearlStep]:
    """Return the steps of PEARL (algorithm 2) for the drafts of each step and the target's text."""
    pending, length, steps = list[object](), 0, list[PearlStep]()
    for chunk in chunks:
        judged = [*pending, chunk[0]]
        same = [a == b for a, b in zip(judged, text[length:], strict=False)]
        right = same.index(False) if False in same else len(judged)
        pending = [*chunk[1:]] if right == len(judged) else []
        steps.append(PearlStep(min(right + 1, len(judged)), right == len(judged)))
        length += steps[-1].added
    return steps


def _table_9(cell: TableCell) -> PearlStep:
    table = cell.table
    return followed([draft.split() for draft in table["drafts"]], table["text"].split())[int(cell.column)]


def _figure_3(cell: TableCell) -> list[int]:
    return [step.added for step in followed(cell.table["right"], [True] * cell.table["total"])]


def _cache_gb(cell: TableCell) -> float:
    drafter = latency("llama-3.1-8-70").drafter
    assert drafter is not None
    return round(drafter.kv_bytes * cell.table["rows"] / 1e9, 2)


def _over_nvlink(cell: TableCell) -> float:
    return round(cell.table["kv_gb"] / latency("llama-3.1-8-70").hardware.link_gb_s * 1e3, 2)


def _at_gamma(pair: PublishedPair, gamma: str, *, plain: bool = False) -> float:
    return (speeds.speculative if plain else speeds.pearl)(pair, int(gamma)) * 1e3 / pair.target


PAPER = Paper(
    "pearl",
    {
        "speculative": lambda c: speeds.at_printed_gamma(pair_of(c.column), c.column),
        "assisted": lambda c: speeds.assisted(pair_of(c.column)),
        "PEARL": lambda c: speeds.pearl(pair_of(c.column)),
        "varying, mean run": lambda c: speeds.pearl_varying(
            pair_of(c.column), speeds.runs_of_mean(_run(c.column))
        ),
        "most, mean run": lambda c: speeds.most_varying(pair_of(c.column), _run(c.column)),
        "varying, speed-up": lambda c: _varying(pair_of(c.column), c.column_of(_SD)),
        "mean": _mean,
        "varying, mean": lambda c: _varying(pair_of(_llama(c)[0]), _llama(c)[1]),
        "ablation": _ablation,
        "tokens/s at gamma": lambda c: _at_gamma(pair_of(c.column), c.row),
        "tokens/s of the data": _of_data,
        "accepted by SD": lambda c: (
            speculative_tokens(pair_of(c.column).rate, speeds.best_gamma(c.column)) - 1
        ),
        "accepted by PEARL": lambda c: pair_of(c.column).rate / (1 - pair_of(c.column).rate),
        "pipeline": _competition,
        "step of Table 9": lambda c: _table_9(c).added,
        "mode of Table 9": lambda c: {
            "published": c.column_of("post"),
            "ours": _table_9(c).post,
        },
        "profile's speed": lambda c: speeds.models()[c.column].speed,
        "window": lambda c: pair_of(c.row).window,
        "draft runs": lambda c: pair_of(c.column).window * c.column_of(c.row.replace("Draft", "Target")),
        "ratio of runs": _ratio_of_runs,
        "SD's tokens/s": lambda c: _at_gamma(pair_of(c.part), c.column, plain=True),
        "part of a step": _part_of_a_step,
        "moved cache": lambda c: latency("llama-3.1-8-70").move_us("drafter", int(c.column)) / 1e3,
        "idle": _idle,
        "c of Figure 2": lambda _: pair_of("codellama-7-34").c,
        "drafting of Figure 2": lambda c: c.table["drafts"] / pair_of("codellama-7-34").c,
        "spread of runs": lambda c: (rate := pair_of(c.row).rate) ** 0.5 / (1 - rate),
        "step of Figure 3": lambda c: _figure_3(c)[int(c.column) - 1],
        "total of Figure 3": lambda c: sum(_figure_3(c)),
        "size of a cache": _cache_gb,
        "time over NVLink": _over_nvlink,
        "GPU of the target": lambda c: int(c.column) // c.table["c"],
        "GPU of the drafter": lambda c: (
            c.table["gpus"] - 1 if int(c.column) < ceil(c.table["c"] / 2) * c.table["gpus"] else 0
        ),
    },
)
