"""Train a drafting head for a target, on text that the target wrote.

    options = HeadOptions.of(
        "eagle", data=Path("corpus"), out=Path("eagle"), target=Path("model")
    )
    train_head(options)

Self-distillation: prompts come from the corpus, the target answers them, and its features at every
token are computed once. Only the head is trained; the target, its embedding and its LM head
stay fixed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from specscope.engine.checkpoints.checkpoint import Checkpoint, some
from specscope.engine.checkpoints.config import read_config
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import UsageError
from specscope.engine.files import replacing
from specscope.engine.heads.config import INDEX_TENSORS, HeadConfig, TensorShapes, layer_fields
from specscope.engine.heads.files import check_head, read_head, tokenizer_digest, write_head
from specscope.engine.heads.kinds import KINDS
from specscope.engine.heads.modules import offsets
from specscope.engine.heads.packed import Frozen
from specscope.engine.model.shape import EMBEDDING, ModelShape
from specscope.engine.plot import Panel, PlotLine, draw
from specscope.engine.training import loop
from specscope.engine.training.data import Corpus, TrainingText
from specscope.engine.training.heads.features import LAST, Batches, stored_features
from specscope.engine.training.heads.losses import acceptance, head_losses
from specscope.engine.training.settings import HeadOptions
from specscope.engine.training.step import Losses, Phase
from specscope.engine.training.target_text import FILE as WRITTEN
from specscope.engine.training.target_text import check_lengths, read_text, write_text
from specscope.engine.types import check_range

PLOT = "curves.svg"


class Start(NamedTuple):
    """Names of tensors; the tokens that a head drafts are a setting and not among them."""

    copied: list[str]
    left_out: list[str]
    random: list[str]
    """In the new head only, or with another shape; they begin with random numbers."""


def compare(options: HeadOptions, config: HeadConfig) -> Start | None:
    """Compare the tensors of `options.start` with those of a new head; None without a start.

    Raises a UsageError if the trained head is for another target, if none of its tensors fits, or
    if some do not and `options.start_partial` is false.
    """
    if options.start is None:
        return None
    trained, own = _trained(check_head(options.start, options.target)), _trained(config)
    copied = [name for name, shape in trained.items() if own.get(name) == shape]
    if not copied:
        raise UsageError(
            f"start is {options.start}, but no tensor of that head fits this one; leave out --start"
        )
    left_out = {name: shape for name, shape in trained.items() if name not in copied}
    if left_out and not options.start_partial:
        shown = [
            f"{name} ({list(shape)} instead of {list(own[name])})" if name in own else name
            for name, shape in left_out.items()
        ]
        raise UsageError(
            f"{options.start} has tensors without a place in this head: {some(shown)}; add --start-partial to leave "
            "them out"
        )
    return Start(copied, list(left_out), [name for name in own if name not in copied])


def copy(head: nn.Module, scale: float, options: HeadOptions, start: Start) -> dict[str, Any]:
    """Copy the tensors into a head; return the facts of the trained head, and `start`."""
    assert options.start is not None, "the comparison found one"
    tensors = KINDS[options.kind].rescale(read_head(options.start, options.target).tensors, 1 / scale)
    head.load_state_dict({name: tensors[name] for name in start.copied}, strict=False)
    before = loop.read_facts(options.start)
    return {name: before.get(name) for name in ("kind", "phase", "begun_from")} | start._asdict()


def _trained(config: HeadConfig) -> TensorShapes:
    shapes = KINDS[config.kind].tensors(config)
    return {name: shape for name, shape in shapes.items() if name not in INDEX_TENSORS}


_MEASURED = 48
"""Held-out texts that a checkpoint is measured on."""
_AT_ONCE = 8
_SAMPLE = 100_000
"""Features whose root mean square is taken."""


def train_head(options: HeadOptions, **control: Unpack[loop.Control]) -> Path:
    """Train a drafting head and write it to `out`.

    `out` then has the head (`config.json`, `model.safetensors`), `loss.jsonl`, `acceptance.jsonl`
    and both as `curves.svg`, and, unless text was given, `written.safetensors`. The target's
    features are beside the text. RunCancelled means that `cancel` was set; it can be resumed.
    """
    target, shape = options.target, check(options)
    training, out = loop.Training(options, **control), options.out
    with training.execution.main_first():
        text = _text(options, training)
        corpus = read_text(text, target)
        layers = head_config(options, shape, 1.0).features
        folder = text.with_suffix(".features" if layers == LAST else f".states{layers[0]}")
        states = stored_features(folder, corpus, target, training, layers)
    frozen, vocabulary = read_frozen(target, shape, training.device), None
    if options.vocabulary:
        vocabulary = most_frequent(corpus, options.vocabulary, shape.vocab)
        frozen = frozen.shortened(vocabulary.tokens.to(training.device))
    level = float(states[:_SAMPLE, -shape.width :].float().square().mean().sqrt())
    scale, kind = level / float(frozen.embedding.square().mean().sqrt()), KINDS[options.kind]
    frozen = frozen._replace(scale=1.0 if kind.scaled else scale)
    batches = Batches(corpus, states, frozen, options.sequence)
    steps = batches.steps(options.epochs, options.batch) or options.steps
    config = head_config(options, shape, scale)
    head, begun = _begin(options, config, level, frozen)
    head.to(training.device)
    phase = Phase(options.kind, "head", steps, options.batch, 0, options.learning_rate, 0)

    def losses_of(step: int, rows: slice) -> Losses:
        texts = batches.batch(step, options.batch, options.anchors, options.seed, rows)
        return head_losses(head, texts, frozen, options)

    def measure() -> dict[str, Any]:
        held_out, count = batches.held(_AT_ONCE, _MEASURED), kind.drafts(options.size)
        total = reduce(add, (acceptance(head, texts, frozen, count) for texts in held_out))
        return {"rates": total.rates, "length": total.length} | total._asdict()

    training.fit(phase, head, losses_of, measure)
    if not training.is_main:
        return out
    tensors = kind.rescale(head.state_dict(), frozen.scale) | (
        {"d2t": offsets(vocabulary.tokens)} if vocabulary else {}
    )
    write_head(out, config, tensors, int8=options.storage == "int8")
    tokens = batches.tokens(steps * options.batch, options.seed)
    more = {"vocabulary": vocabulary.facts(shape.vocab)} if vocabulary else {}
    facts = _facts(options, training.facts(phase) | {"tokens": tokens}, corpus)
    loop.write_facts(out, facts | begun | more)
    with replacing(out / PLOT) as file:
        file.write(training_curves(out))
    return out


def _begin(
    options: HeadOptions, config: HeadConfig, level: float, frozen: Frozen
) -> tuple[Any, dict[str, Any]]:
    head = build_head(config, options.seed, level)
    if config.own_lm_head:
        for own in head.lm_heads:
            own.data.copy_(frozen.draft_lm_head)
    start = compare(options, config)
    return head, {"begun_from": copy(head, frozen.scale, options, start)} if start else {}


def check(options: HeadOptions) -> ModelShape:
    """Check the settings against the target, and return the target's shape."""
    shape = ModelShape.of(read_config(options.target), options.target / "config.json")
    shape.check_llama(options.target)
    check_lengths(options, shape.context, "the target")
    check_range("vocabulary", options.vocabulary, 0, shape.vocab)
    if options.lm_heads == "own" and not KINDS[options.kind].own_lm_heads:
        raise UsageError(
            f"lm_heads is own; heads of kind {options.kind} use the target's: leave it at target"
        )
    compare(options, head_config(options, shape, 1.0))
    if options.text is None and not (options.out / WRITTEN).is_file():
        TrainingText.of(options)  # a UsageError for a wrong one
    return shape


