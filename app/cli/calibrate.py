"""Measure this machine into a latency profile, for virtual runs with --profile FILE.toml."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli import common
from app.cli.waiting import DownloadBar
from engine.errors import UsageError
from engine.files import replacing

if TYPE_CHECKING:
    from engine.simulate.calibrate import Calibration, Times


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("--pair", metavar="NAME", help="a pair in assets/pairs (bundled)")
    parser.add_argument(
        "--target", metavar="PATH", help="directory or hub id of a target, instead of the pair"
    )
    parser.add_argument("--drafter", metavar="PATH", help="directory or hub id of its drafter")
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu or cuda (auto)")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("this-machine.toml"),
        metavar="F.toml",
        help="file to write (this-machine.toml)",
    )
    parser.add_argument("--quick", action="store_true", help="a smaller grid and fewer turns")
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, write the file, and say what came out."""
    _check(args)
    from engine.pairs.pair import Pair
    from engine.pairs.sources import resolve
    from engine.simulate.calibrate import FULL, QUICK, calibrate
    from engine.simulate.profile import Profile, parse
    from engine.simulate.writing import profile_text

    with DownloadBar() as bar:
        pair = (
            Pair.of(args.target, args.drafter, resolve=partial(resolve, progress=bar.show))
            if args.target
            else Pair.find(args.pair or "bundled")
        )
    found = calibrate(pair, QUICK if args.quick else FULL, args.device, _tell)
    text = profile_text(found, args.output.stem)
    profile: Profile = parse(args.output.stem, text)  # what is written can be read
    with replacing(args.output) as file:
        file.write(text)
    if args.json:
        common.print_json(_result(args.output, found, profile.latency().c))
        return 0
    print(f"{'forward':10} {'one row':>12} {'smallest':>12} {'largest':>12}")
    for model, cells in found.forwards.items():
        print(f"{model:10} " + " ".join(f"{us / 1e3:9.3f} ms" for us in cells[min(cells)]))
    print(f"c {profile.latency().c:.2f}, hop {found.hop.median:.0f} us, judging {found.sample.median:.0f} us")
    print(f"wrote {args.output}; use it with --profile {args.output}")
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.target and args.pair:
        raise UsageError(f"both --pair {args.pair} and --target {args.target}; give one of them")
    if args.drafter and not args.target:
        raise UsageError(f"a drafter ({args.drafter}) without a target; name the target too")
    if args.output.suffix != ".toml" or not args.output.stem:
        raise UsageError(
            f"the output is {args.output}; it must end in .toml, which is how a profile is found"
        )
    common.check_output(args.output)


def _tell(line: str) -> None:
    print(f"specscope: {line}", file=sys.stderr)


def _result(path: Path, found: Calibration, c: float) -> dict[str, Any]:
    def timed(us: Times) -> dict[str, float]:
        return {"us": us.median, "least": us.least, "most": us.most}

    return {
        "file": str(path),
        "pair": found.pair.name,
        "processor": found.processor,
        "date": found.date,
        "devices": list(found.devices),
        "dtype": found.dtype,
        "c": c,
        "hop": timed(found.hop),
        "sample": timed(found.sample),
        "link_gb_s": found.link_gb_s,
        "forwards": {
            model: [cell._asdict() | timed(us) for cell, us in cells.items()]
            for model, cells in found.forwards.items()
        },
    }
