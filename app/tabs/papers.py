"""The Papers tab: every row of the papers beside ours, computed when the tab is first opened."""

from __future__ import annotations

from collections.abc import Iterator

import gradio as gr

from app.papers import computing, papers_body
from app.render.html import note
from app.routes import PAPERS
from app.tabs.wiring import QUIET

_FILE = f'<p class="app-note"><a href="{PAPERS}" target="_blank" rel="noopener">The same as one page</a></p>'


def build_papers(tab: gr.Tab) -> None:
    """Lay out the tab."""
    with gr.Column(elem_id="papers", elem_classes="app-plain"):
        shown = gr.Checkbox(False, visible=False)
        status = gr.HTML(apply_default_css=False, elem_id="papers-status")
        content = gr.HTML(apply_default_css=False)
    tab.select(fill, shown, [shown, status, content], **QUIET)


def fill(shown: bool) -> Iterator[tuple[object, object, object]]:
    """Yield the progress, then the content; nothing if the page has it."""
    if shown:
        yield gr.skip(), gr.skip(), gr.skip()
        return
    for line in computing():
        yield False, note(line), gr.skip()
    yield True, _FILE, papers_body()
