"""Where downloads and conversions are kept."""

from __future__ import annotations

import os
from pathlib import Path

from engine.errors import UsageError


def cache_folder() -> Path:
    """Return the folder for models that can be made again: SPECSCOPE_CACHE, else specscope in the user's cache folder.

    Raises:
        UsageError: The folder names a home that does not exist.
    """
    chosen = os.environ.get("SPECSCOPE_CACHE")
    try:
        if chosen:
            return Path(chosen).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "specscope"
    except RuntimeError as error:
        raise UsageError(f"SPECSCOPE_CACHE is {chosen!r}: {error}") from None
