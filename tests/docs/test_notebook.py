"""The notebook of the documents: its cells run, and its stored outputs are those of its cells."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.docs.notebook import FILE, executed, notebook

MOST_BYTES = 700_000


def kinds(cells) -> list[list[str]]:
    """Return the kinds of output of each code cell, such as text/html."""
    code = (cell for cell in cells if cell.cell_type == "code")
    return [sorted(kind for output in cell.outputs for kind in output.data) for cell in code]


@pytest.mark.slow
def test_the_stored_notebook_has_the_cells_and_the_kinds_of_outputs_of_one_that_is_executed_now():
    stored, now = nbformat.read(FILE, 4), executed(notebook())
    assert [cell.source for cell in stored.cells] == [cell.source for cell in now.cells]
    assert kinds(stored.cells) == kinds(now.cells)
    assert sum("text/html" in found for found in kinds(now.cells)) >= 7


def test_the_stored_notebook_is_small_and_names_no_folder_of_a_machine():
    text = FILE.read_text(encoding="utf-8")
    assert len(text) < MOST_BYTES
    assert not [place for place in (str(FILE.parents[1]), str(Path.home()), "/tmp/") if place in text]
