"""Schedules of draft lengths beside fixed lengths, in virtual time: speed, forwards, lost drafts.

`python -m tests.bench.schedules [PAIR] [--profile NAME] [--tokens SOURCE] [--methods A,B]
[--temperature T] [--new N]` prints a table. SOURCE is `pair`, `bernoulli:RATE`, or `phases`: drafts
are right with probability 0.4 for 128 tokens, then with 0.95 for 128, and so on. Scripted drafts
are certain, so they have no threshold.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.methods import BASELINE
from specscope.engine.simulate.oracle import Scripted, Source, agrees, another, number
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.facts.metrics import measure
from tests.bench import script

FIXED = (1, 2, 3, 4, 5, 6, 8, 12, 16)
AVERAGE: dict[str, dict[str, Any]] = {
    f"average {gamma}": {"schedule": "average", "gamma": gamma} for gamma in (3, 5, 8)
}
THRESHOLD: dict[str, dict[str, Any]] = {
    f"threshold {sure}, at most {most}": {"schedule": "threshold", "confidence": sure, "gamma": most}
    for most in (5, 16)
    for sure in (0.2, 0.4, 0.6)
}
PHASE, EASY, HARD = 128, 0.95, 0.4


def phases(vocabulary: int, avoid: Sequence[int]) -> Source:
    """Return a pair with easy and hard parts of the text, in turn."""
    words = np.setdiff1d(np.arange(vocabulary), np.array(avoid))

    def right(path: np.ndarray) -> int:
        return number("say", len(path), path[-1]) % len(words)

    def say(path: np.ndarray, _: int) -> int:
        return int(words[right(path)])

    def draft(path: np.ndarray, _: int) -> int:
        rate = EASY if len(path) // PHASE % 2 else HARD
        agreed = agrees(rate, len(path))
        return int(words[right(path) if agreed else another(right(path), len(words), len(path))])

    return Source((Scripted("target", say, vocabulary), Scripted("drafter", draft, vocabulary)), "phases")


def row(runs: Sequence[Trace], plain: Sequence[Trace]) -> dict[str, float]:
    """Return the figures of runs of all prompts."""
    seconds = [
        sum(measure(t).decode_seconds or 0.0 for t in some) / sum(len(t.commits) for t in some)
        for some in (plain, runs)
    ]
    tokens = sum(len(t.commits) for t in runs)
    lost = sum(d.draft_span >= 0 and d.outcome != "accepted" for t in runs for d in t.decisions)
    return {
        "speed-up": seconds[0] / seconds[1],
        "tokens/forward": tokens / sum(len(t.rounds) for t in runs),
        "lost per token": lost / tokens,
        "asked on average": sum(c.asked for t in runs for c in t.chains) / sum(len(t.chains) for t in runs),
    }


def table(
    cluster: specscope.Cluster, methods: Sequence[str], sampling: Sampling, limits: Limits, *, certain: bool
) -> Iterator[tuple[str, dict[str, float]]]:
    def decode(method: str, **config: Any) -> list[Trace]:
        return [
            cluster.run(method, prompt, config=config, sampling=sampling, limits=limits)
            for prompt in script.prompts()
        ]

    plain = decode(BASELINE)
    settings = {f"fixed {gamma}": {"gamma": gamma} for gamma in FIXED} | AVERAGE
    for method in methods:
        for name, config in (settings if certain else settings | THRESHOLD).items():
            yield f"{method}, {name}", row(decode(method, **config), plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pair", nargs="?", default="bundled")
    parser.add_argument("--profile", default="pearl-4xA100")
    parser.add_argument("--profile-pair")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--tokens", default="pair")
    parser.add_argument("--methods", default="speculative,pearl")
    parser.add_argument("--new", type=int, default=256, help="tokens of each output")
    asked = parser.parse_args()
    pair = Pair.find(asked.pair)
    tokens = phases(pair.vocab_size, pair.eos) if asked.tokens == "phases" else asked.tokens
    with specscope.open(
        pair, runtime="virtual", profile=asked.profile, profile_pair=asked.profile_pair, tokens=tokens
    ) as cluster:
        print(f"c = {cluster.situation.c():.2f}")
        certain, methods = asked.tokens != "pair", asked.methods.split(",")
        rows = table(cluster, methods, Sampling(asked.temperature), Limits(asked.new), certain=certain)
        for i, (name, figures) in enumerate(rows):
            if not i:
                print(f"{'':36}", *(f"{title:>16}" for title in figures))
            print(f"{name:36}", *(f"{value:16.2f}" for value in figures.values()), flush=True)


if __name__ == "__main__":
    main()
