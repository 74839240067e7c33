"""Serve requests that arrive while others decode: where does a method stop paying?

One run per method and batch size, and plain decoding beside them. Prompts join in chunks, in the
forwards that decode the others; the last chunk gives the first token. Without --rate and --arrivals
all requests arrive at once. Request i has seed S + i.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from specscope.app.cli import common, options
from specscope.app.cli.inputs import MAX_PROMPT_FILE, equipped, prompt_for, prompts_of
from specscope.app.named import PromptRow, able, bench_prompts, method_keys
from specscope.engine.bounds import MOST_PROMPTS, check_prompt
from specscope.engine.errors import UsageError
from specscope.engine.run.policies import FIXED
from specscope.engine.types import check_range

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace

Requests: TypeAlias = list[tuple[float, Any]]
"""(seconds, prompt) of each request."""
REQUESTS = 16
ARRIVING: options.Options = {
    "--rate": (float, "R", "requests per second, Poisson by --seed (all at once)"),
    "--arrivals": (Path, "F", "seconds of each request, one a line; or .jsonl: arrival and prompt in a row"),
}
LOAD: options.Options = {
    "--requests": (int, "N", f"requests; the prompts repeat ({REQUESTS}, or as many as the file has)"),
    "--batch": ("1,2,4,8", "N,N", "sequences of a forward (1,2,4,8); minedraft decodes twice as many"),
    "--policy": ("fixed", "P,P", "lengths and order of drafts: fixed, by-batch, survival, minedraft (fixed)"),
    "--chunk": (256, "N", "prompt tokens in a forward at most (256)"),
    "--ttft-ms": (1000.0, "MS", "a good request's first token (1000)"),
    "--tpot-ms --itl-ms": (100.0, "MS", "its mean time per further token (100)"),
    "-o --output": (Path, "F", "draw the chart: .svg, or .html"),
}
OPTIONS = (
    *(options.one_of(options.METHODS, needed=True), options.SETTINGS, options.one_of(ARRIVING), LOAD),
    *(options.one_of(options.PROMPT), options.GENERATION, *options.RUN),
)


def run(args: argparse.Namespace) -> int:
    from specscope.app.busy import read_load
    from specscope.app.experiments.load import LoadLine, LoadSetup, policies_of, served_lines
    from specscope.engine.run.serving import Load

    configs = options.parse_settings(args.set, method_keys(args.methods))
    batches, policies = _checked(args), policies_of(args.policy, "--policy")
    keys, left_out = equipped(args, configs)
    requests = _requests(args)
    prompts, arrivals = [prompt for _, prompt in requests], tuple(seconds for seconds, _ in requests)
    shared = {"sampling": options.sampling_of(args, len(requests)), "limits": options.limits_of(args)}
    with common.open_store(args) as store, common.open_cluster(args) as cluster:
        if args.methods == "all":
            keys, unable = able(keys, cluster, Load(arrivals[:1], 1, args.chunk))
            left_out |= unable

        def check(line: LoadLine) -> None:
            if line.policy != FIXED:
                load = Load(arrivals[:1], 1, args.chunk, line.policy)
                cluster.check(line.method, load, configs[line.method])

        lines, unserved = served_lines(keys, policies, check)
        plan = LoadSetup(
            lines, left_out | unserved, batches, arrivals, args.ttft_ms, args.tpot_ms, args.chunk
        )
        cells: dict[LoadLine, dict[int, Trace]] = {line: {} for line in lines}
        before, jobs = read_load(), plan.jobs()
        try:
            for i, job in enumerate(jobs, 1):
                line, config = job.line, configs[job.line.method]
                given = {**shared, "load": job.load, "config": config, "group": job.group}
                which = f"{line.policy} with batch {job.batch} ({i} of {len(jobs)})"
                cells[line][job.batch] = common.recorded(store, cluster, line.method, prompts, given, which)
                common.note(f"{line.name} with batch {job.batch} is done ({i} of {len(jobs)})")
        except KeyboardInterrupt:
            if cells[lines[0]]:  # what is finished is kept
                _show(args, plan.result(cells, "stopped before the end"))
            raise
        warning = common.busy_warning(args, before)
    _show(args, plan.result(cells, warning))
    return 0


def _checked(args: argparse.Namespace) -> list[int]:
    from specscope.app.experiments.load import batch_sizes

    batches = batch_sizes(args.batch, "--batch")
    check_range("--chunk", args.chunk, 1)
    check_range("--ttft-ms", args.ttft_ms, 0, exclusive=True)
    check_range("--tpot-ms", args.tpot_ms, 0, exclusive=True)
    if args.requests is not None:
        check_range("--requests", args.requests, 1, MOST_PROMPTS)
    common.check_output(args.output, "chart", ".svg", ".html")
    return batches


def _requests(args: argparse.Namespace) -> Requests:
    from specscope.app.experiments.load import poisson, read_arrivals

    known = read_arrivals(args.arrivals, MAX_PROMPT_FILE) if args.arrivals else []
    own = [one.prompt for one in known if one.prompt is not None]
    if own and (args.prompt is not None or args.prompt_file is not None):
        raise UsageError(f"{args.arrivals} has prompts; leave out --prompt and --prompt-file")
    count = args.requests or len(known) or REQUESTS
    if known and count > len(known):
        raise UsageError(f"--requests is {count}; {args.arrivals} has {len(known)} arrivals: lower it")
    prompts = [prompt_for(args, row) for row in (map(PromptRow, own) if own else _rows(args))]
    for prompt in prompts:
        check_prompt(prompt)  # the limit for any context, before models load
    if known:
        times = [one.seconds for one in known]
    else:
        times = [0.0] * count if args.rate is None else poisson(args.rate, count, args.seed)
    return [(times[i], prompts[i % len(prompts)]) for i in range(count)]


def _rows(args: argparse.Namespace) -> list[PromptRow]:
    if args.prompt is not None or args.prompt_file is not None:
        return prompts_of(args)
    return list(map(PromptRow, bench_prompts()))


def _show(args: argparse.Namespace, result: dict[str, Any]) -> None:
    from specscope.app.experiments.load import lines

    if args.output is not None:
        common.write_output(args.output, chart(result) if args.output.suffix == ".svg" else page(result))
    common.answer(args, result, lines(result))
    sys.stdout.flush()


def chart(result: Mapping[str, Any]) -> str:
    from specscope.app.experiments.load import TITLES, series
    from specscope.engine.plot import Panel, PlotLine, draw

    panels = list[Panel]()
    for name, title in TITLES:
        lines = [PlotLine(line.name, points) for line, points in series(result, name) if points]
        panels.append(Panel(title.format(clock=result["clock"]), "batch size", lines))
    return draw(panels, columns=2)


def page(result: Mapping[str, Any]) -> str:
    from specscope.app.experiments.load import table_of, verdicts
    from specscope.app.render.html import app_page, scrolling, text

    notes = "".join(f"<p>{text(line)}</p>" for line in verdicts(result))
    body = f"{scrolling('Charts')}{chart(result)}</div>{notes}{table_of(result).html('Figures')}"
    return app_page(f"{result['models']} · {result['requests']} requests · {result['clock']}", body)
