"""Turn the values of the controls into run requests. Pure, without Gradio."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from app import pairs
from app.runs import RunRequest
from engine.bounds import MOST_CHARACTERS, MOST_PROMPTS, characters, check_prompt
from engine.errors import UsageError
from engine.layout import Layout
from engine.methods import METHODS
from engine.simulate.profile import Profile
from engine.types import Limits, Sampling

MIN_METHODS, MAX_METHODS = 2, 4
"""Fewest and most methods in a comparison."""
OWN = "own"
"""Value of `models` for models that the user names."""
VIRTUAL = "virtual"
WHERE = ("prompt", "methods", "sampling", "place", "models")
"""The parts of the form that can show a message."""


class FormError(UsageError):
    """A control has an invalid value; the part `where` of the form shows the message."""

    def __init__(self, where: str, message: object) -> None:
        super().__init__(str(message))
        self.where = where


def listed() -> list[str]:
    """Return the methods in the order of the list: the usual ones first, then the others."""
    return [key for key in pairs.USUAL if key in METHODS] + [key for key in METHODS if key not in pairs.USUAL]


def make_requests(
    values: Mapping[str, Any], messages: Sequence[Mapping[str, str]], group: str
) -> list[RunRequest]:
    """Return one request per selected method, all with the same conversation.

    Args:
        values: By control: methods, `<method>.<setting>`, `<method>.prompts` (for batches),
            temperature, top_k, top_p, seed, max_new_tokens, stop, runtime, profile, profile_pair,
            models (a pair's name, or `own`), target, drafter, head.
        messages: The conversation to answer.
        group: Id of the comparison.

    Raises:
        FormError: A value is invalid.
    """
    chosen = [key for key in listed() if key in (values["methods"] or ())]
    if not MIN_METHODS <= len(chosen) <= MAX_METHODS:
        message = f"{len(chosen)} methods are chosen; choose {MIN_METHODS} to {MAX_METHODS} to compare"
        raise FormError("methods", message)
    _check_size(values, chosen, messages)
    sampling, limits = _sampling(values), _limits(values)
    place = {**_place(values), **_models(values)}
    return [
        RunRequest(
            method=key,
            prompt=[dict(m) for m in messages],
            further=_further(key, values, messages),
            config=_config(key, values),
            sampling=sampling,
            limits=limits,
            group=group,
            **place,
        )
        for key in chosen
    ]


def _check_size(
    values: Mapping[str, Any], chosen: Sequence[str], messages: Sequence[Mapping[str, str]]
) -> None:
    """Refuse prompts that are too long for any model; the engine checks the context later."""
    try:
        check_prompt(messages)
    except UsageError as error:
        raise FormError("prompt", error) from None
    for key in chosen:
        further = _further(key, values, messages)
        size = sum(map(characters, further))
        if len(further) >= MOST_PROMPTS or size > MOST_CHARACTERS:
            raise FormError(
                "methods",
                f"{METHODS[key].title}: {len(further)} further prompts have {size} characters in all; there may be "
                f"{MOST_PROMPTS - 1} with {MOST_CHARACTERS}",
            )


def further_prompts(typed: str | None) -> list[str]:
    """Return the prompts in a text; blank lines separate them."""
    return [part.strip() for part in re.split(r"\n\s*\n", typed or "") if part.strip()]


def _further(
    key: str, values: Mapping[str, Any], messages: Sequence[Mapping[str, str]]
) -> tuple[list[dict[str, str]], ...]:
    """Return the further prompts of a method for batches, each after the same system prompt."""
    system = [dict(m) for m in messages if m["role"] == "system"]
    prompts = further_prompts(values.get(f"{key}.prompts")) if METHODS[key].batched else []
    return tuple([*system, {"role": "user", "content": prompt}] for prompt in prompts)


def _config(key: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the method's settings from the controls, checked."""
    method = METHODS[key]
    given = {s.name: values[f"{key}.{s.name}"] for s in method.settings() if f"{key}.{s.name}" in values}
    try:
        config = method.configure(given)
    except UsageError as error:
        raise FormError("methods", f"{method.title}: {error}") from None
    return {name: getattr(config, name) for name in given}


def _layout(key: str, values: Mapping[str, Any]) -> Layout:
    """Return a method's layout with these settings."""
    method = METHODS[key]
    return method.layout(method.configure(_config(key, values)))


def _sampling(values: Mapping[str, Any]) -> Sampling:
    try:
        return Sampling(
            temperature=_number(values, "temperature"),
            top_k=_whole(values, "top_k"),
            top_p=_number(values, "top_p"),
            seed=_whole(values, "seed"),
        )
    except UsageError as error:
        raise FormError("sampling", error) from None


def _limits(values: Mapping[str, Any]) -> Limits:
    stop = tuple(line for line in (values["stop"] or "").splitlines() if line)
    try:
        return Limits(max_new_tokens=_whole(values, "max_new_tokens"), stop=stop)
    except UsageError as error:
        raise FormError("sampling", error) from None


def _number(values: Mapping[str, Any], name: str) -> float:
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{name} is empty; type a number")
    return value


def _whole(values: Mapping[str, Any], name: str) -> int:
    value = _number(values, name)
    if value != int(value):
        raise UsageError(f"{name} is {value:g}; it must be a whole number")
    return int(value)


def _place(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return runtime and profile."""
    if values["runtime"] != VIRTUAL:
        return {"runtime": values["runtime"]}
    profile, pair = values["profile"], values["profile_pair"]
    try:
        if not profile:
            raise UsageError("no cluster is chosen; choose one from the list")
        Profile.load(profile).latency(pair)
    except UsageError as error:
        raise FormError("place", error) from None
    return {"runtime": VIRTUAL, "profile": profile, "profile_pair": pair}


def _models(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pair, or the user's target, drafters and heads."""
    if values["models"] != OWN:
        return _pair(values)
    target, drafters, heads = (
        str(values["target"] or "").strip(),
        _lines(values["drafter"]),
        _lines(values["head"]),
    )
    if not target:
        raise FormError(
            "models",
            "the target is empty; give a model's name, folder, .gguf file or hub id, or choose a pair from the list",
        )
    if not drafters and any(_layout(key, values).needs_drafter for key in values["methods"]):
        raise FormError("models", "the drafter is empty; a chosen method needs one")
    if not heads and (
        users := [METHODS[key].title for key in values["methods"] if _layout(key, values).head]
    ):
        raise FormError("models", f"the drafting head is empty; {users[0]} needs one")
    return {"target": target, "drafter": drafters, "head": heads}


def _pair(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the name of the chosen pair."""
    name = values["models"]
    if name not in pairs.NAMES:
        raise FormError("models", "no models are chosen; choose a pair from the list")
    for key in values["methods"]:
        if lacking := pairs.lacks(name, _layout(key, values)):
            message = (
                f"{METHODS[key].title} needs {lacking} with these settings, and {pairs.label(name)} has none; "
                "choose another method or other models"
            )
            raise FormError("methods", message)
    return {"pair": name}


def _lines(typed: str | None) -> tuple[str, ...]:
    """Return the non-blank lines of a text."""
    return tuple(line.strip() for line in (typed or "").splitlines() if line.strip())
