"""Drafts from n-grams: a look-ahead window generates them, and a pool keeps them.

Source: lookahead decoding (Fu et al. 2024, arXiv:2402.02057), section 3 and algorithm 2. Besides
the verified draft, every forward has a window of `level - 1` levels with `columns` guessed tokens
each: (0, 0) is the prefix's last token, the parent of (0, j) is (0, j - 1), and the parent of
(l, j) is (l - 1, j). The model's tokens after the last level are the next level. The columns of all
levels are then n-grams, and the first level is dropped: the next one takes its place, which begins
a position later. While levels are still missing, the first column is dropped instead, so that the
window moves with the text; the first level begins with `level - 2` columns more.

The pool is a function of the prefixes and of the model's most probable tokens after them, at any
temperature. So a draft from it is a function of the prefix, and rule 2 decides it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from specscope.engine.types import NO_TREE, Draft, DraftToken, Gram, PoolUpdate, Tree


class NgramPool:
    """N-grams by their first token, most recently seen first; at most `most` per first token."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tails: dict[int, dict[Gram, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._tails.values()))

    def add(self, grams: Iterable[Gram]) -> None:
        for token, *tail in grams:
            tails = self._tails.setdefault(token, {})
            tails.pop(tuple(tail), None)
            tails[tuple(tail)] = None
            if len(tails) > self._most:
                del tails[next(iter(tails))]

    def forget(self, grams: Iterable[Gram]) -> None:
        for token, *tail in grams:
            self._tails.get(token, {}).pop(tuple(tail), None)

    def after(self, token: int, most: int) -> list[Gram]:
        """Return the tails of the n-grams that begin with a token, most recent first."""
        return list(reversed(self._tails.get(token, {})))[:most]


class GuessWindow:
    """Levels of guessed tokens, one column per next position.

    The first level is tokens of the prompt, evenly spaced (the paper allows any tokens). Each
    forward adds a level. `level` is N >= 2, the length of the n-grams; `columns` is W >= 1, reduced
    for good where it would reach past the end of the output.
    """

    def __init__(self, prompt: Sequence[int] | np.ndarray, level: int, columns: int) -> None:
        self.level = level
        count = columns + level - 2
        self.levels = [[int(prompt[i * len(prompt) // count]) for i in range(count)]]
        self.seen: tuple[Gram, ...] = ()
        """The levels of the last forward, and the model's tokens after them; may be empty."""

    def tree(self, last: int, remaining: int) -> Tree:
        """Return the window's rows, level by level, for a forward after a prefix.

        `last`, the prefix's last token, is (0, 0), without a row. The output can still take
        `remaining` tokens.
        """
        depth = len(self.levels) - 1
        width = max(0, min(len(self.levels[0]), remaining - depth + 1))
        self.levels = [row[:width] for row in self.levels]
        if not width:
            return NO_TREE
        self.levels[0][0] = last
        ids = [token for row in self.levels for token in row]
        parents = [column - 2 for column in range(width)] + [i - 1 for i in range(len(ids) - width)]
        return tuple(ids[1:]), tuple(parents[1:])

    def move(self, best: Sequence[int]) -> list[Gram]:
        """Add the best token after the prefix and each row as a level; return the new n-grams."""
        width, self.seen = len(self.levels[0]), ()
        if not width:
            return []
        self.levels.append(list(best[-width:]))
        self.seen = tuple(map(tuple, self.levels))
        if len(self.levels) < self.level:
            self.levels = [row[1:] for row in self.levels]
            return []
        grams = list(zip(*self.levels, strict=True))
        del self.levels[0]
        return grams


class Lookahead:
    """A pool of n-grams and the window that feeds it, for one growing text; see both."""

    def __init__(
        self, model: str, prompt: Sequence[int] | np.ndarray, level: int, columns: int, most: int
    ) -> None:
        self.window, self.pool = GuessWindow(prompt, level, columns), NgramPool(most)
        self._model, self._gained = model, list[Gram]()

    def learn(self, grams: Sequence[Gram]) -> None:
        self.pool.add(grams)
        self._gained += grams

    def rewrite(self, grams: Sequence[Gram], better: Sequence[Gram]) -> None:
        """Replace n-grams by better ones, except those that the end of the output cut short."""
        pairs = zip(grams, better, strict=True)
        whole = [(old, new) for old, new in pairs if len(old) == self.window.level]
        self.pool.forget(old for old, _ in whole)
        self.learn([new for _, new in reversed(whole)])

    def move(self, best: Sequence[int], draft: Draft) -> None:
        """Move the window on, and learn its n-grams.

        `best` is the model's most probable token after the prefix, after each token of `draft` and
        after each row of the window.
        """
        self.learn(self.window.move((best[0], *best[1 + len(draft) :])))

    def guesses(self, chain: Draft, last: int, most: int, remaining: int) -> Draft:
        """Append the pool's n-grams to a chain, as a tree: common beginnings share nodes.

        At most `most` n-grams follow `last`, the last token of the chain, or of the prefix if the
        chain is empty. A path of the tree, the chain included, has at most `remaining` tokens.
        """
        tails = [tail[: max(0, remaining - len(chain))] for tail in self.pool.after(last, most)]
        tokens, nodes = list(chain.tokens), dict[tuple[int, int], int]()
        for tail in tails:
            parent = len(chain) - 1
            for token in tail:
                if (parent, token) not in nodes:
                    nodes[parent, token] = len(tokens)
                    tokens.append(DraftToken(token, parent))
                parent = nodes[parent, token]
        grams = dict.fromkeys((last, *tail) for tail in tails if tail)
        return Draft(tuple(tokens), chain.lease, grams=tuple(grams))

    def update(self) -> PoolUpdate:
        """Return the n-grams learnt since the last call, for the trace."""
        gained, self._gained = tuple(self._gained), []
        return PoolUpdate(self._model, self.window.seen, gained, len(self.pool))
