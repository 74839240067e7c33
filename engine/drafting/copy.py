"""Drafts by copying: the continuation of an earlier occurrence of the last tokens.

The occurrence is in the sequence or in a reference document. Source: LLMA (Yang et al. 2023,
arXiv:2304.04487), as EMS-SD uses it (section 4.1: match length 2, copy length 7), and prompt lookup
(Saxena 2023). The longest match wins; among equally long ones the latest or the first, where
documents are earlier than the sequence. LLMA gives no upper limit for a match; here it is `LONGER`
tokens more than the shortest one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specscope.engine.types import CopySource, Draft, DraftToken

LONGER = 3
"""Tokens of a match beyond the shortest one; LLMA's public code begins with 5 tokens."""


class Copier:
    """Copies for one growing sequence; a copy is a function of the sequence and the documents.

    An index maps every n-gram to the place after its latest (or first) occurrence, so the cost of a
    call depends on the tokens added since the last one, not on the length of the texts. The
    shortest match has `match` tokens and the longest `longest`; 0 is `match` plus `LONGER`. At most
    `copy` tokens are copied. `latest` chooses the latest of equally long matches, instead of the
    first.
    """

    def __init__(
        self,
        documents: Sequence[Sequence[int]] = (),
        match: int = 2,
        copy: int = 7,
        *,
        longest: int = 0,
        latest: bool = True,
    ) -> None:
        self.match, self.copy, self.latest = match, copy, latest
        self._documents = [[int(token) for token in document] for document in documents]
        self._text: list[int] = []
        self._places: dict[int, dict[tuple[int, ...], tuple[int, int]]] = {
            n: {} for n in range(longest or match + LONGER, match - 1, -1)
        }
        for number, document in enumerate(self._documents):
            self._index(number, document, 0)

    def find(self, tokens: np.ndarray) -> tuple[tuple[int, ...], CopySource | None]:
        """Return the tokens to copy and their source, or () and None if nothing matches.

        A copy that reaches the end of the sequence continues with its own first tokens, so a
        repetition is continued. A copy that reaches the end of a document ends there. `tokens`
        begins with the sequence of the last call; a ValueError if not.
        """
        self._grow(tokens)
        for n, places in self._places.items():
            place = places.get(tuple(self._text[-n:])) if n <= len(self._text) else None
            if place is not None:
                return self._copy(*place), CopySource(*place, n)
        return (), None

    def draft(self, tokens: np.ndarray, most: int) -> Draft:
        ids, source = self.find(tokens)
        ids = ids[: max(most, 0)]
        return Draft(tuple(DraftToken(t, i - 1) for i, t in enumerate(ids)), source=source if ids else None)

    def _grow(self, tokens: np.ndarray) -> None:
        known = len(self._text)
        if len(tokens) < known or (known and tokens[known - 1] != self._text[-1]):
            raise ValueError(f"a copier follows one growing sequence; it knows {known} tokens of another one")
        self._text += tokens[known:].tolist()
        self._index(-1, self._text, known)

    def _index(self, number: int, text: list[int], known: int) -> None:
        """Index the n-grams before every token from index `known` on."""
        for n, places in self._places.items():
            for end in range(max(known, n), len(text)):
                gram = tuple(text[end - n : end])
                if self.latest or gram not in places:
                    places[gram] = (number, end)

    def _copy(self, number: int, start: int) -> tuple[int, ...]:
        if number >= 0:
            return tuple(self._documents[number][start : start + self.copy])
        copied: list[int] = self._text[start : start + self.copy]
        while len(copied) < self.copy:
            copied.append(copied[start + len(copied) - len(self._text)])
        return tuple(copied)
