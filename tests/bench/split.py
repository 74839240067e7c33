"""What tensor parallelism costs: a split target beside a whole one, and two ways to read logits.

    python -m tests.bench.split

Both are on two processes of this machine; see docs/devices.md.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

import engine
from engine.accept import judge
from engine.draws import Draws
from engine.packed_rows import Case, read
from engine.types import Draft, DraftToken, Limits, Sampling
from engine.vocabulary import Vocabulary
from engine.workers.ranks import ProcessRanks

PROMPT, ROUNDS, TURNS, VOCAB = "Write a short story about a lighthouse.", 5, 60, 49152


def targets() -> None:
    """Print the milliseconds per token of SmolLM2 on one core and split over two, in turns."""
    runs = dict[str, list[tuple[float, ...]]]()
    with engine.open("smollm2", device="cpu") as whole, engine.open("smollm2", device="cpu", tp=2) as split:
        for name, cluster in [("whole", whole), ("split", split)] * ROUNDS:
            trace = cluster.run("autoregressive", PROMPT, limits=Limits(32))
            spans = [s for s in trace.spans if s.step and s.device == "cpu:1"]
            times = [
                sum(s.end - s.start for s in spans if s.kind == k) / 32e6 for k in ("verify", "communicate")
            ]
            runs.setdefault(name, []).append((sum(times), *times))
    for name, rows in runs.items():
        together, computing, communicating = map(median, zip(*rows, strict=True))
        print(
            f"{name}: {together:.0f} ms per token, {computing:.0f} computing, {communicating:.0f} exchanges"
        )


def rank(number: int, path: str) -> None:
    """Time an all-gather of the logits and an exchange of a few numbers, both with judging."""
    torch.set_num_threads(1)
    ranks = ProcessRanks(path, number, 2, "gloo")
    vocabulary = Vocabulary(VOCAB, ranks)
    for rows in (1, 8):
        part = torch.randn(rows, VOCAB // 2, generator=torch.Generator().manual_seed(number))
        ids = vocabulary.gather(part).argmax(-1).tolist()
        draft = Draft(tuple(DraftToken(ids[i], i - 1) for i in range(rows - 1)))
        cases = [Case(part, draft, 0, Draws(0, 0))]
        ways = {
            "all logits": lambda part=part: vocabulary.gather(part),
            "a few numbers": lambda cases=cases: read(cases, Sampling(), vocabulary)[0],
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for name, get in [*ways.items()] * TURNS:
            ranks.agree(False)  # both ranks begin together
            start, before = time.perf_counter(), ranks.spent
            judge(get(), draft, lambda _: None, position=0, sampling=Sampling(), draws=Draws(0, 0))
            times[name].append((1e3 * (time.perf_counter() - start), (ranks.spent - before) / 1e6))
        for name, found in times.items() if number == 0 else ():
            together, exchange = map(median, zip(*found, strict=True))
            print(f"{rows} rows, {name}: {together:.2f} ms, of these {exchange:.2f} exchange")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        start = multiprocessing.get_context("spawn").Process
        both = [start(target=rank, args=(i, str(Path(folder) / "ranks"))) for i in range(2)]
        for process in both:
            process.start()
        for process in both:
            process.join()
    targets()
