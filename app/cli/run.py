"""Decode prompts with one method and print text, ids and metrics.

A method for batches decodes all prompts in one run; other methods have one run per prompt.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from itertools import count
from typing import Any

from app.cli import clusters, common
from app.cli.chosen import lacking
from app.cli.prompts import checked_prompts
from app.cli.status import Status
from engine.errors import UsageError, shown
from engine.methods import find
from engine.trace.events import Commit
from engine.trace.trace import Trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--method", required=True, metavar="KEY", help="a key of `specscope methods`")
    common.add_settings(parser, "a setting of the method; repeatable")
    common.add_generation(parser)
    clusters.add_cluster(parser)
    common.add_database(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    from app.busy import read_load
    from traces.view.settings import planned_text

    config, method = parse_fields(args.fields), find(args.method)
    cfg = method.configure(config)  # before anything is opened
    if args.head and not method.layout(cfg).head:
        raise UsageError(f"--head {args.head[0]}: {args.method} uses no drafting head; leave it out")
    if reason := lacking(args, args.method, config):
        raise UsageError(reason)
    limits, prompts = common.limits_of(args), checked_prompts(args)
    sampling = common.sampling_of(args, len(prompts))
    group = uuid.uuid4().hex[:12]
    traces: list[Trace] = []
    with common.open_store(args) as store, clusters.open_cluster(args) as cluster:
        before = read_load()
        streams = not args.json and sys.stdout.isatty()
        batches = batches_of(args.method, prompts)
        for i, part in enumerate(batches):
            seeded = common.seeded(sampling, i)
            options = {"config": config, "sampling": seeded, "limits": limits, "group": group}
            which = f"({i + 1} of {len(batches)})" if len(batches) > 1 else ""
            one = streams and len(part) == 1
            traces.append(recorded(store, cluster, args.method, part, options, which, stream=one))
        warning = common.busy_warning(args, before)
    results, plans = [result_of(t) for t in traces], [planned_text(t.header) for t in traces]
    if args.json:
        sequences = {"sequences": results} if len(results) > 1 else {}
        common.print_json({**results[0], **sequences, "warning": warning or None})
    else:
        for result, plan in zip(results, plans, strict=True):
            for sequence in result.get("sequences", [result]):
                if not streams or "sequences" in result:
                    print(sequence["text"])
            print(*filter(None, [plan, _line(result)]), sep="\n")
    return 0


def batches_of(method: str, prompts: list[Any]) -> list[list[Any]]:
    return [prompts] if find(method).batched else [[prompt] for prompt in prompts]


def parse_fields(fields: list[str]) -> dict[str, Any]:
    """Return FIELD=VALUE texts as a dict, before the registry converts and checks the values."""
    parsed: dict[str, Any] = {}
    for text in fields:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--set {shown(text)} is not FIELD=VALUE")
        parsed[name] = value
    return parsed


def parse_settings(fields: list[str], keys: list[str]) -> dict[str, dict[str, Any]]:
    """Return METHOD.FIELD=VALUE texts as the config of each method."""
    parsed: dict[str, dict[str, Any]] = {key: {} for key in keys}
    for name, value in parse_fields(fields).items():
        key, _, field = name.partition(".")
        if key not in keys or not field:
            given = shown(f"{name}={value}").strip("'")
            raise UsageError(f"--set {given} is not METHOD.FIELD=VALUE with a method of --methods")
        parsed[key][field] = value
    return parsed


def recorded(
    store: Any,
    cluster: Any,
    method: str,
    prompts: list[Any],
    options: dict[str, Any],
    part: str = "",
    *,
    stream: bool = False,
) -> Trace:
    """Run a method on prompts and store its events as they arrive; show the progress on stderr.

    `options` go to `Cluster.run`; `part` names the run among several; `stream` prints the text.
    """
    title = " ".join(filter(None, [method, part]))
    status, tokens = Status(title), count(1)

    def show(event: Any) -> None:
        if isinstance(event, Commit):
            status.text = f"{title}: {next(tokens)} tokens"
            if stream:
                status.hide()
                sys.stdout.write(
                    "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in event.text)
                )
                sys.stdout.flush()

    def measuring() -> None:
        from engine.cluster.probing import BUDGET_S, VERIFY_S

        seconds = f"{BUDGET_S:.0f} to {BUDGET_S + VERIFY_S:.0f} s, once on this machine"
        status.text = f"measuring {cluster.pair.name} for {title}: {seconds}; Ctrl-C stops it"
        if not status.shown:
            print(f"specscope: {status.text}", file=sys.stderr, flush=True)

    with store.listening() as record:
        begun = False

        def listen(event: Any) -> None:
            nonlocal begun
            begun = True
            record(event)
            show(event)

        try:
            with status:
                return cluster.run(method, *prompts, listener=listen, measuring=measuring, **options)
        finally:
            if stream and begun:
                print()


def result_of(trace: Trace) -> dict[str, Any]:
    """Return a run's JSON object; for several prompts, `sequences` has one object per prompt."""
    from traces.metrics import measure
    from traces.view.settings import models_text

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


def _line(result: dict[str, Any]) -> str:
    m = result["metrics"]
    speed = f"{m['tokens_per_second']:.1f} tokens/s" if m["tokens_per_second"] else "no tokens"
    sequence = m["tokens_per_second_per_sequence"]
    if len(result.get("sequences", ())) > 1 and sequence:
        speed = f"throughput {speed} · {sequence:.1f} tokens/s per sequence"
    lossy = "" if result["lossless"] else " · lossy"
    where = f"{result['models']} · {result['clock']}"
    return f"[{result['method']}{lossy} · {m['tokens']} tokens · {speed} · {where} · run {result['run_id']}]"
