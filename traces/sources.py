"""Where copied drafts came from: the copies of a run, and the texts they were taken from as their tokens read."""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from engine.trace.events import Copied
    from engine.trace.trace import Trace

_ESCAPED = re.compile(rb"\\x([89a-f][0-9a-f])")


def copies(trace: Trace) -> list[dict[str, int]]:
    """Return a row per copied draft: the event's fields, and the `position` its first token was drafted for."""
    first = {(d.sequence, d.step): d.position for d in trace.decisions if d.node == 0}
    return [_copy(c, first[c.sequence, c.step]) for c in trace.copies if (c.sequence, c.step) in first]


def _copy(copy: Copied, position: int) -> dict[str, int]:
    names = ("step", "sequence", "document", "start", "match", "length")
    return {name: getattr(copy, name) for name in names} | {"position": position}


def sources(trace: Trace) -> list[dict[str, Any]]:
    """Return the texts that the run copied from, token by token: the prompts, then the reference documents.

    `document` is -1 for the prompt of a `sequence`; then index and position are the same. A text that holds a token
    without a piece is left out, so a run that did not copy has none.
    """
    if not trace.copies and not trace.documents:
        return []
    rows: list[tuple[int, int, Iterable[int]]] = [
        (sequence, -1, ids) for sequence, ids in enumerate(trace.header.prompt_ids)
    ]
    rows += [(-1, d.document, d.tokens) for d in trace.documents]
    return [
        {"sequence": sequence, "document": document, "texts": list(_texts(trace.pieces[i] for i in ids))}
        for sequence, document, ids in rows
        if all(i in trace.pieces for i in ids)
    ]


def _texts(pieces: Iterable[str]) -> Iterator[str]:
    r"""Yield what each token adds to the text: a character of several tokens, each a `\xe2` alone, comes with the last."""
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    for piece in pieces:
        text = piece.encode("utf-8", "surrogatepass")
        yield decoder.decode(_ESCAPED.sub(lambda escaped: bytes.fromhex(escaped[1].decode()), text))
