"""Measure this machine as a latency profile, for virtual runs with --profile FILE.toml."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli import common
from app.cli.status import DownloadBar
from engine.errors import UsageError
from engine.files import replacing

if TYPE_CHECKING:
    from engine.simulate.calibrate import Calibration, Times


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pair",
        metavar="NAME",
        help="bundled, a toy, or a model of `specscope models` (smollm2 if it is on this machine, else bundled)",
    )
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
    parser.add_argument("--quick", action="store_true", help="measure fewer batch sizes with fewer repeats")
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    _check(args)
    from engine.checkpoints.catalog import opening
    from engine.checkpoints.pair import Pair
    from engine.checkpoints.sources import resolve
    from engine.simulate.calibrate import FULL, QUICK, calibrate, profile_text
    from engine.simulate.profile import Profile, parse

    with DownloadBar() as bar:
        pair = (
            Pair.of(args.target, args.drafter, resolve=partial(resolve, progress=bar.show))
            if args.target
            else Pair.find(args.pair or opening())
        )
    calibration = calibrate(pair, QUICK if args.quick else FULL, args.device, _report_progress)
    text = profile_text(calibration, args.output.stem)
    profile: Profile = parse(args.output.stem, text)  # check the text before writing it
    with replacing(args.output) as file:
        file.write(text)
    if args.json:
        common.print_json(_result(args.output, calibration, profile.latency().c))
        return 0
    print(calibration.pair.name)
    print(f"{'forward':10} {'one row':>12} {'smallest':>12} {'largest':>12}")
    for model, cells in calibration.forwards.items():
        print(f"{model:10} " + " ".join(f"{us / 1e3:9.3f} ms" for us in cells[min(cells)]))
    hop, sample = calibration.hop.median, calibration.sample.median
    print(f"c {profile.latency().c:.2f}, hop {hop:.0f} us, judging {sample:.0f} us")
    print(f"wrote {args.output}; use it with --profile {args.output}")
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.target and args.pair:
        raise UsageError(f"--pair {args.pair} and --target {args.target} exclude each other; give one")
    if args.drafter and not args.target:
        raise UsageError(f"--drafter {args.drafter} needs --target; give both")
    if args.output.suffix != ".toml" or not args.output.stem:
        raise UsageError(f"the output is {args.output}; a profile's name must end in .toml")
    common.check_output(args.output)


def _report_progress(line: str) -> None:
    print(f"specscope: {line}", file=sys.stderr)


def _result(path: Path, calibration: Calibration, c: float) -> dict[str, Any]:
    def timed(us: Times) -> dict[str, float]:
        return {"us": us.median, "least": us.least, "most": us.most}

    return {
        "file": str(path),
        "pair": calibration.pair.name,
        "processor": calibration.processor,
        "date": calibration.date,
        "devices": list(calibration.devices),
        "dtype": calibration.dtype,
        "c": c,
        "hop": timed(calibration.hop),
        "sample": timed(calibration.sample),
        "link_gb_s": calibration.link_gb_s,
        "forwards": {
            model: [cell._asdict() | timed(us) for cell, us in cells.items()]
            for model, cells in calibration.forwards.items()
        },
    }
