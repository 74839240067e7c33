"""The text that each token of a recording adds, by a program's own `decode`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from specscope.engine.errors import UsageError, shown
from specscope.engine.trace.given import is_text

_INCOMPLETE = "\ufffd"
_LONGEST, _KEPT = 16, 4
"""Tokens that are decoded together, and those kept when they are more."""


class _Window:
    """The last tokens of a sequence, and their text."""

    def __init__(self, ids: list[int], text: str) -> None:
        self.ids, self.text = ids, text


class TokenTexts:
    """Texts of tokens; all are empty without `decode`, which maps a list of token ids to a text."""

    def __init__(self, decode: Callable[[list[int]], str] | None) -> None:
        self._decode = decode
        self._windows: dict[int, _Window] = {}

    def all(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; UsageError if `decode` returns none.

        Half a character, which no file can hold, is an incomplete one.
        """
        if self._decode is None or not tokens:
            return ""
        text = cast("object", self._decode([*tokens]))
        if not isinstance(text, str):
            raise UsageError(
                f"decode of {shown([*tokens])} is {shown(text)}; give what makes a text of a list of ids"
            )
        return text if is_text(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def piece(self, token: int) -> str:
        """Return the text of one token alone."""
        return self.all([token])

    def begin(self, sequence: int, prompt: Sequence[int]) -> None:
        """Set the tokens before the output: a space between words may depend on them."""
        last = list(prompt[-_KEPT:])
        self._windows[sequence] = _Window(last, self.all(last))

    def added(self, sequence: int, token: int) -> str:
        """Return the text that a token adds; empty while a character is incomplete."""
        if self._decode is None:
            return ""
        window = self._windows[sequence]
        window.ids.append(token)
        text = self.all(window.ids)
        if text.endswith(_INCOMPLETE):
            return ""
        added, window.text = text[len(window.text) :], text
        if len(window.ids) > _LONGEST:
            del window.ids[:-_KEPT]
            window.text = self.all(window.ids)
        return added
