"""How much text one request may hold. It is counted before any of it is tokenized, which takes a thousand times as long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.errors import UsageError

PER_TOKEN = 16
"""Characters of a prompt for each position of the context at most. Texts have 3 to 5 characters a token; only long runs of
spaces or of one sign have more, and no token of the bundled pair is longer."""
MOST_CHARACTERS = 1_000_000
"""Characters of a prompt, or of all messages of a chat, whatever the context is."""
MOST_TOGETHER = 4_000_000
"""Characters of all prompts of a run."""
MOST_PROMPTS = 1000
"""Prompts of a run."""
MOST_MESSAGES = 1000
"""Messages of a chat."""
MOST_STOPS = 32
"""Stop strings of a run: each is looked for after every token."""
LONGEST_STOP = 1000
"""Characters of a stop string."""


def check_prompts(prompts: Sequence[Any]) -> None:
    """Check how many prompts a run has, and how many characters in all.

    Raises:
        UsageError: There are too many.
    """
    if len(prompts) > MOST_PROMPTS:
        raise UsageError(f"{len(prompts)} prompts were given; a run takes at most {MOST_PROMPTS}")
    together = sum(map(characters, prompts))
    if together > MOST_TOGETHER:
        raise UsageError(
            f"the prompts have {together} characters; a run takes at most {MOST_TOGETHER} in all"
        )


def check_prompt(prompt: Any, context: int | None = None) -> None:
    """Check a prompt's characters and messages against the limits, and against a context where it is known.

    Raises:
        UsageError: There are too many.
    """
    if is_chat(prompt) and len(prompt) > MOST_MESSAGES:
        raise UsageError(f"the chat has {len(prompt)} messages; it may have {MOST_MESSAGES}: begin a new one")
    limit = MOST_CHARACTERS if context is None else min(MOST_CHARACTERS, PER_TOKEN * context)
    if (found := characters(prompt)) > limit:
        why = "" if context is None else f" with a context of {context} tokens"
        raise UsageError(f"the prompt has {found} characters; it may have {limit}{why}: shorten it")


def check_stops(stops: Sequence[str]) -> None:
    """Check how many stop strings there are, and how long.

    Raises:
        UsageError: There are too many, or one is too long.
    """
    if len(stops) > MOST_STOPS:
        raise UsageError(f"{len(stops)} stop strings were given; a run takes at most {MOST_STOPS}")
    if (longest := max(map(len, stops), default=0)) > LONGEST_STOP:
        raise UsageError(f"a stop string has {longest} characters; it may have {LONGEST_STOP}")


def is_chat(prompt: Any) -> bool:
    """Return whether a prompt is a list of chat messages, not a text or token ids."""
    return not isinstance(prompt, str) and len(prompt) > 0 and not isinstance(prompt[0], int)


def characters(prompt: Any) -> int:
    """Return how many characters a text or the messages of a chat have; 0 for token ids."""
    if isinstance(prompt, str):
        return len(prompt)
    return sum(len(str(message.get("content") or "")) for message in prompt) if is_chat(prompt) else 0
