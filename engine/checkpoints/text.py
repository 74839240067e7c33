"""Token ids as text: single tokens, and a text that grows token by token."""

from __future__ import annotations

import codecs
import re
from functools import cache
from typing import Any

from tokenizers.decoders import ByteLevel

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_REPLACEMENT = "\ufffd"


class Detokenizer:
    """Texts of single tokens of a transformers tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._byte_level = _is_byte_level(tokenizer)
        self._added = frozenset(tokenizer.added_tokens_decoder)
        self._pieces: dict[int, str] = {}

    def piece(self, token: int) -> str:
        r"""Return the text of a token; bytes that are no complete character are escaped as `\xe2`.

        A special token gives its name, an id without a token `<id 5>`.
        """
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read(token)
        return piece

    def _read(self, token: int) -> str:
        name = self._tokenizer.convert_ids_to_tokens(token)
        if name is None:
            return f"<id {token}>"
        if token in self._added:
            return str(name)
        return _token_bytes(str(name), self._byte_level).decode("utf-8", "backslashreplace")


class IncrementalText:
    """A text that grows by tokens.

    The results of `push` and `flush` concatenate to the text of `tokenizer.decode`. The last token
    of a character adds that character; special tokens add nothing. The cost of a push does not
    depend on the length of the text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = _special_ids(tokenizer)
        byte_level = _is_byte_level(tokenizer) and not tokenizer.clean_up_tokenization_spaces
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace") if byte_level else None
        # For tokens that are not byte-level: ids to decode together; the first `_done` are output.
        self._window: list[int] = []
        self._done = 0

    def push(self, token: int) -> str:
        """Return the text that a token adds; empty while its character is incomplete."""
        if token in self._special:
            return ""
        if self._bytes is not None:
            name = self._tokenizer.convert_ids_to_tokens(token)
            return "" if name is None else self._bytes.decode(_token_bytes(name, byte_level=True))
        self._window.append(token)
        # A run of byte tokens is decoded as a whole: its text is final at the next other token.
        if _BYTE_TOKEN.fullmatch(self._tokenizer.convert_ids_to_tokens(token) or ""):
            return ""
        text = self._decode(self._window)
        return "" if text.endswith(_REPLACEMENT) else self._advance(text)

    def flush(self) -> str:
        """Return the rest of the text, with incomplete characters as U+FFFD."""
        if self._bytes is not None:
            return self._bytes.decode(b"", final=True)
        return self._advance(self._decode(self._window))

    def _advance(self, text: str) -> str:
        added = text[len(self._decode(self._window[: self._done])) :]
        self._window = self._window[self._done :] or self._window
        self._done = len(self._window)
        return added

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


def _special_ids(tokenizer: Any) -> frozenset[int]:
    marked = (id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special)
    return frozenset(tokenizer.all_special_ids).union(marked)


def _is_byte_level(tokenizer: Any) -> bool:
    """Return whether each character of a token is a byte, as in GPT-2, Llama 3 and Qwen."""
    return isinstance(tokenizer.backend_tokenizer.decoder, ByteLevel)


def _token_bytes(name: str, byte_level: bool) -> bytes:
    if byte_level:
        table = _bytes_of_characters()
        # Like the tokenizer's decoder, use a token with any other character as text.
        return bytes(table[c] for c in name) if all(c in table for c in name) else name.encode()
    if match := _BYTE_TOKEN.fullmatch(name):
        return bytes([int(match[1], 16)])
    return name.replace("\u2581", " ").encode()


@cache
def _bytes_of_characters() -> dict[str, int]:
    """Return character -> byte for byte-level tokens.

    Printable Latin-1 characters encode themselves; characters from U+0100 on encode the other 68
    bytes in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
