"""Token ids as text: one token alone, and a growing text token by token."""

from __future__ import annotations

import codecs
import re
from functools import cache
from typing import Any

from tokenizers.decoders import ByteLevel

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_REPLACEMENT = "\ufffd"


class Detokenizer:
    """How single tokens read.

    Args:
        tokenizer: A transformers tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._byte_level = _is_byte_level(tokenizer)
        self._added = frozenset(tokenizer.added_tokens_decoder)
        self._pieces: dict[int, str] = {}

    def piece(self, token: int) -> str:
        r"""Return how a token reads alone; bytes that are no character by themselves read like `\xe2`.

        Special tokens read as they are written, an id without a token as `<id 5>`.
        """
        found = self._pieces.get(token)
        if found is None:
            found = self._pieces[token] = self._read(token)
        return found

    def _read(self, token: int) -> str:
        name = self._tokenizer.convert_ids_to_tokens(token)
        if name is None:
            return f"<id {token}>"
        if token in self._added:
            return str(name)
        return _token_bytes(str(name), self._byte_level).decode("utf-8", "backslashreplace")


class IncrementalText:
    """A text that grows by tokens. All that `push` and `flush` return, put together, is `tokenizer.decode`'s text.

    A character made of several tokens comes with the last of them. Special tokens add nothing. A push costs the same
    at any length of the text.

    Args:
        tokenizer: A transformers tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = _special_ids(tokenizer)
        byte_level = _is_byte_level(tokenizer) and not tokenizer.clean_up_tokenization_spaces
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace") if byte_level else None
        # Without byte-level tokens: ids decoded together, of which the first `_said` are context for the others.
        self._window: list[int] = []
        self._said = 0

    def push(self, token: int) -> str:
        """Return what this token adds to the text, maybe nothing yet."""
        if token in self._special:
            return ""
        if self._bytes is not None:
            name = self._tokenizer.convert_ids_to_tokens(token)
            return "" if name is None else self._bytes.decode(_token_bytes(name, byte_level=True))
        self._window.append(token)
        # A run of byte tokens is decoded as a whole, so it is not final before the next other token.
        if _BYTE_TOKEN.fullmatch(self._tokenizer.convert_ids_to_tokens(token) or ""):
            return ""
        text = self._decode(self._window)
        return "" if text.endswith(_REPLACEMENT) else self._advance(text)

    def flush(self) -> str:
        """Return what is still held back, incomplete characters as U+FFFD."""
        if self._bytes is not None:
            return self._bytes.decode(b"", final=True)
        return self._advance(self._decode(self._window))

    def _advance(self, text: str) -> str:
        added = text[len(self._decode(self._window[: self._said])) :]
        self._window = self._window[self._said :] or self._window
        self._said = len(self._window)
        return added

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


def _special_ids(tokenizer: Any) -> frozenset[int]:
    marked = (id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special)
    return frozenset(tokenizer.all_special_ids).union(marked)


def _is_byte_level(tokenizer: Any) -> bool:
    """Whether the tokens' characters stand for bytes (GPT-2, Llama 3, Qwen), not for themselves (Llama 2, Mistral)."""
    return isinstance(tokenizer.backend_tokenizer.decoder, ByteLevel)


def _token_bytes(name: str, byte_level: bool) -> bytes:
    if byte_level:
        table = _bytes_of_characters()
        # Like the tokenizer's own decoder: a token with any other character stands for its text.
        return bytes(table[c] for c in name) if all(c in table for c in name) else name.encode()
    if found := _BYTE_TOKEN.fullmatch(name):
        return bytes([int(found[1], 16)])
    return name.replace("\u2581", " ").encode()


@cache
def _bytes_of_characters() -> dict[str, int]:
    """Return the byte each character of a byte-level token stands for.

    Printable Latin-1 characters stand for themselves; the other 68 bytes, in order, for the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
