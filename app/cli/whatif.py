"""Replay a stored run under another profile, method, setting or number of devices.

The recorded drafts and decisions are replayed on a virtual cluster. Drafts that the run did not
test, or tested by another rule, are drawn; the output says how many, and from which token on a real
run's text would be another one. `--over` the run's own draft length, with nothing else changed,
replays nothing: it estimates each length from the run's counts and times.
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
    from specscope.traces.lengths.best import Best
    from specscope.traces.whatif.replay import Change, WhatIf

OVER = (
    "a line for each value of a setting: gamma=0:16 (0: no drafts), or confidence=0.2:0.8:0.2 with the step"
)
REPLAY: options.Options = {
    "run": (str, "RUN", "id of a stored run, also of an imported one"),
    "--set": ([], "FIELD=VALUE", "a setting of the method; repeatable (the run's)"),
    "--over": (list, "FIELD=VALUES", OVER),
    "--profile": ("", "NAME", "latency profile: a name or a .toml file (the run's own, or its own times)"),
    "--profile-pair": ("", "NAME", "one of the profile's pairs"),
    "--method": ("", "KEY", "a key of `specscope methods` (the run's)"),
    "--devices": (int, "N", "devices of the cluster (the profile's)"),
    "--plain": (
        "",
        "RUN",
        "plain run of the same target: what one row costs in a measured run (its comparison's)",
    ),
    "--c": (float, "C", "with --over gamma=...: time of a drafter forward, as a share of a target forward"),
    "--row": (float, "R", "the same of each further row that the target verifies"),
    "--widths": (str, "ROWS=MS", "the same: measured target forwards, such as 1=6.0,2=7.4,4=9.1"),
    "--store": (False, "", "store the replay and plain decoding, for viewer and reports"),
}
OPTIONS = (REPLAY, options.DATABASE, options.JSON)


def run(args: argparse.Namespace) -> int:
    from specscope.traces.whatif.replay import Change, what_if
    from specscope.traces.whatif.result import facts

    if len(args.over or ()) > 1:
        raise UsageError(
            f"--over was given {len(args.over)} times; a what-if takes one, `specscope sweep` two"
        )
    args.over = args.over[0] if args.over else None
    if args.devices is not None:
        check_range("--devices", args.devices, 1)
    settings = options.parse_fields(args.set)
    trace = common.load_runs(args, [args.run])[args.run]
    if _of_length(args, trace):
        return _lengths(args, trace)
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
    if args.profile or trace.header.virtual:
        if args.plain:
            raise UsageError("--plain serves the own times of a measured run: leave it out with a profile")
        return None
    return _compared(args, trace)


def _compared(args: argparse.Namespace, trace: Trace) -> Trace | None:
    from specscope.traces.facts.comparable import comparisons

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


def _of_length(args: argparse.Namespace, trace: Trace) -> bool:
    """Return whether --over is of the run's own draft length, with nothing else changed."""
    from specscope.engine.methods import METHODS

    own = [f"--{name}" for name in ("c", "row", "widths") if getattr(args, name) is not None]
    name = (args.over or "").partition("=")[0]
    changed = args.profile or args.profile_pair or args.devices or args.method or args.set
    method = METHODS.get(trace.header.method)
    if not changed and name == (method.length if method else "gamma"):
        return True
    if own:
        raise UsageError(
            f"{own[0]} serves --over gamma=0:16 alone, without another cluster, method or setting"
        )
    return False


