"""The examples of what engines print, and files for one test."""

from __future__ import annotations

import tempfile
from pathlib import Path

from specscope.engine.trace.events import Window
from specscope.traces.imports.reading import read_traces

FOLDER = Path(__file__).parent / "imported"
PRINTED = FOLDER / "printed"
_FILES = tempfile.TemporaryDirectory()


def windows(name: str) -> list[Window]:
    (trace,) = read_traces(PRINTED / name).traces
    return trace.windows


def written(text: str | bytes) -> Path:
    """Return a file with this content, until the next call."""
    path = Path(_FILES.name) / "printed"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape"))
    return path
