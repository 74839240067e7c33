"""Drafts from n-grams met before: a look-ahead window that makes them, and a pool that keeps them.

Source: lookahead decoding (Fu et al. 2024, arXiv:2402.02057), section 3 and algorithm 2. Every forward carries, besides what
is judged, a window of `level - 1` rows (levels) of `columns` guessed tokens: row (0, 0) is the prefix's last token, (0, j)
comes after (0, j - 1), and (l, j) after (l - 1, j). What the model says after the last level is the next one: the columns
of all levels are then n-grams, and the first level has been overtaken by the text.

Everything here is a function of the prefixes seen and of the model's most probable tokens after them, whatever the
temperature. So a draft made of it is a function of the text, and rule 2 decides it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from engine.types import NO_TREE, Draft, DraftToken, Gram, PoolUpdate, Tree

if TYPE_CHECKING:
    import numpy as np


class Pool:
    """N-grams by their first token, the latest met first.

    Args:
        most: N-grams kept for each first token; the one met longest ago goes first. At least 1.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._tails: dict[int, dict[Gram, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._tails.values()))

    def add(self, grams: Iterable[Gram]) -> None:
        """Take n-grams; one that is known counts as met now."""
        for token, *tail in grams:
            tails = self._tails.setdefault(token, {})
            tails.pop(tuple(tail), None)
            tails[tuple(tail)] = None
            if len(tails) > self._most:
                del tails[next(iter(tails))]

    def forget(self, grams: Iterable[Gram]) -> None:
        """Drop n-grams; one that is not known is let be."""
        for token, *tail in grams:
            self._tails.get(token, {}).pop(tuple(tail), None)

    def after(self, token: int, most: int) -> list[Gram]:
        """Return what followed a token in the n-grams that begin with it, the latest first."""
        return list(reversed(self._tails.get(token, {})))[:most]


class Window:
    """Levels of guessed tokens, a column for each of the next positions.

    It begins as tokens of the prompt, evenly spread over it: the paper takes any. The other levels come one by one.

    Args:
        prompt: Token ids, (L,), at least one.
        level: N, the length of the n-grams; at least 2.
        columns: W; at least 1. They get fewer, for good, where they would reach past the end of the output.
    """

    def __init__(self, prompt: Sequence[int] | np.ndarray, level: int, columns: int) -> None:
        self.level = level
        self.levels = [[int(prompt[i * len(prompt) // columns]) for i in range(columns)]]
        self.seen: tuple[Gram, ...] = ()
        """The levels of the last forward, and below them what the model said; nothing once no column is left."""

    def tree(self, last: int, room: int) -> Tree:
        """Return the window's rows, level by level, for a forward after a prefix.

        Args:
            last: The prefix's last token; it takes the place (0, 0) and is no row of its own.
            room: Tokens that the output can still take.
        """
        depth = len(self.levels) - 1
        width = max(0, min(len(self.levels[0]), room - depth + 1))
        self.levels = [row[:width] for row in self.levels]
        if not width:
            return NO_TREE
        self.levels[0][0] = last
        ids = [token for row in self.levels for token in row]
        above = [column - 2 for column in range(width)] + [i - 1 for i in range(len(ids) - width)]
        return tuple(ids[1:]), tuple(above[1:])

    def move(self, said: Sequence[int]) -> list[Gram]:
        """Take what the model said after the prefix and after each row of `tree`; return the n-grams found, one a column."""
        width, self.seen = len(self.levels[0]), ()
        if not width:
            return []
        self.levels.append(list(said[-width:]))
        self.seen = tuple(map(tuple, self.levels))
        if len(self.levels) < self.level:
            return []
        grams = list(zip(*self.levels, strict=True))
        del self.levels[0]
        return grams


class Lookahead:
    """A pool and the window that feeds it, for one growing text.

    Args:
        model: Whose window it is, `target` or `drafter`; for the trace.
        prompt: Token ids, (L,), at least one.
        level: Length of the n-grams.
        columns: Columns of the window.
        most: N-grams kept for each first token.
    """

    def __init__(
        self, model: str, prompt: Sequence[int] | np.ndarray, level: int, columns: int, most: int
    ) -> None:
        self.window, self.pool = Window(prompt, level, columns), Pool(most)
        self._model, self._gained = model, list[Gram]()

    def learn(self, grams: Sequence[Gram]) -> None:
        """Add n-grams to the pool."""
        self.pool.add(grams)
        self._gained += grams

    def rewrite(self, grams: Sequence[Gram], better: Sequence[Gram]) -> None:
        """Put other n-grams in the place of some that were tried, where the end of the output cut none of them."""
        kept = [(old, new) for old, new in zip(grams, better, strict=True) if len(old) == self.window.level]
        self.pool.forget(old for old, _ in kept)
        self.learn([new for _, new in reversed(kept)])

    def move(self, best: Sequence[int], draft: Draft) -> None:
        """Move the window on, and learn its n-grams.

        Args:
            best: What the model said after the prefix, after each drafted token and after each row of the window.
            draft: What stood between them.
        """
        self.learn(self.window.move((best[0], *best[1 + len(draft) :])))

    def guesses(self, chain: Draft, last: int, most: int, room: int) -> Draft:
        """Hang the pool's n-grams on a chain, as a tree: what two of them begin with alike is one branch.

        Args:
            chain: What comes before them; may be empty.
            last: Its last token, or the prefix's.
            most: N-grams at most.
            room: Tokens that chain and branches may have, one path.
        """
        tails = [tail[: max(0, room - len(chain))] for tail in self.pool.after(last, most)]
        tokens, nodes = list(chain.tokens), dict[tuple[int, int], int]()
        for tail in tails:
            at = len(chain) - 1
            for token in tail:
                if (at, token) not in nodes:
                    nodes[at, token] = len(tokens)
                    tokens.append(DraftToken(token, at))
                at = nodes[at, token]
        grams = dict.fromkeys((last, *tail) for tail in tails if tail)
        return Draft(tuple(tokens), chain.lease, grams=tuple(grams))

    def update(self) -> PoolUpdate:
        """Return the n-grams learnt since the last call, for the trace."""
        gained, self._gained = tuple(self._gained), []
        return PoolUpdate(self._model, self.window.seen, gained, len(self.pool))
