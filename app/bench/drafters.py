"""Drafters of one target: size, time of a draft, agreement with the target, predicted speed-up.

The target's own weights in fewer bits are measured, and the drafters of the pair. All forwards run
on one core, those of a drafter in turns with the target's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from app.bench import speed
from app.bench.agreement import Agreement, Answer, agreement, answers
from app.bench.noise import load_noisy
from app.bench.plan import Note
from engine.drafters.pace import Curve, Probe
from engine.drafters.plan import LONGEST, Plan, best_parallel, best_tree
from engine.model.decoder import Decoder
from engine.pairs.forms import FORMS, split_form
from engine.pairs.load import load
from engine.pairs.pair import Pair
from engine.pairs.sizes import model_size
from engine.training.measure import timed_forward

PROMPTS = Path(__file__).resolve().parents[2] / "assets" / "prompts" / "chats.jsonl"
"""Twenty prompts in the style of MT-bench."""
CONTEXT = 128
"""Cached rows before a timed forward."""
ROWS = (1, 2, 4, 8, 16)
"""Rows of the target's timed forwards."""


class Size(NamedTuple):
    """Size of a run."""

    new_tokens: int
    """Most tokens of an answer."""
    repeats: int
    """Timed forwards of each kind."""


QUICK, FULL = Size(24, 20), Size(96, 100)


class Times(NamedTuple):
    """Processor time of a forward of one row, in milliseconds."""

    least: float
    median: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        """Return the times of some forwards."""
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
    """Best draft of speculative decoding at temperature 0, predicted."""
    pearl: Plan
    """Best draft of PEARL at temperature 0, predicted."""

    @property
    def c(self) -> float:
        """T(target) / T(drafter), one row each."""
        return self.target_times.median / self.times.median

    @property
    def name(self) -> str:
        """The drafter's name in a table."""
        return self.drafter + ", noise" * self.noisy

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
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
        """Return plain JSON values."""
        return {
            "pair": self.pair,
            "target_bytes": self.target_bytes,
            "target_ms_by_rows": {str(rows): 1e3 * seconds for rows, seconds in self.verify},
            "prompts": self.prompts,
            "drafters": [row.to_dict() for row in self.rows],
        }

    def lines(self) -> list[str]:
        """Return the table as lines of text."""
        curve = ", ".join(f"{rows}: {1e3 * seconds:.1f}" for rows, seconds in self.verify)
        head = f"{'drafter':16}{'MB':>8}{'ms min':>8}{'median':>8}{'c':>6}{'agrees':>8}{'overlap':>9}"
        text = [
            f"{self.pair} · fp32 target of {self.target_bytes / 1e6:.1f} MB, one core · {self.prompts} prompts",
            f"milliseconds of the target by rows: {curve}",
            f"{head}{'positions':>11}  predicted: speculative, pearl (gamma)",
        ]
        for row in self.rows:
            times = f"{row.bytes / 1e6:>8.1f}{row.times.least:>8.2f}{row.times.median:>8.2f}{row.c:>6.2f}"
            shares = (
                f"{row.agreement.agreement:>8.3f}{row.agreement.overlap:>9.3f}{row.agreement.positions:>11}"
            )
            plans = ", ".join(f"{p.speedup:.2f} ({p.levels})" for p in (row.speculative, row.pearl))
            text.append(f"{row.name:16}{times}{shares}  {plans}")
        return text


def measure(pair: Pair, prompts: Sequence[Sequence[int]], size: Size, note: Note, *, noise: bool) -> Report:
    """Measure the drafters of a pair's target.

    Args:
        pair: The target, and drafters of its own if it has some.
        prompts: Ids of each prompt.
        size: Tokens of an answer, and repeats.
        note: Shows progress.
        noise: Whether to measure the forms of a target with noise on its weights, too.

    Raises:
        UsageError: A prompt and its answer exceed the context.
    """
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
            rows += _noisy(pair, prompts, size, rows, verify, note)
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
    name: str,
    path: Path,
    pair: Pair,
    target: Decoder,
    written: Sequence[Answer],
    verify: Curve,
    size: Size,
) -> Row:
    """Measure one drafter."""
    drafter = load(path, name="drafter")
    forwards = [timed_forward(model, 1, CONTEXT) for model in (target, drafter)]
    times = [[forward() for forward in forwards] for _ in range(size.repeats + 5)][5:]
    target_times, drafter_times = (Times.of(column) for column in zip(*times, strict=True))
    found = agreement(target, drafter, pair, written)
    plans = _plans(verify, target_times, drafter_times, found)
    return Row(name, False, _bytes(path), drafter_times, target_times, found, *plans)


def _noisy(
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    size: Size,
    rows: Sequence[Row],
    verify: Curve,
    note: Note,
) -> list[Row]:
    """Measure the forms of a target with noise; noise changes no time."""
    note("answers of the target with noise")
    target, noisy = load_noisy(pair.target_path), list[Row]()
    written = answers(target, pair, prompts, size.new_tokens)
    timed: Mapping[str, Row] = {row.drafter: row for row in rows}
    for form, bits in reversed(FORMS.items()):
        note(f"{form}, noise")
        found = agreement(target, load_noisy(pair.target_path, bits), pair, written)
        row = timed[form]
        speculative, pearl = _plans(verify, row.target_times, row.times, found)
        noisy.append(replace(row, noisy=True, agreement=found, speculative=speculative, pearl=pearl))
        note("")
    return noisy


def _verify(target: Decoder, repeats: int) -> Curve:
    """Return the median seconds of forwards of the target, by rows."""
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
