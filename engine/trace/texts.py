"""The text that each token of a recording adds, by a program's own `decode`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_INCOMPLETE = "\ufffd"


class Texts:
    """Texts of tokens; all are empty without `decode`, which maps a list of token ids to a text."""

    def __init__(self, decode: Callable[[list[int]], str] | None) -> None:
        self._decode = decode
        self._windows: dict[int, tuple[list[int], int]] = {}
        """Sequence -> ids to decode together, and how many of them are output."""

    def all(self, tokens: Sequence[int]) -> str:
        return self._decode([*tokens]) if self._decode and tokens else ""

    def piece(self, token: int) -> str:
        """Return the text of one token alone."""
        return self._decode([token]) if self._decode else ""

    def begin(self, sequence: int, prompt: Sequence[int]) -> None:
        """Set the tokens before the output: a space between words may depend on them."""
        last = list(prompt[-4:])
        self._windows[sequence] = last, len(last)

    def added(self, sequence: int, token: int) -> str:
        """Return the text that a token adds; empty while a character is incomplete."""
        if self._decode is None:
            return ""
        window, done = self._windows.get(sequence, ([], 0))
        before, window = self._decode(window[:done]), [*window, token]
        text = self._decode(window)
        if text.endswith(_INCOMPLETE):
            self._windows[sequence] = window, done
            return ""
        self._windows[sequence] = window[-4:], min(4, len(window))
        return text[len(before) :]
