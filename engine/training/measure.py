"""Measure a pair with the engine's own decoder: cost of its forwards, loss, and acceptance rate."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from math import log
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import UsageError
from specscope.engine.files import parse_json, read_text
from specscope.engine.model.cache import Cache
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.slots import Rows
from specscope.engine.sampling.draws import Draws, Key, process_logits
from specscope.engine.training.data import (
    ROLES,
    Encoder,
    find_sources,
    is_held_out,
    read_documents,
    split_chat,
)
from specscope.engine.training.settings import CardSettings
from specscope.engine.types import Sampling

MOST_BYTES = 64 * 2**20


def prompt_sets(settings: CardSettings, held_out: float, sources: Iterable[str]) -> dict[str, list[str]]:
    """Return the prompts of a card by the name of their set: held-out chats, then each file."""
    sets = dict[str, list[str]]()
    if settings.data is not None:
        chats = held_out_prompts(settings.data, held_out, sources, settings.chats)
        sets["chats held out of the corpus"] = chats
    return sets | {path.parent.name: read_prompts(path, settings.count) for path in settings.prompts}


def held_out_prompts(data: Path, held_out: float, sources: Iterable[str], count: int) -> list[str]:
    """Return the first user turns of held-out chats, up to `count` from each of the sources."""
    prompts = list[str]()
    for source, path in find_sources(data).items():
        if source in sources:
            turns = [split_chat(d) for d in read_documents(path) if is_held_out(d, held_out)]
            first = [t[1] for t in turns if len(t) > 3 and t[0] == ROLES[0] and t[2] == ROLES[1]]
            prompts += first[:count]
    return prompts


def read_prompts(path: Path, count: int) -> list[str]:
    """Return up to `count` prompts, evenly spread over a JSONL file with `turns` or `prompt`."""
    lines = read_text(path, MOST_BYTES).split("\n")
    try:
        rows = [parse_json(line) for line in lines if line.strip()]
        prompts = [str(row["turns"][0] if "turns" in row else row["prompt"]) for row in rows]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UsageError(
            f"{path} is not a list of prompts ({error}); each line is JSON with turns or prompt"
        ) from None
    if len(prompts) <= count:
        return prompts
    return [prompts[i * len(prompts) // count] for i in range(count)]


ROWS = 5
"""Rows of a verification, timed against one row."""


@dataclass(frozen=True, slots=True)
class LoadedPair:
    """A pair's decoders, in fp32 on the CPU."""

    pair: Pair
    target: Decoder
    drafter: Decoder

    @classmethod
    def load(cls, pair: Pair) -> LoadedPair:
        if pair.drafter_path is None:
            raise UsageError(f"{pair.name} has no drafter; a card measures a target with its drafter")
        drafter = load(pair.drafter_path, name="drafter")
        return cls(pair, load(pair.target_path), drafter)

    def read(self, model: Decoder, ids: Sequence[int]) -> Tensor:
        """Return the logits of one model after every token, (len(ids), V)."""
        cache = model.new_cache(1, len(ids))
        return self._forward(model, cache, ids, range(len(ids)))

    def write(self, prompt: Sequence[int], new: int, sampling: Sampling) -> tuple[list[int], Tensor]:
        """Let the target answer, as `autoregressive` would with this seed.

        Returns the written ids, with the end of text, and the logits that each was drawn from, (N,
        V).
        """
        draws, cache = Draws(sampling.seed, 0), self.target.new_cache(1, len(prompt) + new)
        fed, written, logits = list(prompt), list[int](), list[Tensor]()
        for position in range(len(prompt), len(prompt) + new):
            row = self._forward(self.target, cache, fed, [len(fed) - 1])
            if sampling.greedy:
                token = int(row.argmax())
            else:
                token = draws.choose(Key(position, "target"), process_logits(row, sampling)[0])
            logits.append(row[0])
            written.append(token)
            fed = [token]
            if token in self.pair.eos:
                break
        return written, torch.stack(logits)

    def _forward(self, model: Decoder, cache: Cache, ids: Sequence[int], want: Sequence[int]) -> Tensor:
        rows = Rows.chain(0, ids, cache.length(0))
        return model.forward(cache, rows, np.array(want)).logits[:, : self.pair.vocab_size]


class Timing(NamedTuple):
    """Processor time of one forward in milliseconds."""

    median: float
    tenth: float
    """The 10th percentile: the time on a machine with little other load."""


class Cost(NamedTuple):
    """Interleaved timings of one thread, in its own processor time."""

    target: Timing
    drafter: Timing
    rows: Timing
    context: int
    repeats: int
    load: float

    @property
    def c(self) -> Timing:
        """T(target) / T(drafter), one row each."""
        return Timing(self.target.median / self.drafter.median, self.target.tenth / self.drafter.tenth)

    @property
    def rows_over_one(self) -> Timing:
        """T(`ROWS` rows) / T(1 row) of the target."""
        return Timing(self.rows.median / self.target.median, self.rows.tenth / self.target.tenth)


