"""The curves of a head's training."""

from __future__ import annotations

from pathlib import Path

from engine.plot import Line, Panel, draw
from engine.training.loop import LOG, MEASURED, read_log

PLOT = "curves.svg"


def training_curves(out: Path) -> str:
    losses, measured = read_log(out / LOG), read_log(out / MEASURED)
    size = max(1, len(losses) // 100)
    means = [
        (float(part[-1]["step"]), sum(row["loss"] for row in part) / len(part))
        for part in (losses[a : a + size] for a in range(0, len(losses), size))
    ]
    lines = [
        Line(
            f"token {k + 1}",
            [(float(row["step"]), r) for row in measured if (r := row["rates"][k]) is not None],
        )
        for k in range(len(measured[0]["rates"]) if measured else 0)
    ]
    title = losses[0]["phase"] if losses else ""
    return draw(
        (
            Panel(f"{title}: loss", "step", [Line("loss", means)]),
            Panel("acceptance of token k", "step", lines),
        )
    )
