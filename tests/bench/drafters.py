"""Drafters of one target: size, time of a draft, agreement with the target, predicted speed-up.

`python -m tests.bench.drafters [--pair NAME | --target PATH] [--drafter PATH] [--noise]
[--prompt-file F] [--limit N] [--quick] [--json]`: the target's own weights in fewer bits, and the
drafters of the pair. All forwards run on one core, those of a drafter in turns with the target's.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, minimum

from specscope.app.bars import DownloadBar
from specscope.app.bench import speed
from specscope.app.bench.figures import Measurement, Note
from specscope.app.cli.bench import rows
from specscope.engine.checkpoints.checkpoint import Checkpoint
from specscope.engine.checkpoints.config import read_config
from specscope.engine.checkpoints.forms import FORMS, split_form
from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.checkpoints.sizes import model_size
from specscope.engine.checkpoints.sources import resolve
from specscope.engine.drafting.pace import Curve, Probe
from specscope.engine.drafting.planner import LONGEST, Plan, best_parallel, best_tree
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.int4 import GROUP
from specscope.engine.model.shape import ModelShape
from specscope.engine.model.slots import Rows
from specscope.engine.training.measure import timed_forward
from tests.bench import script


class Answer(NamedTuple):
    """A prompt and the target's greedy answer."""

    prompt: Sequence[int]
    ids: Sequence[int]
    """Ids of the answer, with the end of text if it has one."""


class Agreement(NamedTuple):
    """Shares over all positions of some answers."""

    agreement: float
    """Share of positions at which the drafter's most probable token is the answer's: the acceptance
    rate at temperature 0."""
    overlap: float
    """Mean of sum min(p, q): the acceptance rate at temperature 1."""
    positions: int


def answers(
    target: Decoder, pair: Pair, prompts: Sequence[Sequence[int]], new_tokens: int
) -> tuple[Answer, ...]:
    """Return the target's greedy answers, written together."""
    cache = target.new_cache(len(prompts), max(map(len, prompts)) + new_tokens)
    written: list[list[int]] = [[] for _ in prompts]
    fed = dict(enumerate(map(list, prompts)))
    for _ in range(new_tokens):
        rows = Rows.join([Rows.chain(slot, ids, cache.length(slot)) for slot, ids in fed.items()])
        want = np.cumsum([len(ids) for ids in fed.values()]) - 1
        chosen = target.forward(cache, rows, want).logits[:, : pair.vocab_size].argmax(1).tolist()
        for slot, token in zip(fed, chosen, strict=True):
            written[slot].append(token)
        fed = {slot: written[slot][-1:] for slot in fed if written[slot][-1] not in pair.eos}
        if not fed:
            break
    return tuple(map(Answer, prompts, written))


def agreement(target: Decoder, drafter: Decoder, pair: Pair, written: Sequence[Answer]) -> Agreement:
    """Return how often a drafter agrees with the target, which wrote the answers."""
    agreed = overlap = 0.0
    for answer in written:
        q = _probabilities(drafter, answer, pair.vocab_size)
        p = _probabilities(target, answer, pair.vocab_size)
        agreed += sum(a == b for a, b in zip(q.argmax(1).tolist(), answer.ids, strict=True))
        overlap += float(minimum(p, q).sum())
    positions = sum(len(answer.ids) for answer in written)
    return Agreement(agreed / positions, overlap / positions, positions)


def _probabilities(model: Decoder, answer: Answer, vocabulary: int) -> Tensor:
    """Return a model's distribution at every token of an answer, (len(answer.ids), V)."""
    ids = [*answer.prompt, *answer.ids[:-1]]
    want = np.arange(len(answer.prompt) - 1, len(ids))
    rows = Rows.chain(0, ids, 0)
    return model.forward(model.new_cache(1, len(ids)), rows, want).logits[:, :vocabulary].softmax(1)


PROMPTS = Path(__file__).resolve().parents[2] / "assets" / "prompts" / "chats.jsonl"
"""Twenty prompts in the style of MT-bench."""
CONTEXT = 128
ROWS = (1, 2, 4, 8, 16)


class Size(NamedTuple):
    """Size of a run."""

    new_tokens: int
    repeats: int


QUICK, FULL = Size(24, 20), Size(96, 100)


def measure(
    pair: Pair, prompts: Sequence[Sequence[int]], size: Size, note: Note, *, noise: bool
) -> tuple[dict[str, Measurement], dict[str, Any]]:
    """Measure the drafters of a pair's target; with `noise`, those of a noisy target, too."""
    for prompt in prompts:
        pair.check_length(prompt, size.new_tokens)
    with speed.one_core():
        note("target")
        target = load(pair.target_path)
        verify = _verify(target, size.repeats)
        note("answers")
        written = answers(target, pair, prompts, size.new_tokens)
        figures = dict[str, Measurement]()
        for name, path in drafters_of(pair).items():
            note(name)
            figures[name] = _figure(path, pair, target, written, verify, size)
            note("")
        if noise:
            del target
            figures |= _noisy(pair, prompts, size.new_tokens, figures, verify, note)
    facts = {
        "pair": pair.name,
        "prompts": len(prompts),
        "target_bytes": _bytes(pair.target_path),
        "target_ms_by_rows": {str(rows): 1e3 * seconds for rows, seconds in verify},
    }
    return figures, facts


