"""Replay a stored run under another profile, method, setting or number of devices.

The recorded drafts and decisions are replayed on a virtual cluster. Drafts that the run did not
test, or tested by another rule, are drawn; the output says how many, and from which token on a real
run's text would be another one.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from app.cli import common
from app.cli.run import parse_fields
from app.cli.status import Status
from engine.types import check_range

if TYPE_CHECKING:
    from traces.whatif.replay import WhatIf


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="id of a stored run, also of an imported one")
    parser.add_argument(
        "--profile",
        default="",
        metavar="NAME",
        help="latency profile: a name or a .toml file (the run's own)",
    )
    parser.add_argument("--profile-pair", default="", metavar="NAME", help="one of the profile's pairs")
    parser.add_argument(
        "--method", default="", metavar="KEY", help="a key of `specscope methods` (the run's)"
    )
    common.add_settings(parser, "a setting of the method; repeatable (the run's)")
    parser.add_argument("--devices", type=int, metavar="N", help="devices of the cluster (the profile's)")
    parser.add_argument(
        "--store", action="store_true", help="store the replay and plain decoding, for viewer and reports"
    )
    common.add_database(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    from traces.whatif.replay import Change, what_if
    from traces.whatif.result import facts

    if args.devices is not None:
        check_range("--devices", args.devices, 1)
    change = Change(
        args.profile, args.profile_pair, args.devices or 0, args.method, parse_fields(args.fields)
    )
    with contextlib.closing(common.open_stored(args, [args.run])) as store:
        trace = store.load(args.run)
    with Status("replaying the run"):
        result = what_if(trace, change)
    if args.store:
        with contextlib.closing(common.open_store(args)) as store:
            store.insert(*result.traces)
    if args.json:
        common.print_json({**facts(result), "stored": args.store})
    else:
        _print(result, stored=args.store)
    return 0


def _print(result: WhatIf, *, stored: bool) -> None:
    from traces.view.figures import acceptance
    from traces.view.settings import config_text, models_text, shown_config
    from traces.whatif.result import rows, sentences

    header = result.replay.header
    settings = config_text(header.method, shown_config(header, redact_prompt=False))
    print(" · ".join(filter(None, [header.title, settings, models_text(header), header.clock])))
    print(f"{'':28}{'recorded':>18}{'what-if':>18}{'plain decoding':>18}")
    for row in rows(result):
        print(f"{row.label:28}{row.recorded:>18}{row.replay:>18}{row.plain:>18}")
    print("acceptance by definition:")
    for d in acceptance([result.recorded, *result.traces]):
        recorded, replay, *_ = d.values
        print(f"  {d.label}: {recorded} recorded, {replay} what-if ({d.used_by})")
    for sentence in sentences(result):
        print(sentence)
    if stored:
        runs = " ".join(trace.header.run_id for trace in result.traces)
        print(f"stored; side by side: specscope report {runs} -o whatif.html")
