"""The real methods, and trees of other forms, for toy runs."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path

from specscope.engine.layout import Pipelined
from specscope.engine.methods import find
from specscope.engine.sampling.draws import Key, process_logits
from specscope.engine.types import Draft, DraftToken
from tests.engine.toy import Method, ToyRun

SMALL, TWO = (str(Path(__file__).parent / "trees" / f"{name}.toml") for name in ("small", "two"))
METHODS = {
    "autoregressive": ("autoregressive", {}),
    "speculative-1": ("speculative", {"gamma": 1}),
    "speculative-2": ("speculative", {"gamma": 2}),
    "speculative-3": ("speculative", {"gamma": 3}),
    "speculative-greedy-1": ("speculative", {"gamma": 1, "drafts": "greedy"}),
    "speculative-greedy-3": ("speculative", {"gamma": 3, "drafts": "greedy"}),
    "speculative-2-threshold": ("speculative", {"gamma": 2, "schedule": "threshold", "confidence": 0.4}),
    "speculative-3-threshold-greedy": (
        "speculative",
        {"gamma": 3, "schedule": "threshold", "confidence": 0.4, "drafts": "greedy"},
    ),
    "speculative-2-average": ("speculative", {"gamma": 2, "schedule": "average"}),
    "speculative-2-average-sure": ("speculative", {"gamma": 2, "schedule": "average", "confidence": 0.5}),
    "speculative-2-average-greedy": ("speculative", {"gamma": 2, "schedule": "average", "drafts": "greedy"}),
    "pearl-1": ("pearl", {"gamma": 1}),
    "pearl-2": ("pearl", {"gamma": 2}),
    "pearl-3": ("pearl", {"gamma": 3}),
    "pearl-2-no-pre": ("pearl", {"gamma": 2, "pre_verify": False}),
    "pearl-2-no-post": ("pearl", {"gamma": 2, "post_verify": False}),
    "pearl-2-guesses": ("pearl", {"gamma": 2, "guesses": 2}),
    "pearl-3-pipeline": ("pearl", {"gamma": 3, "placement": "pipeline", "stages": 2}),
    "pearl-2-threshold": ("pearl", {"gamma": 2, "schedule": "threshold", "confidence": 0.4}),
    "pearl-2-average": ("pearl", {"gamma": 2, "schedule": "average"}),
    "pearl-2-average-sure": ("pearl", {"gamma": 2, "schedule": "average", "confidence": 0.4}),
    "pearl-2-average-neither": (
        "pearl",
        {"gamma": 2, "schedule": "average", "pre_verify": False, "post_verify": False},
    ),
    "pearl-3-threshold-no-pre": (
        "pearl",
        {"gamma": 3, "schedule": "threshold", "confidence": 0.4, "pre_verify": False},
    ),
    "pearl-2-threshold-guesses": (
        "pearl",
        {"gamma": 2, "schedule": "threshold", "confidence": 0.4, "guesses": 1},
    ),
    "pearl-3-threshold-pipeline": (
        "pearl",
        {"gamma": 3, "schedule": "threshold", "confidence": 0.4, "placement": "pipeline", "stages": 2},
    ),
    "pearl-3-guesses": ("pearl", {"gamma": 3, "guesses": 1}),
    "dsi": ("dsi", {"lookahead": 2, "sp": 1}),
    "dsi-sampled": ("dsi", {"lookahead": 2, "sp": 1, "drafts": "sampled"}),
    "dsi-rejection": ("dsi", {"lookahead": 1, "sp": 1, "acceptance": "rejection"}),
    "ssd-1": ("ssd", {"gamma": 1, "forks": 1}),
    "ssd-2": ("ssd", {"gamma": 2, "forks": 2}),
    "ssd-2-none": ("ssd", {"gamma": 2, "forks": 1, "backup": "none"}),
    "ssd-2-saguaro": ("ssd", {"gamma": 2, "forks": 1, "saguaro": 0.2}),
    "ssd-1-saguaro-none": ("ssd", {"gamma": 1, "fanout": "[2,1]", "saguaro": 0.5, "backup": "none"}),
    "ssd-2-geometric": ("ssd", {"gamma": 2, "forks": 1, "fanout": "geometric", "saguaro": 0.6}),
    "ssd-2-greedy": ("ssd", {"gamma": 2, "fanout": "[1,2,1]", "backup": "none", "drafts": "greedy"}),
    "ssd-2-threshold": ("ssd", {"gamma": 2, "forks": 1, "schedule": "threshold", "confidence": 0.4}),
    "ssd-2-threshold-none": (
        "ssd",
        {"gamma": 2, "fanout": "[1,2,1]", "schedule": "threshold", "confidence": 0.4, "backup": "none"},
    ),
    "ssd-2-threshold-saguaro": (
        "ssd",
        {"gamma": 2, "forks": 1, "schedule": "threshold", "confidence": 0.4, "saguaro": 0.5},
    ),
    "ssd-2-average": ("ssd", {"gamma": 2, "forks": 1, "schedule": "average"}),
    "ssd-2-average-sure": (
        "ssd",
        {"gamma": 2, "forks": 1, "schedule": "average", "confidence": 0.4, "saguaro": 0.5, "backup": "none"},
    ),
    "ssd-2-average-greedy": ("ssd", {"gamma": 2, "forks": 1, "schedule": "average", "drafts": "greedy"}),
    "llma": ("llma", {"match": 1, "copy": 3}),
    "llma-reference": ("llma", {"match": 1, "copy": 2, "reference": "0123012"}),
    "prompt-lookup-first": ("prompt_lookup", {"ngram": 2, "copy": 3}),
    "prompt-lookup-latest": ("prompt_lookup", {"ngram": 1, "copy": 2, "which": "latest"}),
    "suffix": ("suffix", {"depth": 6, "copy": 3, "factor": 2.0}),
    "suffix-own": ("suffix", {"depth": 3, "copy": 2, "offset": 1.0, "least": 0.4, "finished": 0}),
    "hybrid-1": ("hybrid", {"depth": 4, "copy": 3, "gamma": 1}),
    "hybrid-3": ("hybrid", {"depth": 6, "factor": 2.0, "gamma": 3}),
    "hybrid-2-seconds": ("hybrid", {"depth": 4, "gamma": 2, "weigh": "seconds", "c": 1.5}),
    "hybrid-2": ("hybrid", {"depth": 4, "offset": 1.0, "gamma": 2}),
    "assisted-1": ("assisted", {"start": 1, "confidence": 0.0}),
    "assisted-3-sure": ("assisted", {"start": 3, "confidence": 0.5}),
    "assisted-3-constant": ("assisted", {"schedule": "constant", "start": 3, "confidence": 0.4}),
    "assisted-2-greedy": ("assisted", {"start": 2, "confidence": 0.4, "drafts": "greedy"}),
    "lookahead-2": ("lookahead", {"level": 2, "window": 4, "guesses": 4}),
    "lookahead-3": ("lookahead", {"level": 3, "window": 3, "guesses": 2}),
    "ouroboros": ("ouroboros", {"gamma": 1, "level": 2, "window": 3, "guesses": 3, "phrases": 2}),
    "ouroboros-reference": ("ouroboros", {"gamma": 2, "level": 2, "window": 2, "reference": "0123012"}),
    "ouroboros-2": ("ouroboros", {"gamma": 2, "level": 3, "window": 2, "guesses": 2, "phrases": 3}),
    "tree-1x3": ("tree", {"width": 1, "depth": 3}),
    "tree-2x1": ("tree", {"width": 2, "depth": 1}),
    "tree-2x2": ("tree", {"width": 2, "depth": 2}),
    "tree-2x3": ("tree", {"width": 2, "depth": 3}),
    "tree-3x1": ("tree", {"width": 3, "depth": 1}),
    "tree-greedy-2x2": ("tree", {"width": 2, "depth": 2, "drafts": "greedy"}),
    "tree-greedy-3x3": ("tree", {"width": 3, "depth": 3, "drafts": "greedy"}),
    "ems-llma": ("ems", {"match": 1, "copy": 3}),
    "ems-speculative": ("ems", {"base": "speculative", "gamma": 2}),
    "ems-tree-2x2": ("ems", {"base": "speculative", "gamma": 2, "width": 2}),
    "ems-tree-3x2": ("ems", {"base": "speculative", "gamma": 2, "width": 3}),
    "easyspec-3": ("easyspec", {"gamma": 3}),
    "easyspec-3-no-calibration": ("easyspec", {"gamma": 3, "calibrate": False}),
    "easyspec-2x2": ("easyspec", {"gamma": 2, "width": 2}),
    "easyspec-greedy-3x3": ("easyspec", {"gamma": 3, "width": 3, "drafts": "greedy"}),
    "eagle": ("eagle", {"tree": TWO}),
    "eagle-greedy": ("eagle", {"tree": SMALL, "drafts": "greedy"}),
    "eagle2": ("eagle2", {"top": 2, "depth": 3, "total": 6}),
    "hydra": ("hydra", {"tree": SMALL, "heads": 4}),
    "medusa": ("medusa", {"tree": SMALL, "heads": 4}),
    "parallelspec_medusa": ("parallelspec_medusa", {"tree": SMALL, "masks": 2}),
    "parallelspec_medusa-mask": ("parallelspec_medusa", {"tree": SMALL, "masks": 2, "first": "mask"}),
    "parallelspec_eagle": ("parallelspec_eagle", {"tree": TWO, "masks": 2}),
    "parallelspec_eagle-greedy": ("parallelspec_eagle", {"tree": SMALL, "masks": 2, "drafts": "greedy"}),
    "specbranch": ("specbranch", {"gamma": 2, "length": 2, "threshold": 0.5}),
    "specbranch-3": ("specbranch", {"gamma": 1, "length": 2, "threshold": 0.6, "branches": 6}),
    "specbranch-chain": ("specbranch", {"gamma": 2, "length": 2, "threshold": 0.4, "branches": 1}),
    "specbranch-greedy": (
        "specbranch",
        {"gamma": 2, "length": 2, "threshold": 0.6, "branches": 6, "drafts": "greedy"},
    ),
    "pearl-2-neither": ("pearl", {"gamma": 2, "pre_verify": False, "post_verify": False}),
}


def method(key: str, **config: object) -> Method:
    """Return the real method with these settings."""
    entry = find(key)
    settings = entry.configure(config)

    def decode(run: ToyRun) -> Coroutine[None, None, None]:
        if isinstance(entry.layout(settings).arrangement, Pipelined):  # a drafter at both ends
            run.drafters = [run.drafter, run.drafter]
        return entry.decode(run, settings)

    return decode


def sampled_tree(*widths: int, wide: bool = True) -> Method:
    """Return a method with trees sampled without replacement, `widths[i]` children on level i."""

    async def decode(run: ToyRun) -> None:
        while not run.done:
            tokens, contexts, level = list[DraftToken](), {-1: tuple(run.x.tokens.tolist())}, [-1]
            for width in widths:
                grown = list[int]()
                for parent in level:
                    context = contexts[parent]
                    q = process_logits(run.drafter.logits(context)[None], run.sampling)[0]
                    row, rest = run.keep(q), q.clone()
                    for _ in range(min(width, int((q > 0).sum()))):
                        node = len(tokens)
                        token = run.draws.choose(Key(len(context), "draft", node), rest)
                        rest[token] = 0
                        tokens.append(DraftToken(token, parent, row))
                        contexts[node] = (*context, token)
                        grown.append(node)
                level = grown if wide else grown[:1]
            run.commit(await run.target.verify(run.x, Draft(tuple(tokens))))

    return decode


def top_tree(*widths: int, as_sampled: bool = False) -> Method:
    """Return a method with greedy trees; `as_sampled` wrongly reports the nodes as sampled."""

    async def decode(run: ToyRun) -> None:
        while not run.done:
            tokens, contexts, level = list[DraftToken](), {-1: tuple(run.x.tokens.tolist())}, [-1]
            for width in widths:
                grown = list[int]()
                for parent in level:
                    logits = run.drafter.logits(contexts[parent])
                    row = run.keep(logits.softmax(-1)) if as_sampled else None
                    for token in logits.topk(width).indices.tolist():
                        grown.append(len(tokens))
                        contexts[len(tokens)] = (*contexts[parent], token)
                        tokens.append(DraftToken(token, parent, row))
                level = grown
            run.commit(await run.target.verify(run.x, Draft(tuple(tokens))))

    return decode
