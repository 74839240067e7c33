"""Rounds that the device ends, beside rounds with a host between forwards, on the bundled pair.

`python -m tests.bench.rounds [--quick] [--forward compiled] [--json]`: tokens per second with
prefill, in turns, after a first run of both that captures graphs. A GPU runs such rounds; on a CPU
each method has the host's rounds twice.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

import specscope
from specscope.app.bench.cuda import NOT_ON_A_GPU, PROMPT
from specscope.app.bench.figures import Measurement, Note
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits
from specscope.traces.facts.metrics import measure as metrics
from tests.bench import script
from tests.engine.run.rounds_on_host import counting, on_the_host

MODELS = ("autoregressive", "speculative", "tree")
HEADS = ("eagle", "eagle2", "medusa", "hydra", "parallelspec_eagle", "mtp", "dflash")


def race(cluster: specscope.Cluster, method: str, repeats: int, tokens: int) -> Measurement:
    """Return a method's speed with rounds of the device over that with a host, run by run."""
    with_host, on_device = list[Trace](), list[Trace]()
    for _ in range(repeats + 1):
        with_host.append(on_the_host(cluster, method, PROMPT, limits=Limits(tokens)))
        with counting() as counts:
            on_device.append(cluster.run(method, PROMPT, limits=Limits(tokens)))
    ours, host = _speeds(on_device[1:]), _speeds(with_host[1:])
    detail = {
        "tokens_per_second": round(median(ours), 1),
        "with_host_tokens_per_second": round(median(host), 1),
        "rounds": len(on_device[-1].rounds),
        "device_rounds": counts[0],
    }
    same = on_device[-1].token_ids() == with_host[-1].token_ids()
    return Measurement(tuple(a / b for a, b in zip(ours, host, strict=True)), "ratio", same, detail)


def _speeds(traces: Sequence[Trace]) -> list[float]:
    return [metrics(trace).tokens_per_second or 0.0 for trace in traces]


def measure(args: argparse.Namespace, note: Note) -> tuple[dict[str, Measurement], dict[str, Any]]:
    on_gpu = torch.cuda.is_available()
    forward = args.forward if on_gpu else "eager"
    options = {"device": "cuda" if on_gpu else "cpu", "forward": forward}
    options["dtype"] = "bfloat16" if on_gpu else "float32"
    found = dict[str, Measurement]()
    with specscope.open("bundled", runtime="local-thread", **options) as cluster:
        for method in (*MODELS, *HEADS):
            note(method)
            found[f"{method}_device_over_host"] = race(
                cluster, method, *((1, 48) if args.quick else (3, 192))
            )
    name = torch.cuda.get_device_name(0) if on_gpu else NOT_ON_A_GPU
    return found, {"device": name, "on_gpu": on_gpu, "forward": forward}


if __name__ == "__main__":
    options = script.options(__doc__)
    options.add_argument("--forward", metavar="NAME", default="compiled", help="on a GPU (compiled)")
    script.main(options, measure, {})
