"""Text that the target itself writes: what a drafter meets when it is used, and so what it should learn from.

Prompts are cut from the corpus: a chat after one of its `<|assistant|>` markers, any other document somewhere near
its begin. Every second prompt is answered greedily, the others at temperature 1. Many answers are written at once,
each in a slot of one cache; a slot whose answer ends takes the next prompt.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from math import nan
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from engine.errors import ModelError, RunCancelled, UsageError
from engine.model.decoder import Decoder
from engine.model.slots import Rows
from engine.pairs.load import load
from engine.pairs.pair import Pair
from engine.training.data import Corpus
from engine.training.options import DrafterOptions, HeadOptions
from engine.training.steps import Listener, Progress, pick_device
from engine.training.tokenizer import ROLES

FILE = "written.safetensors"
LONGEST_PROMPT = 160
"""Tokens of a prompt at most."""
SLOTS = 64
"""Answers written at once."""


def cut_prompts(corpus: Corpus, assistant: int | None, longest: int, seed: int) -> Iterator[np.ndarray]:
    """Yield prompts without end: documents in the corpus's own mixture and a random order, cut short.

    Args:
        corpus: The documents.
        assistant: Id of the marker after which a chat's answer begins; None where there is none.
        longest: Tokens of a prompt at most; a chat whose first answer begins later is left out.
        seed: Fixes the order and the cuts.

    Raises:
        UsageError: No document can be cut.
    """
    rng, lengths = np.random.default_rng([seed, 1]), np.diff(corpus.starts)
    documents, missed = np.repeat(np.arange(len(lengths)), corpus.repeats), 0
    while missed < 100 * len(documents):
        document = rng.choice(documents)
        ids = corpus.ids[corpus.starts[document] :][
            : lengths[document] - 1
        ]  # its end is the target's to write
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
    """An answer in the making, in its slot."""

    ids: list[int]
    """Its prompt and itself."""
    end: int
    """Length at which it is cut off."""
    greedy: bool
    fed: int = 0
    """Tokens in the cache."""


def write(
    target: Decoder,
    prompts: Iterator[np.ndarray],
    eos: tuple[int, ...],
    tokens: int,
    longest: int,
    seed: int,
    heard: Callable[[int], None],
    cancel: threading.Event,
) -> list[np.ndarray]:
    """Let the target answer prompts until it has written `tokens` tokens; return each prompt with its answer.

    Args:
        target: The model.
        prompts: Where prompts come from.
        eos: Ids after which an answer has ended.
        tokens: Tokens to write; the answers then in the making are cut off.
        longest: Tokens of an answer at most.
        seed: Fixes the draws at temperature 1.
        heard: Hears how many tokens are written.
        cancel: Set it to stop.

    Raises:
        RunCancelled: `cancel` was set; nothing is kept.
    """
    slots = min(SLOTS, tokens)
    cache = target.new_cache(slots, LONGEST_PROMPT + longest)
    draws = torch.Generator().manual_seed(seed)
    done, made, numbers = list[np.ndarray](), 0, count()

    def start() -> _Answer:
        ids = next(prompts).tolist()
        return _Answer(ids, len(ids) + longest, greedy=next(numbers) % 2 == 0)

    active = [start() for _ in range(slots)]
    while made < tokens:
        if cancel.is_set():
            raise RunCancelled(
                "stopped while the target wrote; its text is not kept: add --resume to write it anew"
            )
        parts = [Rows.chain(i, a.ids[a.fed :], a.fed) for i, a in enumerate(active)]
        last = np.cumsum([len(part) for part in parts]) - 1
        logits = target.forward(cache, Rows.join(parts), last).logits.cpu()
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=draws)[:, 0]
        greedy = torch.tensor([a.greedy for a in active])
        for i, token in enumerate(torch.where(greedy, logits.argmax(-1), drawn).tolist()):
            answer = active[i]
            answer.fed = len(answer.ids)
            answer.ids.append(token)
            if token in eos or len(answer.ids) == answer.end:
                done.append(np.array(answer.ids, dtype=np.uint16))
                active[i] = start()
                cache.reset(i)
        made += slots
        heard(min(made, tokens))
    return done + [np.array(a.ids, dtype=np.uint16) for a in active]


def write_text(
    path: Path,
    pair: Pair,
    corpus: Corpus,
    options: DrafterOptions | HeadOptions,
    progress: Listener,
    cancel: threading.Event,
) -> None:
    """Let a pair's target write as much as the options say, and store it.

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
        lambda made: progress(Progress("written", made, options.written, nan)),
        cancel,
    )
    save_text(path, texts, pair.target_path)


def fingerprint(folder: Path) -> str:
    """Return a digest of a model's weights: text belongs to the target that wrote it."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def save_text(path: Path, texts: list[np.ndarray], target: Path) -> None:
    """Store what a target wrote, whole or not at all."""
    ids, starts = np.concatenate(texts), np.cumsum([0, *map(len, texts)], dtype=np.int64)
    part = path.with_suffix(".part")
    save_file({"ids": ids, "starts": starts}, part, {"target": fingerprint(target)})
    os.replace(part, path)


def read_text(path: Path, target: Path) -> Corpus:
    """Return stored text; an epoch holds each answer once.

    Raises:
        ModelError: The file is missing or broken.
        UsageError: Another target wrote it.
    """
    try:
        with safe_open(path, "np") as file:
            writer = (file.metadata() or {}).get("target")
            ids, starts = file.get_tensor("ids"), file.get_tensor("starts")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} does not hold text of a target ({error}); let it be written anew") from None
    if writer != fingerprint(target):
        raise UsageError(f"{path} was written by another target than {target}; leave out --text")
    return Corpus(ids, starts, np.ones(len(starts) - 1, dtype=np.int64))
