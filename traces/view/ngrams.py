"""N-grams: the pool of look-ahead decoding, and drafts copied from a text.

Of a pool: the window of each round, the n-grams it tried, and those it gained. Of a copy: where it
is from, and the texts of the sources.
"""

from __future__ import annotations

import codecs
import re
from itertools import chain
from typing import TYPE_CHECKING, TypedDict

from specscope.traces.facts.joined import joined
from specscope.traces.facts.waiting import decoding_clock
from specscope.traces.view import row_of, section

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from specscope.engine.trace.events import Decision
    from specscope.engine.trace.trace import Trace

_SPECIAL = re.compile(r"<\|[^|<>]*\|>|</?s>|<(bos|eos|pad|unk)>")
"""The names of special tokens in the tokenizers of supported models."""
_ESCAPED = re.compile(rb"\\x([89a-f][0-9a-f])")


class TriedView(TypedDict):
    """An n-gram that the round's draft tried."""

    ids: list[int]
    """Its token ids; the first is the token that it continues."""
    accepted: int


class NgramsView(TypedDict):
    """A round that used a pool of n-grams. Texts of the ids are in the run's `pieces`."""

    sequence: int
    step: int
    t: float
    model: str
    window: list[list[int]]
    """The window's levels; the last one holds the model's own predictions."""
    tried: list[TriedView]
    gained: list[list[int]]
    size: int


def _ids(rows: Iterable[NgramsView]) -> Iterator[int]:
    for row in rows:
        yield from chain(*row["window"], *row["gained"], *(tried["ids"] for tried in row["tried"]))


@section("ngrams", "n-grams", secret=True, tokens=_ids)
def ngrams(trace: Trace) -> list[NgramsView]:
    clock = decoding_clock(trace)
    judged = [(p, joined(trace).of(p)) for p in trace.pooled]
    found = list[NgramsView]()
    for p, one in judged:
        if one.round:
            tried = [{"ids": gram, "accepted": _accepted(gram, one.nodes)} for gram in p.tried]
            found.append(row_of(NgramsView, p, t=clock(one.round.time), tried=tried))
    return found


def _accepted(gram: Sequence[int], nodes: dict[int, Decision]) -> int:
    """Return how many tokens of an n-gram, its first one aside, were accepted on its branch."""
    children = {(d.parent, d.token): d for d in nodes.values()}
    roots = [n for n in reversed(nodes) if nodes[n].token == gram[0]]
    for root in [*roots, -1]:
        path: list[Decision] = []
        for token in gram[1:]:
            child = children.get((path[-1].node if path else root, token))
            if child is None:
                break
            path.append(child)
        if len(path) == len(gram) - 1:
            return sum(d.outcome == "accepted" for d in path)
    return 0


class CopyView(TypedDict):
    """A copied draft."""

    step: int
    sequence: int
    document: int
    """Index of the document; -1 is the sequence itself, prompt and output."""
    start: int
    match: int
    """Tokens right before `start` that equal the last tokens of the prefix."""
    length: int
    position: int
    """Position in the sequence that the first copied token was drafted for."""


class SourceView(TypedDict):
    """A text that drafts were copied from: a prompt or a reference document."""

    sequence: int
    """Sequence of the prompt; -1 for a document."""
    document: int
    """Index of the document; -1 for a prompt."""
    texts: list[str]


@section("copies", "copies")
def copies(trace: Trace) -> list[CopyView]:
    judged = [(c, joined(trace).of(c).nodes) for c in trace.copies]
    return [row_of(CopyView, c, position=nodes[0].position) for c, nodes in judged if 0 in nodes]


@section("sources", "sources", secret=True)
def sources(trace: Trace) -> list[SourceView]:
    """Return the prompts, then the documents; empty for a run that copied nothing.

    A text that has a token without a piece is left out, and where several documents were at hand,
    those that nothing was copied from.
    """
    if not trace.copies and not trace.documents:
        return []
    rows: list[tuple[int, int, Iterable[int]]] = [
        (sequence, -1, ids) for sequence, ids in enumerate(trace.header.prompt_ids)
    ]
    copied = {copy.document for copy in trace.copies} if len(trace.documents) > 1 else {0}
    rows += [(-1, d.document, d.tokens) for d in trace.documents if d.document in copied]
    return [
        {
            "sequence": sequence,
            "document": document,
            "texts": list(_texts(_shown(trace.pieces[i]) for i in ids)),
        }
        for sequence, document, ids in rows
        if all(i in trace.pieces for i in ids)
    ]


def _shown(piece: str) -> str:
    """Return a token's text, empty for a special token, such as those of a chat template."""
    return "" if _SPECIAL.fullmatch(piece) else piece


def _texts(pieces: Iterable[str]) -> Iterator[str]:
    r"""Yield the text that each token adds.

    Where several tokens (each a piece like `\xe2`) make one character, the last of them adds it.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    for piece in pieces:
        text = piece.encode("utf-8", "surrogatepass")
        yield decoder.decode(_ESCAPED.sub(lambda escaped: bytes.fromhex(escaped[1].decode()), text))
