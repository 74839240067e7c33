"""Limits on the text of one request, checked before it is tokenized.

Tokenizing takes a thousand times as long as counting characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from specscope.engine.errors import UsageError, shown

PER_TOKEN = 16
"""Characters of a prompt per position of the context. Text has 3 to 5 characters per token; only
long runs of one character have more, and no token of the bundled pair is longer."""
MOST_CHARACTERS = 1_000_000
"""Characters of a prompt, or of all messages of a chat, with any context."""
MOST_TOGETHER = 4_000_000
"""Characters of all prompts of a run together."""
MOST_PROMPTS = 1000
"""Prompts per run."""
MOST_SEQUENCES = 64
"""Most sequences decoded at once under load."""
MOST_MESSAGES = 1000
"""Messages per chat."""
MOST_STOPS = 32
"""Stop strings per run: each is searched for after every token."""
LONGEST_STOP = 1000
"""Characters per stop string."""


def check_prompts(prompts: Sequence[Any]) -> None:
    """Raise UsageError on too many prompts of a run, or too many characters in them."""
    for prompt in prompts:
        _check_kind(prompt)
    if len(prompts) > MOST_PROMPTS:
        raise UsageError(f"{len(prompts)} prompts were given; a run takes at most {MOST_PROMPTS}")
    together = sum(map(characters, prompts))
    if together > MOST_TOGETHER:
        raise UsageError(
            f"the prompts have {together} characters; a run takes at most {MOST_TOGETHER} in all"
        )


def check_prompt(prompt: Any, context: int | None = None) -> None:
    """Raise UsageError on too many characters or messages of a text, token ids or a chat.

    The models' context, if known, lowers the limit.
    """
    _check_kind(prompt)
    if is_chat(prompt) and len(prompt) > MOST_MESSAGES:
        raise UsageError(f"the chat has {len(prompt)} messages; it may have {MOST_MESSAGES}: begin a new one")
    limit = MOST_CHARACTERS if context is None else min(MOST_CHARACTERS, PER_TOKEN * context)
    if (length := characters(prompt)) > limit:
        why = "" if context is None else f" with a context of {context} tokens"
        raise UsageError(f"the prompt has {length} characters; it may have {limit}{why}: shorten it")


def _check_kind(prompt: Any) -> None:
    """Raise UsageError unless a prompt is a text, chat messages or token ids."""
    if isinstance(prompt, str):
        return
    if isinstance(prompt, Sequence):
        kind = Mapping if is_chat(prompt) else Integral
        if all(isinstance(one, kind) for one in prompt):
            return
    raise UsageError(
        f"a prompt is {shown(prompt)}; it must be a text, a list of messages with role and content, or a list of "
        "token ids"
    )


def check_stops(stops: Sequence[str]) -> None:
    """Raise UsageError on too many stop strings, or a too long one."""
    if len(stops) > MOST_STOPS:
        raise UsageError(f"{len(stops)} stop strings were given; a run takes at most {MOST_STOPS}")
    if (longest := max(map(len, stops), default=0)) > LONGEST_STOP:
        raise UsageError(f"a stop string has {longest} characters; it may have {LONGEST_STOP}")


def is_chat(prompt: Any) -> bool:
    """Return whether a prompt is a list of chat messages, rather than a text or token ids."""
    return not isinstance(prompt, str) and len(prompt) > 0 and not isinstance(prompt[0], Integral)


def characters(prompt: Any) -> int:
    """Return the number of characters of a text or of a chat's messages; 0 for token ids."""
    if isinstance(prompt, str):
        return len(prompt)
    return sum(len(str(message.get("content") or "")) for message in prompt) if is_chat(prompt) else 0
