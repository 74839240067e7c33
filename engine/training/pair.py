"""The recipe of the bundled pair: a tokenizer, a target, and a drafter distilled from it.

    train_pair(PairOptions(data=Path("corpus"), out=Path("pair")))

Everything random is a function of the seed and the step, so a training that was stopped and resumed ends with the
same bits as one that was not (on the same machine, with the same number of threads).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from math import nan
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

from engine.errors import RunCancelled, UsageError
from engine.training import checkpoint
from engine.training.checkpoint import State
from engine.training.data import Corpus, Mixed, Stream, find_sources, read_mixture, training_documents
from engine.training.fit import Phase, learning_rate, make_optimisers, plan, train_step
from engine.training.options import PairOptions, Recipe, Shape
from engine.training.tokenizer import BOS, EOS, PAD, USER, Encoder, train_tokenizer

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


def ignore(_: Progress) -> None:
    """Hear nothing."""


def train_pair(
    options: PairOptions,
    progress: Listener = ignore,
    cancel: threading.Event | None = None,
    *,
    resume: bool = False,
) -> Path:
    """Train a pair and write it to `out/target` and `out/drafter`, with the loss of every step in `out/loss.jsonl`.

    Args:
        options: The settings.
        progress: Hears of every step.
        cancel: Set it to end the training after the present step, with a checkpoint.
        resume: Go on with the training that `out` holds.

    Returns:
        `out`.

    Raises:
        UsageError: A setting is wrong, the data cannot be read, or `out` is in use.
        RunCancelled: `cancel` was set; the training can be resumed.
        ModelError: The checkpoint is broken.
    """
    device = pick_device(options.device)
    sources = find_sources(options.data)
    mixture = read_mixture(options.weights, sources)
    state = open_training(options, resume)
    if not state.tokenizer:
        progress(Progress("tokenizer", 0, 0, nan))
        documents = training_documents(sources, mixture, options.held_out)
        tokenizer = train_tokenizer(documents, options.vocabulary, options.context)
        for role in ("target", "drafter"):
            tokenizer.save_pretrained(options.out / role)
        state.tokenizer = True
        checkpoint.save(options.out, state, options)
    tokenizer = AutoTokenizer.from_pretrained(options.out / "target")
    progress(Progress("text", 0, 0, nan))
    corpus = Corpus.read(sources, mixture, options.held_out, Encoder(tokenizer))
    same_text(options, state, len(corpus.ids))
    training = Training(options, device, Stream(corpus, options.seed), progress, cancel or threading.Event())
    training.run(state, len(tokenizer))
    _write_facts(options, state, mixture)
    return options.out


def pick_device(name: str) -> torch.device:
    """Return the device of `auto`, `cpu` or `cuda`.

    Raises:
        UsageError: CUDA is asked for and not there.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device is cuda, but torch finds no CUDA device; use cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def new_model(shape: Shape, vocabulary: int, context: int, seed: int) -> Any:
    """Return a model with random weights that are a function of the seed."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def save_model(model: Any, folder: Path) -> None:
    """Write a model as bf16 safetensors in shards; the model itself is changed to bf16."""
    model.generation_config = GenerationConfig(pad_token_id=PAD, bos_token_id=BOS, eos_token_id=[EOS, USER])
    model.to(dtype=torch.bfloat16).save_pretrained(folder, max_shard_size=SHARD)


class Training:
    """The phases of one training, on one device."""

    def __init__(
        self,
        options: Recipe,
        device: torch.device,
        stream: Stream | Mixed,
        progress: Listener,
        cancel: threading.Event,
    ) -> None:
        self._options = options
        self._device = device
        self._stream = stream
        self._progress = progress
        self._cancel = cancel

    def run(self, state: State, vocabulary: int) -> None:
        """Go through all phases from where `state` is, and save each model when its last one is over."""
        options, phases = self._options, plan(self._options)
        trim_log(options.out / LOG, phases, state)
        model: Any = None
        teacher: nn.Module | None = None
        for index in range(state.phase, len(phases)):
            phase = phases[index]
            if model is None:
                shape = options.target if phase.role == "target" else options.drafter
                model = new_model(shape, vocabulary, options.context, options.seed).to(self._device)
                teacher = None if phase.role == "target" else self._load_teacher()
            if index > state.phase:
                state.phase, state.step = index, 0
            self.fit(phase, model, teacher, state)
            if index + 1 == len(phases) or phases[index + 1].role != phase.role:
                save_model(model, options.out / phase.role)
                model = None

    def _load_teacher(self) -> nn.Module:
        """Return the target as it was saved: its rounded weights are those the drafter will meet."""
        teacher: Any = LlamaForCausalLM.from_pretrained(self._options.out / "target", dtype=torch.float32)
        return teacher.to(self._device).eval().requires_grad_(False)

    def fit(self, phase: Phase, model: nn.Module, teacher: nn.Module | None, state: State) -> None:
        options = self._options
        optimisers = make_optimisers(model, options)
        if state.step:
            checkpoint.restore(options.out, state, model, optimisers)
        begun = time.monotonic()
        with (options.out / LOG).open("a", encoding="utf-8", buffering=1) as log:
            while state.step < phase.steps:
                rate = learning_rate(phase, state.step, options)
                batch = self._stream.batch(
                    phase.position + state.step * phase.tokens, phase.rows, phase.length
                )
                found = train_step(model, teacher, optimisers, batch, rate, options.token_loss)
                state.step += 1
                loss = found.tokens if found.divergence is None else found.divergence
                row = {
                    "phase": phase.name,
                    "step": state.step,
                    "loss": loss,
                    "tokens": found.tokens,
                    "rate": rate,
                }
                log.write(json.dumps(row) + "\n")
                self._progress(Progress(phase.name, state.step, phase.steps, loss))
                stopped = self._cancel.is_set()
                if stopped or state.step == phase.steps or state.step % options.checkpoint_every == 0:
                    now = time.monotonic()
                    state.seconds[phase.name] = state.seconds.get(phase.name, 0.0) + now - begun
                    begun = now
                    checkpoint.save(options.out, state, options, model, optimisers)
                if stopped:
                    raise RunCancelled(
                        f"stopped at step {state.step} of {phase.steps} of the {phase.name}; "
                        f"its checkpoint is in {options.out}: add --resume to go on"
                    )


def open_training(options: Recipe, resume: bool) -> State:
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


def same_text(options: Recipe, state: State, tokens: int) -> None:
    if state.text_tokens not in (0, tokens):
        raise UsageError(
            f"the text in {options.data} has {tokens} tokens; the training to resume had {state.text_tokens}: "
            "give it the same text or start anew with another --out"
        )
    state.text_tokens = tokens


def trim_log(path: Path, phases: tuple[Phase, ...], state: State) -> None:
    """Forget the steps that were logged after the checkpoint: they are taken again."""
    if not path.is_file():
        return
    order = {phase.name: index for index, phase in enumerate(phases)}
    kept = [r for r in read_log(path) if (order[r["phase"]], r["step"]) <= (state.phase, state.step)]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a loss log; a last line cut short is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _write_facts(options: PairOptions, state: State, mixture: dict[str, int]) -> None:
    """Write what the model card says of the training."""
    phases = plan(options)
    rows = read_log(options.out / LOG)
    facts = {
        "sources": {name: count for name, count in mixture.items() if count},
        "sequence": options.sequence,
        "held_out": options.held_out,
        "phases": [
            {
                "name": phase.name,
                "steps": phase.steps,
                "tokens": phase.steps * phase.tokens,
                "length": phase.length,
                "minutes": round(state.seconds[phase.name] / 60, 1),
                "loss": round(mean([r["loss"] for r in rows if r["phase"] == phase.name][-_MEAN_OF:]), 3),
            }
            for phase in phases
        ],
        "method": (
            f"{options.optimizer} for the matrices and AdamW for the rest, learning rate {options.learning_rate:g} after "
            f"{options.warmup} steps of warm-up, linear decay over the last {options.decay:.0%}, "
            f"seed {options.seed}, on {pick_device(options.device).type}. The drafter minimises "
            f"{1 - options.token_loss:g} KL(p || q) from the target + {options.token_loss:g} cross-entropy."
        ),
        "options": options.fixed(),
    }
    (options.out / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
