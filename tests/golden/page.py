"""The page's settings form as data, and the Papers page with its rows."""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode
from dataclasses import replace
from typing import Any

import gradio as gr

from specscope.app.pairs import NAMES
from specscope.app.tabs.form import Composer, Form
from specscope.app.tabs.picker import contents
from specscope.traces.papers.page import render_body
from specscope.traces.papers.summary import PAPERS, RowCounts
from tests.golden.texts import Outputs, flat

SHOWN = (
    "label",
    "info",
    "value",
    "minimum",
    "maximum",
    "step",
    "choices",
    "lines",
    "max_lines",
    "placeholder",
)


def form() -> Outputs:
    """Yield each control of the form, and what the picker of methods offers."""
    with gr.Blocks():
        composer = Composer(chosen=True)
        made = Form(NAMES[-1])
    for name, control in {**made.controls, "prompt": composer.prompt, "system": composer.system}.items():
        yield name, flat({"kind": type(control).__name__, **_facts(control)})
    for part, value in contents().items():
        yield f"picker, {part}", flat(value)


def _facts(control: gr.components.Component) -> dict[str, Any]:
    return {name: value for name, value in vars(control).items() if name in SHOWN}


def papers() -> Outputs:
    """Yield the rows of each paper, and the page's content, a tag on each line."""
    found = [row for paper in PAPERS.values() for row in paper.rows()]
    for paper in PAPERS.values():
        own = [row.to_dict() for row in found if row.paper == paper.key]
        yield f"{paper.key}, rows", flat({"rows": own, "inconsistencies": paper.inconsistencies})
    yield "summary", flat(RowCounts.of(found).to_dict())
    steady = [replace(row, ours=1.0) if row.kind == "measured" else row for row in found]
    page = render_body(list(PAPERS.values()), steady).replace("><", ">\n<")
    yield "page", re.sub(r"data:image/png;base64,([^\"]*)", _picture, page)


def _picture(found: re.Match[str]) -> str:
    """Return a picture's hash."""
    return hashlib.sha256(b64decode(found[1])).hexdigest()
