"""The stored notebook as a page that looks like one of Jupyter, for its picture."""

from __future__ import annotations

from html import escape
from typing import Any

import nbformat

from tests.docs.notebook import FILE

STYLE = """
  :root { color-scheme: light dark; }
  body { margin: 0; padding: 16px; font: 14px system-ui, sans-serif; background: light-dark(#fff, #111);
    color: light-dark(#212121, #e0e0e0); }
  .cell { display: grid; grid-template-columns: 64px 1fr; gap: 6px 8px; margin-bottom: 14px; }
  .prompt { font: 12px ui-monospace, monospace; text-align: right; padding-top: 8px; color: light-dark(#307fc1, #64b5f6); }
  pre { margin: 0; padding: 7px 10px; font: 13px/1.45 ui-monospace, monospace; white-space: pre-wrap; }
  .source { background: light-dark(#f5f5f5, #212121); border: 1px solid light-dark(#e0e0e0, #424242); }
  h1, h2, p { margin: 4px 0; }
  .output { min-width: 0; overflow: auto; }
  table { border-collapse: collapse; font-size: 12px; }
  tbody tr:nth-child(odd) { background: light-dark(#f5f5f5, #1c1c1c); }
  th, td { padding: 4px 8px; text-align: right; }
"""
"""The colours and the sizes of JupyterLab's two themes."""


def notebook_page() -> str:
    """Return the notebook as HTML: the cells, and each output in its richest form."""
    cells = "".join(_cell(cell) for cell in nbformat.read(FILE, 4).cells)
    return f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Notebook</title><style>{STYLE}</style>{cells}</html>'


def _cell(cell: Any) -> str:
    if cell.cell_type != "code":
        title, _, words = cell.source.partition("\n\n")
        level = len(title) - len(title.lstrip("#"))
        text = f"<h{level}>{escape(title.lstrip('# '))}</h{level}><p>{escape(words)}</p>"
        return f'<div class="cell"><span></span><div>{text}</div></div>'
    outputs = "".join(f'<span></span><div class="output">{_output(one.data)}</div>' for one in cell.outputs)
    prompt = f'<span class="prompt">[{cell.execution_count}]:</span>'
    return f'<div class="cell">{prompt}<pre class="source">{escape(cell.source)}</pre>{outputs}</div>'


def _output(data: Any) -> str:
    return data["text/html"] if "text/html" in data else f"<pre>{escape(data['text/plain'])}</pre>"
