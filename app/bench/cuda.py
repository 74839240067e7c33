"""Decoding on a GPU: how near a forward is to the time that reading the weights takes.

Models have random weights and the shapes of real ones, so nothing is downloaded. Without a GPU the
same figures are measured for small shapes on one CPU core.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import torch

import engine
from app.bench.figures import Figure
from app.bench.plan import Note
from app.bench.speed import one_core
from app.bench.timed import DRAFTS, Size, Timed, seconds
from engine.types import Limits
from traces import waiting

NOT_ON_A_GPU = "not run on a GPU: small shapes on one CPU core"
PROMPT = "Tell me a story about a fox who lost its hat."


GPU = (
    Size("7B", 32, 4096, 11008, 32, 32),
    Size("1B", 16, 2048, 8192, 32, 8),
    Size("160M", 12, 768, 3072, 12, 12),
)
CPU = (Size("160M", 12, 768, 3072, 12, 12), Size("40M", 8, 512, 1536, 8, 8))
"""The first shape of each list is the target of `colocated_gain`, the second its drafter."""


def measure(repeats: int, note: Note) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Return the figures, and facts of the device.

    Args:
        repeats: Timed forwards of each kind.
        note: Shows progress.
    """
    on_gpu = torch.cuda.is_available()
    device, sizes = (torch.device("cuda:0"), GPU) if on_gpu else (torch.device("cpu"), CPU)
    figures = dict[str, Figure]()
    with contextlib.nullcontext("") if on_gpu else one_core():
        note("memory bandwidth")
        speed = bandwidth(device)
        figures["bandwidth_gb_s"] = Figure((speed / 1e9,), "GB/s")
        models = list[Timed]()
        for size in sizes:
            note(f"{size.name}: one row, 16 rows and a chain")
            models.append(Timed(size, device))
            figures |= models[-1].over_floor(speed, repeats)
            figures[f"chain_gain_{size.name}"] = models[-1].chain_gain(repeats)
        note("drafts beside a verification")
        figures["colocated_gain"], round_s = colocated(models[0], models[1], repeats)
    note("a run's time outside models")
    figures |= orchestration("cuda" if on_gpu else "cpu", round_s)
    name = torch.cuda.get_device_name(0) if on_gpu else NOT_ON_A_GPU
    return figures, {"device": name, "on_gpu": on_gpu}


def bandwidth(device: torch.device) -> float:
    """Return how fast the device reads memory, in bytes per second: the best of several sums."""
    count = (1 << 30 if device.type == "cuda" else 1 << 28) // 4
    numbers = torch.ones(count, device=device)
    times = [seconds(lambda: numbers.sum().item()) for _ in range(8)]
    return numbers.nbytes / min(times)


def colocated(target: Timed, drafter: Timed, repeats: int) -> tuple[Figure, float]:
    """Return the time of drafts and a verification in turn over their time at once.

    The second value is the median time in turn, in seconds: the models' part of a round.
    """

    def draft() -> None:
        for _ in range(DRAFTS):
            drafter.static(1)

    def verify() -> None:
        target.static(DRAFTS + 1)

    values, rounds = list[float](), list[float]()
    with ThreadPoolExecutor(2) as pool:

        def at_once() -> None:
            for job in [pool.submit(_on_own_stream(work)) for work in (draft, verify)]:
                job.result()

        at_once()  # to warm up, and to capture graphs
        for _ in range(repeats):
            rounds.append(seconds(lambda: (draft(), verify())))
            values.append(rounds[-1] / seconds(at_once))
    detail = {"target": target.name, "drafter": drafter.name, "drafts": DRAFTS}
    return Figure(tuple(values), "x", detail=detail), median(rounds)


def orchestration(device: str, round_s: float) -> dict[str, Figure]:
    """Return which share of `speculative`'s rounds is outside spans of models.

    The time outside of them is that of rounds of the bundled pair, a toy. It is a share of the
    toy's rounds, and of rounds whose models take as long as those of the shapes.

    Args:
        device: Where the toy runs. On a GPU the toy's figure has the host's waits for the device
            per round, drafting and judging.
        round_s: The models' part of a round of the shapes, in seconds.
    """
    shares, hosts, waits = list[float](), list[float](), list[float]()
    with engine.open("bundled", runtime="local-thread", device=device, forward="static") as cluster:
        for _ in range(4):
            with _counted_waits(device) as counted:
                trace = cluster.run("speculative", PROMPT, config={"gamma": DRAFTS}, limits=Limits(64))
            start, end = waiting.decode_window(trace)
            idle = sum(band.end - band.start for band in waiting.band(trace) if band.kind == "none")
            shares.append(idle / (end - start))
            hosts.append(idle / len(trace.rounds) / 1e9)
            waits.append(len(counted) / len(trace.rounds))
    detail = {"waits_per_round": round(median(waits[1:]), 2)} if device == "cuda" else {}
    of_shapes = tuple(host / (host + round_s) for host in hosts[1:])
    spent = {"host_ms": round(median(hosts[1:]) * 1e3, 3), "models_ms": round(round_s * 1e3, 3)}
    return {  # without the first run, which makes the steps
        "orchestration": Figure(of_shapes, "of a round", detail=spent),
        "orchestration_toy": Figure(tuple(shares[1:]), "of decoding", detail=detail),
    }


@contextlib.contextmanager
def _counted_waits(device: str) -> Generator[list[warnings.WarningMessage]]:
    """Collect CUDA's warnings of calls that wait for the device."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("default")


def _on_own_stream(work: Callable[[], None]) -> Callable[[], None]:
    """Return work that runs on a CUDA stream of its own, if there is CUDA."""
    if not torch.cuda.is_available():
        return work

    def run() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            work()
            torch.cuda.current_stream().synchronize()

    return run
