"""Execute docs/notebook.ipynb and keep its outputs: `python -m tests.docs.notebook`.

Its texts are the cells of this file. Progress bars and times of execution are not kept.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

FILE = Path(__file__).parents[2] / "docs" / "notebook.ipynb"
TIMEOUT_S = 120
CELLS = (
    """# SpecScope in a notebook

Traces, comparisons, sweeps and differences show themselves. [notebook.md](notebook.md) explains the functions and
the columns of the data frames. The models are the bundled pair, a toy; the times are those of a virtual cluster, so
they are the same on every machine.""",
    """import specscope

cluster = specscope.open("bundled", runtime="virtual", profile="pearl-3xA100")
cluster""",
    """## One run

`cluster.run` returns a trace. Point at a token or a forward in the frame; drag its corner to enlarge it.""",
    """trace = cluster.run("pearl", "Tell me a story.", limits=specscope.Limits(48))
trace""",
    """trace.frame().head()""",
    """## Methods side by side""",
    """comparison = specscope.compare(
    ["speculative", "pearl"], "How can I sleep better at night?", cluster=cluster, limits=specscope.Limits(48)
)
comparison""",
    """comparison.frame()[["method", "speedup", "tokens_per_second", "acceptance_rate", "both_busy"]]""",
    """## A sweep

Drafts that are right at a given rate need no model, only the profile.""",
    """sweep = specscope.sweep(
    "speculative",
    {"gamma": [1, 2, 4, 8], "acceptance_rate": [0.5, 0.7, 0.9]},
    profile="pearl-3xA100",
    limits=specscope.Limits(32),
)
sweep""",
    """sweep.frame().pivot(index="acceptance_rate", columns="gamma", values="speedup").round(2)""",
    """## Where one run is faster than another""",
    """runs = comparison.traces
difference = specscope.diff(runs["speculative"][0], runs["pearl"][0])
difference""",
    """## A report

One HTML file with text, figures and timeline, for people without SpecScope.""",
    """from pathlib import Path

from specscope.traces.export.report import render_report

page = render_report([runs["speculative"][0], runs["pearl"][0]])
size = Path("report.html").write_text(page, encoding="utf-8")
cluster.close()
size""",
)
"""Texts begin with `#`; the other cells are code."""


def notebook() -> Any:
    """Return the notebook without outputs."""
    cells = [new_markdown_cell(c) if c.startswith("#") else new_code_cell(c.strip()) for c in CELLS]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def executed(given: Any) -> Any:
    """Execute a notebook's cells in a folder of its own; return it with its outputs."""
    with TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        NotebookClient(given, timeout=TIMEOUT_S, record_timing=False, resources=place).execute()
    for cell in given.cells:
        kept = ("execute_result", "error")
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.output_type in kept]
    return given


if __name__ == "__main__":
    done = executed(notebook())
    nbformat.validate(done)
    nbformat.write(done, FILE)
    print(f"{FILE.name}: {FILE.stat().st_size // 1000} kB")
