"""A target's features of a text, written once: all trainings of heads on the text read them.

A folder beside the text holds one file for every 64 texts, so that an interrupted writing goes on
where it stopped.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

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

TEXTS = 64
"""Texts of one file."""
_AT_ONCE = 16
"""Texts of one forward."""
_NAME = "features"
"""The tensor of a file."""


def stored_features(
    folder: Path,
    corpus: Corpus,
    target: Path,
    device: torch.device,
    dtype: torch.dtype,
    report: Callable[[int], None],
    cancel: threading.Event,
) -> Tensor:
    """Return the target's features of a text, (N, D) bfloat16; those `folder` lacks are written.

    Args:
        folder: The folder of the features.
        corpus: The text, N tokens.
        target: Directory of the target.
        device: Where the target runs.
        dtype: Dtype of its weights.
        report: Takes the number of tokens done.
        cancel: Set it to stop.

    Raises:
        RunCancelled: `cancel` was set; complete files are kept.
        UsageError: The folder holds the features of another text or target.
        ModelError: A file is broken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    origin, decoder, parts = _origin(corpus, target), None, list[Tensor]()
    for first in range(0, len(corpus.repeats), TEXTS):
        path = folder / f"{first // TEXTS:06d}.safetensors"
        if not path.is_file():
            decoder = decoder or load(target, device, dtype)
            texts = range(first, min(first + TEXTS, len(corpus.repeats)))
            _write(path, corpus, texts, decoder, origin, cancel)
            report(int(corpus.starts[texts.stop]))
        parts.append(_open(path, origin).get_tensor(_NAME))
    return torch.cat(parts)


def _write(
    path: Path, corpus: Corpus, texts: range, decoder: Decoder, origin: str, cancel: threading.Event
) -> None:
    """Write one file of features; the file appears whole."""
    parts = list[Tensor]()
    for first in range(texts.start, texts.stop, _AT_ONCE):
        if cancel.is_set():
            raise RunCancelled(
                f"stopped while the target read the text; {path.parent} keeps its features so far: add --resume to go on"
            )
        bounds = corpus.starts[first : min(first + _AT_ONCE, texts.stop) + 1]
        ids = corpus.ids[bounds[0] : bounds[-1]].astype(np.int64)
        parts += features_of(decoder, np.split(ids, bounds[1:-1] - bounds[0]))
    part = path.with_suffix(".part")
    save_file({_NAME: torch.cat(parts).to("cpu", torch.bfloat16)}, part, {"origin": origin})
    os.replace(part, path)


def _open(path: Path, origin: str) -> Any:
    """Return an open file of features.

    Raises:
        UsageError: It holds the features of another text or target.
        ModelError: It is broken.
    """
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
