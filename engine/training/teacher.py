"""A target's outputs on a text, written once: the trainings of drafters and heads read them.

A folder beside the text holds one file for every 64 texts, so that an interrupted writing goes on
where it stopped. For each token the file has the log probabilities of the K most probable next
tokens, the log of the probability of all others (the tail), and the final normed hidden state.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.errors import ModelError, RunCancelled, UsageError
from engine.model.decoder import Decoder
from engine.pairs.load import load
from engine.training.data import Corpus
from engine.training.heads.features import features_of
from engine.training.target_text import fingerprint

TOP = 48
"""K, unless it is given."""
TEXTS = 64
"""Texts of one file."""
_AT_ONCE = 16
"""Texts of one forward."""
_ROWS = 512
"""Rows of logits in memory at once."""
_LEAST = -30.0
"""Log probability of an empty tail."""


class Outputs(NamedTuple):
    """A target's outputs at N tokens."""

    ids: Tensor
    """The K most probable next tokens, (N, K) int32, the most probable first."""
    logs: Tensor
    """Their log probabilities, (N, K) float16."""
    tail: Tensor
    """Log of the probability of all other tokens, (N,) float16."""
    hidden: Tensor
    """Final normed hidden states, (N, D) bfloat16."""


def outputs_of(decoder: Decoder, texts: list[np.ndarray], top: int) -> Outputs:
    """Return the target's outputs at every token of some texts, end to end."""
    hidden = torch.cat(features_of(decoder, texts))
    with torch.inference_mode():
        parts = [_most_probable(decoder.head(rows).float(), top) for rows in hidden.split(_ROWS)]
    ids, logs, tail = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
    return Outputs(ids, logs, tail, hidden.to("cpu", torch.bfloat16))


def _most_probable(logits: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, log probabilities and log of the tail of (N, V) logits."""
    values, ids = logits.topk(top, dim=-1)
    logs = values - logits.logsumexp(-1, keepdim=True)
    tail = torch.log1p(-logs.exp().sum(-1).clamp(max=1)).clamp(min=_LEAST)
    return ids.int(), logs.half(), tail.half()


@dataclass(frozen=True)
class Teacher:
    """Stored outputs of a target on the texts of a corpus."""

    corpus: Corpus
    files: tuple[Any, ...]
    """Open safetensors files; file i has the texts from 64 i on."""

    def read(self, text: int, count: int) -> Outputs:
        """Return the outputs at the first `count` tokens of a text."""
        starts, file = self.corpus.starts, self.files[text // TEXTS]
        begin = int(starts[text] - starts[text // TEXTS * TEXTS])
        return Outputs(*(file.get_slice(name)[begin : begin + count] for name in Outputs._fields))

    def hidden(self) -> Tensor:
        """Return the hidden states at all tokens, (N, D) bfloat16."""
        return torch.cat([file.get_tensor("hidden") for file in self.files])


def teach(
    folder: Path,
    corpus: Corpus,
    target: Path,
    top: int | None,
    device: torch.device,
    dtype: torch.dtype,
    report: Callable[[int], None],
    cancel: threading.Event,
) -> Teacher:
    """Return the target's outputs on a text; write those that `folder` lacks first.

    Args:
        folder: The folder of the outputs.
        corpus: The text.
        target: Directory of the target.
        top: K; None: as in the folder, or TOP.
        device: Where the target runs.
        dtype: Dtype of its weights.
        report: Takes the number of tokens done.
        cancel: Set it to stop.

    Raises:
        RunCancelled: `cancel` was set; complete files are kept.
        UsageError: The folder holds the outputs of another text or target, or with another K.
        ModelError: A file is broken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    top = _stored_top(folder) if top is None else top
    origin, decoder, files = _origin(corpus, target, top), None, list[Any]()
    for first in range(0, len(corpus.repeats), TEXTS):
        path = folder / f"{first // TEXTS:06d}.safetensors"
        if not path.is_file():
            decoder = decoder or load(target, device, dtype)
            _write(
                path,
                corpus,
                range(first, min(first + TEXTS, len(corpus.repeats))),
                decoder,
                top,
                origin,
                cancel,
            )
            report(int(corpus.starts[min(first + TEXTS, len(corpus.repeats))]))
        files.append(_open(path, origin))
    return Teacher(corpus, tuple(files))


def _write(
    path: Path, corpus: Corpus, texts: range, decoder: Decoder, top: int, origin: str, cancel: threading.Event
) -> None:
    """Write one file of outputs; the file appears whole."""
    parts = list[Outputs]()
    for first in range(texts.start, texts.stop, _AT_ONCE):
        if cancel.is_set():
            raise RunCancelled(
                f"stopped while the target read the text; {path.parent} keeps its outputs so far: add --resume to go on"
            )
        bounds = corpus.starts[first : min(first + _AT_ONCE, texts.stop) + 1]
        ids = corpus.ids[bounds[0] : bounds[-1]].astype(np.int64)
        parts.append(outputs_of(decoder, np.split(ids, bounds[1:-1] - bounds[0]), top))
    outputs = Outputs(*(torch.cat(column) for column in zip(*parts, strict=True)))
    part = path.with_suffix(".part")
    save_file(outputs._asdict(), part, {"origin": origin})
    os.replace(part, path)


def _stored_top(folder: Path) -> int:
    """Return K of the outputs in a folder; without outputs, TOP."""
    for path in sorted(folder.glob("*.safetensors")):
        with contextlib.suppress(OSError, SafetensorError), safe_open(path, "pt") as file:
            return file.get_slice("ids").get_shape()[1]
    return TOP


def _open(path: Path, origin: str) -> Any:
    """Return an open file of outputs.

    Raises:
        UsageError: It holds the outputs of another text or target.
        ModelError: It is broken.
    """
    try:
        file = safe_open(path, "pt")
        found = (file.metadata() or {}).get("origin")
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{path} does not hold a target's outputs ({error}); remove it to write it again"
        ) from None
    if found != origin:
        raise UsageError(
            f"{path} holds the outputs of another text or target, or with another top; remove its folder to write them again"
        )
    return file


def _origin(corpus: Corpus, target: Path, top: int) -> str:
    text = hashlib.sha256(corpus.ids.tobytes() + corpus.starts.tobytes()).hexdigest()
    return f"{fingerprint(target)} {text} {top}"
