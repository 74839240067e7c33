"""Measure this machine as a latency profile, for virtual runs with --profile FILE.toml."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specscope.app.bars import DownloadBar
from specscope.app.cli import common, options
from specscope.engine.errors import UsageError

if TYPE_CHECKING:
    from specscope.engine.cluster.calibrate import Calibration, Times

CALIBRATION: options.Options = options.PAIR | {
    "--target": (str, "PATH", "directory or hub id of a target, instead of the pair"),
    "--drafter": (str, "PATH", "directory or hub id of its drafter"),
    "--device": options.DEVICES["--device"],
    "-o --output": (Path("this-machine.toml"), "F.toml", "file to write (this-machine.toml)"),
    "--quick": (False, "", "measure fewer batch sizes with fewer repeats"),
}
OPTIONS = (CALIBRATION, options.JSON)


def run(args: argparse.Namespace) -> int:
    _check(args)
    from specscope.app.busy import busy_since, read_load
    from specscope.engine.checkpoints.catalog import opening
    from specscope.engine.checkpoints.pair import Pair
    from specscope.engine.checkpoints.sources import resolve
    from specscope.engine.cluster.calibrate import FULL, QUICK, calibrate, profile_text
    from specscope.engine.simulate.profile import Profile, parse

    with DownloadBar() as bar:
        if args.target:
            pair = Pair.of(args.target, args.drafter, resolve=partial(resolve, progress=bar.show))
        else:
            pair = Pair.find(args.pair or opening())
    before = read_load()
    calibration = calibrate(pair, QUICK if args.quick else FULL, args.device, common.note)
    warning = busy_since(before)
    text = profile_text(calibration, args.output.stem)
    if warning:
        common.note(warning)
        text = f"# {warning}\n{text}"
    profile: Profile = parse(args.output.stem, text)  # check the text before writing it
    common.write_output(args.output, text)
    hop, sample, c = calibration.hop.median, calibration.sample.median, profile.latency().c
    lines = [calibration.pair.name, f"{'forward':10} {'one row':>12} {'smallest':>12} {'largest':>12}"]
    for model, cells in calibration.forwards.items():
        lines.append(f"{model:10} " + " ".join(f"{us / 1e3:9.3f} ms" for us in cells[min(cells)]))
    lines.append(f"c {c:.2f}, hop {hop:.0f} us, judging {sample:.0f} us")
    lines.append(f"wrote {args.output}; use it with --profile {args.output}")
    result = _result(args.output, calibration, c) | {"warning": warning or None}
    return common.answer(args, result, lines)


def _check(args: argparse.Namespace) -> None:
    if args.target and args.pair:
        raise UsageError(f"--pair {args.pair} and --target {args.target} exclude each other; give one")
    if args.drafter and not args.target:
        raise UsageError(f"--drafter {args.drafter} needs --target; give both")
    if args.output.suffix != ".toml" or not args.output.stem:
        raise UsageError(f"the output is {args.output}; a profile's name must end in .toml")
    common.check_output(args.output)


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
