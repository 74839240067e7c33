"""Serve requests that arrive while others decode: where does a method stop paying?

One run per method and batch size, and plain decoding beside them. Prompts join in chunks, in the
forwards that decode the others; the last chunk gives the first token. Without --rate and --arrivals
all requests arrive at once. Request i has seed S + i.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from specscope.app.cli import common, options
from specscope.app.cli.inputs import MAX_PROMPT_FILE, equipped, prompt_for, prompts_of
from specscope.app.loaded import (
    COLUMNS,
    TITLES,
    Line,
    batch_sizes,
    bench_prompts,
    poisson,
    policies_of,
    read_arrivals,
    served_lines,
    verdicts,
)
from specscope.app.named import PromptRow, able, method_keys
from specscope.engine.bounds import MOST_PROMPTS, check_prompt
from specscope.engine.errors import UsageError
from specscope.engine.run.policies import FIXED
from specscope.engine.types import check_range

if TYPE_CHECKING:
    from specscope.engine.run.serving import Load
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
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_methods(parser)
    options.add_options(parser.add_mutually_exclusive_group(), ARRIVING)
    options.add_options(parser, LOAD)
    options.add_output(parser, "F", "draw the chart: .svg, or .html")
    options.add_generation(parser, required=False)
    options.add_run(parser)


def run(args: argparse.Namespace) -> int:
    from specscope.app.busy import read_load
    from specscope.app.loaded import result_of

    configs = options.parse_settings(args.fields, method_keys(args.methods))
    batches, policies = _checked(args), policies_of(args.policy, "--policy")
    keys, left_out = equipped(args, configs)
    requests = _requests(args)
    prompts = [prompt for _, prompt in requests]
    shared = {"sampling": options.sampling_of(args, len(requests)), "limits": options.limits_of(args)}
    with common.open_store(args) as store, common.open_cluster(args) as cluster:
        if args.methods == "all":
            keys, unable = able(keys, cluster, _load(args, requests[:1], 1))
            left_out |= unable

        def check(line: Line) -> None:
            if line.policy != FIXED:
                cluster.check(line.method, _load(args, requests[:1], 1, line.policy), configs[line.method])

        lines, unserved = served_lines(keys, policies, check)
        left_out |= unserved
        cells: dict[Line, dict[int, Trace]] = {line: {} for line in lines}
        before = read_load()
        try:
            groups = {batch: uuid.uuid4().hex[:12] for batch in batches}
            jobs = [(line, batch) for batch in batches for line in lines]
            for i, (line, batch) in enumerate(jobs, 1):
                load, config = _load(args, requests, batch, line.policy), configs[line.method]
                given = {**shared, "load": load, "config": config, "group": groups[batch]}
                which = f"{line.policy} with batch {batch} ({i} of {len(jobs)})"
                cells[line][batch] = common.recorded(store, cluster, line.method, prompts, given, which)
                common.note(f"{line.name} with batch {batch} is done ({i} of {len(jobs)})")
        except KeyboardInterrupt:
            if cells[lines[0]]:  # what is finished is kept
                _show(args, result_of(cells, left_out, args.ttft_ms, args.tpot_ms, "stopped before the end"))
            raise
        warning = common.busy_warning(args, before)
    _show(args, result_of(cells, left_out, args.ttft_ms, args.tpot_ms, warning))
    return 0


def _load(args: argparse.Namespace, requests: Requests, batch: int, policy: str = FIXED) -> Load:
    from specscope.engine.run.serving import Load

    return Load(tuple(seconds for seconds, _ in requests), batch, args.chunk, policy)


def _checked(args: argparse.Namespace) -> list[int]:
    batches = batch_sizes(args.batch, "--batch")
    check_range("--chunk", args.chunk, 1)
    check_range("--ttft-ms", args.ttft_ms, 0, exclusive=True)
    check_range("--tpot-ms", args.tpot_ms, 0, exclusive=True)
    if args.requests is not None:
        check_range("--requests", args.requests, 1, MOST_PROMPTS)
    if args.output is not None and args.output.suffix not in (".svg", ".html"):
        raise UsageError(f"the output {args.output} is no chart; name a file that ends in .svg or .html")
    common.check_output(args.output)
    return batches


def _requests(args: argparse.Namespace) -> Requests:
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
    if args.output is not None:
        common.write_output(args.output, chart(result) if args.output.suffix == ".svg" else page(result))
    common.answer(args, result, _lines(result))
    sys.stdout.flush()


def _lines(result: Mapping[str, Any]) -> Iterator[str]:
    limits = result["limits"]
    yield f"{result['models']} · {result['requests']} requests · {result['clock']}"
    wide = max(20, 2 + max(map(len, result["methods"])))
    yield f"{'method':{wide}}{'batch':>6}" + "".join(f"{title:>11}" for title, _, _ in COLUMNS)
    for key, method in result["methods"].items():
        for batch, row in method["batches"].items():
            yield f"{key:{wide}}{batch:>6}" + "".join(_cell(row[name], form) for _, name, form in COLUMNS)
    yield from verdicts(result)
    yield from (f"{key:{wide}}left out: {reason}" for key, reason in result["left_out"].items())
    yield f"good: first token within {limits['ttft_ms']:g} ms, further tokens {limits['tpot_ms']:g} ms in the mean"
    yield "busy tok/s: tokens by the time in which a request waits or is served"
    if result["warning"]:
        yield result["warning"]


def chart(result: Mapping[str, Any]) -> str:
    from specscope.engine.plot import Line, Panel, draw

    panels = list[Panel]()
    for name, title in TITLES:
        lines = list[Line]()
        for key, method in result["methods"].items():
            rows = method["batches"].items()
            points = [(int(batch), row[name]) for batch, row in rows if row[name] is not None]
            lines += [Line(key, points)] if points else []
        panels.append(Panel(title.format(clock=result["clock"]), "batch size", lines))
    return draw(panels, columns=2)


def page(result: Mapping[str, Any]) -> str:
    from specscope.app.render.html import app_page, scrolling, table, text

    head = ["method", "batch", *(title for title, _, _ in COLUMNS)]
    rows = [
        [text(key), str(batch), *(_cell(row[name], form).strip() for _, name, form in COLUMNS)]
        for key, method in result["methods"].items()
        for batch, row in method["batches"].items()
    ]
    notes = "".join(f"<p>{text(line)}</p>" for line in verdicts(result))
    body = f"{scrolling('Charts')}{chart(result)}</div>{notes}{table(head, rows, 'Figures')}"
    return app_page(f"{result['models']} · {result['requests']} requests · {result['clock']}", body)


def _cell(value: float | None, form: str) -> str:
    return f"{'-' if value is None else format(value, form):>11}"
