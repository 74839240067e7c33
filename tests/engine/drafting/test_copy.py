"""The copier against a plain search through all texts, and its decisions one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specscope.engine.drafting.copy import LONGER, Copier
from specscope.engine.types import CopySource, Draft


def array(tokens) -> np.ndarray:
    return np.asarray(tokens, dtype=np.int64)


def find(tokens, documents=(), match=2, copy=7, **more):
    return Copier([array(d) for d in documents], match, copy, **more).find(array(tokens))


def naive(text: list[int], documents: list[list[int]], match: int, copy: int, longest=0, latest=True):
    """Search every place of every text, latest (or earliest) first, for the longest match first."""
    texts, way = [*enumerate(documents), (-1, text)], -1 if latest else 1
    for n in range(longest or match + LONGER, match - 1, -1):
        for number, other in texts[::way]:
            for start in range(n, len(other))[::way]:
                if n <= len(text) and other[start - n : start] == text[len(text) - n :]:
                    ids: list[int] = []
                    for i in range(copy):
                        more = other + ids if number == -1 else other
                        ids += more[start + i : start + i + 1]
                    return tuple(ids), CopySource(number, start, n)
    return (), None


texts = st.lists(st.integers(0, 3), max_size=30)


numbers = st.integers


@given(
    texts, st.lists(texts, max_size=3), numbers(1, 4), numbers(0, 3), st.booleans(), numbers(1, 9), st.data()
)
def test_a_copy_equals_the_result_of_a_plain_search(text, documents, match, more, latest, copy, data):
    options = {"longest": match + more, "latest": latest} if data.draw(st.booleans(), "options") else {}
    copier = Copier([array(d) for d in documents], match, copy, **options)
    for length in sorted(data.draw(st.sets(st.integers(0, len(text))), label="lengths of the calls")):
        assert copier.find(array(text[:length])) == naive(text[:length], documents, match, copy, **options)


LONG, FIRST = [1, 2, 3, 4, 5, 6], {"match": 1, "latest": False}


@pytest.mark.parametrize(
    ("text", "documents", "options", "ids", "source"),
    [
        ([1, 2, 3, 4, 5, 6, 1, 2], (), {"copy": 3}, (3, 4, 5), (-1, 2, 2)),
        # no match; the last two tokens do not match themselves, and no match spans two documents
        *((text, (), {}, (), None) for text in ([1, 2, 3, 4, 5], [], [1], [1, 1])),
        ([2, 3], [[1, 2], [3, 4]], {}, (), None),
        # the longest match wins, up to three tokens more than the shortest
        ([9, 1, 2, 5, 6, 3, 1, 2, 7, 8, 9, 1, 2], (), {"copy": 2}, (5, 6), (-1, 3, 3)),
        ([*LONG, 7, 0, *LONG[1:], 8, *LONG], (), {"copy": 1}, (8,), (-1, 13, 5)),
        # of equal matches the latest, or the first on request
        ([5, 1, 2, 3, 6, 1, 2, 4, 7, 1, 2], (), {"copy": 1}, (4,), (-1, 7, 2)),
        ([5, 1, 2, 3, 6, 1, 2, 4, 7, 1, 2], (), FIRST | {"copy": 2, "longest": 2}, (3, 6), (-1, 3, 2)),
        ([1, 1, 1], (), FIRST | {"copy": 3}, (1, 1, 1), (-1, 2, 2)),
        # the sequence is later than the documents, which are in order
        ([1, 2, 32, 1, 2], [[1, 2, 30], [1, 2, 31]], {"copy": 1}, (32,), (-1, 2, 2)),
        ([1, 2], [[1, 2, 30], [1, 2, 31]], {"copy": 1}, (31,), (1, 2, 2)),
        ([9, 1, 2, 32, 8, 1, 2], [[8, 1, 2, 30]], {"copy": 1}, (30,), (0, 3, 3)),
        # a copy ends with its document, and continues with itself at the end of the sequence
        ([1, 2], [[1, 2, 3, 4]], {}, (3, 4), (0, 2, 2)),
        ([3, 4], [[1, 2, 3, 4]], {}, (), None),
        ([7, 7, 7], (), {"copy": 5}, (7,) * 5, (-1, 2, 2)),
        ([4, 5, 6, 4, 5], (), {"copy": 8}, (6, 4, 5, 6, 4, 5, 6, 4), (-1, 2, 2)),
    ],
)
def test_what_is_copied(text, documents, options, ids, source):
    assert find(text, documents, **options) == (ids, source and CopySource(*source))


def test_a_draft_is_the_copy_cut_to_the_remaining_tokens():
    copier = Copier(match=2, copy=7)
    text = array([1, 2, 3, 4, 5, 6, 1, 2])
    draft = copier.draft(text, 3)
    assert (draft.ids, draft.parents, draft.source) == ((3, 4, 5), (-1, 0, 1), CopySource(-1, 2, 2))
    assert {(t.q, t.span) for t in draft.tokens} == {(None, -1)}, "rule 2, by no forward"
    assert copier.draft(text, 0) == Draft.empty()
    assert Copier().draft(array([1, 2, 3]), 5) == Draft.empty()
    assert draft[:1].source is None, "a part has no source"
    assert (draft + draft).source is None


def test_a_copier_follows_one_sequence():
    copier = Copier()
    copier.find(array([1, 2, 3]))
    for other in ([1, 2], [1, 2, 4, 5]):
        with pytest.raises(ValueError, match="one growing sequence; it knows 3 tokens"):
            copier.find(array(other))


def test_a_call_indexes_only_new_tokens(monkeypatch):
    indexed, index = [], Copier._index

    def counted(self, n, text, known):
        indexed.append(len(text) - known)
        return index(self, n, text, known)

    monkeypatch.setattr(Copier, "_index", counted)
    copier = Copier([list(range(50))])
    text = [i % 9 for i in range(400)]
    for length in range(100, 401, 4):
        copier.find(array(text[:length]))
    assert indexed == [50, 100, *[4] * 75]
