"""Show where two stored runs differ: first token, time per device and kind of work, conditions."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from app.cli import common

if TYPE_CHECKING:
    from traces.diff import Diff, FirstDifference, Waterfall


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="RUN1", help="id of a stored run")
    parser.add_argument("second", metavar="RUN2", help="id of the run compared with it")
    common.add_database(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    from traces.diff import diff
    from traces.view.settings import models_text

    names = [args.first, args.second]
    with contextlib.closing(common.open_stored(args, names)) as store:
        traces = [store.load(name) for name in names]
    found = diff(*traces)
    if args.json:
        common.print_json(found.to_dict())
        return 0
    for name, trace, tokens, time in zip(names, traces, found.tokens, found.decode, strict=True):
        header = trace.header
        print(
            f"{name}: {header.title} · {models_text(header)} · {header.clock} · {tokens} tokens in "
            f"{time / 1e6:.1f} ms of decoding"
        )
    _print(found)
    return 0


def _print(found: Diff) -> None:
    if found.not_comparable:
        print(f"speeds cannot be compared: different {', '.join(found.not_comparable)}")
    for waterfall in found.waterfalls:
        _print_waterfall(waterfall, found.difference)
    _print_token(found.first_difference)


def _print_waterfall(waterfall: Waterfall, difference: int) -> None:
    one, other = waterfall.devices
    print(f"\n{one}" + ("" if one == other else f" / {other}"))
    print(f"{'':28}{'first, ms':>12}{'second, ms':>12}{'change, ms':>12}")
    for step in waterfall.steps:
        times = f"{step.first / 1e6:12.1f}{step.second / 1e6:12.1f}{step.change / 1e6:+12.1f}"
        print(f"{step.label:28}{times}")
    print(f"{'sum':28}{'':24}{difference / 1e6:+12.1f}")


def _print_token(found: FirstDifference | None) -> None:
    if found is None:
        print("\nno token is known to differ")
        return
    print(f"\nfirst differing token: number {found.index + 1} of sequence {found.sequence}")
    for name, side in zip(("first", "second"), found.sides, strict=True):
        if side.token is None:
            print(f"{name}: has ended")
            continue
        p = ", ".join(f"{text!r} {probability:.3f}" for text, probability in side.p) or "unknown"
        q = ", ".join(f"{text!r} {probability:.3f}" for text, probability in side.q) or "none"
        print(f"{name}: {side.text!r} ({side.origin}); target's p: {p}; drafter's q: {q}")
