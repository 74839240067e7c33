"""Serve requests that arrive while others decode: where does a method stop paying?

One run per method and batch size, and plain decoding beside them. Prompts join in chunks, in the
forwards that decode the others; the last chunk gives the first token. Without --rate and --arrivals
all requests arrive at once. Request i has seed S + i.
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from app.cli import clusters, common
from app.cli.chosen import able, equipped, method_keys
from app.cli.prompts import MAX_PROMPT_FILE, PromptRow, prompt_for, prompts_of
from app.cli.run import parse_settings, recorded
from app.loaded import COLUMNS, TITLES, batch_sizes, poisson, read_arrivals, verdicts
from engine.bounds import MOST_PROMPTS, check_prompt
from engine.errors import UsageError
from engine.files import replacing
from engine.types import check_range

if TYPE_CHECKING:
    from engine.run.serving import Load
    from engine.trace.trace import Trace

    Cells: TypeAlias = dict[str, dict[int, Trace]]
    """The runs by method and batch size."""
    from collections.abc import Mapping

Requests: TypeAlias = list[tuple[float, Any]]
"""(seconds, prompt) of each request."""
PROMPTS = Path(__file__).parents[2] / "assets" / "prompts" / "bench.json"
REQUESTS = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_methods(parser)
    arriving = parser.add_mutually_exclusive_group()
    arriving.add_argument(
        "--rate",
        type=float,
        metavar="R",
        help="requests per second, Poisson by --seed (all at once)",
    )
    arriving.add_argument(
        "--arrivals",
        type=Path,
        metavar="F",
        help="seconds of each request, one a line; or .jsonl with arrival and prompt in each row",
    )
    parser.add_argument(
        "--requests",
        type=int,
        metavar="N",
        help=f"requests; the prompts repeat ({REQUESTS}, or as many as the file has)",
    )
    parser.add_argument(
        "--batch", default="1,2,4,8", metavar="N,N", help="sequences decoded at once (1,2,4,8)"
    )
    parser.add_argument(
        "--chunk", type=int, default=256, metavar="N", help="prompt tokens in a forward at most (256)"
    )
    parser.add_argument(
        "--ttft-ms", type=float, default=1000.0, metavar="MS", help="a good request's first token (1000)"
    )
    parser.add_argument(
        "--tpot-ms",
        "--itl-ms",
        type=float,
        default=100.0,
        metavar="MS",
        help="its mean time per further token (100)",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="F", help="draw the chart: .svg, or .html")
    common.add_generation(parser, required=False)
    clusters.add_cluster(parser)
    common.add_database(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    from app.busy import read_load
    from app.loaded import result_of

    configs = parse_settings(args.fields, method_keys(args.methods))
    batches = _checked(args)
    keys, left_out = equipped(args, configs)
    requests = _requests(args)
    options = {"sampling": common.sampling_of(args, len(requests)), "limits": common.limits_of(args)}
    cells: Cells = {key: {} for key in keys}
    with common.open_store(args) as store, clusters.open_cluster(args) as cluster:
        if args.methods == "all":
            keys, unable = able(keys, cluster, _load(args, requests[:1], 1))
            left_out |= unable
            cells = {key: {} for key in keys}
        before = read_load()
        try:
            groups = {batch: uuid.uuid4().hex[:12] for batch in batches}
            jobs = [(key, batch) for batch in batches for key in keys]
            for i, (key, batch) in enumerate(jobs, 1):
                load = {"load": _load(args, requests, batch), "config": configs[key], "group": groups[batch]}
                prompts = [prompt for _, prompt in requests]
                cells[key][batch] = recorded(
                    store,
                    cluster,
                    key,
                    prompts,
                    {**options, **load},
                    f"with batch {batch} ({i} of {len(jobs)})",
                )
                print(f"specscope: {key} with batch {batch} is done ({i} of {len(jobs)})", file=sys.stderr)
        except KeyboardInterrupt:
            if cells[keys[0]]:  # what is finished is kept
                _show(args, result_of(cells, left_out, args.ttft_ms, args.tpot_ms, "stopped before the end"))
            raise
        warning = common.busy_warning(args, before)
    _show(args, result_of(cells, left_out, args.ttft_ms, args.tpot_ms, warning))
    return 0


def _load(args: argparse.Namespace, requests: Requests, batch: int) -> Load:
    from engine.run.serving import Load

    return Load(tuple(seconds for seconds, _ in requests), batch, args.chunk)


def _checked(args: argparse.Namespace) -> list[int]:
    batches = batch_sizes(args.batch, "--batch")
    check_range("--chunk", args.chunk, 1)
    check_range("--ttft-ms", args.ttft_ms, 0, exclusive=True)
    check_range("--tpot-ms", args.tpot_ms, 0, exclusive=True)
    if args.requests is not None:
        check_range("--requests", args.requests, 1, MOST_PROMPTS)
    if args.output is not None:
        if args.output.suffix not in (".svg", ".html"):
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
    return list(map(PromptRow, json.loads(PROMPTS.read_text(encoding="utf-8"))["prompts"]))


def _show(args: argparse.Namespace, result: dict[str, Any]) -> None:
    if args.output is not None:
        with replacing(args.output) as file:
            file.write(chart(result) if args.output.suffix == ".svg" else page(result))
    if args.json:
        common.print_json(result)
    else:
        print_load(result)
    sys.stdout.flush()


def print_load(result: Mapping[str, Any]) -> None:
    limits = result["limits"]
    print(f"{result['models']} · {result['requests']} requests · {result['clock']}")
    print(f"{'method':20}{'batch':>6}" + "".join(f"{title:>11}" for title, _, _ in COLUMNS))
    for key, method in result["methods"].items():
        for batch, row in method["batches"].items():
            print(f"{key:20}{batch:>6}" + "".join(_cell(row[name], form) for _, name, form in COLUMNS))
    for line in verdicts(result):
        print(line)
    for key, reason in result["left_out"].items():
        print(f"{key:20}left out: {reason}")
    print(
        f"good: first token within {limits['ttft_ms']:g} ms, further tokens {limits['tpot_ms']:g} ms in the mean"
    )
    print("busy tok/s: tokens by the time in which a request waits or is served")
    if result["warning"]:
        print(result["warning"])


def chart(result: Mapping[str, Any]) -> str:
    from engine.plot import Line, Panel, draw

    clock, panels = result["clock"], list[Panel]()
    for name, title in TITLES:
        shown = title.format(clock=clock)
        lines = [
            Line(
                key,
                [
                    (int(batch), row[name])
                    for batch, row in method["batches"].items()
                    if row[name] is not None
                ],
            )
            for key, method in result["methods"].items()
        ]
        panels.append(Panel(shown, "batch size", [line for line in lines if line.points]))
    return draw(panels, columns=2)


def page(result: Mapping[str, Any]) -> str:
    """Return chart and table as a page of its own, which loads nothing."""
    from app.render.charts import app_page
    from app.render.html import scrolling, table, text

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
