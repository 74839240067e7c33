"""Decode prompts with one method and print text, ids and metrics.

A method for batches decodes all prompts in one run; other methods have one run per prompt, in turn.
A method that drafts from finished texts has those of the prompts before.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from typing import Any

from specscope.app.cli import common, options, servers
from specscope.app.cli.inputs import checked_prompts, lacking
from specscope.app.named import seeded
from specscope.engine.drafting.suffix import Finished
from specscope.engine.errors import UsageError
from specscope.engine.methods import find
from specscope.engine.trace.trace import Trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_method(parser)
    options.add_settings(parser, "a setting of the method; repeatable")
    options.add_generation(parser)
    options.add_run(parser)


def run(args: argparse.Namespace) -> int:
    from specscope.app.busy import read_load
    from specscope.traces.view.settings import planned_text

    options.check_server(args)
    if args.servers:
        return servers.run(args)
    config, method = options.parse_fields(args.fields), find(args.method)
    cfg = method.configure(config)  # before anything is opened
    if args.head and not method.layout(cfg).head:
        raise UsageError(f"--head {args.head[0]}: {args.method} uses no drafting head; leave it out")
    if reason := lacking(args, args.method, config):
        raise UsageError(reason)
    limits, prompts = options.limits_of(args), checked_prompts(args)
    sampling = options.sampling_of(args, len(prompts))
    shared = {
        "config": config,
        "limits": limits,
        "group": uuid.uuid4().hex[:12],
        "finished": Finished(),
    }
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


def result_of(trace: Trace) -> dict[str, Any]:
    """Return a run's JSON object; for several prompts, `sequences` has one object per prompt."""
    from specscope.traces.health import health
    from specscope.traces.metrics import measure
    from specscope.traces.view.settings import models_text

    header = trace.header
    sequences = [_sequence(trace, i) for i in range(len(header.prompt_ids))]
    result = {
        "run_id": header.run_id,
        "method": header.method,
        "config": header.config,
        "planned": header.environment.get("planned"),
        "lossless": header.lossless,
        **sequences[0],
        "models": models_text(header),
        "target_path": header.target_path,
        "drafter_path": header.drafter_path,
        "metrics": measure(trace).to_dict(),
        "health": health(trace) or None,
        "runtime": header.runtime,
        "tp": header.environment.get("tp", 1),
        "drafter_tp": header.environment.get("drafter_tp", 1),
        "profile": header.profile or None,
        "status": trace.status,
        "sampling": header.sampling,
        "clock": header.clock,
    }
    return {**result, "sequences": sequences} if len(sequences) > 1 else result


def _sequence(trace: Trace, i: int) -> dict[str, Any]:
    footer = trace.footer
    return {
        "text": footer.texts[i] if footer and footer.texts else "",
        "token_ids": trace.token_ids(i),
        "prompt_ids": list(trace.header.prompt_ids[i]),
        "reason": footer.reasons[i] if footer and footer.reasons else "",
    }


def line_of(result: dict[str, Any]) -> str:
    m = result["metrics"]
    speed = f"{m['tokens_per_second']:.1f} tokens/s" if m["tokens_per_second"] else "no tokens"
    sequence = m["tokens_per_second_per_sequence"]
    if len(result.get("sequences", ())) > 1 and sequence:
        speed = f"throughput {speed} · {sequence:.1f} tokens/s per sequence"
    lossy = "" if result["lossless"] else " · lossy"
    where = f"{result['models']} · {result['clock']}"
    return f"[{result['method']}{lossy} · {m['tokens']} tokens · {speed} · {where} · run {result['run_id']}]"
