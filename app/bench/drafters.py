"""Drafters of one target: size, time of a draft, agreement with the target, predicted speed-up.

The target's own weights in fewer bits are measured, and the drafters of the pair. All forwards run
on one core, those of a drafter in turns with the target's.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, minimum

from specscope.app.bench import speed
from specscope.app.bench.figures import Note
from specscope.engine.checkpoints.checkpoint import Checkpoint
from specscope.engine.checkpoints.config import read_config
from specscope.engine.checkpoints.forms import FORMS, split_form
from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.checkpoints.sizes import model_size
from specscope.engine.drafting.pace import Curve, Probe
from specscope.engine.drafting.planner import LONGEST, Plan, best_parallel, best_tree
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.int4 import GROUP
from specscope.engine.model.shape import ModelShape
from specscope.engine.model.slots import Rows
from specscope.engine.training.measure import timed_forward


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


class Times(NamedTuple):
    """Processor time of a forward of one row, in milliseconds."""

    least: float
    median: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        return cls(1e3 * min(seconds), 1e3 * median(seconds))


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of one drafter."""

    drafter: str
    noisy: bool
    """Whether the target's weights have noise, which the drafter rounds, too."""
    bytes: int
    times: Times
    target_times: Times
    """Of the target's forwards in between."""
    agreement: Agreement
    speculative: Plan
    pearl: Plan

    @property
    def c(self) -> float:
        return self.target_times.median / self.times.median

    @property
    def name(self) -> str:
        return self.drafter + ", noise" * self.noisy

    def to_dict(self) -> dict[str, Any]:
        return {
            "drafter": self.drafter,
            "noise": self.noisy,
            "bytes": self.bytes,
            "ms_min": self.times.least,
            "ms_median": self.times.median,
            "target_ms_min": self.target_times.least,
            "target_ms_median": self.target_times.median,
            "c": self.c,
            **self.agreement._asdict(),
            "speculative": self.speculative.facts(),
            "pearl": self.pearl.facts(),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """The drafters of one target."""

    pair: str
    target_bytes: int
    verify: Curve
    """Rows -> median seconds of a forward of the target."""
    prompts: int
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "pair": self.pair,
            "target_bytes": self.target_bytes,
            "target_ms_by_rows": {str(rows): 1e3 * seconds for rows, seconds in self.verify},
            "prompts": self.prompts,
            "drafters": [row.to_dict() for row in self.rows],
        }

    def lines(self) -> list[str]:
        curve = ", ".join(f"{rows}: {1e3 * seconds:.1f}" for rows, seconds in self.verify)
        head = f"{'drafter':16}{'MB':>8}{'ms min':>8}{'median':>8}{'c':>6}{'agrees':>8}{'overlap':>9}"
        text = [
            f"{self.pair} · fp32 target of {self.target_bytes / 1e6:.1f} MB, one core · {self.prompts} prompts",
            f"milliseconds of the target by rows: {curve}",
            f"{head}{'positions':>11}  predicted: speculative, pearl (gamma)",
        ]
        for row in self.rows:
            times = f"{row.bytes / 1e6:>8.1f}{row.times.least:>8.2f}{row.times.median:>8.2f}{row.c:>6.2f}"
            found = row.agreement
            shares = f"{found.agreement:>8.3f}{found.overlap:>9.3f}{found.positions:>11}"
            plans = ", ".join(f"{p.speedup:.2f} ({p.levels})" for p in (row.speculative, row.pearl))
            text.append(f"{row.name:16}{times}{shares}  {plans}")
        return text


def measure(pair: Pair, prompts: Sequence[Sequence[int]], size: Size, note: Note, *, noise: bool) -> Report:
    """Measure the drafters of a pair's target; with `noise`, those of a noisy target, too."""
    for prompt in prompts:
        pair.check_length(prompt, size.new_tokens)
    with speed.one_core():
        note("target")
        target = load(pair.target_path)
        verify = _verify(target, size.repeats)
        note("answers")
        written, rows = answers(target, pair, prompts, size.new_tokens), list[Row]()
        for name, path in drafters_of(pair).items():
            note(name)
            rows.append(_row(name, path, pair, target, written, verify, size))
            note("")
        if noise:
            del target
            rows += _noisy(pair, prompts, size.new_tokens, rows, verify, note)
    return Report(pair.name, _bytes(pair.target_path), verify, len(prompts), tuple(rows))


def drafters_of(pair: Pair) -> dict[str, Path]:
    """Return the forms of a pair's target, and its other drafters, by name."""
    found = {form: pair.target_path / form for form in reversed(FORMS)}
    for path in pair.drafter_paths:
        if path not in found.values():
            name = f"{path.parent.name}/{path.name}" if split_form(path)[1] else path.name
            found[str(path) if name in found else name] = path
    return found


def _row(
    name: str, path: Path, pair: Pair, target: Decoder, written: Sequence[Answer], verify: Curve, size: Size
) -> Row:
    drafter = load(path, name="drafter")
    forwards = [timed_forward(model, 1, CONTEXT) for model in (target, drafter)]
    times = [[forward() for forward in forwards] for _ in range(size.repeats + 5)][5:]
    target_times, drafter_times = (Times.of(column) for column in zip(*times, strict=True))
    found = agreement(target, drafter, pair, written)
    plans = _plans(verify, target_times, drafter_times, found)
    return Row(name, False, _bytes(path), drafter_times, target_times, found, *plans)


def _noisy(
    pair: Pair, prompts: Sequence[Sequence[int]], new_tokens: int, rows: list[Row], verify: Curve, note: Note
) -> list[Row]:
    note("answers of the target with noise")
    target, noisy = load_noisy(pair.target_path), list[Row]()
    written = answers(target, pair, prompts, new_tokens)
    timed = {row.drafter: row for row in rows}
    for form, bits in reversed(FORMS.items()):
        note(f"{form}, noise")
        found = agreement(target, load_noisy(pair.target_path, bits), pair, written)
        row = timed[form]
        speculative, pearl = _plans(verify, row.target_times, row.times, found)
        noisy.append(replace(row, noisy=True, agreement=found, speculative=speculative, pearl=pearl))
        note("")
    return noisy


def _verify(target: Decoder, repeats: int) -> Curve:
    forwards = [timed_forward(target, rows, CONTEXT) for rows in ROWS]
    times = [[forward() for forward in forwards] for _ in range(repeats // 2 + 2)][2:]
    return tuple((rows, median(column)) for rows, column in zip(ROWS, zip(*times, strict=True), strict=True))


def _plans(verify: Curve, target: Times, drafter: Times, found: Agreement) -> tuple[Plan, Plan]:
    """Return the best drafts of speculative decoding and of PEARL, predicted from the medians.

    The target's times by rows are scaled to the minutes of the drafter's.
    """
    scale = target.median / 1e3 / verify[0][1]
    scaled, draft = tuple((rows, scale * seconds) for rows, seconds in verify), ((1, drafter.median / 1e3),)
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
