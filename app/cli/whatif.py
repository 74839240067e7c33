"""Replay a stored run under another profile, method, setting or number of devices.

The recorded drafts and decisions are replayed on a virtual cluster. Drafts that the run did not
test, or tested by another rule, are drawn; the output says how many, and from which token on a real
run's text would be another one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from specscope.app.cli import common, options
from specscope.engine.types import check_range

if TYPE_CHECKING:
    from specscope.traces.whatif.replay import WhatIf

OPTIONS: options.Options = {
    "--profile": ("", "NAME", "latency profile: a name or a .toml file (the run's own)"),
    "--profile-pair": ("", "NAME", "one of the profile's pairs"),
    "--method": ("", "KEY", "a key of `specscope methods` (the run's)"),
    "--devices": (int, "N", "devices of the cluster (the profile's)"),
    "--store": (False, "", "store the replay and plain decoding, for viewer and reports"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="id of a stored run, also of an imported one")
    options.add_settings(parser, "a setting of the method; repeatable (the run's)")
    options.add_options(parser, OPTIONS, options.DATABASE, options.JSON)


def run(args: argparse.Namespace) -> int:
    from specscope.traces.whatif.replay import Change, what_if
    from specscope.traces.whatif.result import facts

    if args.devices is not None:
        check_range("--devices", args.devices, 1)
    settings = options.parse_fields(args.fields)
    change = Change(args.profile, args.profile_pair, args.devices or 0, args.method, settings)
    trace = common.load_runs(args, [args.run])[args.run]
    with common.Status("replaying the run"):
        result = what_if(trace, change)
    if args.store:
        with common.open_store(args) as store:
            store.insert(*result.traces)
    return common.answer(args, {**facts(result), "stored": args.store}, _lines(result, stored=args.store))


def _lines(result: WhatIf, *, stored: bool) -> Iterator[str]:
    from specscope.traces.view.figures import acceptance
    from specscope.traces.view.settings import config_text, models_text, shown_config
    from specscope.traces.whatif.result import rows, sentences

    header = result.replay.header
    settings = config_text(header.method, shown_config(header, redact_prompt=False))
    yield " · ".join(filter(None, [header.title, settings, models_text(header), header.clock]))
    yield f"{'':28}{'recorded':>18}{'what-if':>18}{'plain decoding':>18}"
    for row in rows(result):
        yield f"{row.label:28}{row.recorded:>18}{row.replay:>18}{row.plain:>18}"
    yield "acceptance by definition:"
    for d in acceptance([result.recorded, *result.traces]):
        recorded, replay, *_ = d.values
        yield f"  {d.label}: {recorded} recorded, {replay} what-if ({d.used_by})"
    yield from sentences(result)
    if stored:
        runs = " ".join(trace.header.run_id for trace in result.traces)
        yield f"stored; side by side: specscope report {runs} -o whatif.html"
