"""Import Gradio without its type stubs, which take half of the import's time.

For each component, Gradio parses its own source files and writes a stub (.pyi) for editors beside
them. It skips components whose source file is unknown
(`gradio.component_meta.create_or_modify_pyi`); here all of them are.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when Gradio is imported


@contextmanager
def _source_files_hidden() -> Generator[None]:
    """Make `inspect.getfile` fail for Gradio's own classes."""
    getfile = inspect.getfile

    def hidden(item: Any) -> str:
        if isinstance(item, type) and item.__module__.startswith("gradio."):
            raise OSError("no stub is wanted")
        return getfile(item)

    inspect.getfile = hidden
    try:
        yield
    finally:
        inspect.getfile = getfile


with _source_files_hidden():
    import gradio  # noqa: F401
