"""One sequence's output and the only place that knows when it ends: EOS, stop strings, max_new_tokens."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import numpy as np

from engine.types import Limits, Prefix

if TYPE_CHECKING:
    from engine.pairs.text import IncrementalText


class Sequence:
    """A prompt and what was committed after it.

    Args:
        number: Its number in the run.
        prompt: Token ids, at least one.
        limits: When it ends.
        decoder: Incremental decode of the output.
    """

    def __init__(self, number: int, prompt: Seq[int], limits: Limits, decoder: IncrementalText) -> None:
        self.x = Prefix(number, np.asarray(prompt, dtype=np.int64))
        self.prompt_length = len(prompt)
        self.room = len(prompt) + limits.max_new_tokens
        """Length it can reach at most."""
        self.text = ""
        self.reason = ""
        """eos, stop or length once it ended."""
        self._limits = limits
        self._decoder = decoder
        self._held = ""

    @property
    def done(self) -> bool:
        """Whether it ended."""
        return bool(self.reason)

    def push(self, token: int) -> str:
        """Take one token and return what it adds to the text; the stop rule is applied here and nowhere else."""
        self.x = self.x + (token,)  # noqa: RUF005 - a Prefix, not a tuple
        ends = token in self._limits.eos
        added = self._held + ("" if ends else self._decoder.push(token))
        if ends:
            self.reason = "eos"
        elif len(self.x) - self.prompt_length >= self._limits.max_new_tokens:
            self.reason = "length"
        if self.reason:
            added += self._decoder.flush()
        cut = min((i for s in self._limits.stop if (i := added.find(s)) >= 0), default=-1)
        if cut >= 0:
            self.reason, added = "stop", added[:cut]
        self._held = "" if self.reason else self._unsure(added)
        added = added[: len(added) - len(self._held)]
        self.text += added
        return added

    def _unsure(self, text: str) -> str:
        """Return the end of the text that may turn out to be the beginning of a stop string."""
        longest = max((len(s) - 1 for s in self._limits.stop), default=0)
        for n in range(min(longest, len(text)), 0, -1):
            if any(s.startswith(text[-n:]) for s in self._limits.stop):
                return text[-n:]
        return ""
