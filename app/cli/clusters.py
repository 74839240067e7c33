"""Options of models, runtime and devices, and the cluster that they describe."""

from __future__ import annotations

import argparse
from typing import Any

from app.cli.status import DownloadBar, Status


def add_cluster(parser: argparse.ArgumentParser) -> None:
    add_models(parser)
    _add_runtime(parser)
    add_devices(parser)


def add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pair",
        metavar="NAME",
        help="bundled, a toy, or a model of `specscope models` (smollm2 if it is on this machine, else bundled)",
    )
    parser.add_argument(
        "--target",
        metavar="PATH",
        help="directory, .gguf file, short name or hub id of a target, instead of the pair",
    )
    parser.add_argument(
        "--drafter",
        action="append",
        metavar="PATH",
        help="the same for its drafter, or int4 or int8: the target's own weights in fewer bits; repeat for several (dsi)",
    )
    parser.add_argument(
        "--head",
        action="append",
        metavar="PATH",
        help="directory of a drafting head of the target; repeatable: a method uses the first of its kind",
    )


def _add_runtime(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runtime",
        metavar="NAME",
        help="local-process, local-thread, ray, or virtual (local-process; virtual with --profile)",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="head of a Ray cluster, or auto for the one this machine is in (with ray: this machine alone)",
    )
    parser.add_argument(
        "--profile", metavar="NAME", help="latency profile of a virtual cluster: a name or a .toml file"
    )
    parser.add_argument("--profile-pair", metavar="NAME", help="one of the profile's pairs")
    parser.add_argument(
        "--tokens",
        default="pair",
        metavar="SOURCE",
        help="virtual only: pair decodes, bernoulli:RATE accepts drafts at that rate, drawn from --seed (pair)",
    )
    parser.add_argument(
        "--forward",
        default="eager",
        metavar="NAME",
        help="eager, or static for forwards of fixed shapes, on CUDA as graphs; not run on a GPU yet (eager)",
    )


def add_devices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu or cuda (auto)")
    parser.add_argument(
        "--dtype",
        default="auto",
        metavar="NAME",
        help="of the weights: float32, bfloat16, or auto for bfloat16 on GPUs and float32 on CPUs (auto)",
    )
    parser.add_argument(
        "--tp",
        type=int,
        default=1,
        metavar="N",
        help="split the target's heads and columns over N devices, with local-process or ray (1)",
    )
    parser.add_argument(
        "--drafter-tp", type=int, default=1, metavar="M", help="the same for the drafter, over M devices (1)"
    )
    parser.add_argument(
        "--memory",
        default="",
        metavar="SIZES",
        help="bytes that models may take on devices, as in 0=4GiB,1=4GiB; a target that fits on none of them is split "
        "by layers (what is free)",
    )


def is_measured(args: argparse.Namespace) -> bool:
    return args.profile is None and args.runtime != "virtual"


def open_cluster(args: argparse.Namespace) -> Any:
    """Open the cluster that the options describe; show downloads of its models on stderr."""
    runtime = args.runtime or ("virtual" if args.profile is not None else "local-process")
    if runtime == "local-process" and args.device != "cuda":
        from engine.runtimes.forks import warm_up

        warm_up()  # it imports torch while this process does
    with Status("loading the models") as status, DownloadBar(status.hide) as bar:
        import engine

        names = ("target", "drafter", "profile", "profile_pair", "tokens", "device", "forward", "dtype")
        names += ("tp", "drafter_tp", "address", "memory", "head")
        options = {name: getattr(args, name) for name in names}
        return engine.open(args.pair, runtime=runtime, progress=bar.show, **options)
