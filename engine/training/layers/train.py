"""Make a drafter of a target's own layers, and distil it from the target.

    train_drafter(DrafterOptions(data=Path("corpus"), out=Path("fast"), target=Path("model")))

The target writes text and reads it once (`engine.training.teacher`); then the drafter learns from
the stored outputs. Only the deltas, the norms and the map are trained.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from engine.errors import RunCancelled, UsageError
from engine.files import replacing
from engine.model.shape import ModelShape
from engine.pairs.config import read_config
from engine.pairs.layers import (
    WEIGHTS,
    LayerDrafter,
    check_layers,
    check_rank,
    check_vocabulary,
    is_layer_drafter,
    read_drafter,
    read_tensors,
    target_digest,
    write_drafter,
)
from engine.pairs.pair import Pair
from engine.training.data import find_sources, read_mixture, training_documents
from engine.training.fit import Losses, Phase
from engine.training.layers.batches import Batch, Batches
from engine.training.layers.card import render
from engine.training.layers.start import Search, Start, frequent_tokens
from engine.training.layers.student import Stack, Student, columns_of, divergence
from engine.training.layers.texts import answer_starts, make_texts
from engine.training.options import DrafterOptions
from engine.training.steps import (
    LOG,
    Listener,
    Progress,
    Training,
    check_lengths,
    ignore,
    load_teacher,
    phase_facts,
    read_log,
    trim_log,
    write_facts,
)
from engine.training.target_text import FILE, read_text, save_text, write_text
from engine.training.teacher import Teacher, teach

AGREEMENT = "agreement.jsonl"
CARD = "README.md"
CORPUS = "corpus.safetensors"
_MEASURED = 64
"""Held-out texts of a measurement."""
_AT_ONCE = 8
_SEARCHED, _FITTED = 6, 30
"""Tokens that the map is fitted on, in a search and at last, for each dimension of the state."""


def train_drafter(
    options: DrafterOptions,
    progress: Listener = ignore,
    cancel: threading.Event | None = None,
    *,
    resume: bool = False,
) -> Path:
    """Make a drafter of a target's layers and write it to `out`.

    The drafter is written at every checkpoint. For `progress`, `cancel` and `resume` see
    `Training`.

    Returns:
        `out`: the drafter (`config.json`, `model.safetensors`, `README.md`), `loss.jsonl`,
        `agreement.jsonl`, and unless text was given, the text. The target's outputs are beside each
        text.

    Raises:
        UsageError: A setting is wrong, the data cannot be read, or `out` is in use.
        RunCancelled: `cancel` was set; the training can be resumed.
        ModelError: A model, the text or the checkpoint is broken.
    """
    shape = check(options)
    training, out = Training(options, progress, cancel, resume), options.out
    with training.execution.main_first():
        teachers, prompts = _read(options, training)
        batches = Batches(teachers, prompts, options.sequence, options.seed)
        config, student = _begin(options, shape, training, batches)
    phase = Phase(
        "drafter", "drafter", options.steps, options.batch, options.sequence, options.learning_rate, 0
    )
    if training.is_main:
        for name in (LOG, AGREEMENT):
            trim_log(out / name, (phase,), training.state)

    def losses_of(step: int, rows: slice) -> Losses:
        batch = batches.batch(step, options.batch, rows)
        return _losses(student, batch, shape.vocab, options.token_loss)

    def measure(step: int) -> None:
        row = {"phase": phase.name, "step": step, "tokens": batches.counted(step, options.batch)}
        row |= measure_agreement(student, batches, shape.vocab)
        with (out / AGREEMENT).open("a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")
        write_drafter(out, config, student.tensors())

    if training.is_main and not (out / AGREEMENT).is_file():
        measure(0)
    training.fit(phase, student, losses_of, measure)
    if training.is_main:
        _write_card(options, training, phase, config, teachers)
    return out


def check(options: DrafterOptions) -> ModelShape:
    """Check the settings against the target; return the target's shape.

    Raises:
        UsageError: A setting does not fit the target, or the drafter to start from is another
            target's.
        ModelError: The target is missing, broken or of an unsupported architecture.
    """
    shape = ModelShape.of(read_config(options.target), options.target / "config.json")
    shape.check_llama(options.target)
    check_lengths(options, shape.context, "the target")
    if options.start is not None:
        read_drafter(options.start, options.target)
    if options.numbers:
        check_layers(options.numbers, shape.layers)
    elif options.depth > shape.layers:
        raise UsageError(f"depth is {options.depth}; it must be at most the target's {shape.layers} layers")
    if options.top > shape.vocab:
        raise UsageError(f"top is {options.top}; it must be at most the target's {shape.vocab} tokens")
    check_rank(options.rank, shape)
    check_vocabulary(options.vocabulary, shape.vocab)
    return shape


def _read(options: DrafterOptions, training: Training) -> tuple[list[Teacher], list[np.ndarray]]:
    """Return the texts with the target's outputs, and the lengths of their prompts.

    What is missing is written first.
    """
    pair, out, target = Pair.of(options.target), options.out, options.target
    paths = list(options.text) or [out / FILE]
    for path in options.text:
        read_text(path, target)
    if not options.text and not paths[0].is_file():
        write_text(paths[0], pair, options, training)
    if options.corpus:
        paths.append(out / CORPUS)
        if not paths[-1].is_file():
            training.begin("text")
            sources = find_sources(options.data)
            mixture = read_mixture(options.weights, sources)
            documents = list(training_documents(sources, mixture, options.held_out))
            texts = make_texts(pair, documents, options.corpus, options.sequence, options.seed)
            save_text(paths[-1], texts, target)
    corpora, teachers = [read_text(path, target) for path in paths], list[Teacher]()
    total = sum(len(corpus.ids) for corpus in corpora)
    for path, corpus in zip(paths, corpora, strict=True):
        before = sum(len(teacher.corpus.ids) for teacher in teachers)

        def report(done: int, before: int = before) -> None:
            training.progress(Progress("outputs", before + done, total, nan))

        folder = path.with_suffix(".outputs")
        place = (training.device, training.dtype)
        teachers.append(teach(folder, corpus, target, options.top, *place, report, training.cancel))
    return teachers, [answer_starts(pair, corpus) for corpus in corpora]


def _begin(
    options: DrafterOptions, shape: ModelShape, training: Training, batches: Batches
) -> tuple[LayerDrafter, Student]:
    """Return the drafter before training: stored in `out`, given, or chosen now."""
    stack = Stack(load_teacher(options.target, training.device), training.dtype)
    source = options.out if is_layer_drafter(options.out) else options.start
    if source is None:
        pair = Pair.of(options.target)
        ids = None
        if options.vocabulary:
            ids = frequent_tokens(batches.answers(), options.vocabulary, shape.vocab, pair.eos)
        start = _choose(options, shape, training, batches, Search(stack, ids, shape.vocab))
        config = LayerDrafter(
            layers=start.layers,
            rank=options.rank,
            vocabulary=options.vocabulary,
            mapped=start.mapping is not None,
            target=options.target_name or options.target.name,
            digest=target_digest(options.target),
        )
        student = Student(stack, config.layers, config.rank, ids, start.mapping, options.seed)
        write_drafter(options.out, config, student.tensors())
        source = options.out
    else:
        config, tensors = read_drafter(source, options.target)[0], read_tensors(source)
        ids, mapping = tensors.get("ids"), tensors.get("map")
        student = Student(stack, config.layers, config.rank, ids, mapping, options.seed)
    # the file has rounded values: a training that is resumed before its first step begins with them
    student.load(read_tensors(source))
    return config, student


def _choose(
    options: DrafterOptions, shape: ModelShape, training: Training, batches: Batches, search: Search
) -> Start:
    """Return the layers that are named or found, with their map."""
    mapped = {"auto": None, "yes": True, "no": False}[options.map]
    layers: Sequence[int] = options.numbers

    def report(done: int, total: int, best: float) -> None:
        training.progress(Progress("layers", done, total, best))
        if training.cancel.is_set():
            raise RunCancelled("stopped while layers were compared; add --resume to compare them again")

    if not layers:
        search.calibrate(batches.first(_AT_ONCE, _SEARCHED * shape.width))
        layers = search.add_layers(options.depth, mapped, report).layers
    search.calibrate(batches.first(_AT_ONCE, _FITTED * shape.width))
    return search.start(layers, mapped)


def _losses(student: Student, batch: Batch, vocab: int, token_loss: float) -> Losses:
    """Return the losses of a batch; tokens that cannot be drafted have no cross-entropy."""
    batch = batch.to(student.device)
    logits = student(batch.ids, batch.places)
    kl = divergence(logits, columns_of(batch.outputs.ids, student.ids, vocab), batch.outputs)
    labels = columns_of(batch.ids.flatten()[batch.places + 1], student.ids, vocab)
    tokens = functional.cross_entropy(logits, labels, ignore_index=-1) if (labels >= 0).any() else kl * 0
    return Losses(token_loss * tokens + (1 - token_loss) * kl, tokens.item(), kl.item())


def measure_agreement(student: Student, batches: Batches, vocab: int) -> dict[str, float]:
    """Compare the drafter with the target on held-out texts.

    Returns:
        `agreement`, the share of tokens at which both have the same most probable token, the
        divergence in nats per token, and the number of tokens, `held_out`.
    """
    same, nats, count = 0, 0.0, 0
    for held in batches.held(_AT_ONCE, _MEASURED):
        batch = held.to(student.device)
        with torch.no_grad(), student.autocast():
            logits = student(batch.ids, batch.places)
        columns = columns_of(batch.outputs.ids, student.ids, vocab)
        same += int((logits.argmax(-1) == columns[:, 0]).sum())
        nats += divergence(logits, columns, batch.outputs).item() * len(columns)
        count += len(columns)
    return {"agreement": same / max(1, count), "divergence": nats / max(1, count), "held_out": count}


def _write_card(
    options: DrafterOptions,
    training: Training,
    phase: Phase,
    config: LayerDrafter,
    teachers: Sequence[Teacher],
) -> None:
    """Write the facts of the training and the card."""
    losses = [row["loss"] for row in read_log(options.out / LOG)]
    measured = read_log(options.out / AGREEMENT)
    facts: dict[str, Any] = {
        "phase": phase_facts(phase, training.state, losses) | {"tokens": measured[-1]["tokens"]},
        "texts": [{"texts": len(t.corpus.repeats), "tokens": len(t.corpus.ids)} for t in teachers],
        "measured": measured,
        "options": options.fixed(),
    }
    write_facts(options.out, facts)
    with replacing(options.out / CARD) as file:
        file.write(render(config, facts, (options.out / WEIGHTS).stat().st_size))
