"""One sequence's output, and the only place that ends it: EOS, stop strings, max_new_tokens."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import numpy as np

from engine.types import Limits, Prefix

if TYPE_CHECKING:
    from engine.checkpoints.text import IncrementalText


class Sequence:
    """A prompt and the tokens committed after it.

    Args:
        number: Its number in the run.
        prompt: Token ids, at least one.
        limits: When it ends.
        decoder: Decodes the output token by token.
    """

    def __init__(self, number: int, prompt: Seq[int], limits: Limits, decoder: IncrementalText) -> None:
        self.x = Prefix(number, np.asarray(prompt, dtype=np.int64))
        self.prompt_length = len(prompt)
        self.text = ""
        self.reason = ""
        """Why it ended: eos, stop or length; empty before."""
        self._limits = limits
        self._decoder = decoder
        self._withheld = ""
        """The end of the text that may begin a stop string."""

    @property
    def done(self) -> bool:
        return bool(self.reason)

    def room(self, prefix: Prefix) -> int:
        """Return how many tokens the output can still take after a prefix of this sequence."""
        return self.prompt_length + self._limits.max_new_tokens - len(prefix)

    def push(self, token: int) -> str:
        """Append a token, apply the stop rule, and return the text that it adds."""
        self.x = self.x + (token,)  # noqa: RUF005 - a Prefix, not a tuple
        is_eos = token in self._limits.eos
        added = self._withheld + ("" if is_eos else self._decoder.push(token))
        if is_eos:
            self.reason = "eos"
        elif self.room(self.x) <= 0:
            self.reason = "length"
        if self.reason:
            added += self._decoder.flush()
        cut = min((i for s in self._limits.stop if (i := added.find(s)) >= 0), default=-1)
        if cut >= 0:
            self.reason, added = "stop", added[:cut]
        self._withheld = "" if self.reason else self._stop_prefix(added)
        added = added[: len(added) - len(self._withheld)]
        self.text += added
        return added

    def _stop_prefix(self, text: str) -> str:
        """Return the longest end of the text that begins a stop string."""
        longest = max((len(s) - 1 for s in self._limits.stop), default=0)
        for n in range(min(longest, len(text)), 0, -1):
            if any(s.startswith(text[-n:]) for s in self._limits.stop):
                return text[-n:]
        return ""
