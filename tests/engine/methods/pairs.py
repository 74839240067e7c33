"""Tiny pairs on disk, with a right, a wrong or another drafter; scripted models of known rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specscope.engine.checkpoints.pair import Pair
from specscope.engine.model.language import LanguageModel, Output
from specscope.engine.simulate.oracle import Scripted
from specscope.engine.trace.trace import Trace
from tests.engine.model import tiny
from tests.engine.worker.harness import Flat, TestCluster, bundled, racks

DRAFTERS = ("other", "right", "wrong")


def make_pair(folder: Path, family: str, drafter: str) -> tuple[Pair, torch.nn.Module]:
    """Return the pair and the target as a transformers model.

    Args:
        folder: Where the models are saved.
        family: Key of `tiny.reference`.
        drafter: `right` (the target itself), `wrong` (never the target's argmax) or `other` (a
            noisy target).
    """
    target = tiny.reference(family, seed=1)
    with torch.no_grad():  # otherwise random models fall into short cycles for any prompt
        target.get_input_embeddings().weight.mul_(3.0)
    path = folder / f"{family}-target"
    if not path.exists():
        save_with_tokenizer(target, path)
    other = folder / f"{family}-{drafter}"
    if not other.exists():
        save_with_tokenizer(_drafter(target, family, drafter), other)
    return Pair.of(path, other), target


def _drafter(target: torch.nn.Module, family: str, kind: str) -> torch.nn.Module:
    torch.manual_seed(5)
    model = tiny.reference(family, seed=1)
    model.load_state_dict(target.state_dict())
    with torch.no_grad():
        if kind == "wrong":  # every argmax is the next token id: never the target's
            head = model.get_output_embeddings()
            if head.weight is model.get_input_embeddings().weight:
                head.weight = torch.nn.Parameter(head.weight.clone())
                model.config.tie_word_embeddings = False
            head.weight.copy_(head.weight.roll(1, 0))
        elif kind == "other":
            for parameter in model.parameters():
                parameter.add_(0.03 * torch.randn_like(parameter))
    return model


def save_with_tokenizer(model: torch.nn.Module, path: Path) -> None:
    tiny.save(model, path)
    words = Tokenizer(models.WordLevel({chr(33 + i): i for i in range(tiny.VOCAB - 1)}, unk_token="!"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    words.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="!").save_pretrained(path)


def timeless(trace: Trace) -> tuple[list[object], list[tuple[object, ...]]]:
    """Return decisions, rounds and commits without times, and what each span computed."""
    rows = [*trace.decisions, *trace.rounds, *trace.commits]
    facts = [replace(row, time=0) if hasattr(row, "time") else row for row in rows]
    spans = [(s.id, s.kind, s.model, s.step, s.sequence, s.rows, s.context, s.cells) for s in trace.spans]
    return facts, sorted(spans)


class Known(Scripted):
    """A scripted model with known rows.

    Args:
        name: `target` or `drafter`.
        row: The tokens so far -> logits of some tokens; those of the others are -10,000.
    """

    def __init__(self, name: str, row: Callable[[np.ndarray], dict[int, float]]) -> None:
        super().__init__(name, lambda _, __: 0, 1024)
        self._row = row

    def forward(self, cache, rows, want, *more, **options) -> Output:
        inside = cache.append(rows)
        logits = torch.full((len(want), self.vocab_size), -1e4)
        for line, row in enumerate(want):
            for token, logit in self._row(cache.tokens_to(int(rows.slots[row]), int(inside[row]))).items():
                logits[line, token] = logit
        return Output(logits, {})


def known_cluster(latency: Flat, **models: LanguageModel) -> TestCluster:
    return TestCluster(bundled(), racks(models, latency))


def ranked(name: str, ranks: Callable[[np.ndarray], list[int]]) -> Known:
    """Return a model of ranked tokens, each e times less probable than the one before."""
    return Known(name, lambda path: {token: -rank for rank, token in enumerate(ranks(path))})
