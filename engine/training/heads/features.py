"""The target's features of texts, and the batches of a head's training."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specscope.engine.checkpoints.loader import load
from specscope.engine.errors import ModelError, RunCancelled, UsageError
from specscope.engine.heads.packed import Frozen, Texts
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.slots import Rows
from specscope.engine.training.data import Corpus
from specscope.engine.training.loop import Training, TrainingProgress
from specscope.engine.training.target_text import fingerprint

HELD_OUT = 50
"""One of every 50 texts is held out: it is measured on, never trained on."""


LAST = (-1,)
"""The final normed state, a target's features."""


def features_of(decoder: Decoder, texts: list[np.ndarray], layers: tuple[int, ...] = LAST) -> list[Tensor]:
    """Return the hidden states of `layers` at every token of each text, (L, k D) each."""
    cache = decoder.new_cache(len(texts), max(map(len, texts)))
    rows = Rows.join([Rows.chain(i, ids, 0) for i, ids in enumerate(texts)])
    hidden = decoder.forward(cache, rows, np.empty(0, dtype=np.int64), hidden=layers).hidden
    return list(torch.cat([hidden[layer] for layer in layers], 1).split([len(ids) for ids in texts]))


class Batches:
    """Texts with their features, in batches that depend on the seed and the step only.

    `states` are what the head reads at each token, (N, k D), the features last; `frozen` is on the
    device to train on;
    `length` is the most tokens of a text that are used.
    """

    def __init__(self, corpus: Corpus, states: Tensor, frozen: Frozen, length: int) -> None:
        self._corpus, self._states, self._frozen, self._length = corpus, states, frozen, length
        lengths = np.minimum(np.diff(corpus.starts), length)
        answers = corpus.starts[:-1] if corpus.answers is None else corpus.answers
        self._prompts = answers - corpus.starts[:-1]
        """Tokens of each text's prompt."""
        # an anchor, a token before it, and one of the answer to draft
        usable = np.flatnonzero(lengths > np.maximum(self._prompts, 2))
        self.held_out, self.learned = usable[::HELD_OUT], np.delete(usable, np.s_[::HELD_OUT])
        if not len(self.learned):
            raise UsageError(
                "the text is too short to learn from; let the target write more: raise --written"
            )

    def steps(self, epochs: int, count: int) -> int:
        return -(-epochs * len(self.learned) // count)

    def batch(self, step: int, count: int, share: float, seed: int, rows: slice = slice(None)) -> Texts:
        """Return some of the `count` texts of a step, with a random share of tokens as anchors.

        Drafts begin in the answers: the first anchor of a text is the last token of its prompt.
        """
        rng = np.random.default_rng([seed, 1, step])
        chosen = self._chosen(step * count, count, seed)
        drawn = [np.flatnonzero(rng.random(n - 2) < share) + 1 for n in self._lengths(chosen)]
        return self._texts(chosen[rows], drawn[rows])

    def tokens(self, count: int, seed: int) -> int:
        return int(self._lengths(self._chosen(0, count, seed)).sum())

    def held(self, count: int, limit: int) -> Iterator[Texts]:
        """Yield up to `limit` held-out texts, `count` at a time, with all possible anchors."""
        for first in range(0, min(limit, len(self.held_out)), count):
            chosen = self.held_out[first : min(first + count, limit)]
            yield self._texts(chosen, [np.arange(1, n - 1) for n in self._lengths(chosen)])

    def _texts(self, chosen: np.ndarray, anchors: Sequence[np.ndarray]) -> Texts:
        begins, lengths = self._corpus.starts[chosen], self._lengths(chosen)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        indices = np.concatenate([np.arange(a, a + n) for a, n in zip(begins, lengths, strict=True)])
        device = self._frozen.embedding.device
        ids = torch.from_numpy(self._corpus.ids[indices].astype(np.int64)).to(device)
        prompts = self._prompts[chosen]
        within = [places[places >= prompt - 1] for places, prompt in zip(anchors, prompts, strict=True)]
        states = self._states[torch.from_numpy(indices)].float().to(device)
        features = states[:, -self._frozen.embedding.shape[1] :]
        counted = [np.arange(n) >= prompt for n, prompt in zip(lengths, prompts, strict=True)]
        answers = torch.from_numpy(np.concatenate(counted)).to(device)
        anchored = np.concatenate([start + places for start, places in zip(starts[:-1], within, strict=True)])
        return Texts(ids, self._frozen.embed(ids), features, starts, anchored, states, answers)

    def _chosen(self, first: int, count: int, seed: int) -> np.ndarray:
        """Return texts `first` to `first + count` of an endless series of shuffled epochs."""
        n, chosen = len(self.learned), list[np.ndarray]()
        for epoch in range(first // n, (first + count - 1) // n + 1):
            order = np.random.default_rng([seed, epoch]).permutation(self.learned)
            chosen.append(order[max(0, first - epoch * n) : first + count - epoch * n])
        return np.concatenate(chosen)

    def _lengths(self, chosen: np.ndarray) -> np.ndarray:
        return np.minimum(np.diff(self._corpus.starts)[chosen], self._length)


TEXTS = 64
_AT_ONCE = 16
_NAME = "features"


def stored_features(
    folder: Path, corpus: Corpus, target: Path, training: Training, layers: tuple[int, ...] = LAST
) -> Tensor:
    """Return the target's states of a text, (N, k D) bfloat16; those `folder` lacks are written.

    A cancelled training keeps complete files. A UsageError if the folder holds the features of
    another text or target, a ModelError if a file is broken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    origin, decoder, parts = _origin(corpus, target), None, list[Tensor]()
    origin += "" if layers == LAST else f" {list(layers)}"
    for first in range(0, len(corpus.repeats), TEXTS):
        path = folder / f"{first // TEXTS:06d}.safetensors"
        if not path.is_file():
            decoder = decoder or load(target, training.device, training.dtype)
            texts = range(first, min(first + TEXTS, len(corpus.repeats)))
            _write(path, corpus, texts, decoder, layers, origin, training.cancel)
            done = int(corpus.starts[texts.stop])
            training.progress(TrainingProgress("features", done, len(corpus.ids), nan))
        parts.append(_open(path, origin).get_tensor(_NAME))
    return torch.cat(parts)


def _write(
    path: Path,
    corpus: Corpus,
    texts: range,
    decoder: Decoder,
    layers: tuple[int, ...],
    origin: str,
    cancel: threading.Event,
) -> None:
    parts = list[Tensor]()
    for first in range(texts.start, texts.stop, _AT_ONCE):
        if cancel.is_set():
            raise RunCancelled(
                f"stopped while the target read the text; {path.parent} keeps its features so far: add --resume to go on"
            )
        bounds = corpus.starts[first : min(first + _AT_ONCE, texts.stop) + 1]
        ids = corpus.ids[bounds[0] : bounds[-1]].astype(np.int64)
        parts += features_of(decoder, np.split(ids, bounds[1:-1] - bounds[0]), layers)
    part = path.with_suffix(".part")
    save_file({_NAME: torch.cat(parts).to("cpu", torch.bfloat16)}, part, {"origin": origin})
    os.replace(part, path)


def _open(path: Path, origin: str) -> Any:
    try:
        file = safe_open(path, "pt")
        found = (file.metadata() or {}).get("origin")
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{path} does not hold a target's features ({error}); remove it to write it again"
        ) from None
    if found != origin:
        raise UsageError(
            f"{path} holds the features of another text or target; remove its folder to write them again"
        )
    return file


def _origin(corpus: Corpus, target: Path) -> str:
    text = hashlib.sha256(corpus.ids.tobytes() + corpus.starts.tobytes()).hexdigest()
    return f"{fingerprint(target)} {text}"
