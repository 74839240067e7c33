"""Improve a pair's drafter: prune it, then distil it on text that the target wrote.

    options = DistilOptions(
        data=Path("corpus"), out=Path("better"), pair=Path("pair"), feed_forward=384
    )
    distil_drafter(options)

In use, a drafter reads the target's own answers, which differ from the corpus; so KL(p || q) is
minimised on such answers (on-policy for the target).
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from engine.errors import UsageError
from engine.model.shape import ModelShape
from engine.pairs.config import read_config
from engine.pairs.pair import Pair
from engine.pairs.reference import load_reference
from engine.training import checkpoint
from engine.training.card import read_facts
from engine.training.checkpoint import State
from engine.training.data import Corpus, Mixed, Stream, find_sources, read_mixture
from engine.training.fit import Phase, text_losses
from engine.training.options import DistilOptions
from engine.training.prune import prune
from engine.training.steps import (
    LOG,
    Listener,
    Training,
    check_lengths,
    ignore,
    load_teacher,
    phase_facts,
    read_log,
    save_model,
    trim_log,
    write_facts,
)
from engine.training.target_text import FILE, read_text, write_text

_CALIBRATION = 8192
"""Tokens of the corpus that the units' scores are computed on."""


def distil_drafter(
    options: DistilOptions,
    progress: Listener = ignore,
    cancel: threading.Event | None = None,
    *,
    resume: bool = False,
) -> Path:
    """Prune a pair's drafter and distil it on the target's own text; write the pair to `out`.

    For `progress`, `cancel` and `resume` see `Training`.

    Returns:
        `out`: the unchanged `target`, the new `drafter`, and the target's text in
        `written.safetensors`.

    Raises:
        UsageError: A setting is wrong, the data cannot be read, or `out` is in use.
        RunCancelled: `cancel` was set; the training can be resumed.
        ModelError: A model or the checkpoint is broken.
    """
    pair = _check(options)
    sources = find_sources(options.data)
    mixture = read_mixture(options.weights, sources)
    training, out = Training(options, progress, cancel, resume), options.out
    state = training.state
    with training.execution.main_first():
        if training.is_main and not state.tokenizer:
            for role in ("target", "drafter"):
                shutil.copytree(options.pair / role, out / role, dirs_exist_ok=True)
            state.tokenizer = True
            checkpoint.save(out, state, options)
        corpus = training.read_corpus(sources, mixture, pair.tokenizer)
        written = _written(options, corpus, training)
    stream = Stream(corpus, options.seed)
    model = load_reference(out / "drafter")
    if options.feed_forward:
        prune(model, options.feed_forward, stream.batch(0, _CALIBRATION // 256, 256)[0])
    phase = Phase(
        "distil", "drafter", options.steps, options.batch, options.sequence, options.learning_rate, 0
    )
    if training.is_main:
        trim_log(out / LOG, (phase,), state)
    mixed = Mixed(Stream(written, options.seed), stream, options.share)
    teacher = load_teacher(out / "target", training.device, training.dtype)
    losses_of = text_losses(mixed, phase, model.to(training.device), teacher, options.token_loss)
    training.fit(phase, model, losses_of)
    if training.is_main:
        save_model(model, out / "drafter")
        _write_facts(options, state, phase, mixture, written)
    return out


def _check(options: DistilOptions) -> Pair:
    """Return the pair, if its drafter can be trained with these settings."""
    for role in ("target", "drafter"):
        if not (options.pair / role).is_dir():
            raise UsageError(f"pair is {options.pair}; it must be a folder with target and drafter in it")
    pair = Pair.of(options.pair / "target", options.pair / "drafter")
    target, drafter = (_shape(options.pair / role) for role in ("target", "drafter"))
    if target.vocab != drafter.vocab:
        raise UsageError(
            f"{options.pair} has vocabularies of {target.vocab} and {drafter.vocab}; training takes pairs with the same"
        )
    if options.feed_forward > drafter.inner:
        raise UsageError(
            f"feed_forward is {options.feed_forward}; it must be at most the {drafter.inner} of the drafter"
        )
    check_lengths(options, pair.context, "the pair")
    return pair


def _shape(folder: Path) -> ModelShape:
    return ModelShape.of(read_config(folder), folder / "config.json")


def _written(options: DistilOptions, corpus: Corpus, training: Training) -> Corpus:
    """Return the target's own text: stored in `out`, given, or written now."""
    path, folder = options.out / FILE, options.out / "target"
    if not path.is_file() and options.text is not None:
        read_text(options.text, folder)
        shutil.copyfile(options.text, path)
    if not path.is_file():
        write_text(path, Pair.of(folder), options, training, corpus)
    return read_text(path, folder)


def _write_facts(
    options: DistilOptions, state: State, phase: Phase, mixture: dict[str, int], written: Corpus
) -> None:
    """Write the facts of the pair's training, extended by this one, for the model card."""
    facts, before = read_facts(options.pair), _shape(options.pair / "drafter").inner
    losses = [row["loss"] for row in read_log(options.out / LOG)]
    cut = f"cut from {before} to {options.feed_forward} units in each feed-forward layer and "
    sources = ", ".join(f"{name} {count}x" for name, count in mixture.items() if count)
    facts["method"] = (
        f"{facts.get('method', '')} Then (phase {phase.name}) the drafter was {cut if options.feed_forward else ''}"
        f"distilled further, {options.share:.0%} of the sequences on {len(written.repeats):,} answers of the target itself "
        f"({len(written.ids):,} tokens with their prompts, which were cut from the corpus; half of the answers greedy, "
        f"half at temperature 1), the rest on corpus text ({sources}): {options.optimizer}, learning rate "
        f"{options.learning_rate:g}, batches of {options.batch}, linear decay over the last {options.decay:.0%}, seed "
        f"{options.seed}. The target was not changed."
    ).strip()
    facts["phases"] = [*facts.get("phases", []), phase_facts(phase, state, losses)]
    # with --text, the settings `written` and `answer` were not used
    facts["drafter_options"] = {k: v for k, v in options.fixed().items() if k not in ("written", "answer")}
    write_facts(options.out, facts)
