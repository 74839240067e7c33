"""The steps of a server's answer, read from the events of its stream. Standard library only.

A step is one forward of the target, with the draft that it verified. What each server tells:

llama.cpp (`timings_per_token`): the counters `draft_n` and `draft_n_accepted` with every token, so
a step is known with its first token, and `accepted + 1` tokens belong to it.

vLLM: one event for each step, if none are merged under load; the last event has `per_step_drafted`
and `per_step_accepted` of the steps with a draft. Until then the draft length is unknown.

Others: texts and their times; what belongs to one step is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from specscope.engine.trace.ranges import LONGEST_DRAFT, MOST_TOKEN, NO_TOKEN

UNCOUNTED = (
    "The stream has no counts: vLLM sends them with --per-request-spec-decode-metrics, but not after a stop string, "
    "for n > 1 and where the stream is cut"
)
REASONS = {"length": "length", "limit": "length", "stop": "stop", "eos": "eos", "word": "stop"}


class Token(NamedTuple):
    """One token of the output."""

    id: int
    text: str
    p: float | None = None
    """The target's probability of it."""


class ServerStep(NamedTuple):
    """One step: a forward of the target that verified a draft, or decoded plainly."""

    time: int
    """When its tokens arrived, by `perf_counter_ns`."""
    tokens: tuple[Token, ...]
    accepted: int
    drafted: int | None
    """None while unknown."""


@dataclass
class Told:
    """What a server told of one answer besides its steps."""

    prompt: tuple[int, ...] = ()
    model: str = ""
    reason: str = ""
    tokens: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    longest: int | None = None
    """The most tokens of a draft, as the server is set up."""
    drawn: bool = False
    """Whether p is that after temperature, top-k and top-p; else it is that before them."""
    disordered: bool = False
    """Whether the draft length of a step is one of several that fit."""
    why: str = ""
    """Why it told no counts; empty if it did."""


class Answered(NamedTuple):
    """A request: when it was sent, and its answer so far."""

    begun: int
    """By `perf_counter_ns`."""
    steps: list[ServerStep]
    told: Told


class Reader(Protocol):
    """Reads one answer, event by event."""

    told: Told

    def add(self, time: int, event: dict[str, Any]) -> list[ServerStep]:
        """Return the steps that an event completes."""
        ...

    def end(self) -> list[ServerStep]:
        """Return the steps that the end completes."""
        ...

    def final(self, steps: Sequence[ServerStep]) -> list[ServerStep]:
        """Return the steps as the end of the answer shows them."""
        ...


