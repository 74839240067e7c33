"""Serve requests that arrive while others decode: where does a method stop paying?

One run per method and batch size, and plain decoding beside them. Prompts join in chunks, in the
forwards that decode the others; the last chunk gives the first token. Without --rate and --arrivals
all requests arrive at once. Request i has seed S + i.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from app.arrivals import poisson, read_arrivals
from app.cli import clusters, common
from app.cli.chosen import able, equipped, method_keys
from app.cli.prompts import MAX_PROMPT_FILE, PromptRow, prompt_for, prompts_of
from app.cli.run import parse_settings, recorded
from app.loaded import batch_sizes
from engine.bounds import MOST_PROMPTS, check_prompt
from engine.errors import UsageError
from engine.files import replacing
from engine.types import check_range

if TYPE_CHECKING:
    from engine.run.serving import Load
    from engine.trace.trace import Trace

    Cells: TypeAlias = dict[str, dict[int, Trace]]
    """The runs by method and batch size."""

Requests: TypeAlias = list[tuple[float, Any]]
"""(seconds, prompt) of each request."""
PROMPTS = Path(__file__).parents[2] / "assets" / "prompts" / "bench.json"
REQUESTS = 16
"""Requests without --requests and --arrivals."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
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
    """Serve the requests with each method and batch size, with progress on stderr."""
    from app.busy import read_load
    from app.loaded import result_of

    configs = parse_settings(args.fields, method_keys(args.methods))
    batches = _checked(args)
    keys, left_out = equipped(args, configs)
    requests = _requests(args)
    options = {"sampling": common.sampling_of(args, len(requests)), "limits": common.limits_of(args)}
    cells: Cells = {key: {} for key in keys}
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(common.open_store(args))
        cluster = stack.enter_context(clusters.open_cluster(args))
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
    """Check the options, and return the batch sizes in ascending order."""
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
    """Return the seconds and the prompt of each request."""
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
    """Return the prompts of the options, or the bench's."""
    if args.prompt is not None or args.prompt_file is not None:
        return prompts_of(args)
    return list(map(PromptRow, json.loads(PROMPTS.read_text(encoding="utf-8"))["prompts"]))


def _show(args: argparse.Namespace, result: dict[str, Any]) -> None:
    """Print the result, and write its chart."""
    from app.cli.loaded import chart, page, print_load

    if args.output is not None:
        with replacing(args.output) as file:
            file.write(chart(result) if args.output.suffix == ".svg" else page(result))
    if args.json:
        common.print_json(result)
    else:
        print_load(result)
    sys.stdout.flush()
