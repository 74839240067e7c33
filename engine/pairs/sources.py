"""Find a model's directory from what a person names: a directory, a GGUF file, a short name, or a hub id."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from engine.errors import ModelError, RunCancelled
from engine.pairs import catalog, gguf, hub
from engine.pairs.hub import Progress, Report


def resolve(model: str | Path, progress: Report | None = None, cancel: threading.Event | None = None) -> Path:
    """Return the directory of a model; download or convert the model first where that is needed.

    Args:
        model: Directory, GGUF file, short name of the catalog, or hub id. A path on this machine comes first.
        progress: Takes the state of a download or conversion.
        cancel: Set it to stop either; nothing incomplete stays.

    Raises:
        ModelError: There is no such model, it cannot be had, or the file is of an unsupported kind.
        RunCancelled: `cancel` was set.
    """
    if _is_short_name(model):
        return catalog.get(str(model), progress, cancel)
    if not _is_gguf(model):
        return hub.resolve(model, progress, cancel)
    file = Path(os.path.expanduser(model))

    def report(done: int, total: int) -> None:
        if cancel is not None and cancel.is_set():
            raise RunCancelled(f"the conversion of {file.name} was stopped")
        if progress is not None:
            progress(Progress(file.name, "model.safetensors", done, total, "Converting"))

    return gguf.converted(file, report)


def resolve_local(model: str | Path) -> Path:
    """Return the directory of a model without a download or a conversion.

    Raises:
        ModelError: The model is not on this machine, or not converted.
    """
    if _is_short_name(model):
        folder = catalog.installed(str(model))
    elif _is_gguf(model):
        folder = gguf.cached(Path(os.path.expanduser(model)))
    else:
        return hub.resolve_local(model)
    if folder is None:
        raise ModelError(f"{model} is no longer in the cache; run again to get it")
    return folder


def is_slow(model: str | Path) -> bool:
    """Return whether `resolve` may have to download or convert a model: it is named by no directory."""
    return _is_short_name(model) or _is_gguf(model) or hub.is_hub_id(model)


def _is_short_name(model: str | Path) -> bool:
    return isinstance(model, str) and model in catalog.CATALOG and not os.path.exists(model)


def _is_gguf(model: str | Path) -> bool:
    return str(model).lower().endswith(".gguf") and not os.path.isdir(os.path.expanduser(model))
