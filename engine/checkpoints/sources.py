"""Find a model by its name: a directory, a GGUF file, a short name or a hub id."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from specscope.engine.checkpoints import catalog, gguf, hub
from specscope.engine.checkpoints.forms import split_form
from specscope.engine.checkpoints.progress import Report
from specscope.engine.errors import ModelError


def resolve(model: str | Path, progress: Report | None = None, cancel: threading.Event | None = None) -> Path:
    """Return the directory of a model; download or convert the model first if necessary.

    A model is a directory, a GGUF file, a short name of the catalog, or a hub id. An existing path
    has precedence over a name. A directory's form (`forms.py`) is returned as it is. Setting
    `cancel` raises RunCancelled; no incomplete file remains.
    """
    if (folder := _local(model)) is not None:
        return folder
    if is_short_name(model):
        return catalog.get(str(model), progress, cancel)
    if is_gguf(model):
        return gguf.converted(Path(os.path.expanduser(model)), progress, cancel)
    return hub.download(str(model), progress, cancel)


def resolve_local(model: str | Path) -> Path:
    if (folder := _local(model)) is None:
        raise ModelError(f"{model} is no longer in the cache; run again to get it")
    return folder


def resolve_config(
    model: str | Path, progress: Report | None = None, cancel: threading.Event | None = None
) -> Path:
    """Return the directory of a model's config.json, or a file that is one; download nothing.

    A GGUF file is converted, as by `resolve`. A ModelError if the model is not on this machine.
    """
    path = Path(os.path.expanduser(model))
    whole, bits = split_form(path)
    if bits and not is_short_name(model):
        return resolve_config(whole, progress, cancel) / path.name
    if os.path.isfile(path) and not is_gguf(model):
        return path
    if is_short_name(model) and catalog.installed(str(model)) is None:
        raise catalog.missing(str(model))
    if not hub.is_hub_id(model):
        return resolve(model, progress, cancel)
    if (folder := hub.cached(str(model), config_only=True)) is None:
        raise ModelError(
            f"{model} is not on this machine, and a plan downloads nothing; give the path of its config.json, "
            "a small file from its page at the hub"
        )
    return folder


def is_slow(model: str | Path) -> bool:
    """Return whether `resolve` may download or convert: the model is not named by a directory."""
    return is_short_name(model) or is_gguf(model) or hub.is_hub_id(model)


def _local(model: str | Path) -> Path | None:
    if is_short_name(model):
        return catalog.installed(str(model))
    path = Path(os.path.expanduser(model))
    if os.path.isdir(path):  # unlike Path.is_dir, False for a name that is too long
        return path
    if split_form(path)[1] and os.path.isdir(path.parent):
        return path
    if is_gguf(model):
        return gguf.cached(path)
    if os.path.exists(path):
        raise ModelError(f"{path} is a file; give the directory that holds config.json and *.safetensors")
    if not hub.is_hub_id(model):
        raise ModelError(
            f"{path}: there is no such directory; give a model directory or a hub id like owner/name"
        )
    return hub.cached(str(model))


def is_short_name(model: str | os.PathLike[str]) -> bool:
    return isinstance(model, str) and model in catalog.CATALOG and not os.path.exists(model)


def is_gguf(model: str | Path) -> bool:
    return str(model).lower().endswith(".gguf") and not os.path.isdir(os.path.expanduser(model))
