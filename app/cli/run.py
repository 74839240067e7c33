"""Decode prompts with one method and print text, ids and metrics.

A method for batches decodes all prompts in one run; other methods have one run per prompt, in turn.
A method that drafts from finished texts has those of the prompts before.
"""

from __future__ import annotations

import argparse
import sys
import uuid

from specscope.app.cli import common, options, servers
from specscope.app.cli.inputs import checked_prompts, lacking
from specscope.app.cli.results import line_of, result_of
from specscope.app.named import seeded
from specscope.engine.drafting.suffix import Finished
from specscope.engine.errors import UsageError
from specscope.engine.methods import find
from specscope.engine.trace.trace import Trace

OPTIONS = (
    *(*options.METHOD, {"--set": ([], "FIELD=VALUE", "a setting of the method; repeatable")}),
    *(options.one_of(options.PROMPT, needed=True), options.GENERATION, *options.RUN),
)


def run(args: argparse.Namespace) -> int:
    from specscope.app.busy import read_load
    from specscope.traces.facts.settings import planned_text

    options.check_server(args)
    if args.server:
        return servers.run(args)
    config, method = options.parse_fields(args.set), find(args.method)
    cfg = method.configure(config)  # before anything is opened
    if args.head and not method.layout(cfg).head:
        raise UsageError(f"--head {args.head[0]}: {args.method} uses no drafting head; leave it out")
    if reason := lacking(args, args.method, config):
        raise UsageError(reason)
    limits, prompts = options.limits_of(args), checked_prompts(args)
    sampling = options.sampling_of(args, len(prompts))
    shared = {"config": config, "limits": limits, "group": uuid.uuid4().hex[:12], "finished": Finished()}
    batches = [prompts] if method.batched else [[prompt] for prompt in prompts]
    streams = not args.json and sys.stdout.isatty()
    traces: list[Trace] = []
    with common.open_store(args) as store, common.open_cluster(args) as cluster:
        before = read_load()
        for i, part in enumerate(batches):
            which = f"({i + 1} of {len(batches)})" if len(batches) > 1 else ""
            given = {**shared, "sampling": seeded(sampling, i)}
            one = streams and len(part) == 1
            traces.append(common.recorded(store, cluster, args.method, part, given, which, stream=one))
        warning = common.busy_warning(args, before)
    results = [result_of(t) for t in traces]
    lines = list[str]()
    for result, trace in zip(results, traces, strict=True):
        if not streams or "sequences" in result:
            lines += [sequence["text"] for sequence in result.get("sequences", [result])]
        lines += filter(None, [planned_text(trace.header), line_of(result), result["health"]])
    sequences = {"sequences": results} if len(results) > 1 else {}
    return common.answer(args, {**results[0], **sequences, "warning": warning or None}, lines)
