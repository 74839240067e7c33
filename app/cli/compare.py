"""Decode the same prompts, by default the bench's, with several methods; compare text and speed.

A method for batches decodes all prompts in one run, or one run per block of rows of a category, and
brings batched plain decoding, its baseline; other methods have one run per prompt. Prompt i has
seed S + i. Prompts of a file that are too long for the models are skipped and listed.
A method that drafts from finished texts has its own texts of the prompts before, of the same pass.
With --repeat, passes over the methods alternate; figures are those of a method's median pass, but
the speed of two passes is their mean.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

from app.cli import common, options
from app.cli.inputs import PromptRow, able, equipped, method_keys, prompt_for, prompts_of
from engine.bounds import check_prompt
from engine.drafting.suffix import Finished
from engine.errors import UsageError
from engine.methods import BASELINE, find
from engine.trace.trace import Trace

Traces: TypeAlias = dict[str, dict[int, Trace]]
"""The runs by name and by number of the first prompt."""
MAX_PASSES = 9
REPEAT = (1, "N", f"passes, 1 to {MAX_PASSES}: every other one backwards; median (of two: mean), spread (1)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_methods(parser)
    options.add_options(parser, {"--repeat": REPEAT})
    options.add_generation(parser, required=False)
    options.add_run(parser)


def run(args: argparse.Namespace) -> int:
    from app.busy import read_load
    from traces.race import alternating
    from traces.view.settings import models_text

    keys = method_keys(args.methods)
    configs = options.parse_settings(args.fields, keys)
    _check_repeat(args)
    keys, left_out = equipped(args, configs)
    limits, rows = options.limits_of(args), prompts_of(args)
    sampling = options.sampling_of(args, len(rows))
    with common.open_store(args) as store, common.open_cluster(args) as cluster:
        if args.methods == "all":
            keys, unable = able(keys, cluster)
            left_out |= unable
        rows, skipped = (rows, []) if args.prompt is not None else _fitting(args, cluster, rows)
        entries = _entries(keys, configs, rows)
        prompts = [prompt_for(args, row) for row in rows]
        passes: list[Traces] = [{name: {} for name in entries} for _ in range(args.repeat)]
        finished = [{name: Finished() for name in entries} for _ in range(args.repeat)]
        total = args.repeat * sum(len(_parts(key, rows)) for key, _ in entries.values())
        before, done = read_load(), 0
        for i in range(len(rows)):
            shared = {
                "sampling": options.seeded(sampling, i),
                "limits": limits,
                "group": uuid.uuid4().hex[:12],
            }
            for number, name in alternating(list(entries), args.repeat):
                key, config = entries[name]
                if part := _parts(key, rows).get(i):
                    done += 1
                    mine, which = [prompts[k] for k in part], f"({done} of {total})"
                    given = {**shared, "config": config, "finished": finished[number][name]}
                    passes[number][name][i] = common.recorded(store, cluster, key, mine, given, which)
        warning = common.busy_warning(args, before)
    traces, speeds = _median(passes)
    answers = _texts(list(traces[BASELINE].values()))
    first = traces[BASELINE][0].header
    result = {
        "prompts": len(rows),
        "skipped": skipped,
        "models": models_text(first),
        "runtime": first.runtime,
        "profile": first.profile or None,
        "clock": first.clock,
        "passes": args.repeat,
        "warning": warning or None,
        "short_answers": common.short_warning(list(map(len, answers))) or None,
        "methods": {
            k: {**m, "spread": [min(speeds[k]), max(speeds[k])] if args.repeat > 1 else None}
            for k, m in _summaries(traces, rows, passes).items()
        },
        "left_out": left_out,
    }
    return common.answer(args, result, _lines(result))


def _check_repeat(args: argparse.Namespace) -> None:
    if not 1 <= args.repeat <= MAX_PASSES:
        raise UsageError(f"--repeat is {args.repeat}; it must be at least 1 and at most {MAX_PASSES}")
    if args.profile and args.repeat > 1:
        raise UsageError(f"--repeat is {args.repeat}; with --profile it must be 1: virtual times do not vary")


def _median(passes: list[Traces]) -> tuple[Traces, dict[str, list[float]]]:
    """Return the median pass of each method (of two the slower one), and all speeds."""
    found = _speeds(passes, passes[0][BASELINE])
    median: Traces = {}
    for name, speeds in found.items():
        order = sorted(range(len(passes)), key=speeds.__getitem__)
        median[name] = passes[order[(len(order) - 1) // 2]][name]
    return median, found


def _speeds(passes: list[Traces], prompts: Collection[int]) -> dict[str, list[float]]:
    def speed(runs: dict[int, Trace]) -> float:
        return _figures([trace for i, trace in runs.items() if i in prompts])["tokens_per_second"] or 0.0

    return {name: [speed(one[name]) for one in passes] for name in passes[0]}


def _fitting(
    args: argparse.Namespace, cluster: Any, rows: list[PromptRow]
) -> tuple[list[PromptRow], list[dict[str, Any]]]:
    """Return the rows that fit the context with their output, and the skipped rows with reasons."""
    fitting, skipped = list[PromptRow](), list[dict[str, Any]]()
    new, context = args.max_new_tokens, cluster.context
    for row in rows:
        prompt, about = prompt_for(args, row), {"line": row.line, "category": row.category}
        try:
            check_prompt(prompt, context)
        except UsageError as error:  # too long even to tokenize
            skipped.append({**about, "tokens": None, "reason": str(error)})
            continue
        tokens = cluster.count(prompt)
        if tokens + new <= context:
            fitting.append(row)
        else:
            reason = f"{tokens} tokens and {new} new ones are more than the context of {context}"
            skipped.append({**about, "tokens": tokens, "reason": reason})
    if not fitting:
        raise UsageError(
            f"no prompt of {args.prompt_file} fits; line {skipped[0]['line']}: {skipped[0]['reason']}; shorten the prompts "
            "or lower --max-new-tokens"
        )
    return fitting, skipped


def _entries(
    keys: list[str], configs: dict[str, dict[str, Any]], rows: list[PromptRow]
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return name -> (method, config) of each row; `KEY plain` decodes a method's batch plainly."""
    entries = dict[str, tuple[str, dict[str, Any]]]()
    for key in keys:
        config, plain = configs[key], {**configs[key], **find(key).plain}
        if plain != config and any(len(part) > 1 for part in _parts(key, rows).values()):
            entries[f"{key} plain"] = (key, plain)
        entries[key] = (key, config)
    return entries


