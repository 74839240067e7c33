"""The Papers tab and its page: every row of the papers beside ours, computed once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

from specscope.app.render.html import note

if TYPE_CHECKING:
    import gradio as gr

    from specscope.traces.papers.rows import Paper, PaperRow

ADDRESS = "/specscope/papers.html"
_FILE = f'<p class="app-note"><a href="{ADDRESS}" target="_blank" rel="noopener">The same as one page</a></p>'
KEYS: tuple[str, ...] = ()
"""Papers that are shown; all if empty."""
_LOCK = Lock()


def build_papers(tab: gr.Tab) -> None:
    """Lay out the tab, which is filled when it is first opened."""
    import gradio as gr

    from specscope.app.tabs.wiring import QUIET

    with gr.Column(elem_id="papers", elem_classes="app-plain"):
        shown = gr.Checkbox(False, visible=False)
        status = gr.HTML(apply_default_css=False, elem_id="papers-status")
        content = gr.HTML(apply_default_css=False)
    tab.select(fill, shown, [shown, status, content], **QUIET)


def fill(shown: bool) -> Iterator[tuple[object, object, object]]:
    """Yield the progress, then the content; nothing if the page has it."""
    import gradio as gr

    from specscope.traces.papers.page import render_body

    if shown:
        yield gr.skip(), gr.skip(), gr.skip()
        return
    for line in computing():
        yield False, note(line), gr.skip()
    yield True, _FILE, render_body(*_all())


def papers_page() -> bytes:
    """Return the HTML of `specscope papers -o`; the first call takes some seconds."""
    from specscope.traces.papers.page import render_page

    papers, rows = _all()
    return render_page(papers, rows).encode()


def computing() -> Iterator[str]:
    """Compute the papers' rows one paper after the other, and name each one before it."""
    from specscope.traces.papers.summary import chosen

    papers = chosen(KEYS)
    for number, paper in enumerate(papers, 1):
        yield f"Computing {paper.name}, {number} of {len(papers)} …"
        _rows(paper.key)


def _all() -> tuple[list[Paper], list[PaperRow]]:
    from specscope.traces.papers.summary import chosen

    papers = chosen(KEYS)
    return papers, [row for paper in papers for row in _rows(paper.key)]


def _rows(key: str) -> tuple[PaperRow, ...]:
    with _LOCK:  # the first request computes, the others wait for it
        return _computed(key)


@cache
def _computed(key: str) -> tuple[PaperRow, ...]:
    from specscope.traces.papers.summary import PAPERS

    return tuple(PAPERS[key].rows())
