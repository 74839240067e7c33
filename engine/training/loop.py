"""A training under way: its folder with logs, facts and checkpoints, and the loop over its steps.

A checkpoint is weights and optimiser state as safetensors, progress and settings as JSON. The
tensors are written first, the JSON that names them last, both under a temporary name and then
moved: whenever the machine stops, the folder holds a whole checkpoint or none. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import nan
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple, TypedDict

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import Optimizer

from specscope.engine.checkpoints.progress import ignore
from specscope.engine.errors import ModelError, RunCancelled, UsageError
from specscope.engine.files import replacing
from specscope.engine.training.data import Corpus, Encoder, TrainingText
from specscope.engine.training.settings import Recipe
from specscope.engine.training.step import (
    Losses,
    LossesOf,
    Phase,
    TrainingDevices,
    learning_rate,
    make_optimisers,
)

CHECKPOINTS = "checkpoints"
_STATE = "state.json"
FACTS = "training.json"
LOG = "loss.jsonl"
MEASURED = "acceptance.jsonl"
_MEAN_OF = 50


class TrainingProgress(NamedTuple):
    """A report to a listener: every step, and (step 0, loss nan) when a part begins."""

    phase: str
    """`tokenizer`, `text`, or a phase's name."""
    step: int
    steps: int
    loss: float
    """In nats per token: cross-entropy of a target, divergence of a drafter."""


Listener = Callable[[TrainingProgress], None]


class Control(TypedDict, total=False):
    """The arguments of `Training` that every training function takes, too."""

    progress: Listener
    cancel: threading.Event
    resume: bool


@dataclass(slots=True)
class State:
    """Progress of a training."""

    phase: int = 0
    step: int = 0
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    tokenizer: bool = False
    """Whether the tokenizer is trained, or for `train distil` the pair's models are copied."""
    text_tokens: int = 0
    """Tokens of the training text, each document counted once; 0 before it is read."""
    tensors: str = ""
    """Name of the file of tensors; empty before the first checkpoint."""


