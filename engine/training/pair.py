"""Train a pair: a tokenizer, a target, and a drafter distilled from it.

    train_pair(PairOptions(data=Path("corpus"), out=Path("pair")))

Every random number is a function of the seed and the step, so a resumed training ends with the same
bits as an uninterrupted one (on the same machine, with the same number of threads).
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

from engine.training import checkpoint
from engine.training.checkpoint import State
from engine.training.data import Stream, find_sources, read_mixture, training_documents
from engine.training.execution import pick_device
from engine.training.fit import plan, text_losses
from engine.training.options import PairOptions
from engine.training.recipe import Shape
from engine.training.steps import (
    LOG,
    Listener,
    Training,
    ignore,
    load_teacher,
    phase_facts,
    read_log,
    save_model,
    trim_log,
    write_facts,
)
from engine.training.tokenizer import BOS, EOS, PAD, USER, train_tokenizer


def train_pair(
    options: PairOptions,
    progress: Listener = ignore,
    cancel: threading.Event | None = None,
    *,
    resume: bool = False,
) -> Path:
    """Train a pair; write `target`, `drafter` and `loss.jsonl`, the loss of every step, to `out`.

    For `progress`, `cancel` and `resume` see `Training`.

    Returns:
        `out`.

    Raises:
        UsageError: A setting is wrong, the data cannot be read, or `out` is in use.
        RunCancelled: `cancel` was set; the training can be resumed.
        ModelError: The checkpoint is broken.
    """
    sources = find_sources(options.data)
    mixture = read_mixture(options.weights, sources)
    training = Training(options, progress, cancel, resume)
    with training.execution.main_first():
        if training.is_main and not training.state.tokenizer:
            training.begin("tokenizer")
            documents = training_documents(sources, mixture, options.held_out)
            tokenizer = train_tokenizer(documents, options.vocabulary, options.context)
            for role in ("target", "drafter"):
                tokenizer.save_pretrained(options.out / role)
            training.state.tokenizer = True
            checkpoint.save(options.out, training.state, options)
    tokenizer = AutoTokenizer.from_pretrained(options.out / "target")
    corpus = training.read_corpus(sources, mixture, tokenizer)
    _run_phases(options, training, Stream(corpus, options.seed), len(tokenizer))
    if training.is_main:
        _write_facts(options, training.state, mixture)
    return options.out


def new_model(shape: Shape, vocabulary: int, context: int, seed: int) -> Any:
    """Return an untrained model; its weights are a function of the seed."""
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
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(pad_token_id=PAD, bos_token_id=BOS, eos_token_id=[EOS, USER])
    return model


def _run_phases(options: PairOptions, training: Training, stream: Stream, vocabulary: int) -> None:
    """Run the remaining phases; save each model after its last phase."""
    phases, state, device = plan(options), training.state, training.device
    if training.is_main:
        trim_log(options.out / LOG, phases, state)
    model: Any = None
    teacher: nn.Module | None = None
    for index in range(state.phase, len(phases)):
        phase = phases[index]
        if model is None:
            shape = options.target if phase.role == "target" else options.drafter
            model = new_model(shape, vocabulary, options.context, options.seed).to(device)
            if phase.role == "drafter":
                teacher = load_teacher(options.out / "target", device, training.dtype)
        if index > state.phase:
            state.phase, state.step = index, 0
        losses_of = text_losses(stream, phase, model, teacher, options.token_loss)
        training.fit(phase, model, losses_of)
        if index + 1 == len(phases) or phases[index + 1].role != phase.role:
            with training.execution.main_first():
                if training.is_main:
                    save_model(model, options.out / phase.role)
            model = None


def _write_facts(options: PairOptions, state: State, mixture: dict[str, int]) -> None:
    """Write the facts of the training, for the model card."""
    phases = plan(options)
    rows = read_log(options.out / LOG)
    facts = {
        "sources": {name: count for name, count in mixture.items() if count},
        "sequence": options.sequence,
        "held_out": options.held_out,
        "phases": [
            phase_facts(phase, state, [r["loss"] for r in rows if r["phase"] == phase.name])
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
    write_facts(options.out, facts)
