"""The figures of requests under load, by method and batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.bounds import MOST_SEQUENCES
from engine.errors import UsageError, shown
from engine.methods import BASELINE
from engine.types import check_range
from traces.requests import figures, load_of, stops_paying
from traces.view.settings import models_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine.trace.trace import Trace

COLUMNS = (
    ("tokens/s", "tokens_per_second", ".1f"),
    ("busy tok/s", "busy_tokens_per_second", ".1f"),
    ("TTFT ms", "ttft_ms", ".1f"),
    ("p95", "ttft_p95_ms", ".1f"),
    ("TPOT ms", "tpot_ms", ".2f"),
    ("p95", "tpot_p95_ms", ".2f"),
    ("ITL ms", "itl_ms", ".2f"),
    ("p95", "itl_p95_ms", ".2f"),
    ("good", "good_share", ".0%"),
    ("goodput/s", "goodput", ".3g"),
)
"""Title, figure and form of each column."""
TITLES = (
    ("busy_tokens_per_second", "tokens/s while busy, {clock}"),
    ("goodput", "goodput, requests/s"),
    ("ttft_p95_ms", "time to first token, p95 ms"),
    ("tpot_p95_ms", "time per output token, p95 ms"),
)
"""Figure and title of each chart."""


def batch_sizes(text: str, name: str) -> list[int]:
    """Return batch sizes in ascending order.

    Args:
        text: Whole numbers, separated by commas.
        name: What they are called in messages.

    Raises:
        UsageError: One is no whole number, or out of range.
    """
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"{name} is {shown(text)}; it must be whole numbers, as in 1,2,4") from None
    check_range(name, sizes[0], 1, MOST_SEQUENCES)
    check_range(name, sizes[-1], 1, MOST_SEQUENCES)
    return sizes


def result_of(
    cells: Mapping[str, Mapping[int, Trace]],
    left_out: Mapping[str, str],
    ttft_ms: float,
    tpot_ms: float,
    warning: str,
) -> dict[str, Any]:
    """Return the JSON object of the command.

    Args:
        cells: The runs by method and batch size, at least the baseline's first one.
        left_out: Why a method was not run.
        ttft_ms: Limit of a good request's time to first token.
        tpot_ms: Limit of its mean time per further token.
        warning: A sentence about the machine or the run; may be empty.
    """
    known = {
        key: {batch: figures(trace, ttft_ms, tpot_ms) for batch, trace in runs.items()}
        for key, runs in cells.items()
        if runs
    }
    first = next(iter(cells[BASELINE].values()))
    load, header = load_of(first.header), first.header
    assert load is not None, "every run of this command has a load"
    return {
        "models": models_text(header),
        "clock": header.clock,
        "virtual": header.virtual,
        "requests": len(load.arrivals),
        "arrivals": [time / 1e9 for time in load.arrivals],
        "chunk": load.chunk,
        "limits": {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms},
        "methods": {
            key: {
                "config": cells[key][next(iter(runs))].header.config,
                "lossless": cells[key][next(iter(runs))].header.lossless,
                "stops_paying_at": None if key == BASELINE else stops_paying(runs, known[BASELINE]),
                "batches": {
                    str(batch): {"run": cells[key][batch].header.run_id, **row} for batch, row in runs.items()
                },
            }
            for key, runs in known.items()
        },
        "left_out": dict(left_out),
        "warning": warning or None,
    }


def verdicts(result: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each method: where its throughput falls below plain decoding's."""
    lines = list[str]()
    for key, method in result["methods"].items():
        at, batches = method["stops_paying_at"], list(method["batches"])
        if key != BASELINE and at is None:
            lines.append(f"{key} pays at every batch size measured, up to {batches[-1]}")
        elif key != BASELINE:
            lines.append(f"{key} stops paying at batch size {at}: plain decoding has more busy tok/s there")
    return lines
