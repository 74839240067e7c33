"""The card of a drafter made of a target's layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.pairs.layers import LayerDrafter


def render(config: LayerDrafter, facts: Mapping[str, Any], size: int) -> str:
    """Return the card as Markdown.

    Args:
        config: The drafter.
        facts: Facts of its training: phase, texts, measured, options.
        size: Bytes of its weights.
    """
    options, phase = facts["options"], facts["phase"]
    texts = "; ".join(f"{t['texts']:,} texts of {t['tokens']:,} tokens" for t in facts["texts"])
    rows = [
        f"| {row['step']:,} | {row['tokens']:,} | {row['agreement']:.3f} | {row['divergence']:.3f} |"
        for row in facts["measured"]
    ]
    mapped = "with" if config.mapped else "without"
    drafted = f"{config.vocabulary:,} most frequent" if config.vocabulary else "all"
    parts = [
        f"# A drafter made of layers of {config.target}",
        f"Layers {', '.join(map(str, config.layers))} of the target, with deltas of rank {config.rank} on their matrices, "
        f"own norms, {mapped} a linear map before the last norm; it drafts {drafted} tokens. This folder holds "
        f"{size / 1e6:.1f} MB of changes; the target's own weights are read from the target, whose licence applies.",
        f"Use: `specscope run --method speculative --target {config.target} --drafter DIR`.",
        "## Training",
        f"{phase['steps']:,} steps of {options['batch']} texts, {phase['tokens']:,} tokens of answers, {phase['minutes']} "
        f"minutes: KL(p || q) to the target's {options['top']} most probable tokens and one bucket for the others. "
        f"{options['optimizer']}, learning rate {options['learning_rate']:g}, linear decay over the last "
        f"{options['decay']:.0%}, seed {options['seed']}. Texts, written by the target or in this form from a corpus: {texts}.",
        "## Held-out texts",
        "Agreement: share of the tokens at which drafter and target have the same most probable token.",
        "\n".join(("| step | tokens seen | agreement | KL, nats per token |", "|---|---|---|---|", *rows)),
    ]
    return "\n\n".join(parts) + "\n"