class LlamaReader:
    """Of llama.cpp: `/completion`, or its chat route, which names no ids."""

    def __init__(self) -> None:
        self.told = Told()
        self._seen = (0, 0)
        self._open: list[Token] = []
        self._missing = 0
        self._step = ServerStep(0, (), 0, 0)

    def add(self, time: int, event: dict[str, Any]) -> list[ServerStep]:
        timings = _object(event.get("timings"))
        found = [*self._choice(event), *self._completion(event)]
        self._tell(event, timings)
        steps: list[ServerStep] = []
        for token in found:
            if not self._missing:
                self._begin(time, timings)
            self._open.append(token)
            self._missing -= 1
            if not self._missing:
                steps += self._close()
        return steps

    def _begin(self, time: int, timings: dict[str, Any]) -> None:
        """Begin a step; one of more tokens than any draft has is cut, and the totals differ."""
        counters = _count(timings, "draft_n"), _count(timings, "draft_n_accepted")
        drafted, accepted = (
            min(LONGEST_DRAFT, max(0, new - old)) for new, old in zip(counters, self._seen, strict=True)
        )
        self._seen = counters
        self._step = ServerStep(time, (), accepted, max(drafted, accepted) if timings else None)
        self._missing = accepted + 1

    def _close(self) -> list[ServerStep]:
        tokens, self._open, self._missing = tuple(self._open), [], 0
        return [self._step._replace(tokens=tokens)] if tokens else []

    def end(self) -> list[ServerStep]:
        return self._close()

    def final(self, steps: Sequence[ServerStep]) -> list[ServerStep]:
        return [*steps]

    def _completion(self, event: dict[str, Any]) -> list[Token]:
        text = _words(event.get("content"))
        ids = [*map(_id, _list(event.get("tokens")))] or [NO_TOKEN] * bool(text)  # old ones tell none
        texts = [""] * (len(ids) - 1) + [text]
        rows = [*map(_object, _list(event.get("completion_probabilities")))]
        if len(rows) != len(ids):  # verified tokens have none
            return [Token(i, text) for i, text in zip(ids, texts, strict=False)]
        self.told.drawn = self.told.drawn or any("prob" in row for row in rows)
        chances = [_share(row["prob"]) if "prob" in row else _chance(row.get("logprob")) for row in rows]
        return [*map(Token, ids, texts, chances)]

    def _choice(self, event: dict[str, Any]) -> list[Token]:
        """Return the token of an event of the chat route: each event is one token."""
        choice = _first(event.get("choices"))
        if reason := choice.get("finish_reason"):
            self.told.reason = REASONS.get(str(reason), "")
        words = _text_of(choice)
        return [Token(NO_TOKEN, words)] if words else []

    def _tell(self, event: dict[str, Any], timings: dict[str, Any]) -> None:
        told = self.told
        told.model = _text(event, "model") or told.model
        if event.get("stop") is True:
            told.reason = REASONS.get(_text(event, "stop_type"), "")
        if timings:
            told.tokens = _count(timings, "predicted_n")
            told.drafted, told.accepted = _count(timings, "draft_n"), _count(timings, "draft_n_accepted")


class VllmReader:
    """Of vLLM: `/v1/completions` or `/v1/chat/completions`, with `return_token_ids`.

    `longest` is 0 if the server drafts nothing or counts no drafts; each token is then a step.
    """

    def __init__(self, longest: int | None = None) -> None:
        self.told = Told(longest=longest)
        self._counts: dict[str, Any] = {}
        self._first = True

    def add(self, time: int, event: dict[str, Any]) -> list[ServerStep]:
        told, choice = self.told, _first(event.get("choices"))
        told.model = _text(event, "model") or told.model
        for holder in (event, choice):
            if ids := _list(holder.get("prompt_token_ids")):
                told.prompt = tuple(map(_id, ids))
        if reason := choice.get("finish_reason"):
            told.reason = REASONS.get(str(reason), "")
        if usage := _object(event.get("usage")):
            told.tokens = _count(usage, "completion_tokens")
        if "metrics" in event:
            self._totals(_object(event["metrics"]))
        tokens, steps = self._tokens(choice), list[ServerStep]()
        if self._first and tokens:  # the prompt's forward made one token; more are merged
            steps.append(ServerStep(time, tokens[:1], 0, 0))
            self._first, tokens = False, tokens[1:]
        plain = told.longest == 0
        size = 1 if plain else LONGEST_DRAFT + 1
        parts = (tokens[at : at + size] for at in range(0, len(tokens), size))
        return steps + [ServerStep(time, part, len(part) - 1, 0 if plain else None) for part in parts]

    def _tokens(self, choice: dict[str, Any]) -> tuple[Token, ...]:
        ids = [*map(_id, _list(choice.get("token_ids")))]
        words = _text_of(choice)
        chances = chances_of(_object(choice.get("logprobs")))
        if not ids:
            return (Token(NO_TOKEN, words),) if words else ()
        known = len(chances) == len(ids)
        texts = [text for text, _ in chances] if known else [""] * (len(ids) - 1) + [words]
        if "".join(texts) != words:  # half characters, or a stop string that is held back
            texts = [""] * (len(ids) - 1) + [words]
        return tuple(Token(ids[i], texts[i], chances[i][1] if known else None) for i in range(len(ids)))

    def _totals(self, metrics: dict[str, Any]) -> None:
        told, counts = self.told, _object(metrics.get("speculative_decoding"))
        if counts:
            told.drafted = _count(counts, "num_draft_tokens")
            told.accepted = _count(counts, "num_accepted_draft_tokens")
            told.longest = min(LONGEST_DRAFT, _count(counts, "num_spec_tokens")) or told.longest
            self._counts = counts

    def end(self) -> list[ServerStep]:
        return []

    def final(self, steps: Sequence[ServerStep]) -> list[ServerStep]:
        """Return the steps of the last event's arrays, at the times of their tokens.

        The arrays leave out steps without a draft: if events and arrays fit nowhere together, the
        steps stay as they arrived.
        """
        if not self._counts and self.told.longest != 0:
            self.told.why = UNCOUNTED
        drafted = [*map(int, filter(_is_count, _list(self._counts.get("per_step_drafted"))))]
        accepted = [*map(int, filter(_is_count, _list(self._counts.get("per_step_accepted"))))]
        if not steps or not drafted or len(drafted) != len(accepted):
            return [*steps]
        found, self.told.disordered = _aligned(steps, list(zip(drafted, accepted, strict=True)))
        return found