def _lengths(args: argparse.Namespace, trace: Trace) -> int:
    """Estimate what each draft length would bring, from the run's counts and times."""
    from specscope.engine.methods.registry import Setting
    from specscope.traces.lab.axes import numbers
    from specscope.traces.lengths.basis import GivenTimes
    from specscope.traces.lengths.best import LONGEST, best_length

    if args.store:
        raise UsageError("--store keeps one replay: leave out --over, or --store")
    name, _, values = args.over.partition("=")
    setting = Setting(name, int, 0, "", 0, LONGEST, (), "")
    lengths = sorted({int(value) for value in numbers(values, setting)})
    if not lengths:
        raise UsageError(f"--over {name} has no values; write for example {name}=0:16")
    for flag in ("c", "row"):
        if getattr(args, flag) is not None:
            check_range(f"--{flag}", getattr(args, flag), 0, 100)
    given = GivenTimes(args.c, args.row, _widths(args.widths))
    found = best_length(trace, _plain_of(args, trace), lengths, given)
    answer = {"run": trace.header.run_id, "over": name, **found.to_dict()}
    return common.answer(args, answer, _length_lines(found))


def _plain_of(args: argparse.Namespace, trace: Trace) -> Trace | None:
    """Return plain decoding for a run; in virtual time, where none is stored, decode its output."""
    from specscope.traces.facts.imported import is_foreign

    if args.plain and is_foreign(trace.header):
        return _counted_plain(args)
    found = _compared(args, trace)
    if found is None and trace.header.virtual:
        from specscope.traces.whatif.replay import Change, what_if

        with common.Status("decoding the run's output plainly"):
            return what_if(trace, Change()).plain
    return found


def _counted_plain(args: argparse.Namespace) -> Trace:
    """Return a run without drafts that another engine made; nothing says under which conditions."""
    from specscope.traces.facts.metrics import measure

    plain = common.load_runs(args, [args.plain])[args.plain]
    metrics = measure(plain)
    if metrics.drafted or metrics.accepted or not metrics.tokens_per_second:
        raise UsageError(f"--plain {args.plain} is no plain decoding with a speed")
    return plain


def _widths(text: str | None) -> tuple[tuple[int, float], ...]:
    """Return the seconds of forwards by rows from `1=6.0,2=7.4`, in ms."""
    found = dict[int, float]()
    for part in filter(None, map(str.strip, (text or "").split(","))):
        rows, _, ms = part.partition("=")
        try:
            width, time = int(rows), float(ms)
        except ValueError:
            raise UsageError(f"--widths {shown(part)} is not ROWS=MS, such as 4=9.1") from None
        check_range("rows of --widths", width, 1, 1024)
        check_range("ms of --widths", time, 0, 1e6, exclusive=True)
        if width in found:
            raise UsageError(f"--widths has {width} rows twice")
        found[width] = time / 1e3
    if text is not None and not found:
        raise UsageError("--widths has no widths; write for example 1=6.0,2=7.4,4=9.1")
    return tuple(sorted(found.items()))


def _length_lines(found: Best) -> Iterator[str]:
    from specscope.traces.lengths.best import interval_text

    heads = (found.name, "tokens/round", "speed-up", "95 % of runs", "tokens/s", "pays below", "")
    yield "".join(f"{head:>14}" for head in heads[:-1])
    for one in found.lengths:
        marks = [
            "best" if one.length == found.best else "may be best" if one.alike else "",
            "measured" if one.length == found.used and found.measured is not None else "",
            "beyond the recorded places" if one.beyond else "",
        ]
        cells = (
            str(one.length),
            f"{one.tokens:.2f}",
            "" if one.speedup is None else f"{one.speedup:.2f}×",
            interval_text(one, found.unit),
            "" if one.tokens_per_second is None else f"{one.tokens_per_second:.1f}",
            "" if one.limit is None else f"c {one.limit:.2f}" if one.limit > 0 else "never",
        )
        yield ("".join(f"{cell:>14}" for cell in cells) + "  " + ", ".join(filter(None, marks))).rstrip()
    yield found.sentence
    yield from found.notes


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

    name, values = options.parse_over(text)
    found = axis(method_of(trace, change)[0], name, values)
    if found.scripted or found.drafters:
        raise UsageError(
            f"--over {name}: a replay has the recorded drafts; name a setting, such as gamma=1:8"
        )
    return found


def _lines(result: WhatIf, *, stored: bool) -> Iterator[str]:
    from specscope.traces.facts.settings import config_text, models_text, shown_config
    from specscope.traces.view.figures import acceptance
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
