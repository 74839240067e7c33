"""Planned and advised speed-ups of every draft length beside the measured ones.

`python -m tests.bench.predictions [PAIR] [--methods A,B] [--longest N]` prints one JSON object for
the N shortest lengths and the planned one. The
plan predicts from its measurement of the pair, the advice from the run of the planned length.
Speed-ups are over plain decoding of the same prompts in the same pass, without prefill.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import specscope
from specscope.engine.cluster.session import Cluster
from specscope.engine.drafting.pace import Probe, in_turns, overlapped, plain_seconds, with_servers
from specscope.engine.drafting.planner import best_wide
from specscope.engine.errors import UsageError
from specscope.engine.methods import BASELINE, find
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.rates import rates_of
from specscope.traces.judge.advice import Kind, kind_of, predicted
from tests.bench import script

NEW_TOKENS = 64
PASSES = 2
WIDEST = 32
"""Lengths that are tried."""
METHODS = "speculative,pearl,dsi,tree"
TREES = {"width": 2}
"""Settings of a method whose drafts are trees: then the length is the depth."""


def decode(cluster: Cluster, method: str, config: dict[str, Any]) -> list[Trace]:
    limits = Limits(NEW_TOKENS)
    return [cluster.run(method, prompt, config=config, limits=limits) for prompt in script.prompts()]


def speed(runs: Sequence[Trace]) -> float:
    found = [measure(run) for run in runs]
    return sum(m.tokens for m in found) / sum(m.tokens / (m.tokens_per_second or 1.0) for m in found)


def probe_of(cluster: Cluster, method: str) -> Probe | None:
    """Return what the plan of a method is made from; None if it plans from c alone."""
    asked, entry = list[dict[str, Any]](), find(method)

    def planned(settings: dict[str, Any], _: object) -> None:
        asked.append(dict(settings))

    entry.plan(entry.configure({}), replace(cluster.situation, planned=planned))
    return cluster._probe(entry, asked[0], threading.Event(), lambda: None) if asked else None


def planned_speedup(probe: Probe, kind: Kind, length: int) -> float:
    if len(probe.rates[0]) > 1:
        return best_wide(probe, TREES["width"], length).speedup
    if kind == "turns":
        pace = in_turns(probe, [1] * length)
    else:
        pace = (overlapped if kind == "overlap" else with_servers)(probe, length)
    return plain_seconds(probe) * pace.tokens / pace.seconds


def advised(runs: Sequence[Trace], plain: Sequence[Trace], kind: Kind, used: int, length: int) -> float:
    found = list[float]()
    for run, baseline in zip(runs, plain, strict=True):
        metrics, own = measure(run), measure(baseline)
        rates = rates_of(run, metrics, baseline)
        if rates is not None:
            faster = (metrics.tokens_per_second or 0.0) / (own.tokens_per_second or 1.0)
            found.append(faster * predicted(kind, rates, length) / predicted(kind, rates, used))
    return fmean(found)


def table_of(cluster: Cluster, method: str, longest: int) -> dict[str, Any]:
    entry = find(method)
    fixed = TREES if "width" in {s.name for s in entry.settings()} else {}
    plain, runs = decode(cluster, BASELINE, {}), decode(cluster, method, fixed)
    config = runs[0].header.config
    name, roles = entry.length, {s.role for s in entry.settings()}
    kind = kind_of(entry.layout(entry.configure(config)), roles)
    assert kind is not None
    low = int(next(s.low for s in entry.settings() if s.name == name) or 1)
    rows, probe = list[dict[str, Any]](), probe_of(cluster, method)
    for length in range(low, low + WIDEST):
        if len(rows) >= longest and length != config[name]:
            continue
        passes = list[float]()
        try:
            for _ in range(PASSES):
                own = speed(decode(cluster, method, {**fixed, name: length}))
                passes.append(own / speed(decode(cluster, BASELINE, {})))
        except UsageError:  # one target server needs a longer lookahead
            continue
        rows.append(
            {
                "length": length,
                "measured": fmean(passes),
                "passes": passes,
                "planned": planned_speedup(probe, kind, length) if probe else None,
                "advised": advised(runs, plain, kind, config[name], length),
            }
        )
        print(method, rows[-1], file=sys.stderr, flush=True)
    return {"setting": name, "planned_length": config[name], **summary(rows, config[name]), "rows": rows}


def summary(rows: Sequence[dict[str, Any]], chosen: int) -> dict[str, Any]:
    result = dict[str, Any]()
    for source in ("planned", "advised"):
        errors = [row[source] / row["measured"] - 1 for row in rows if row[source]]
        if errors:
            result[source] = {"median": median(map(abs, errors)), "worst": max(errors, key=abs)}
    best = max(rows, key=lambda row: row["measured"])
    own = [row["measured"] for row in rows if row["length"] == chosen]
    loss = 1 - own[0] / best["measured"] if own else None
    return {**result, "best_length": best["length"], "plan_loses": loss}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pair", nargs="?", default="smollm2")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--longest", type=int, default=10)
    args = parser.parse_args()
    with specscope.open(args.pair) as cluster:
        found = {key: table_of(cluster, key, args.longest) for key in args.methods.split(",")}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
