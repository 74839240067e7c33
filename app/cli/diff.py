"""Show where two stored runs differ: first token, time per device and kind of work, conditions."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from specscope.app.cli import common
from specscope.app.cli.options import DATABASE, JSON, Options

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace
    from specscope.traces.judge.diff import Diff, FirstDifference, Waterfall
RUNS: Options = {
    "first": (str, "RUN1", "id of a stored run"),
    "second": (str, "RUN2", "id of the run compared with it"),
}
OPTIONS = (RUNS, DATABASE, JSON)


def run(args: argparse.Namespace) -> int:
    from specscope.traces.judge.diff import diff

    names = [args.first, args.second]
    stored = common.load_runs(args, names)
    traces = [stored[name] for name in names]
    found = diff(*traces)
    heads = [
        f"{name}: {' · '.join(filter(None, _about(trace)))} · {tokens} tokens in {time / 1e6:.1f} ms of decoding"
        for name, trace, tokens, time in zip(names, traces, found.tokens, found.decode, strict=True)
    ]
    return common.answer(args, found.to_dict(), chain(heads, _lines(found)))


def _about(trace: Trace) -> tuple[str, str, str]:
    from specscope.traces.facts.settings import models_text

    return trace.header.title, models_text(trace.header), trace.header.clock


def _lines(found: Diff) -> Iterator[str]:
    if found.not_comparable:
        yield f"speeds cannot be compared: different {', '.join(found.not_comparable)}"
    yield from found.notes
    for waterfall in found.waterfalls:
        yield from _waterfall(waterfall, found.difference)
    yield from _token(found.first_difference)


def _waterfall(waterfall: Waterfall, difference: int) -> Iterator[str]:
    one, other = waterfall.devices
    yield f"\n{one}" + ("" if one == other else f" / {other}")
    yield f"{'':28}{'first, ms':>12}{'second, ms':>12}{'change, ms':>12}"
    for step in waterfall.steps:
        times = f"{step.first / 1e6:12.1f}{step.second / 1e6:12.1f}{step.change / 1e6:+12.1f}"
        yield f"{step.label:28}{times}"
    yield f"{'sum':28}{'':24}{difference / 1e6:+12.1f}"


def _token(found: FirstDifference | None) -> Iterator[str]:
    if found is None:
        yield "\nno token is known to differ"
        return
    yield f"\nfirst differing token: number {found.index + 1} of sequence {found.sequence}"
    for name, side in zip(("first", "second"), found.sides, strict=True):
        if side.token is None:
            yield f"{name}: has ended"
            continue
        p = ", ".join(f"{one.name} {one.p:.3f}" for one in side.p) or "unknown"
        q = ", ".join(f"{one.name} {one.p:.3f}" for one in side.q) or "none"
        yield f"{name}: {side.name}, {side.origin}; target's p: {p}; drafter's q: {q}"
    if found.sentence:
        yield found.sentence
