"""The model card of a pair: measurements, and unselected sample texts.

The words of the cards are in `assets/cards`; `fill` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from math import prod
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

from specscope.engine.checkpoints.pair import Pair
from specscope.engine.environment import environment
from specscope.engine.training.data import SOURCES, UNKNOWN
from specscope.engine.training.loop import read_json
from specscope.engine.training.measure import (
    ROWS,
    Acceptance,
    Cost,
    LoadedPair,
    Loss,
    measure_acceptance,
    measure_cost,
    measure_losses,
    prompt_sets,
)
from specscope.engine.training.settings import CardSettings
from specscope.engine.types import Sampling

_CARDS = Path(__file__).parents[2] / "assets" / "cards"
_MB = 1_000_000


def fill(card: str, notes: Sequence[str], **parts: Any) -> str:
    """Return a card of `assets/cards`; a section whose first part is empty is left out."""
    sections = list[str]()
    for section in (_CARDS / f"{card}.md").read_text(encoding="utf-8").split("\n\n## "):
        filled = (paragraph.format(notes="\n\n".join(notes), **parts) for paragraph in section.split("\n\n"))
        title, first, *more = (paragraph.strip() for paragraph in filled)
        if first:
            sections.append("\n\n".join([title, first, *filter(None, more)]))
    return "\n\n## ".join(sections) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


class Sizes(NamedTuple):
    """Sizes of a pair's models and files."""

    target: int
    drafter: int
    total: int
    """Bytes of all files of both models."""
    largest: int


class Measured(NamedTuple):
    """All measurements of a card."""

    sizes: Sizes
    cost: Cost
    losses: tuple[Loss, ...]
    acceptance: tuple[Acceptance, ...]
    samples: tuple[tuple[str, str], ...]
    """Prompts, each with the target's answer."""