def measure_cost(loaded: LoadedPair, context: int = 128, repeats: int = 300) -> Cost:
    """Time one row of both models and `ROWS` rows of the target; torch must use one thread."""
    jobs = [(loaded.target, 1), (loaded.drafter, 1), (loaded.target, ROWS)]
    ready = [timed_forward(model, rows, context) for model, rows in jobs]
    times = [[1000 * forward() for forward in ready] for _ in range(repeats + 10)][10:]
    target, drafter, rows = (
        Timing(statistics.median(column), statistics.quantiles(column, n=10)[0])
        for column in zip(*times, strict=True)
    )
    return Cost(target, drafter, rows, context, repeats, os.getloadavg()[0])


def timed_forward(model: Decoder, rows: int, context: int) -> Callable[[], float]:
    """Return a function that takes `rows` rows' seconds of this thread's processor time."""
    cache = model.new_cache(1, context + rows)
    model.forward(cache, Rows.timed(0, context, 0, model.vocab_size), np.empty(0, dtype=np.int64))
    job, want = Rows.timed(0, rows, context, model.vocab_size), np.arange(rows)

    def forward() -> float:
        cache.truncate(0, context)
        begun = time.thread_time()
        model.forward(cache, job, want).logits.argmax(-1).tolist()
        return time.thread_time() - begun

    return forward


Record = TypeVar("Record", "Loss", "Acceptance")


def _added(one: Record, other: Record) -> Record:
    names = [f.name for f in fields(one) if not isinstance(getattr(one, f.name), str)]
    return replace(one, **{name: getattr(one, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True)
class Loss:
    """Losses of both models on the held-out documents of one source."""

    source: str
    documents: int
    tokens: int
    bytes: int
    """UTF-8 bytes of text, without role markers."""
    target_nats: float
    """Cross-entropy, summed over the tokens."""
    drafter_nats: float

    __add__ = _added

    @property
    def bits_per_byte(self) -> float:
        return self.target_nats / log(2) / self.bytes


def measure_losses(
    loaded: LoadedPair, data: Path, held_out: float, window: int, tokens: int
) -> tuple[Loss, ...]:
    """Return the loss on the held-out documents of each source that has some.

    `window` tokens are one forward; the next one starts with an empty cache. Each source has about
    `tokens` tokens: its last document is read to the end.
    """
    encode, losses = Encoder(loaded.pair.tokenizer), list[Loss]()
    for source, path in find_sources(data).items():
        total = Loss(source, 0, 0, 0, 0.0, 0.0)
        documents = (d for d in read_documents(path) if is_held_out(d, held_out))
        for document in documents:
            total += _document_loss(loaded, document, next(encode([document])), window)
            if total.tokens >= tokens:
                break
        if total.documents:
            losses.append(total)
    return tuple(losses)


def _document_loss(loaded: LoadedPair, document: str, ids: list[int], window: int) -> Loss:
    nats = [0.0, 0.0]
    for start in range(0, len(ids) - 1, window):
        part = ids[start : start + window + 1]
        labels = torch.tensor(part[1:])
        for i, model in enumerate((loaded.target, loaded.drafter)):
            nats[i] += float(functional.cross_entropy(loaded.read(model, part[:-1]), labels, reduction="sum"))
    size = sum(len(piece.encode()) for piece in split_chat(document) if piece not in ROLES)
    return Loss("", 1, len(ids) - 1, size, *nats)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance rate of the drafter on the target's own answers."""

    name: str
    prompts: int
    too_long: int
    """Prompts left out because prompt and answer exceed the window."""
    greedy_tokens: int
    greedy_matches: int
    """Tokens of the greedy answers that are the drafter's most probable token, too."""
    sampled_tokens: int
    overlap: float
    """Sum over the sampled tokens of sum min(p, q), the probability of acceptance, at temperature
    1."""

    __add__ = _added

    @property
    def greedy(self) -> float:
        return self.greedy_matches / max(1, self.greedy_tokens)

    @property
    def sampled(self) -> float:
        return self.overlap / max(1, self.sampled_tokens)


def measure_acceptance(
    loaded: LoadedPair, name: str, prompts: Iterable[str], window: int, new: int
) -> Acceptance:
    """Compare the drafter with the target's greedy and sampled answers, token by token."""
    total = Acceptance(name, 0, 0, 0, 0, 0, 0.0)
    for prompt in prompts:
        ids = loaded.pair.encode(prompt)
        if len(ids) + new > window:
            total += Acceptance(name, 0, 1, 0, 0, 0, 0.0)
            continue
        written, logits = loaded.write(ids, new, Sampling())
        matches = int((_drafter_on(loaded, ids, written).argmax(-1) == logits.argmax(-1)).sum())
        drawn, target = loaded.write(ids, new, Sampling(temperature=1.0))
        p, q = target.softmax(-1), _drafter_on(loaded, ids, drawn).softmax(-1)
        overlap = float(torch.minimum(p, q).sum())
        total += Acceptance(name, 1, 0, len(written), matches, len(drawn), overlap)
    return total


def _drafter_on(loaded: LoadedPair, prompt: list[int], written: list[int]) -> Tensor:
    return loaded.read(loaded.drafter, (prompt + written)[:-1])[len(prompt) - 1 :]
