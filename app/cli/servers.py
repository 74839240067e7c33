"""Runs on servers that are already running: `run --server` and `compare --server`."""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from specscope.app.cli import common, options
from specscope.app.cli.inputs import checked_prompts
from specscope.app.cli.results import line_of, result_of
from specscope.app.named import seeded
from specscope.engine.errors import SpecScopeError, UsageError
from specscope.engine.servers.session import MOST_REQUESTS, Server, connect
from specscope.engine.trace.header import SERVER
from specscope.engine.types import check_range, whole

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace
    from specscope.engine.types import Sampling


def run(args: argparse.Namespace) -> int:
    """Send prompts to a server; print text, ids and metrics as for a method."""
    if len(args.server) > 1:
        raise UsageError(
            f"--server is given {len(args.server)} times; to compare servers, use specscope compare"
        )
    prompts, sampling = _prompts(args)
    server = _connected(args, args.server[0])
    streams = not args.json and sys.stdout.isatty() and len(prompts) == 1
    with common.open_store(args) as store:
        traces = list(_traces(args, store, server, prompts, sampling, uuid.uuid4().hex[:12], stream=streams))
    results = [{**result_of(trace), "server": trace.header.environment[SERVER]} for trace in traces]
    lines = list[str]()
    for result in results:
        lines += [] if streams else [part["text"] for part in result.get("sequences", [result])]
        lines += [line_of(result), *result["server"]["notes"], *filter(None, [result["health"]])]
    more = {"sequences": results} if len(results) > 1 else {}
    return common.answer(args, results[0] | more, lines)


def compare(args: argparse.Namespace) -> int:
    """Send the same prompts to several servers in turn; print their figures side by side.

    A server that drafts nothing is the baseline of the speed-ups. With --repeat, passes alternate.
    """
    if args.fail_below or args.baseline is not None:
        raise UsageError("--fail-below and --baseline compare methods; leave them out with --server")
    check_range("--repeat", args.repeat, 1)
    prompts, sampling = _prompts(args)
    servers = [_connected(args, address) for address in args.server]
    group, found = uuid.uuid4().hex[:12], [list["Trace"]() for _ in servers]
    with common.open_store(args) as store:
        for number in range(args.repeat):
            order = [*enumerate(servers)]
            for i, server in order[::-1] if number % 2 else order:
                found[i] += _traces(args, store, server, prompts, sampling, group)
    result = {
        "prompts": len(prompts),
        "group": group,
        "servers": [
            {**figures, "server": server.found.title}
            for server, figures in zip(servers, _figures(found, args.repeat), strict=True)
        ],
    }
    return common.answer(args, result, _lines(result))


def _prompts(args: argparse.Namespace) -> tuple[list[Any], Sampling]:
    whole("--at-once", args.at_once, 1, MOST_REQUESTS)
    prompts = checked_prompts(args)
    if args.chat:
        prompts = [[{"role": "user", "content": p}] if isinstance(p, str) else p for p in prompts]
    return prompts, options.sampling_of(args, len(prompts))


def _connected(args: argparse.Namespace, address: str) -> Server:
    with common.Status(f"asking {address}"):
        server = connect(address, remote=args.remote)
    common.note(f"{server.found.address.url}: {server.found.line}")
    return server


def _traces(
    args: argparse.Namespace,
    store: Any,
    server: Server,
    prompts: Sequence[Any],
    sampling: Sampling,
    group: str,
    *,
    stream: bool = False,
) -> Iterator[Trace]:
    """Yield the runs of a server, `--at-once` prompts each, stored as they end."""
    numbers, parts = count(1), -(-len(prompts) // args.at_once)
    for first in range(0, len(prompts), args.at_once):
        part = list(prompts[first : first + args.at_once])
        given = {"limits": options.limits_of(args), "sampling": seeded(sampling, first), "group": group}
        given |= {"probabilities": args.probabilities}
        which = f"({next(numbers)} of {parts})" if parts > 1 else ""
        trace = common.recorded(store, _Named(server), server.found.title, part, given, which, stream=stream)
        store.replace(trace)
        if trace.status == "failed" and trace.footer is not None:
            raise SpecScopeError(
                f"{trace.footer.error}; what came before is stored as run {trace.header.run_id}"
            )
        yield trace


class _Named:
    """A server with the arguments of a cluster's run, whose first is the method."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def run(self, _: str, *prompts: Any, measuring: object, **given: Any) -> Trace:  # noqa: ARG002
        return self._server.run(*prompts, **given)


def _figures(found: Sequence[list[Trace]], repeat: int) -> list[dict[str, Any]]:
    """Return the figures of each server over all its runs; the range is that of its passes."""
    from specscope.app.experiments.doubt import Doubt, doubt_of
    from specscope.app.experiments.figures import pooled, texts_of
    from specscope.traces.facts.comparable import comparisons

    rows = [pooled(traces) for traces in found]
    parts = len(found[0]) // repeat
    passes = [[traces[k : k + parts] for k in range(0, len(traces), parts)] for traces in found]
    speeds = [[pooled(runs)["tokens_per_second"] or 0.0 for runs in mine] for mine in passes]
    for i, compared in enumerate(comparisons(found)):
        k = i if compared.baseline is None else compared.baseline
        plain = None if compared.baseline is None else rows[k]["tokens_per_second"]
        mine = rows[i]["tokens_per_second"]
        first, other = (dict(enumerate(passes[n][0])) for n in (i, k))
        doubt = doubt_of(first, other, (speeds[i], speeds[k])) if k != i else None
        rows[i] |= {
            "runs": [trace.header.run_id for trace in found[i]],
            "speedup": mine / plain if mine and plain else None,
            **Doubt.figures(doubt),
            "not_comparable": compared.reason or None,
            "equal_to_first": texts_of(found[i]) == texts_of(found[0]),
            "notes": [note for trace in found[i] for note in trace.header.environment[SERVER]["notes"]],
        }
    return rows


def _lines(result: dict[str, Any]) -> Iterator[str]:
    from specscope.app.experiments.compare import ACCEPTED, SPEEDS, range_text
    from specscope.app.render.table import Column, Table

    columns = [Column("server", "server", width=-32), *SPEEDS]
    columns += [
        Column("tokens_per_target_forward", "tok/step", ".2f", width=10),
        *ACCEPTED,
        Column("text", "  text"),
    ]
    rows = list[dict[str, Any]]()
    for row in result["servers"]:
        same = "identical" if row["equal_to_first"] else "differs"
        if range_text(row):
            same += f" · {range_text(row)} by {row['speedup_from']}"
        why = f" · no speed-up: {row['not_comparable']}" if row["not_comparable"] else ""
        rows.append({**row, "text": f"  {same}{why}"})
    yield from Table(columns, rows).lines()
    for row in result["servers"]:
        yield from (f"{row['server']}: {note}" for note in dict.fromkeys(row["notes"]))
    yield f"side by side: specscope report {' '.join(row['runs'][0] for row in result['servers'])} -o report.html"
