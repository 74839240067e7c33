"""The comparison with the papers in the playground: a page, and a tab's content, computed once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traces.papers.rows import Paper, Row

KEYS: tuple[str, ...] = ()
"""Papers that are shown; all if empty."""
_LOCK = Lock()


def papers_page() -> bytes:
    """Return the HTML of `specscope papers -o`; the first call takes some seconds."""
    from traces.papers.page import render_page

    papers, rows = _all()
    return render_page(papers, rows).encode()


def papers_body() -> str:
    """Return the page's content; the first call takes some seconds."""
    from traces.papers.page import render_body

    return render_body(*_all())


def computing() -> Iterator[str]:
    """Compute the papers' rows one paper after the other, and name each one before it."""
    from traces.papers.summary import chosen

    papers = chosen(KEYS)
    for number, paper in enumerate(papers, 1):
        yield f"Computing {paper.title.partition(':')[0]}, {number} of {len(papers)} …"
        _rows(paper.key)


def _all() -> tuple[list[Paper], list[Row]]:
    from traces.papers.summary import chosen

    papers = chosen(KEYS)
    return papers, [row for paper in papers for row in _rows(paper.key)]


def _rows(key: str) -> tuple[Row, ...]:
    with _LOCK:  # the first request computes, the others wait for it
        return _computed(key)


@cache
def _computed(key: str) -> tuple[Row, ...]:
    from traces.papers.summary import PAPERS

    return tuple(PAPERS[key].rows())
