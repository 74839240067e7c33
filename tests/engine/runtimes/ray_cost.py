"""What Ray costs beside worker processes: round trips of an empty job, gaps of a run, tokens/s.

`python -m tests.engine.runtimes.ray_cost [PAIR]` opens both runtimes with the same models and
measures in alternating passes; the best tokens/s count. It prints one JSON object.
"""

import json
import sys
import time
from itertools import pairwise
from statistics import median

import specscope
from specscope.engine.layout import Packing
from specscope.engine.types import Limits, Sampling
from specscope.engine.worker.jobs import AskCaches, Begin
from specscope.traces.facts.metrics import measure

METHODS = {"autoregressive": {}, "speculative": {"gamma": 4}, "pearl": {"gamma": 4}}
PASSES = 3
TRIPS = 200
NEW_TOKENS = 48
PROMPT = "Once upon a time, there was a little dog. One day, the dog"


def round_trips(cluster):
    """Return the milliseconds of jobs that ask for the memory of caches and change nothing."""
    worker = cluster.placement.workers_for(cluster.placement.base).by_model["target"][0]
    room = AskCaches(Begin(Sampling(), 1, 8, cluster.placement.vocab_size, Packing()), ())

    async def send():
        times = list[float]()
        for _ in range(TRIPS):
            start = time.perf_counter()
            await worker.submit(room).reply
            times.append(1000 * (time.perf_counter() - start))
        return times

    return cluster.placement.on_loop(send())


def gaps(trace):
    """Return the milliseconds from a span of one device to the next one's, which waited for it."""
    spans = sorted(trace.spans, key=lambda span: span.start)
    turns = [(a, b) for a, b in pairwise(spans) if a.device != b.device and b.start > a.end]
    return [(b.start - a.end) / 1e6 for a, b in turns]


def main(pair="bundled"):
    """Measure and print."""
    with specscope.open(pair) as here, specscope.open(pair, runtime="ray") as ray:
        clusters = {"local-process": here, "ray": ray}
        trips, between = ({runtime: list[float]() for runtime in clusters} for _ in range(2))
        speeds = {method: dict.fromkeys(clusters, 0.0) for method in METHODS}
        for _ in range(PASSES):
            for runtime, cluster in clusters.items():
                trips[runtime] += round_trips(cluster)
                for method in METHODS:
                    trace = cluster.run(method, PROMPT, config=METHODS[method], limits=Limits(NEW_TOKENS))
                    speed = measure(trace).tokens_per_second or 0.0
                    speeds[method][runtime] = max(speeds[method][runtime], round(speed, 1))
                    if method == "speculative":
                        between[runtime] += gaps(trace)
    found = {"pair": pair, "round_trip_ms": summary(trips), "gap_ms": summary(between)}
    print(json.dumps({**found, "tokens_per_second": speeds}, indent=2))


def summary(times):
    """Return the least and the median milliseconds of each runtime."""
    return {
        name: {"least": round(min(each), 3), "median": round(median(each), 3)} for name, each in times.items()
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