def _aligned(steps: Sequence[ServerStep], counts: Sequence[tuple[int, int]]) -> tuple[list[ServerStep], bool]:
    """Return steps of these (drafted, accepted), in order, with the tokens and times of `steps`.

    The first step is the prompt's. Events of several steps may be merged, so tokens are counted,
    not events; a step without a draft, which the counts leave out, is one event of one token. The
    second value is whether such steps could also be others.
    """
    tokens = [(token, step.time) for step in steps for token in step.tokens]
    ends = {0, *accumulate(len(step.tokens) for step in steps)}
    found, at, number = [steps[0]._replace(tokens=steps[0].tokens[:1], accepted=0, drafted=0)], 1, 0
    spare = len(tokens) - 1 - sum(accepted + 1 for _, accepted in counts)
    disordered = spare > 0
    while at < len(tokens):
        drafted, accepted = counts[number] if number < len(counts) else (0, 0)
        whole = min(len(tokens), at + accepted + 1)
        alone = at + 1 in ends and at in ends
        if spare > 0 and alone and (number >= len(counts) or accepted or whole not in ends):
            drafted, accepted, whole, spare = 0, 0, at + 1, spare - 1
        elif number < len(counts):
            number += 1
        part = tokens[at:whole]
        found.append(ServerStep(part[-1][1], tuple(token for token, _ in part), accepted, drafted))
        at = whole
    return (found, disordered) if number == len(counts) else ([*steps], False)


def chances_of(logprobs: dict[str, Any]) -> list[tuple[str, float | None]]:
    """Return text and probability of each token, from the form of chats or of completions."""
    if content := _list(logprobs.get("content")):
        rows = [(_text(_object(one), "token"), _object(one).get("logprob")) for one in content]
    else:
        rows = list(
            zip(
                map(_words, _list(logprobs.get("tokens"))),
                _list(logprobs.get("token_logprobs")),
                strict=False,
            )
        )
    return [(text, _chance(value)) for text, value in rows]


def _chance(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and value <= 1e-3
    return min(1.0, math.exp(max(-700.0, value))) if known else None


def _share(value: Any) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1 + 1e-3
    return min(1.0, value) if known else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _first(value: Any) -> dict[str, Any]:
    """Return the first of several choices: one is asked for."""
    return next((row for row in map(_object, _list(value)) if row.get("index") in (None, 0)), {})


def _words(value: Any) -> str:
    """Return a text; half of a character, which no file can hold, is replaced."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _text_of(choice: dict[str, Any]) -> str:
    """Return the text that a choice adds to the thoughts, which have two names, or the answer."""
    delta = _object(choice.get("delta"))
    thought = _words(delta.get("reasoning_content")) or _words(delta.get("reasoning"))
    return thought + (_words(delta.get("content")) or _words(choice.get("text")))


def _text(row: dict[str, Any], name: str) -> str:
    return _words(row.get(name))[:200]


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LONGEST_DRAFT


def _count(row: dict[str, Any], name: str) -> int:
    value = row.get(name)
    return value if type(value) is int and 0 <= value < 2**53 else 0


def _id(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= MOST_TOKEN else NO_TOKEN
