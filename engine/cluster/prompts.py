"""What a call of a run takes: prompts, and fields of Limits and Sampling as plain keywords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Integral
from typing import Any, TypeAlias, TypedDict, TypeVar

from specscope.engine.bounds import check_prompt, check_prompts, is_chat
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.checkpoints.text import Detokenizer
from specscope.engine.errors import UsageError
from specscope.engine.types import Limits, Sampling

Prompt: TypeAlias = str | Sequence[Mapping[str, str]] | Sequence[int]
"""Text for the chat template if there is one, chat messages with role and content, or token ids."""


def encode(pair: Pair, prompts: Sequence[Prompt], vocab: int, new: int) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of each prompt of a run that generates `new` tokens after each.

    Raises:
        UsageError: A prompt is empty, has an id outside the vocabulary or leaves no room in the
            context; or there are too many prompts.
    """
    check_prompts(prompts)
    encoded = list[tuple[int, ...]]()
    for i, prompt in enumerate(prompts):
        try:
            encoded.append(_checked(pair, prompt, vocab, new))
        except UsageError as error:
            if len(prompts) == 1:
                raise
            setting = error.setting or ("prompts" if i else "")
            raise UsageError(f"prompt {i} of {len(prompts)} (counted from 0): {error}", setting) from None
    return tuple(encoded)


def ids_of(pair: Pair, prompt: Prompt) -> list[int]:
    """Return a prompt's token ids, including the chat template's.

    Raises:
        UsageError: The prompt has more characters than any text that fits the context (it is not
            tokenized then), or it is of the wrong type.
    """
    check_prompt(prompt, pair.context)
    if isinstance(prompt, str):
        return pair.encode(prompt)
    if prompt and not is_chat(prompt):
        return [int(t) for t in prompt]  # pyright: ignore[reportArgumentType]
    return pair.encode_chat(prompt)  # pyright: ignore[reportArgumentType]


def shown(prompt: Prompt, pieces: Detokenizer) -> str:
    """Return a prompt's text for the run's header; for a chat, the last message's text."""
    if isinstance(prompt, str):
        return prompt
    last = prompt[-1]
    if isinstance(last, int | Integral):
        return "".join(pieces.piece(int(t)) for t in prompt)  # pyright: ignore[reportArgumentType]
    return str(last["content"])


def _checked(pair: Pair, prompt: Prompt, vocab: int, new: int) -> tuple[int, ...]:
    if prompt and not isinstance(prompt, str) and not is_chat(prompt):
        pair.check_length(prompt, new)  # pyright: ignore[reportArgumentType]
    ids = ids_of(pair, prompt)
    if not ids:
        raise UsageError("the prompt is empty; type some text")
    if bad := [t for t in ids if not 0 <= t < vocab]:
        raise UsageError(f"token id {bad[0]} in the prompt; it must be at least 0 and at most {vocab - 1}")
    pair.check_length(ids, new)
    return tuple(ids)


T = TypeVar("T", Sampling, Limits)


class Plain(TypedDict, total=False):
    """All fields of Limits and of Sampling; `specscope.engine.types` describes them."""

    max_new_tokens: int
    stop: str | tuple[str, ...]
    eos: tuple[int, ...]
    temperature: float
    top_k: int
    top_p: float
    seed: int


def settled(
    sampling: Sampling | None, limits: Limits | None, plain: Mapping[str, Any]
) -> tuple[Sampling, Limits]:
    """Return the sampling and the limits of a call, of which each has its object or plain keywords.

    Raises:
        UsageError: An object and one of its fields are both given, or a value is wrong.
    """
    return _one("sampling", Sampling, sampling, plain), _one("limits", Limits, limits, plain)


def _one(name: str, kind: type[T], given: T | None, plain: Mapping[str, Any]) -> T:
    own = {field.name: plain[field.name] for field in fields(kind) if field.name in plain}
    if given is None:
        return kind(**own)
    if not isinstance(given, kind):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{name} is of type {type(given).__name__}; it must be a specscope.{kind.__name__}")
    if own:
        raise UsageError(
            f"{name} and {', '.join(own)} were given; leave one out, or set it in specscope.{kind.__name__}"
        )
    return given
