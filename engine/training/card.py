"""The model card of a pair: measurements, and unselected sample texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from math import prod
from operator import add
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

_MB = 1_000_000


class Sample(NamedTuple):
    """An answer of the target."""

    prompt: str
    text: str


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
    samples: tuple[Sample, ...]


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
        measure_cost(loaded, min(128, window)),
        losses,
        tuple(measure_acceptance(loaded, name, prompts, window, new) for name, prompts in sets.items()),
        tuple(_samples(loaded, fixed)),
    )
    return render(facts, measured, fixed, window)


def _sizes(loaded: LoadedPair) -> Sizes:
    folders = [path for path in (loaded.pair.target_path, loaded.pair.drafter_path) if path is not None]
    files = [f for folder in folders for f in folder.iterdir() if f.is_file()]
    weights = [f.stat().st_size for f in files if f.suffix == ".safetensors"]
    target, drafter = (
        sum(prod(size) for size in model.shape.tensors().values())
        for model in (loaded.target, loaded.drafter)
    )
    return Sizes(target, drafter, sum(f.stat().st_size for f in files), max(weights))


def _samples(loaded: LoadedPair, fixed: Mapping[str, Any]) -> Iterable[Sample]:
    sampling = Sampling(temperature=fixed["temperature"], seed=fixed["seed"])
    for prompt in fixed["prompts"]:
        prompt_ids = loaded.pair.encode(prompt)
        new = min(int(fixed["new_tokens"]), loaded.pair.context - len(prompt_ids))
        loaded.pair.check_length(prompt_ids, new)
        ids, _ = loaded.write(prompt_ids, new, sampling)
        yield Sample(prompt, loaded.pair.tokenizer.decode([i for i in ids if i not in loaded.pair.eos]))


def render(facts: Mapping[str, Any], measured: Measured, fixed: Mapping[str, Any], window: int) -> str:
    parts = [
        "# Model card: a target and its drafter",
        "Written by `specscope train card` from measurements of this pair; its sample texts are shown as they came.",
        *facts.get("notes", []),
        _bars(measured),
        _training(facts),
        _data(facts),
        _losses(facts, measured.losses, window),
        _cost(measured.cost),
        _acceptance(measured.acceptance, window),
        _outputs(measured.samples, fixed),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _bars(measured: Measured) -> str:
    sizes, c = measured.sizes, measured.cost.c.median
    rates = [a for a in measured.acceptance if a.prompts]
    rate = reduce(add, rates).greedy if rates else 0.0
    rows = [
        ("c = T(target) / T(drafter)", "3 to 6", f"{c:.2f}", 3 <= c <= 6),
        (
            "greedy acceptance, all prompts of this card",
            "at least 0.75",
            f"{rate:.3f}",
            rate >= 0.75,
        ),
        ("parameters of the target", "at most 12 M", f"{sizes.target / _MB:.2f} M", sizes.target <= 12 * _MB),
        ("all files", "at most 32 MB", f"{sizes.total / _MB:.1f} MB", sizes.total <= 32 * _MB),
        ("largest shard", "at most 15 MB", f"{sizes.largest / _MB:.1f} MB", sizes.largest <= 15 * _MB),
    ]
    body = table(("", "bar", "measured", "met"), [(*row[:3], "yes" if row[3] else "**no**") for row in rows])
    return f"## Bars of the bundled pair\n\n{body}\n\nThe drafter has {sizes.drafter / _MB:.2f} M parameters."


def _training(facts: Mapping[str, Any]) -> str:
    if not facts.get("phases"):
        return "## Training\n\nNot trained by this project's recipe, or its record is lost."
    rows = [
        (p["name"], p["steps"], p["tokens"], p["length"], p["minutes"], p["loss"]) for p in facts["phases"]
    ]
    head = ("phase", "steps", "tokens", "sequence", "minutes", "loss at the end, nats per token")
    return f"## Training\n\n{table(head, rows)}\n\n{facts.get('method', '')}".rstrip()


def _data(facts: Mapping[str, Any]) -> str:
    if not facts.get("sources"):
        return ""
    rows = [(name, f"{count}x", *SOURCES.get(name, UNKNOWN)[1:]) for name, count in facts["sources"].items()]
    return "## Training text and licences\n\n" + table(("source", "repeated", "origin", "licence"), rows)


def _losses(facts: Mapping[str, Any], losses: Sequence[Loss], window: int) -> str:
    if not losses:
        return ""
    trained = facts.get("sources", {})
    known = [loss for loss in losses if loss.source in trained] or list(losses)
    total = reduce(add, known)
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
    head = (
        "source",
        "trained on",
        "documents",
        "tokens",
        "target, nats per token",
        "target, bits per byte",
        "drafter, nats per token",
    )
    return (
        f"## Loss on held-out documents\n\n{table(head, rows)}\n\n"
        f"Windows of {window} tokens, each read without memory of the one before; bytes are those of the UTF-8 text "
        "without role markers, losses include the markers and the end of the document. "
        + facts.get("held_out_note", "")
    ).rstrip()


def _cost(cost: Cost) -> str:
    facts = environment()
    rows = [
        ("target, 1 row", *(f"{ms:.2f} ms" for ms in cost.target)),
        ("drafter, 1 row", *(f"{ms:.2f} ms" for ms in cost.drafter)),
        (f"target, {ROWS} rows", *(f"{ms:.2f} ms" for ms in cost.rows)),
        ("c = T(target) / T(drafter), 1 row each", *(f"{ratio:.2f}" for ratio in cost.c)),
        (f"{ROWS} rows over 1 row of the target", *(f"{ratio:.2f}" for ratio in cost.rows_over_one)),
    ]
    return (
        f"## Cost\n\n{table(('forward', 'median', '10th percentile'), rows)}\n\n"
        f"This engine's decoder, fp32, one thread, {cost.context} tokens in the cache, {cost.repeats} interleaved "
        f"repetitions, the thread's own processor time; {facts['processor']}, {facts['cores']} cores, load average "
        f"{cost.load:.1f} meanwhile (other programs' memory traffic slows both models, not alike), "
        f"torch {facts['torch']}."
    )


def _acceptance(sets: Sequence[Acceptance], window: int) -> str:
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
    head = ("prompts", "number", "T = 0", "tokens", "T = 1", "tokens")
    return (
        f"## Acceptance\n\n{table(head, rows)}\n\n"
        "At T = 0: share of the positions of the target's greedy answer at which the drafter's most probable token is "
        "the target's. At T = 1: mean over the positions of a sampled answer of the sum of min(p, q), which is the "
        f"chance that a sampled draft is accepted. Prompt and answer fit into {window} tokens; longer ones are left out."
    )


def _outputs(samples: Sequence[Sample], fixed: Mapping[str, Any]) -> str:
    parts = [
        f"## First outputs of seed {fixed['seed']}",
        f"The target alone, temperature {fixed['temperature']:g}, at most {fixed['new_tokens']} tokens, as they came.",
    ]
    for prompt, text in samples:
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
        parts.append(f"**{prompt}**\n\n{fence}text\n{text.strip()}\n{fence}")
    return "\n\n".join(parts)
