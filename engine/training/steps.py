"""A training under way: its folder, its log, its checkpoints, and the saved model."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from math import nan
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import nn

from engine.errors import RunCancelled, UsageError
from engine.files import replacing
from engine.pairs.reference import load_reference
from engine.training import checkpoint
from engine.training.checkpoint import State
from engine.training.data import Corpus
from engine.training.execution import Execution
from engine.training.fit import Losses, LossesOf, Phase, learning_rate, make_optimisers
from engine.training.options import DistilOptions, HeadOptions
from engine.training.recipe import Recipe
from engine.training.tokenizer import Encoder

SHARD = "14MB"
"""Largest file of weights; with its header it stays below 15 MB."""
FACTS = "training.json"
LOG = "loss.jsonl"
_MEAN_OF = 50


class Progress(NamedTuple):
    """A report to a listener: every step, and (step 0, loss nan) when a part begins."""

    phase: str
    """`tokenizer`, `text`, or a phase's name."""
    step: int
    steps: int
    loss: float
    """In nats per token: cross-entropy of a target, divergence of a drafter."""


Listener = Callable[[Progress], None]


def ignore(_: object) -> None:
    """Ignore the report."""


def save_model(model: Any, folder: Path) -> None:
    """Write a model as bf16 safetensors in shards; converts the model itself to bf16."""
    model.to(dtype=torch.bfloat16).save_pretrained(folder, max_shard_size=SHARD)


def load_teacher(folder: Path, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Return the target as it was saved: a run uses these rounded weights, too."""
    return load_reference(folder, dtype).to(device).requires_grad_(False)


class Training:
    """One training under way: how it computes, its progress (`state`), its listener.

    Args:
        options: The settings.
        progress: Called after every step, in the main process.
        cancel: Set it to stop the training after the current step, with a checkpoint.
        resume: Whether to continue the training in `out`.

    Raises:
        UsageError: The device is missing; `out` is in use, has nothing to resume, or its training
            has other settings.
        ModelError: The checkpoint is broken.
    """

    def __init__(
        self, options: Recipe, progress: Listener, cancel: threading.Event | None, resume: bool
    ) -> None:
        self.execution = Execution(options)
        self.device, self.dtype = self.execution.device, self.execution.dtype
        self.is_main = self.execution.is_main
        with self.execution.main_first():
            self.state = open_training(options, resume or not self.is_main)
        self.progress = progress if self.is_main else ignore
        self.cancel = cancel or threading.Event()
        self._options = options

    def begin(self, part: str) -> None:
        """Report that a part begins."""
        self.progress(Progress(part, 0, 0, nan))

    def read_corpus(self, sources: Mapping[str, Path], mixture: Mapping[str, int], tokenizer: Any) -> Corpus:
        """Return the tokenized text of the sources.

        Raises:
            UsageError: Its length differs from that at the start of the training.
        """
        self.begin("text")
        options, state = self._options, self.state
        corpus = Corpus.read(sources, mixture, options.held_out, Encoder(tokenizer))
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
        measure: Callable[[int], None] = ignore,
    ) -> None:
        """Train a model from `state` to the end of a phase.

        Args:
            phase: The stretch of training.
            model: The model to train.
            losses_of: Returns the model's losses in a step, for some rows of its batch.
            measure: Called with the number of finished steps, every `checkpoint_every` steps and at
                the end; not timed.

        Raises:
            RunCancelled: The event was set; a checkpoint is written.
            UsageError: The loss is not a finite number, or the batch cannot be divided.
            ModelError: The checkpoint is broken.
        """
        options, state, execution = self._options, self.state, self.execution
        execution.parts(phase.rows)  # refuse an impossible batch before the first step
        optimisers = make_optimisers(model, options)
        if state.step:
            checkpoint.restore(options.out, state, model, optimisers)
        begun = time.monotonic()
        log_file = options.out / LOG if self.is_main else Path(os.devnull)
        with log_file.open("a", encoding="utf-8", buffering=1) as log:
            while state.step < phase.steps:
                rate = learning_rate(phase, state.step, options)
                losses_of_rows = partial(losses_of, state.step)
                losses = execution.update(model, optimisers, losses_of_rows, phase.rows, rate)
                state.step += 1
                row = _log_row(phase, state.step, losses, rate)
                log.write(json.dumps(row) + "\n")
                self.progress(Progress(phase.name, state.step, phase.steps, row["loss"]))
                stopped = execution.any_process(self.cancel.is_set())
                due = state.step == phase.steps or state.step % options.checkpoint_every == 0
                if stopped or due:
                    seconds = state.seconds.get(phase.name, 0.0)
                    state.seconds[phase.name] = seconds + time.monotonic() - begun
                    if due and self.is_main:
                        measure(state.step)
                    begun = time.monotonic()
                    if self.is_main:
                        checkpoint.save(options.out, state, options, model, optimisers)
                if stopped:
                    raise RunCancelled(
                        f"stopped at step {state.step} of {phase.steps} of the {phase.name}; "
                        f"its checkpoint is in {options.out}: add --resume to go on"
                    )


def _log_row(phase: Phase, step: int, losses: Losses, rate: float) -> dict[str, Any]:
    """Return a step's row of the loss log."""
    loss = losses.tokens if losses.divergence is None else losses.divergence
    row = {"phase": phase.name, "step": step, "loss": loss, "tokens": losses.tokens, "rate": rate}
    return row | ({"places": losses.places} if losses.places else {})


def open_training(options: Recipe, resume: bool) -> State:
    """Return the state of the training in `out`; a new training needs an empty folder.

    Raises:
        UsageError: The folder is in use, has nothing to resume, or its training has other settings.
        ModelError: The checkpoint is broken.
    """
    out = options.out
    if resume:
        if not checkpoint.exists(out):
            raise UsageError(f"{out} holds no training to resume; leave out --resume to start one")
        return checkpoint.load(out, options)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(
            f"{out} is not empty; choose another --out, or add --resume to go on with a training there"
        )
    state = State()
    checkpoint.save(out, state, options)
    return state


def check_lengths(options: DistilOptions | HeadOptions, context: int, known_by: str) -> None:
    """Check that texts and answers fit the context of the models.

    Raises:
        UsageError: A setting is too long.
    """
    for name, most in (("sequence", context), ("answer", context - 1)):
        if getattr(options, name) > most:
            raise UsageError(
                f"{name} is {getattr(options, name)}; it must be at most {most}: {known_by} knows {context} positions"
            )


def trim_log(path: Path, phases: tuple[Phase, ...], state: State) -> None:
    """Remove the rows of steps after the checkpoint: these steps are repeated."""
    if not path.is_file():
        return
    order = {phase.name: index for index, phase in enumerate(phases)}
    kept = [r for r in read_log(path) if (order[r["phase"]], r["step"]) <= (state.phase, state.step)]
    with replacing(path) as file:
        file.writelines(json.dumps(row) + "\n" for row in kept)


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a loss log, without an incomplete last line."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def write_facts(out: Path, facts: Mapping[str, Any]) -> None:
    """Write the facts of a training, for its card."""
    with replacing(out / FACTS) as file:
        file.write(json.dumps(facts, indent=1) + "\n")


def phase_facts(phase: Phase, state: State, losses: list[float]) -> dict[str, Any]:
    """Return the facts of one phase, for the model card."""
    return {
        "name": phase.name,
        "steps": phase.steps,
        "tokens": phase.steps * phase.tokens,
        "length": phase.length,
        "minutes": round(state.seconds[phase.name] / 60, 1),
        "loss": round(mean(losses[-_MEAN_OF:]), 3),
    }
