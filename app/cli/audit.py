"""Audit the acceptance of stored runs: expected by the recorded rule, and accepted; pooled, too."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from specscope.app.cli import common
from specscope.app.cli.options import DATABASE, JSON

if TYPE_CHECKING:
    from specscope.traces.view.audit import AuditView, PartView

UNKNOWN = "no test has a known chance: rule, temperature or p are not recorded, or nothing was tested"
RUNS = "id of a stored run; several are audited as one, for runs that are too small alone"
OPTIONS = ({"runs": ({"nargs": "+"}, "RUN", RUNS)}, DATABASE, JSON)


def run(args: argparse.Namespace) -> int:
    from specscope.traces.view.audit import audit_view

    found = audit_view(*common.load_runs(args, args.runs).values())
    return common.answer(args, {"runs": args.runs, "audit": found}, _lines(found) if found else [UNKNOWN])


def _lines(found: AuditView) -> Iterator[str]:
    yield f"{'':28}{'tested':>8}{'expected':>18}{'accepted':>10}{'z':>8}"
    yield from map(_line, (found["whole"], *found["places"], *found["stretches"]))
    yield found["sentence"] or f"No contradiction to {' or '.join(found['rules'])}."


def _line(part: PartView) -> str:
    low, high = part["low"], part["high"]
    expected = f"{low:.1f}" if high - low < 0.05 else f"{low:.1f} to {high:.1f}"
    z = "-" if part["z"] is None else f"{part['z']:.1f}"
    return f"{part['name']:28}{part['tested']:>8}{expected:>18}{part['kept']:>10}{z:>8}"