def make_card(pair: Pair, facts: Mapping[str, Any], settings: CardSettings) -> str:
    """Measure a pair and return its card as Markdown; call with torch on one thread."""
    fixed, loaded = read_json(settings.fixed), LoadedPair.load(pair)
    window = min(settings.window, pair.context)
    new = min(settings.new_tokens, window // 2)
    losses, held_out = tuple[Loss, ...](), float(facts.get("held_out", 0.01))
    if settings.data is not None:
        losses = measure_losses(loaded, settings.data, held_out, window, settings.tokens)
    sets = {
        "the fixed prompts below": fixed["prompts"],
        **prompt_sets(settings, held_out, facts.get("sources", SOURCES)),
    }
    measured = Measured(
        _sizes(loaded),
        measure_cost(loaded, min(128, window - ROWS)),
        losses,
        tuple(measure_acceptance(loaded, name, prompts, window, new) for name, prompts in sets.items()),
        tuple(_samples(loaded, fixed)),
    )
    return render(facts, measured, fixed, window)


def _sizes(loaded: LoadedPair) -> Sizes:
    folders = [path for path in (loaded.pair.target_path, loaded.pair.drafter_path) if path is not None]
    files = [f for folder in folders for f in folder.iterdir() if f.is_file()]
    weights = [f.stat().st_size for f in files if f.suffix == ".safetensors"]
    models = (loaded.target, loaded.drafter)
    target, drafter = (sum(map(prod, model.shape.tensors().values())) for model in models)
    return Sizes(target, drafter, sum(f.stat().st_size for f in files), max(weights))


def _samples(loaded: LoadedPair, fixed: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    sampling = Sampling(temperature=fixed["temperature"], seed=fixed["seed"])
    for prompt in fixed["prompts"]:
        prompt_ids = loaded.pair.encode(prompt)
        new = min(int(fixed["new_tokens"]), loaded.pair.context - len(prompt_ids))
        loaded.pair.check_length(prompt_ids, new)
        ids, _ = loaded.write(prompt_ids, new, sampling)
        yield prompt, loaded.pair.tokenizer.decode([i for i in ids if i not in loaded.pair.eos])


def render(facts: Mapping[str, Any], measured: Measured, fixed: Mapping[str, Any], window: int) -> str:
    trained = facts.get("phases")
    return fill(
        "pair",
        facts.get("notes", []),
        bars=_bars(measured),
        parameters=measured.sizes.drafter / _MB,
        phases=_phases(trained)
        if trained
        else "Not trained by this project's recipe, or its record is lost.",
        method=facts.get("method", "") if trained else "",
        sources=_sources(facts.get("sources", {})),
        losses=_losses(facts.get("sources", {}), measured.losses),
        held_out_note=facts.get("held_out_note", ""),
        cost=measured.cost,
        costs=_costs(measured.cost),
        acceptance=_acceptance(measured.acceptance),
        samples="\n\n".join(f"**{prompt}**\n\n{_fenced(text)}" for prompt, text in measured.samples),
        window=window,
        fixed=fixed,
        **{name: fact for name, fact in environment().items() if name in ("processor", "cores", "torch")},
    )


def _bars(measured: Measured) -> str:
    sizes, c = measured.sizes, measured.cost.c.median
    rates = [a for a in measured.acceptance if a.prompts]
    rate = reduce(add, rates).greedy if rates else 0.0
    target, total, largest = sizes.target / _MB, sizes.total / _MB, sizes.largest / _MB
    rows = [
        ("c = T(target) / T(drafter)", "3 to 6", f"{c:.2f}", 3 <= c <= 6),
        ("greedy acceptance, all prompts of this card", "at least 0.75", f"{rate:.3f}", rate >= 0.75),
        ("parameters of the target", "at most 12 M", f"{target:.2f} M", target <= 12),
        ("all files", "at most 32 MB", f"{total:.1f} MB", total <= 32),
        ("largest shard", "at most 15 MB", f"{largest:.1f} MB", largest <= 15),
    ]
    return table(("", "bar", "measured", "met"), [(*row[:3], "yes" if row[3] else "**no**") for row in rows])


def _phases(phases: Sequence[Mapping[str, Any]]) -> str:
    head = ("phase", "steps", "tokens", "sequence", "minutes", "loss at the end, nats per token")
    names = ("name", "steps", "tokens", "length", "minutes", "loss")
    return table(head, [[phase[name] for name in names] for phase in phases])


def _sources(sources: Mapping[str, int]) -> str:
    rows = [(name, f"{count}x", *SOURCES.get(name, UNKNOWN)[1:]) for name, count in sources.items()]
    return table(("source", "repeated", "origin", "licence"), rows) if rows else ""


def _losses(trained: Mapping[str, int], losses: Sequence[Loss]) -> str:
    if not losses:
        return ""
    total = reduce(add, [loss for loss in losses if loss.source in trained] or losses)
    rows = [
        (
            name,
            "yes" if loss.source in trained else "no",
            loss.documents,
            f"{loss.tokens:,}",
            f"{loss.target_nats / loss.tokens:.3f}",
            f"{loss.bits_per_byte:.3f}",
            f"{loss.drafter_nats / loss.tokens:.3f}",
        )
        for name, loss in [("**all trained on**", total), *((loss.source, loss) for loss in losses)]
    ]
    units = ("target, nats per token", "target, bits per byte", "drafter, nats per token")
    return table(("source", "trained on", "documents", "tokens", *units), rows)


def _costs(cost: Cost) -> str:
    rows = [
        ("target, 1 row", *(f"{ms:.2f} ms" for ms in cost.target)),
        ("drafter, 1 row", *(f"{ms:.2f} ms" for ms in cost.drafter)),
        (f"target, {ROWS} rows", *(f"{ms:.2f} ms" for ms in cost.rows)),
        ("c = T(target) / T(drafter), 1 row each", *(f"{ratio:.2f}" for ratio in cost.c)),
        (f"{ROWS} rows over 1 row of the target", *(f"{ratio:.2f}" for ratio in cost.rows_over_one)),
    ]
    return table(("forward", "median", "10th percentile"), rows)


def _acceptance(sets: Sequence[Acceptance]) -> str:
    rows = [
        (
            a.name,
            f"{a.prompts} ({a.too_long} too long)",
            f"{a.greedy:.3f}",
            f"{a.greedy_tokens:,}",
            f"{a.sampled:.3f}",
            f"{a.sampled_tokens:,}",
        )
        for a in [*sets, reduce(add, sets, Acceptance("**all**", 0, 0, 0, 0, 0, 0.0))]
    ]
    return table(("prompts", "number", "T = 0", "tokens", "T = 1", "tokens"), rows)


def _fenced(text: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text.strip()}\n{fence}"
