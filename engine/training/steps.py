"""The steps of a training: its folder, its log, its checkpoints, and the saved model."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from math import nan
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from engine.errors import RunCancelled, UsageError
from engine.files import replacing
from engine.training import checkpoint
from engine.training.checkpoint import State
from engine.training.data import Corpus
from engine.training.fit import LossesOf, Phase, learning_rate, make_optimisers, train_step
from engine.training.options import DrafterOptions, HeadOptions, Recipe
from engine.training.tokenizer import Encoder

SHARD = "14MB"
"""Weights of one file; with its header it stays below 15 MB."""
FACTS = "training.json"
LOG = "loss.jsonl"
_MEAN_OF = 50


class Progress(NamedTuple):
    """What a listener hears: of every step, and (step 0, loss nan) when a part begins."""

    phase: str
    """`tokenizer`, `text`, or a phase's name."""
    step: int
    steps: int
    loss: float
    """Nats per token: cross-entropy of a target, divergence of a drafter."""


Listener = Callable[[Progress], None]


def ignore(_: object) -> None:
    """Hear nothing."""


def pick_device(name: str) -> torch.device:
    """Return the device of `auto`, `cpu` or `cuda`.

    Raises:
        UsageError: CUDA is asked for and not there.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device is cuda, but torch finds no CUDA device; use cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def save_model(model: Any, folder: Path) -> None:
    """Write a model as bf16 safetensors in shards; the model itself is changed to bf16."""
    model.to(dtype=torch.bfloat16).save_pretrained(folder, max_shard_size=SHARD)


def load_teacher(folder: Path, device: torch.device) -> nn.Module:
    """Return the target as it was saved: its rounded weights are those the drafter will meet."""
    teacher: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return teacher.to(device).eval().requires_grad_(False)


class Training:
    """One training under way: its device, how far it has come (`state`), and who hears of it.

    Args:
        options: The settings.
        progress: Hears of every step.
        cancel: Set it to end the training after the present step, with a checkpoint.
        resume: Go on with the training that `out` holds.

    Raises:
        UsageError: There is no such device; `out` is in use, holds nothing to resume, or its training has other settings.
        ModelError: The checkpoint is broken.
    """

    def __init__(
        self, options: Recipe, progress: Listener, cancel: threading.Event | None, resume: bool
    ) -> None:
        self.device = pick_device(options.device)
        self.state = open_training(options, resume)
        self.progress = progress
        self.cancel = cancel or threading.Event()
        self._options = options

    def begin(self, part: str) -> None:
        """Tell that a part begins."""
        self.progress(Progress(part, 0, 0, nan))

    def read_corpus(self, sources: Mapping[str, Path], mixture: Mapping[str, int], tokenizer: Any) -> Corpus:
        """Return the text of the sources in token ids.

        Raises:
            UsageError: It was of another length when the training began.
        """
        self.begin("text")
        options, state = self._options, self.state
        corpus = Corpus.read(sources, mixture, options.held_out, Encoder(tokenizer))
        tokens = len(corpus.ids)
        if state.text_tokens not in (0, tokens):
            raise UsageError(
                f"the text in {options.data} has {tokens} tokens; the training to resume had {state.text_tokens}: "
                "give it the same text or start anew with another --out"
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
        """Train a model from where `state` is to the end of a phase.

        Args:
            phase: The stretch of training.
            model: What is trained.
            losses_of: Gives the model's losses in a step.
            measure: Called every `checkpoint_every` steps and at the end, with the steps that are done; not timed.

        Raises:
            RunCancelled: The event was set; a checkpoint is written.
            UsageError: The loss is not a finite number.
            ModelError: The checkpoint is broken.
        """
        options, state = self._options, self.state
        optimisers = make_optimisers(model, options)
        if state.step:
            checkpoint.restore(options.out, state, model, optimisers)
        begun = time.monotonic()
        with (options.out / LOG).open("a", encoding="utf-8", buffering=1) as log:
            while state.step < phase.steps:
                rate = learning_rate(phase, state.step, options)
                found = losses_of(state.step)
                train_step(model, optimisers, found, rate)
                state.step += 1
                loss = found.tokens if found.divergence is None else found.divergence
                row = {
                    "phase": phase.name,
                    "step": state.step,
                    "loss": loss,
                    "tokens": found.tokens,
                    "rate": rate,
                } | ({"places": found.places} if found.places else {})
                log.write(json.dumps(row) + "\n")
                self.progress(Progress(phase.name, state.step, phase.steps, loss))
                stopped = self.cancel.is_set()
                due = state.step == phase.steps or state.step % options.checkpoint_every == 0
                if stopped or due:
                    now = time.monotonic()
                    state.seconds[phase.name] = state.seconds.get(phase.name, 0.0) + now - begun
                    if due:
                        measure(state.step)
                    begun = time.monotonic()
                    checkpoint.save(options.out, state, options, model, optimisers)
                if stopped:
                    raise RunCancelled(
                        f"stopped at step {state.step} of {phase.steps} of the {phase.name}; "
                        f"its checkpoint is in {options.out}: add --resume to go on"
                    )


def open_training(options: Recipe, resume: bool) -> State:
    """Return how far the training in `out` has come; a new one begins in an empty folder.

    Raises:
        UsageError: The folder is in use, holds nothing to resume, or its training has other settings.
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


def check_lengths(options: DrafterOptions | HeadOptions, context: int, known_by: str) -> None:
    """Check that texts and answers are no longer than what the models know.

    Raises:
        UsageError: They are.
    """
    for name, most in (("sequence", context), ("answer", context - 1)):
        if getattr(options, name) > most:
            raise UsageError(
                f"{name} is {getattr(options, name)}; it must be at most {most}: {known_by} knows {context} positions"
            )


def trim_log(path: Path, phases: tuple[Phase, ...], state: State) -> None:
    """Forget the steps that were logged after the checkpoint: they are taken again."""
    if not path.is_file():
        return
    order = {phase.name: index for index, phase in enumerate(phases)}
    kept = [r for r in read_log(path) if (order[r["phase"]], r["step"]) <= (state.phase, state.step)]
    with replacing(path) as file:
        file.writelines(json.dumps(row) + "\n" for row in kept)


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a loss log; a last line cut short is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def write_facts(out: Path, facts: Mapping[str, Any]) -> None:
    """Write what the card says of a training."""
    with replacing(out / FACTS) as file:
        file.write(json.dumps(facts, indent=1) + "\n")


def phase_facts(phase: Phase, state: State, losses: list[float]) -> dict[str, Any]:
    """Return what the model card says of one phase."""
    return {
        "name": phase.name,
        "steps": phase.steps,
        "tokens": phase.steps * phase.tokens,
        "length": phase.length,
        "minutes": round(state.seconds[phase.name] / 60, 1),
        "loss": round(mean(losses[-_MEAN_OF:]), 3),
    }