def build_head(config: HeadConfig, seed: int, level: float = 1.0) -> Any:
    """Return an untrained head; its weights are a function of the seed.

    `level` is the root mean square of the features, and so of the masks.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = KINDS[config.kind].module(config)
    for name, parameter in head.named_parameters():
        if name.startswith("mask."):
            parameter.data.mul_(level)
    return head


def read_frozen(target: Path, shape: ModelShape, device: torch.device) -> Frozen:
    """Return the target's embedding and LM head, in float32."""
    weights = Checkpoint(target)
    embedding = weights.take(EMBEDDING, device, torch.float32)
    tied = shape.tied
    return Frozen(embedding, embedding if tied else weights.take("lm_head.weight", device, torch.float32))


def head_config(options: HeadOptions, shape: ModelShape, scale: float) -> HeadConfig:
    kind = KINDS[options.kind]
    return HeadConfig(
        kind=options.kind,
        hidden_size=shape.width,
        vocab_size=shape.vocab,
        **({kind.sized_by: options.size} if kind.sized_by else {}),
        draft_vocab=options.vocabulary,
        own_lm_head=options.lm_heads == "own",
        tokenizer=tokenizer_digest(options.target),
        shape=layer_fields(read_config(options.target)) if kind.layered else {},
        target=options.target_name or options.target.name,
        embedding_scale=scale if kind.scaled else 1.0,
        **kind.trained(shape),
    )