class Training:
    """One training under way: how it computes, its progress (`state`), its listener.

    `progress` is called after every step, in the main process. `cancel`, once set, stops the
    training after the current step, with a checkpoint; `resume` goes on with the one in `out`.
    A UsageError says that the device is missing, or that `out` is in use, has nothing to resume, or
    has a training with other settings; a ModelError that its checkpoint is broken.
    """

    def __init__(
        self,
        options: Recipe,
        progress: Listener = ignore,
        cancel: threading.Event | None = None,
        resume: bool = False,
    ) -> None:
        self._options, self._folder = options, options.out / CHECKPOINTS
        self.execution = TrainingDevices(options)
        self.device, self.dtype = self.execution.device, self.execution.dtype
        self.is_main = self.execution.is_main
        self.progress = progress if self.is_main else ignore
        self.cancel = cancel or threading.Event()
        with self.execution.main_first():
            self.state = self._open(resume or not self.is_main)

    def begin(self, part: str) -> None:
        self.progress(TrainingProgress(part, 0, 0, nan))

    def read_corpus(self, text: TrainingText, tokenizer: Any) -> Corpus:
        """Return the tokenized text; a UsageError if its length has changed."""
        self.begin("text")
        options, state = self._options, self.state
        corpus = Corpus.read(text, Encoder(tokenizer))
        tokens = len(corpus.ids)
        if state.text_tokens not in (0, tokens):
            raise UsageError(
                f"the text in {options.data} has {tokens} tokens; the training to resume had {state.text_tokens}: "
                "give it the same text or start again with another --out"
            )
        state.text_tokens = tokens
        return corpus

    def fit(
        self,
        phase: Phase,
        model: nn.Module,
        losses_of: LossesOf,
        measure: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        """Train a model from `state` to the end of a phase.

        `measure` returns a row of `MEASURED`, every `checkpoint_every` steps and at the end.
        `cancel` raises RunCancelled after a checkpoint; a UsageError is raised for a loss that is
        not finite, or a batch that cannot be divided.
        """
        options, state, execution = self._options, self.state, self.execution
        execution.parts(phase.rows)  # refuse an impossible batch before the first step
        optimisers = make_optimisers(model, options)
        if state.step:
            self._restore(model, optimisers)
        self._trim_logs(phase)
        begun = time.monotonic()
        while state.step < phase.steps:
            rate = learning_rate(phase, state.step, options)
            losses = execution.update(model, optimisers, partial(losses_of, state.step), phase.rows, rate)
            state.step += 1
            row = _log_row(losses, rate)
            self._log(LOG, phase, row)
            self.progress(TrainingProgress(phase.name, state.step, phase.steps, row["loss"]))
            stopped = execution.any_process(self.cancel.is_set())
            due = state.step == phase.steps or state.step % options.checkpoint_every == 0
            if stopped or due:
                seconds = state.seconds.get(phase.name, 0.0)
                state.seconds[phase.name] = seconds + time.monotonic() - begun
                if due and measure and self.is_main:
                    self._log(MEASURED, phase, measure())
                begun = time.monotonic()
                if self.is_main:
                    self.save(model, optimisers)
            if stopped:
                raise RunCancelled(
                    f"stopped at step {state.step} of {phase.steps} of the {phase.name}; "
                    f"its checkpoint is in {options.out}: add --resume to go on"
                )

    def save(self, model: nn.Module | None = None, optimisers: Sequence[Optimizer] = ()) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        state = self.state
        if model is not None:
            state.tensors = f"{state.phase}-{state.step:07d}.safetensors"
            path = self._folder / f"{state.tensors}.part"
            save_file(_gather(model, optimisers), path)
            os.replace(path, self._folder / state.tensors)
        with replacing(self._folder / _STATE) as file:
            json.dump({"state": asdict(state), "options": self._options.fixed()}, file, indent=1)
        for other in self._folder.glob("*.safetensors*"):  # older, or left by a training that was killed
            if other.name != state.tensors:
                other.unlink()

    def facts(self, phase: Phase) -> dict[str, Any]:
        losses = [row["loss"] for row in read_log(self._options.out / LOG) if row["phase"] == phase.name]
        return {
            "name": phase.name,
            "steps": phase.steps,
            "tokens": phase.steps * phase.tokens,
            "length": phase.length,
            "minutes": round(self.state.seconds[phase.name] / 60, 1),
            "loss": round(mean(losses[-_MEAN_OF:]), 3),
        }

    def _open(self, resume: bool) -> State:
        out = self._options.out
        if resume:
            if not (self._folder / _STATE).is_file():
                raise UsageError(f"{out} holds no training to resume; leave out --resume to start one")
            return self._load()
        check_empty(out, ", or add --resume to go on with a training there")
        self.state = State()
        self.save()
        return self.state

    def _load(self) -> State:
        path, new = self._folder / _STATE, self._options.fixed()
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            state, old = State(**content["state"]), content["options"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ModelError(
                f"{path} is not a checkpoint of a training ({error}); start again with another --out"
            ) from None
        changed = [f"{k} {old.get(k)!r}, not {new[k]!r}" for k in new if old.get(k) != new[k]]
        if changed:
            raise UsageError(
                f"the training in {self._options.out} has {'; '.join(changed)}: use the same settings or another --out"
            )
        return state

    def _restore(self, model: nn.Module, optimisers: Sequence[Optimizer]) -> None:
        path = self._folder / self.state.tensors
        try:
            tensors = load_file(path)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(tensors[f"model/{name}"])
        except (OSError, SafetensorError, KeyError, RuntimeError) as error:
            raise ModelError(f"{path} does not hold this model's checkpoint ({error}); start again") from None
        names = _names(model)
        for i, optimiser in enumerate(optimisers):
            for p in (p for group in optimiser.param_groups for p in group["params"]):
                prefix = f"optimiser/{i}/{names[p]}/"
                entries = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
                # AdamW counts its steps on the CPU, even if the weights are on CUDA
                optimiser.state[p] = {k: t if t.ndim == 0 else t.to(p.device) for k, t in entries.items()}

    def _log(self, name: str, phase: Phase, row: Mapping[str, Any]) -> None:
        if self.is_main:
            with (self._options.out / name).open("a", encoding="utf-8") as log:
                log.write(json.dumps({"phase": phase.name, "step": self.state.step, **row}) + "\n")

    def _trim_logs(self, phase: Phase) -> None:
        """Remove the rows of steps after the checkpoint: these steps are repeated."""
        paths = [self._options.out / name for name in (LOG, MEASURED)] if self.is_main else []
        for path in filter(Path.is_file, paths):
            kept = [r for r in read_log(path) if r["phase"] != phase.name or r["step"] <= self.state.step]
            with replacing(path) as file:
                file.writelines(json.dumps(row) + "\n" for row in kept)


def _log_row(losses: Losses, rate: float) -> dict[str, Any]:
    loss = losses.tokens if losses.divergence is None else losses.divergence
    places = {"places": losses.places} if losses.places else {}
    return {"loss": loss, "tokens": losses.tokens, "rate": rate} | places


def _gather(model: nn.Module, optimisers: Sequence[Optimizer]) -> dict[str, torch.Tensor]:
    names = _names(model)
    tensors = {f"model/{name}": p.detach() for name, p in model.named_parameters()}
    for i, optimiser in enumerate(optimisers):
        for p, entries in optimiser.state.items():
            values: Mapping[str, Any] = entries
            tensors |= {f"optimiser/{i}/{names[p]}/{k}": t for k, t in values.items()}
    return {name: t.contiguous().cpu() for name, t in tensors.items()}


def _names(model: nn.Module) -> dict[torch.Tensor, str]:
    return {p: name for name, p in model.named_parameters()}


def check_empty(out: Path, otherwise: str = "") -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is not empty; choose another --out{otherwise}")


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a log, without an incomplete last line."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def write_facts(out: Path, facts: Mapping[str, Any]) -> None:
    with replacing(out / FACTS) as file:
        file.write(json.dumps(facts, indent=1) + "\n")


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the facts of a pair's or head's training; empty if unknown."""
    path = folder / FACTS
    return read_json(path) if path.is_file() else {}


def read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path} cannot be read ({error}); it must be a JSON object") from None
