"""The comparison with the papers as a page of the server, computed at the first request."""

from __future__ import annotations

from functools import cache
from threading import Lock

KEYS: tuple[str, ...] = ()
"""Papers of the page; all if empty."""
_LOCK = Lock()


def papers_page() -> bytes:
    """Return the HTML of `specscope papers -o`; the first call takes some seconds."""
    with _LOCK:
        return _page(KEYS)


@cache
def _page(keys: tuple[str, ...]) -> bytes:
    from traces.papers.page import render_page
    from traces.papers.report import chosen

    papers = chosen(keys)
    return render_page(papers, [row for paper in papers for row in paper.rows()]).encode()