def _parts(method: str, rows: list[PromptRow]) -> dict[int, list[int]]:
    """Return the prompts of each run by the first one; a batch has the rows of one category."""
    numbers = range(len(rows))
    if not find(method).batched:
        return {i: [i] for i in numbers}
    blocks = [list(block) for _, block in itertools.groupby(numbers, key=lambda i: rows[i].category)]
    return {block[0]: block for block in blocks}


def _summaries(traces: Traces, rows: list[PromptRow], passes: list[Traces]) -> dict[str, Any]:
    runs_of = {key: list(runs.values()) for key, runs in traces.items()}
    figures = _compared(runs_of, _speeds(passes, range(len(rows))))
    summaries = {
        key: {**figures[key], **_facts(list(runs.values()), figures[key])} for key, runs in traces.items()
    }
    for category in dict.fromkeys(r.category for r in rows if r.category):
        mine = [i for i, row in enumerate(rows) if row.category == category]
        some = {key: [t for i, t in runs.items() if i in mine] for key, runs in traces.items()}
        part = _compared(some, _speeds(passes, mine))
        for key, summary in summaries.items():
            summary.setdefault("categories", {})[category] = part[key]
    return summaries


def _facts(runs: list[Trace], figures: dict[str, Any]) -> dict[str, Any]:
    from traces.health import health

    header = runs[0].header
    return {
        "runs": [t.header.run_id for t in runs],
        "config": header.config,
        "planned": header.environment.get("planned"),
        "lossless": header.lossless,
        "advice": advice_on(runs, figures["draft_forwards"]),
        "health": {t.header.run_id: note for t in runs if (note := health(t))},
    }


