"""Decode the same prompts, by default the bench's, with several methods; compare text and speed.

A method for batches decodes all prompts in one run, or one run per block of rows of a category, and
brings batched plain decoding, its baseline; other methods have one run per prompt. Prompt i has
seed S + i. Prompts of a file that are too long for the models are skipped and listed.
A method that drafts from finished texts has its own texts of the prompts before, of the same pass.
With --repeat, passes over the methods alternate; figures are those of a method's median pass, but
the speed of two passes is their mean. The fastest method is first. A speed-up has a range, and a
line says how it arose.

For CI, a missed bound (--fail-below, --baseline) is a line on stderr and the exit code 1.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from specscope.app.cli import common, options, servers
from specscope.app.cli.inputs import equipped, prompt_for, prompts_of
from specscope.app.named import MAX_PASSES, PromptRow, able, method_keys
from specscope.engine.bounds import check_prompt
from specscope.engine.errors import UsageError
from specscope.engine.trace.trace import Trace
from specscope.engine.types import check_range

BOUNDS: options.Options = {
    "--repeat": (
        1,
        "N",
        f"passes, 1 to {MAX_PASSES}: every other one backwards; median (of two: mean), spread (1)",
    ),
    "--fail-below": (
        [],
        "METHOD=SPEEDUP",
        "exit with 1 if the method's speed-up over plain decoding is lower; repeatable",
    ),
    "--baseline": (Path, "FILE", "exit with 1 if a ratio is lower than in this earlier output of --json"),
    "--tolerance": (0.05, "SHARE", "how much lower than in the baseline a ratio may be, 0 to 1 (0.05)"),
}
CHOICE: options.Options = options.METHODS | {
    "--server": ([], "URL", "the address of a running server, instead of methods; repeatable"),
}
OPTIONS = (
    *(options.one_of(CHOICE, needed=True), options.SERVER, options.SETTINGS, BOUNDS),
    *(options.one_of(options.PROMPT), options.GENERATION, *options.RUN),
)


def run(args: argparse.Namespace) -> int:
    from specscope.app.experiments.floors import (
        above_baseline,
        above_bounds,
        check_baseline,
        given_bounds,
        read_baseline,
    )

    options.check_server(args)
    if args.server:
        return servers.compare(args)
    keys = method_keys(args.methods)
    configs = options.parse_settings(args.set, keys)
    _check_repeat(args)
    check_range("tolerance", args.tolerance, 0, 1)
    baseline = read_baseline(args.baseline) if args.baseline is not None else None
    keys, left_out = equipped(args, configs)
    bounds = given_bounds(args.fail_below, keys, left_out)
    limits, rows = options.limits_of(args), prompts_of(args)
    sampling = options.sampling_of(args, len(rows))
    with common.open_store(args) as store, common.open_cluster(args) as cluster:
        from specscope.app.busy import read_load
        from specscope.app.experiments.compare import RacePlan, decode_all, lines

        if args.methods == "all":
            keys, unable = able(keys, cluster)
            left_out |= unable
            bounds = given_bounds(args.fail_below, keys, left_out)
        rows, skipped = (rows, []) if args.prompt is not None else _fitting(args, cluster, rows)
        prompts = [prompt_for(args, row) for row in rows]
        race = RacePlan(rows, prompts, {key: configs[key] for key in keys}, sampling, limits, args.repeat)
        before, numbers = read_load(), count(1)

        def decode(key: str, mine: list[Any], given: dict[str, Any]) -> Trace:
            return common.recorded(store, cluster, key, mine, given, f"({next(numbers)} of {race.runs})")

        found = decode_all(race, decode, skipped=skipped, left_out=left_out)
        found = replace(found, warning=common.busy_warning(args, before))
    if found.short_answers:
        common.note(found.short_answers)
    result = found.to_dict()
    verdicts = [*above_bounds(result, bounds)]
    if baseline is not None and args.baseline is not None:
        for line in check_baseline(args.baseline, baseline, result):
            common.note(line)
        verdicts += above_baseline(result, baseline, args.tolerance)
    result["bounds"] = [verdict._asdict() for verdict in verdicts]
    common.answer(args, result, lines(result))
    for verdict in verdicts:
        if verdict.doubtful or not verdict.met:
            common.note(verdict.text)
    return int(not all(verdict.met for verdict in verdicts))


def _check_repeat(args: argparse.Namespace) -> None:
    if not 1 <= args.repeat <= MAX_PASSES:
        raise UsageError(f"--repeat is {args.repeat}; it must be at least 1 and at most {MAX_PASSES}")
    if args.profile and args.repeat > 1:
        raise UsageError(f"--repeat is {args.repeat}; with --profile it must be 1: virtual times do not vary")


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
