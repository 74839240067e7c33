"""Replay a stored run under another profile, method, setting or number of devices.

The recorded drafts and decisions are replayed on a virtual cluster. Drafts that the run did not
test, or tested by another rule, are drawn; the output says how many, and from which token on a real
run's text would be another one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specscope.app.cli import common, options
from specscope.engine.errors import UsageError, shown
from specscope.engine.types import check_range

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace
    from specscope.traces.lab.axes import Axis
    from specscope.traces.whatif.replay import Change, WhatIf

OPTIONS: options.Options = {
    "--profile": ("", "NAME", "latency profile: a name or a .toml file (the run's own, or its own times)"),
    "--profile-pair": ("", "NAME", "one of the profile's pairs"),
    "--method": ("", "KEY", "a key of `specscope methods` (the run's)"),
    "--devices": (int, "N", "devices of the cluster (the profile's)"),
    "--over": (
        str,
        "FIELD=VALUES",
        "a line for each value of a setting: gamma=1:8, or confidence=0.2:0.8:0.2 with the step",
    ),
    "--plain": (
        "",
        "RUN",
        "plain run of the same target: what one row costs in a measured run (its comparison's)",
    ),
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
    trace = common.load_runs(args, [args.run])[args.run]
    plain = _plain(args, trace)
    change = Change(args.profile, args.profile_pair, args.devices or 0, args.method, settings, plain)
    if args.over is not None:
        return _over(args, trace, change)
    with common.Status("replaying the run"):
        result = what_if(trace, change)
    if args.store:
        with common.open_store(args) as store:
            store.insert(*result.traces)
    return common.answer(args, {**facts(result), "stored": args.store}, _lines(result, stored=args.store))


def _plain(args: argparse.Namespace, trace: Trace) -> Trace | None:
    """Return plain decoding for a run's own times: the named run, or that of its comparison."""
    from specscope.traces.comparable import comparisons

    if args.profile or trace.header.virtual:
        if args.plain:
            raise UsageError("--plain serves the own times of a measured run: leave it out with a profile")
        return None
    name = trace.header.run_id
    found = (
        common.load_runs(args, [args.plain]) if args.plain else common.load_runs(args, [name], compared=True)
    )
    runs = list({name: trace, **found}.values())
    compared = comparisons([[run] for run in runs])[0]
    if args.plain and compared.baseline != 1:
        reason = compared.reason or "it drafts"
        raise UsageError(f"--plain {args.plain} is no plain decoding to compare with run {name}: {reason}")
    return runs[compared.baseline] if compared.baseline else None


def _over(args: argparse.Namespace, trace: Trace, change: Change) -> int:
    """Replay the run once for each value of an axis."""
    from specscope.traces.lab.axes import value_text
    from specscope.traces.whatif.replay import what_if
    from specscope.traces.whatif.result import facts

    if args.store:
        raise UsageError("--store keeps one replay: leave out --over, or --store")
    axis, found, lines = _axis(args.over, trace, change), list[dict[str, Any]](), list[str]()
    for value in axis.values:
        at = replace(change, config={**change.config, axis.name: value})
        with common.Status(f"replaying the run with {axis.name} {value_text(value)}"):
            result = facts(what_if(trace, at))
        found.append({axis.name: value, **result})
        metrics, tests = result["what_if"]["metrics"], result["decided_by_recording"] + result["drawn"]
        figures = (metrics["tokens_per_second"], result["speedup"], metrics["acceptance_rate_tested"])
        texts = (
            "" if x is None else form.format(x)
            for x, form in zip(figures, ("{:.1f}", "{:.2f}×", "{:.0%}"), strict=True)
        )
        drawn = f"{result['drawn'] / tests:.0%}" if tests else ""
        lines.append("".join(f"{text:>18}" for text in (value_text(value), *texts, drawn)))
    head = "".join(
        f"{text:>18}" for text in (axis.title, "tokens/s", "speed-up", "accepted / tested", "tests drawn")
    )
    return common.answer(args, {"over": axis.name, "values": found}, [head, *lines])


def _axis(text: str, trace: Trace, change: Change) -> Axis:
    from specscope.traces.lab.axes import axis
    from specscope.traces.whatif.replay import method_of

    name, equals, values = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--over {shown(text)} is not FIELD=VALUES")
    found = axis(method_of(trace, change)[0], name, values)
    if found.scripted or found.drafters:
        raise UsageError(
            f"--over {name}: a replay has the recorded drafts; name a setting, such as gamma=1:8"
        )
    return found


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
