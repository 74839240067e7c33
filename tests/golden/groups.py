"""The outputs that must stay the same, by group."""

from __future__ import annotations

from collections.abc import Callable

from tests.golden import commands, page, records, runs
from tests.golden.texts import Outputs

GROUPS: dict[str, Callable[[], Outputs]] = {
    "scripted": runs.scripted,
    "bundled": runs.bundled,
    "load": runs.under_load,
    "what-if": runs.what_ifs,
    "commands": commands.commands,
    "recordings": records.recordings,
    "imports": records.imports,
    "database": records.database,
    "training": records.training,
    "form": page.form,
    "papers": page.papers,
}
PACKED = ("scripted", "bundled", "load", "what-if", "papers")
"""Groups of whole documents; the others are recorded as text files."""