def drafters_of(pair: Pair) -> dict[str, Path]:
    """Return the forms of a pair's target, and its other drafters, by name."""
    found = {form: pair.target_path / form for form in reversed(FORMS)}
    for path in pair.drafter_paths:
        if path not in found.values():
            name = f"{path.parent.name}/{path.name}" if split_form(path)[1] else path.name
            found[str(path) if name in found else name] = path
    return found


def _figure(
    path: Path, pair: Pair, target: Decoder, written: Sequence[Answer], verify: Curve, size: Size
) -> Measurement:
    drafter = load(path, name="drafter")
    forwards = [timed_forward(model, 1, CONTEXT) for model in (target, drafter)]
    times = [[1e3 * forward() for forward in forwards] for _ in range(size.repeats + 5)][5:]
    target_times, drafter_times = zip(*times, strict=True)
    timed = Measurement(
        drafter_times, "ms", detail={"bytes": _bytes(path), "target_ms": median(target_times), "noise": False}
    )
    return _predicted(timed, verify, agreement(target, drafter, pair, written))


def _predicted(timed: Measurement, verify: Curve, found: Agreement) -> Measurement:
    """Return a drafter's times with its agreement, and what follows from both."""
    target_ms = timed.detail["target_ms"]
    plans = _plans(verify, target_ms / 1e3, timed.median / 1e3, found)
    c = target_ms / timed.median
    best = ", ".join(f"{plan.speedup:.2f} ({plan.levels})" for plan in plans)
    unit = f"ms; c {c:.2f}, agrees {found.agreement:.3f}, overlap {found.overlap:.3f}, predicted {best}"
    facts = {"c": c, **found._asdict(), "speculative": plans[0].facts(), "pearl": plans[1].facts()}
    return replace(timed, unit=unit, detail={**timed.detail, **facts})


def _noisy(
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    figures: dict[str, Measurement],
    verify: Curve,
    note: Note,
) -> dict[str, Measurement]:
    note("answers of the target with noise")
    target, noisy = load_noisy(pair.target_path), dict[str, Measurement]()
    written = answers(target, pair, prompts, new_tokens)
    for form, bits in reversed(FORMS.items()):
        note(f"{form}, noise")
        found = agreement(target, load_noisy(pair.target_path, bits), pair, written)
        timed = replace(figures[form], detail={**figures[form].detail, "noise": True})
        noisy[f"{form}, noise"] = _predicted(timed, verify, found)
        note("")
    return noisy


def _verify(target: Decoder, repeats: int) -> Curve:
    forwards = [timed_forward(target, rows, CONTEXT) for rows in ROWS]
    times = [[forward() for forward in forwards] for _ in range(repeats // 2 + 2)][2:]
    return tuple((rows, median(column)) for rows, column in zip(ROWS, zip(*times, strict=True), strict=True))


def _plans(verify: Curve, target: float, drafter: float, found: Agreement) -> tuple[Plan, Plan]:
    """Return the best drafts of speculative decoding and of PEARL, predicted from median seconds.

    The target's times by rows are scaled to the minutes of the drafter's.
    """
    scale = target / verify[0][1]
    scaled, draft = tuple((rows, scale * seconds) for rows, seconds in verify), ((1, drafter),)
    probe = Probe(scaled, draft, draft, 0.0, ((found.agreement,),) * LONGEST, (), 0)
    return best_tree(probe), best_parallel(probe)


def _bytes(path: Path) -> int:
    """Return the bytes of a model in memory, as `specscope plan` does."""
    return model_size(path, torch.float32, on_cpu=True).weights


def load_noisy(directory: Path, bits: int = 0) -> Decoder:
    """Return a model with noise on its layers' matrices, always the same, rounded to `bits`."""
    shape = ModelShape.of(read_config(directory), directory / "config.json")
    checkpoint, cpu = Checkpoint(directory, shape=shape), torch.device("cpu")
    checkpoint.check(shape.tensors())
    checkpoint.check_memory(shape.tensors(), cpu, torch.float32)

    def take(key: str) -> Tensor:
        tensor = checkpoint.take(key, cpu, torch.float32)
        return with_noise(tensor, key) if key.startswith("model.layers.") and tensor.ndim == 2 else tensor

    return Decoder(shape, take, "drafter" if bits else "target", bits=bits)


def with_noise(matrix: Tensor, key: str) -> Tensor:
    """Return a matrix (out, in) plus uniform noise of one step of a group's grid of 16 steps.

    The noise follows from the key. A matrix whose rows are no groups of 32 is returned unchanged.
    """
    if matrix.shape[1] % GROUP:
        return matrix
    groups = matrix.unflatten(1, (-1, GROUP))
    step = (groups.amax(2, keepdim=True) - groups.amin(2, keepdim=True)) / 15
    generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    return (groups + (torch.rand(groups.shape, generator=generator) - 0.5) * step).flatten(1)


def from_options(args: argparse.Namespace, note: Note) -> tuple[dict[str, Measurement], dict[str, Any]]:
    with DownloadBar() as bar:
        find = partial(resolve, progress=bar.show)
        if args.target:
            pair = Pair.of(args.target, *(args.drafter or ()), resolve=find)
        else:
            pair = Pair.find(args.pair or "bundled", find)
    prompts = [pair.encode(row.text) for row in rows(args, PROMPTS)]
    return measure(pair, prompts, QUICK if args.quick else FULL, note, noise=args.noise)


if __name__ == "__main__":
    options = script.model_options(__doc__)
    options.add_argument("--noise", action="store_true", help="also for the target with noise on its weights")
    script.main(options, from_options, {})
