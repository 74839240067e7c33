"""The place of a token in its draft, for drafters whose acceptance depends on it.

Place 1 follows a token of the target's own. PEARL and DSI draft on after tokens that are not
verified yet, so a draft may be made by several jobs: what counts is which tokens the drafter
drafted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NONE = -1


class _Asked(NamedTuple):
    place: int
    token: int
    """What the drafter drafted there; `NONE` where it only guessed the target's own token."""


class DraftPlaces:
    """The places of all prefixes after which a drafter was asked for a token, in one run."""

    def __init__(self, prompt_length: int) -> None:
        self._start, self._asked = prompt_length, dict[tuple[int, bytes], _Asked]()

    def of(self, path: np.ndarray, sequence: int) -> int:
        """Return the place of the token after a path."""
        found = self._asked.get(self._key(path, sequence))
        return found.place if found else 1

    def ask(self, path: np.ndarray, sequence: int, kind: str, *, deeper: bool) -> bool:
        """Note that a forward asks for the token after a path; return whether it drafts this token.

        With `deeper` it has one more level of a draft. All its nodes are drafted ones then, a
        tree's siblings too, but not the guesses from which SSD's branches begin.
        """
        key, drafts = self._key(path, sequence), kind != "glue"
        if not drafts and key in self._asked:
            return False
        before = self._asked.get(self._key(path[:-1], sequence)) if len(path) > self._start else None
        follows = before is not None and ((deeper and kind != "branch") or before.token == path[-1])
        self._asked[key] = _Asked(before.place + 1 if before and follows else 1, NONE)
        return drafts

    def drafted(self, path: np.ndarray, sequence: int, token: int) -> None:
        key = self._key(path, sequence)
        self._asked[key] = self._asked[key]._replace(token=token)

    def _key(self, path: np.ndarray, sequence: int) -> tuple[int, bytes]:
        return sequence, path[self._start :].tobytes()
