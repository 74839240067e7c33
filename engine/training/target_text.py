"""Text that the target writes, to train drafters on: in use they read the target's answers.

Prompts are cut from the corpus: a chat after one of its `<|assistant|>` markers, any other document
somewhere in its first tokens. Every second prompt is answered greedily, the others at temperature
1. Many answers are written at once, each in a slot of one cache; when an answer ends, its slot gets
the next prompt.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import nan
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from engine.errors import ModelError, RunCancelled, UsageError
from engine.model.cache import Cache
from engine.model.decoder import Decoder
from engine.model.slots import Rows
from engine.pairs.load import load
from engine.pairs.pair import Pair
from engine.training.data import Corpus
from engine.training.options import DistilOptions, DrafterOptions, HeadOptions
from engine.training.steps import Listener, Progress, pick_device
from engine.training.tokenizer import ROLES

FILE = "written.safetensors"
LONGEST_PROMPT = 160
"""Most tokens of a prompt."""
SLOTS = 64
"""Answers written at once."""


def cut_prompts(corpus: Corpus, assistant: int | None, longest: int, seed: int) -> Iterator[np.ndarray]:
    """Yield prompts without end: documents of the corpus's mixture in random order, cut short.

    Args:
        corpus: The documents.
        assistant: Id of the marker before an answer of a chat; None if the tokenizer has none.
        longest: Most tokens of a prompt; a chat whose first answer begins later is left out.
        seed: Fixes the order and the cuts.

    Raises:
        UsageError: No document can be cut.
    """
    rng, lengths = np.random.default_rng([seed, 1]), np.diff(corpus.starts)
    documents, missed = np.repeat(np.arange(len(lengths)), corpus.repeats), 0
    while missed < 100 * len(documents):
        document = rng.choice(documents)
        ids = corpus.ids[corpus.starts[document] :][: lengths[document] - 1]  # without the end of text
        places = np.arange(min(8, len(ids)), len(ids) + 1)
        if assistant is not None and assistant in ids:
            places = np.flatnonzero(ids == assistant) + 1
        places = places[(places > 0) & (places <= longest)]
        missed = 0 if len(places) else missed + 1
        if len(places):
            yield ids[: rng.choice(places)].astype(np.int64)
    raise UsageError(
        f"no document of the corpus gives a prompt of at most {longest} tokens; give it other text"
    )


@dataclass(slots=True)
class _Answer:
    """An unfinished answer, in its slot."""

    ids: list[int]
    """Prompt and answer."""
    end: int
    """Most tokens of both."""
    greedy: bool
    cached: int = 0
    """Tokens in the cache."""


def write(
    target: Decoder,
    prompts: Iterator[np.ndarray],
    eos: tuple[int, ...],
    tokens: int,
    longest: int,
    seed: int,
    progress: Callable[[int], None],
    cancel: threading.Event,
) -> list[np.ndarray]:
    """Let the target write `tokens` tokens of answers; return each prompt with its answer.

    Args:
        target: The model.
        prompts: An endless supply of prompts.
        eos: Ids that end an answer.
        tokens: Tokens to write; unfinished answers are then cut off.
        longest: Most tokens of an answer.
        seed: Fixes the draws at temperature 1.
        progress: Called with the number of written tokens.
        cancel: Set it to stop.

    Raises:
        RunCancelled: `cancel` was set; nothing is kept.
    """
    slots = min(SLOTS, tokens)
    cache = target.new_cache(slots, LONGEST_PROMPT + longest)
    draws = torch.Generator().manual_seed(seed)
    answers, written, numbers = list[np.ndarray](), 0, count()

    def start() -> _Answer:
        ids = next(prompts).tolist()
        return _Answer(ids, len(ids) + longest, greedy=next(numbers) % 2 == 0)

    active = [start() for _ in range(slots)]
    while written < tokens:
        if cancel.is_set():
            raise RunCancelled(
                "stopped while the target wrote; its text is not kept: add --resume to write it again"
            )
        for i, token in enumerate(_next_tokens(target, cache, active, draws)):
            answer = active[i]
            answer.cached = len(answer.ids)
            answer.ids.append(token)
            if token in eos or len(answer.ids) == answer.end:
                answers.append(np.array(answer.ids, dtype=np.uint16))
                active[i] = start()
                cache.reset(i)
        written += slots
        progress(min(written, tokens))
    return answers + [np.array(answer.ids, dtype=np.uint16) for answer in active]


def _next_tokens(
    target: Decoder, cache: Cache, answers: Sequence[_Answer], draws: torch.Generator
) -> list[int]:
    """Return the next token of each answer, from one forward; answer i is in slot i."""
    parts = [Rows.chain(i, a.ids[a.cached :], a.cached) for i, a in enumerate(answers)]
    last = np.cumsum([len(part) for part in parts]) - 1
    logits = target.forward(cache, Rows.join(parts), last).logits.cpu()
    drawn = torch.multinomial(logits.softmax(-1), 1, generator=draws)[:, 0]
    greedy = torch.tensor([a.greedy for a in answers])
    return torch.where(greedy, logits.argmax(-1), drawn).tolist()


def write_text(
    path: Path,
    pair: Pair,
    corpus: Corpus,
    options: DistilOptions | DrafterOptions | HeadOptions,
    progress: Listener,
    cancel: threading.Event,
) -> None:
    """Let a pair's target write `options.written` tokens, and store them.

    Raises:
        RunCancelled: `cancel` was set; nothing is kept.
        UsageError: No document of the corpus can be cut.
    """
    longest = min(LONGEST_PROMPT, pair.context - options.answer)
    prompts = cut_prompts(corpus, pair.tokenizer.get_added_vocab().get(ROLES[1]), longest, options.seed)
    texts = write(
        load(pair.target_path, pick_device(options.device)),
        prompts,
        pair.eos,
        options.written,
        options.answer,
        options.seed,
        lambda written: progress(Progress("written", written, options.written, nan)),
        cancel,
    )
    save_text(path, texts, pair.target_path)


def fingerprint(folder: Path) -> str:
    """Return a digest of a model's weights, which identifies the target that wrote a text."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def save_text(path: Path, texts: list[np.ndarray], target: Path) -> None:
    """Store a target's text; the file appears whole."""
    ids, starts = np.concatenate(texts), np.cumsum([0, *map(len, texts)], dtype=np.int64)
    part = path.with_suffix(".part")
    save_file({"ids": ids, "starts": starts}, part, {"target": fingerprint(target)})
    os.replace(part, path)


def read_text(path: Path, target: Path) -> Corpus:
    """Return stored text as a corpus; each answer is once in an epoch.

    Raises:
        ModelError: The file is missing or broken.
        UsageError: Another target wrote it.
    """
    try:
        with safe_open(path, "np") as file:
            writer = (file.metadata() or {}).get("target")
            ids, starts = file.get_tensor("ids"), file.get_tensor("starts")
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{path} does not hold text of a target ({error}); let the target write it again"
        ) from None
    if writer != fingerprint(target):
        raise UsageError(f"{path} was written by another target than {target}; leave out --text")
    return Corpus(ids, starts, np.ones(len(starts) - 1, dtype=np.int64))