def _compared(groups: dict[str, list[Trace]], speeds: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Return the figures of each method, with its speed-up or the reason why it has none."""
    from traces.comparable import comparisons

    figures = {key: _figures(runs) for key, runs in groups.items()}
    for key, passes in speeds.items():
        if len(passes) == 2:
            figures[key]["tokens_per_second"] = statistics.fmean(passes)
    keys, texts = list(groups), _texts(groups[BASELINE])
    for key, (baseline, reason) in zip(keys, comparisons([*groups.values()]), strict=True):
        theirs = None if baseline is None else figures[keys[baseline]]["tokens_per_second"]
        figures[key] |= {
            "equal_to_autoregressive": _texts(groups[key]) == texts,
            "speedup": _ratio(figures[key]["tokens_per_second"], theirs),
            "not_comparable": reason or None,
        }
    return figures


def _figures(runs: list[Trace]) -> dict[str, Any]:
    from traces.comparable import batch_size
    from traces.forks import lookups
    from traces.metrics import measure
    from traces.places import per_level_of
    from traces.view.tokens import has_trees

    mine = [measure(t).to_dict() for t in runs]
    forwards = sum(m["target_forwards"] for m in mine)
    tokens = sum(m["tokens"] for m in mine)
    drafted, accepted = sum(m["drafted"] for m in mine), sum(m["accepted"] for m in mine)
    judging = [r.accepted for t in runs for r in t.rounds if r.drafted]
    hits = [bool(one.taken) for t in runs for one in lookups(t)]
    return {
        "tokens_per_second": _speed(mine, "tokens_per_second"),
        "tokens_per_second_per_sequence": _speed(mine, "tokens_per_second_per_sequence"),
        "batch": max(map(batch_size, runs)),
        "tokens_per_target_forward": _ratio(tokens, forwards),
        "acceptance_rate": _ratio(accepted, drafted),
        "acceptance_rate_tested": _ratio(accepted, accepted + sum(m["rejected"] for m in mine)),
        "rollback_rate": _ratio(drafted - accepted, drafted),
        "accepted_per_round": _ratio(sum(judging), len(judging)),
        "hit_rate": _ratio(sum(hits), len(hits)),
        "per_level": [asdict(level) for level in per_level_of(runs)],
        "trees": any(has_trees(t.decisions) for t in runs),
        "tokens": tokens,
        "target_forwards": forwards,
        "draft_forwards": sum(m["draft_forwards"] for m in mine),
        "drafted": drafted,
        "both_busy": statistics.fmean(m["waiting"]["both"] for m in mine),
    }


def _texts(runs: list[Trace]) -> list[list[int]]:
    return [t.token_ids(i) for t in runs for i in range(len(t.header.prompt_ids))]


def _speed(metrics: list[dict[str, Any]], name: str) -> float | None:
    """Return all tokens divided by all seconds of one of the speeds in the metrics."""
    return _ratio(sum(m["tokens"] for m in metrics), sum(m["tokens"] / m[name] for m in metrics if m[name]))


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _lines(result: dict[str, Any]) -> Iterator[str]:
    prompts = f"{result['prompts']} prompt{'' if result['prompts'] == 1 else 's'}"
    yield " · ".join([result["models"], prompts, result["clock"]])
    for row in result["skipped"]:
        category = f" ({row['category']})" if row["category"] else ""
        yield f"skipped: line {row['line']}{category}: {row['reason']}"
    accepted = "".join(f"{'acc/' + name:>13}" for name in ("drafted", "tested", "round"))
    yield f"{'method':20}{'tokens/s':>10}{'speed-up':>10}{'tokens':>8}{'tok/forward':>13}{accepted}  output"
    for key, m in result["methods"].items():
        same = "identical" if m["equal_to_autoregressive"] else "differs"
        same += "" if m["lossless"] else " (lossy)"
        cells = [_cell(m["tokens_per_second"], ".1f", 10), _cell(m["speedup"], ".2f", 10, "×")]
        cells += [_cell(m["tokens"], ",", 8), _cell(m["tokens_per_target_forward"], ".2f", 13)]
        cells += [_cell(m[name], ".0%", 13) for name in ("acceptance_rate", "acceptance_rate_tested")]
        cells += [_cell(m["accepted_per_round"], ".2f", 13)]
        yield f"{key:20}{''.join(cells)}  {' · '.join([same, *_notes(m)])}"
    for key, reason in result["left_out"].items():
        yield f"{key:20}left out: {reason}"
    yield "tok/forward counts the target's own token, acc (accepted drafts) does not; of a tree all nodes are drafted"
    yield from (f"{key:20}{m['advice']}" for key, m in result["methods"].items() if m["advice"])
    yield from (f"{key:20}{_health(m['health'])}" for key, m in result["methods"].items() if m["health"])
    first = " ".join(m["runs"][0] for m in result["methods"].values())
    yield f"side by side: specscope report {first} -o report.html"


def _health(notes: dict[str, str]) -> str:
    """Return the first note with its run, and how many other runs have one."""
    run, note = next(iter(notes.items()))
    more = f" Notes on {len(notes) - 1} more runs: --json." if len(notes) > 1 else ""
    return f"run {run}: {note}{more}"


def advice_on(runs: Sequence[Trace], draft_forwards: int) -> str | None:
    """Return that a method's drafter is often wrong, and which one is wrong less often."""
    from traces.places import per_level_of
    from traces.verdict import wrong_drafter

    text = wrong_drafter(runs[0].header, draft_forwards, per_level_of(runs))
    return f"{text} The option is --drafter int4." if text else None


def _notes(figures: dict[str, Any]) -> list[str]:
    notes = [f"hit rate {figures['hit_rate']:.0%}"] if figures["hit_rate"] is not None else []
    if figures["batch"] > 1 and figures["tokens_per_second_per_sequence"]:
        speed = figures["tokens_per_second_per_sequence"]
        notes.append(f"throughput of up to {figures['batch']} sequences; {speed:.1f} tokens/s per sequence")
    if figures["spread"]:
        low, high = figures["spread"]
        mean = abs(figures["tokens_per_second"] - (low + high) / 2) < 1e-9
        notes.append(f"{'mean of' if mean else 'median pass,'} {low:.1f} to {high:.1f} tokens/s")
    if figures["not_comparable"]:
        notes.append(f"no speed-up: {figures['not_comparable']}")
    return notes


def _cell(value: float | None, form: str, width: int, unit: str = "") -> str:
    return f"{'-' if value is None else format(value, form) + unit:>{width}}"
