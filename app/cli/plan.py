"""Show what a pair takes on this machine's devices, or on GPUs that are not here, and what fits."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specscope.app.bars import DownloadBar
from specscope.app.cli import common, options
from specscope.engine.types import check_range

if TYPE_CHECKING:
    from specscope.engine.cluster.fit import Fit
    from specscope.engine.cluster.pool import Pool
CONTEXT: options.Options = {
    "--context": (int, "N", "tokens with room for keys and values (2048, or the models' context)")
}
OPTIONS = (options.MODELS, options.DEVICES, CONTEXT, options.JSON)


def run(args: argparse.Namespace) -> int:
    """Print the plan; the exit code is 1 if the pair does not fit."""
    from specscope.engine.cluster.fit import fit
    from specscope.engine.cluster.local_devices import planned_devices
    from specscope.engine.cluster.memory import KV_TOKENS
    from specscope.engine.cluster.open import find_pair, local_pool
    from specscope.engine.cluster.options import Options

    with DownloadBar() as bar:
        pair = find_pair(args.pair, args.target, args.drafter, progress=bar.show, sizes_only=True)
    tokens = min(KV_TOKENS, pair.context) if args.context is None else args.context
    check_range("--context", tokens, 1, pair.context)
    place = Options(**options.values_of(args, options.DEVICES))
    pool = local_pool(pair, place, tokens, planned_devices(args.device, args.memory))
    found = fit(pool, tuple(map(Path, args.head or ())))
    assumed = _assumed(args, pool)
    lines = [f"{pair.name} · nothing is loaded; weights in {found.dtype}", *assumed, *_lines(found, tokens)]
    common.answer(args, {"models": pair.name, **_document(found, tokens), "assumed": assumed}, lines)
    return 0 if found.tokens >= tokens else 1


def _assumed(args: argparse.Namespace, pool: Pool) -> list[str]:
    """Return what the plan takes for granted, a sentence each."""
    assumed = list[str]()
    if pool.devices[0].label.endswith("(not here)"):
        assumed.append("The GPUs are not here; their memory is taken as named, all of it free.")
    elif args.memory and args.device == "auto" and pool.devices[0].kind == "cpu":
        assumed.append("The devices are cores of this machine; --device cuda plans for GPUs of these sizes.")
    if pool.pair.tokenizer is None:
        assumed.append(
            "Sizes are those of config.json alone; a run also needs weights and one common tokenizer."
        )
    return assumed


def _document(found: Fit, tokens: int) -> dict[str, Any]:
    return {
        "fits": found.tokens >= tokens,
        "dtype": found.dtype,
        "context": tokens,
        "tokens_that_fit": found.tokens,
        "most_context": found.context,
        "parts": [
            {
                "device": part.device.name,
                "model": part.model,
                "part": part.share,
                "weights": part.weights,
                "kv_cache": tokens * part.per_token,
                "kv_per_token": part.per_token,
            }
            for part in found.parts
        ],
        "memory": [
            {
                "name": use.memory,
                "free": use.free,
                "weights": use.weights,
                "kv_cache": tokens * use.per_token,
                "tokens_that_fit": use.tokens(),
            }
            for use in found.uses
        ],
        "heads": [
            {"kind": h.kind, "path": str(h.file.path), "weights": h.weights, "kv_cache": tokens * h.per_token}
            for h in found.heads
        ],
        "methods": {
            key: {"runs": not reason, "reason": reason or None} for key, reason in found.methods.items()
        },
    }


def _lines(found: Fit, tokens: int) -> list[str]:
    from specscope.engine.checkpoints.progress import megabytes

    head = ("device", "model", "part", "weights", f"KV of {tokens:,} tokens")
    rows = [
        (p.device.label, p.model, p.share, megabytes(p.weights), megabytes(tokens * p.per_token))
        for p in found.parts
    ]
    rows += [
        ("the target's", f"head {h.kind}", "if used", megabytes(h.weights), megabytes(tokens * h.per_token))
        for h in found.heads
    ]
    lines = ["", *_table([head, *rows]), ""]
    for use in found.uses:
        needed = megabytes(use.weights + tokens * use.per_token)
        lines.append(
            f"Memory of {use.memory}: {needed} needed, {megabytes(use.free)} free; room for {use.tokens():,} tokens"
        )
    verdict = "fits" if found.tokens >= tokens else "does not fit"
    lines += [f"The pair {verdict} with {tokens:,} tokens; its context is {found.context:,}.", ""]
    lines.append(
        f"Can run: {', '.join(key for key, reason in found.methods.items() if not reason) or 'no method'}"
    )
    for reason in dict.fromkeys(filter(None, found.methods.values())):
        keys = ", ".join(key for key, other in found.methods.items() if other == reason)
        lines.append(f"Cannot run {keys}: {reason}")
    return lines


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i > 2 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