def _text(options: HeadOptions, training: loop.Training) -> Path:
    path = options.text or options.out / WRITTEN
    if options.text is None and not path.is_file():
        write_text(path, Pair.of(options.target), options, training)
    return path


def _facts(options: HeadOptions, phase: dict[str, Any], corpus: Corpus) -> dict[str, Any]:
    return {
        "kind": options.kind,
        "target": options.target_name or options.target.name,
        "phase": phase | {"length": options.sequence},
        "answers": len(corpus.repeats),
        "text_tokens": len(corpus.ids),
        "acceptance": loop.read_log(options.out / loop.MEASURED)[-1],
        "options": options.fixed(),
    }


def training_curves(out: Path) -> str:
    losses, measured = loop.read_log(out / loop.LOG), loop.read_log(out / loop.MEASURED)
    size = max(1, len(losses) // 100)
    means = [
        (float(part[-1]["step"]), sum(row["loss"] for row in part) / len(part))
        for part in (losses[a : a + size] for a in range(0, len(losses), size))
    ]
    lines = [
        PlotLine(
            f"token {k + 1}",
            [(float(row["step"]), r) for row in measured if (r := row["rates"][k]) is not None],
        )
        for k in range(len(measured[0]["rates"]) if measured else 0)
    ]
    title = losses[0]["phase"] if losses else ""
    return draw(
        (
            Panel(f"{title}: loss", "step", [PlotLine("loss", means)]),
            Panel("acceptance of token k", "step", lines),
        )
    )


class Vocabulary(NamedTuple):
    """The tokens that a head drafts."""

    tokens: Tensor
    """(N,) int64, rising."""
    coverage: float
    """Their share of the answers' tokens."""

    def facts(self, vocab: int) -> dict[str, float]:
        return {"tokens": len(self.tokens), "of": vocab, "coverage": round(self.coverage, 5)}


def most_frequent(corpus: Corpus, count: int, vocab: int) -> Vocabulary:
    """Return the `count` most frequent tokens of the answers; among equals, lower ids first."""
    check_range("vocabulary", count, 1, vocab)
    counts = np.bincount(_answers(corpus), minlength=vocab)
    chosen = np.sort(np.argsort(-counts, kind="stable")[:count])
    return Vocabulary(torch.from_numpy(chosen), float(counts[chosen].sum() / max(1, counts.sum())))


def _answers(corpus: Corpus) -> np.ndarray:
    if corpus.answers is None:
        return corpus.ids
    change = np.zeros(len(corpus.ids) + 1, dtype=np.int64)
    change[corpus.answers] += 1
    change[corpus.starts[1:]] -= 1
    return corpus.ids[np.cumsum(change)[:-1] > 0]


def shorten_head(
    head: Path,
    target: Path,
    out: Path,
    *,
    text: Path | None = None,
    vocabulary: int = 0,
    int8: bool = False,
    keep: Collection[str] = (),
) -> dict[str, Any]:
    """Write a head that drafts the `vocabulary` most frequent tokens of its target's answers only.

    `vocabulary` is 0 for all tokens: then `text` is not read. `int8` stores matrices as int8,
    except those to `keep`, which stay in bf16. Returns the number of tokens, of how many, and their
    share of the answers; empty if all tokens stay. A head with an LM head of its own is refused.
    """
    loop.check_empty(out)
    config, tensors = read_head(head, target)
    if config.own_lm_head or "lm_head.weight" in tensors:
        raise UsageError(
            f"{head} has an LM head of its own, which stays as it is; only heads with the target's can be shortened"
        )
    tensors.pop("d2t", None)
    matrices = [name for name, tensor in tensors.items() if tensor.ndim == 2]
    if unknown := [name for name in keep if name not in matrices]:
        raise UsageError(f"{unknown[0]} is no matrix of this head; its matrices are {', '.join(matrices)}")
    vocab, facts = read_config(target).vocab_size, dict[str, Any]()
    if vocabulary:
        if text is None:
            raise UsageError("a shorter vocabulary needs --text, written.safetensors of an earlier training")
        chosen = most_frequent(read_text(text, target), vocabulary, vocab)
        tensors["d2t"], facts = offsets(chosen.tokens), chosen.facts(vocab)
    out.mkdir(parents=True, exist_ok=True)
    write_head(out, replace(config, vocab_size=vocab, draft_vocab=vocabulary), tensors, int8=int8, keep=keep)
    before = {
        name: fact for name, fact in loop.read_facts(head).items() if name not in ("acceptance", "vocabulary")
    }
    if before or facts:
        loop.write_facts(out, before | ({"vocabulary": facts} if facts else {}))
    return facts
