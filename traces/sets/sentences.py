"""What the figures of a set say, in sentences; each names its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING

from specscope.engine.trace.events import Window
from specscope.traces.judge.health import of_windows
from specscope.traces.sets.figures import FEW, Z, by_time

if TYPE_CHECKING:
    from specscope.traces.sets.figures import Mean, SetPart, SetView
    from specscope.traces.sets.members import SetMember

APART = 0.02
"""Share of the pooled acceptance length from which on its difference to the mean is named."""
SURE = 5.0
"""Deviations from which on a difference of two bins is named: many pairs are looked at."""
ENOUGH = 5
"""Requests of a bin from which on their differences are known well."""
LEAST_CHANGE = 0.1
"""Share of the acceptance length that a named change has at least."""
POOLED = "The log and /metrics of vLLM, vllm bench serve, SpecForge and Spec-Bench print the pooled one"
MEANS = {
    "request": "AIPerf, and an average of what responses say, is the mean.",
    "iteration": "an average of TensorRT-LLM's acceptanceLength is the mean.",
}
"""Sources: docs/sets.md."""
AVERAGED = "an average of what was printed is the mean."


def sentences(view: SetView, members: Sequence[SetMember]) -> list[str]:
    """Return what a set's figures say, the most important first."""
    found = [
        _lengths(view),
        _both(view),
        _decay(view["prompts"]),
        _over_time(view, members),
        *_cautions(view),
    ]
    return [one for one in found if one]


def plural(n: int, noun: str) -> str:
    return f"{n:,} {noun if n == 1 else many(noun)}"


def many(noun: str) -> str:
    if noun.endswith("y"):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith("ch") else f"{noun}s"


def interval(figure: Mean) -> str:
    """Return a figure with its interval, if it is known."""
    if figure["value"] is None:
        return "unknown"
    if figure["low"] is None or figure["high"] is None:
        return f"{figure['value']:.2f}"
    return f"{figure['value']:.2f} ({figure['low']:.2f} to {figure['high']:.2f})"


def _lengths(view: SetView) -> str:
    whole = view["whole"]
    if whole["length"]["value"] is None:
        return "Nothing was drafted." if view["plain"] and not view["without"] else "No acceptance is known."
    rounds = "target forwards" if view["by_steps"] else "rounds"
    rate = "" if whole["rate"] is None else f", {100 * whole['rate']:.1f} % of the drafted tokens"
    return (
        f"{plural(whole['requests'], view['noun'])}, {whole['rounds']:,} {rounds}: acceptance length "
        f"{interval(whole['length'])}{rate}."
    )


def _both(view: SetView) -> str:
    """Return the pooled and the mean acceptance length, and who prints which, if they differ."""
    whole, noun = view["whole"], view["noun"]
    pooled, mean = whole["length"]["value"], whole["mean"]["value"]
    if pooled is None or mean is None or abs(mean - pooled) < APART * pooled:
        return ""
    who = f"{many(noun)} of few rounds accept {'more' if mean > pooled else 'less'}"
    return (
        f"Pooled {pooled:.2f}, mean of the {many(noun)} {mean:.2f}: {who}. {POOLED}; "
        f"{MEANS.get(noun, AVERAGED)}"
    )


def _decay(parts: Sequence[SetPart]) -> str:
    """Return that acceptance falls or rises with the length of the prompt; empty if it does not."""
    pairs = [(a, b) for i, a in enumerate(parts) for b in parts[i + 1 :] if _differ(a["length"], b["length"])]
    if not pairs:
        return ""
    well = [(a, b) for a, b in pairs if min(a["requests"], b["requests"]) >= ENOUGH]
    first, last = max(well or pairs, key=lambda pair: abs(_value(pair[1]) - _value(pair[0])))
    verb = "falls" if _value(last) < _value(first) else "rises"
    few = "" if well else "; so few requests may differ for other reasons"
    return (
        f"Acceptance {verb} with the length of the prompt: {_value(first):.2f} tokens per round with "
        f"{first['name']} prompt tokens ({plural(first['requests'], 'request')}), {_value(last):.2f} with "
        f"{last['name']} ({last['requests']:,}){few}."
    )


def _value(part: SetPart) -> float:
    return part["length"]["value"] or 0.0


def _differ(a: Mean, b: Mean) -> bool:
    """Return whether two figures differ by more than chance and by enough to matter."""
    errors = [
        (f["high"] - f["value"]) / Z if f["high"] is not None and f["value"] is not None else None
        for f in (a, b)
    ]
    if errors[0] is None or errors[1] is None or a["value"] is None or b["value"] is None:
        return False
    away = abs(a["value"] - b["value"])
    return away > SURE * sqrt(errors[0] ** 2 + errors[1] ** 2) and away >= LEAST_CHANGE * max(
        a["value"], b["value"]
    )


def _over_time(view: SetView, members: Sequence[SetMember]) -> str:
    """Return that nothing was accepted for a time, with its times; empty if nothing is suspect."""
    rows = by_time(members)
    if note := of_windows([_window(i, name, some) for i, (name, some) in enumerate(rows)]):
        return note
    least = 1 if view["noun"] == "window" else ENOUGH
    parts = [one for one in view["times"] if one["requests"] >= least]
    changes = [(a, b) for a, b in pairwise(parts) if _differ(a["length"], b["length"])]
    if not changes:
        return ""
    before, after = max(changes, key=lambda pair: abs(_value(pair[1]) - _value(pair[0])))
    verb = "fell" if _value(after) < _value(before) else "rose"
    return (
        f"The acceptance length {verb} from {_value(before):.2f} at {before['name']} to {_value(after):.2f} at "
        f"{after['name']}."
    )


def _window(number: int, name: str, members: Sequence[SetMember]) -> Window:
    def total(key: str) -> int | None:
        counts = [getattr(m, key) for m in members]
        return None if None in counts else sum(counts)

    counts = {key: total(key) for key in ("steps", "drafts", "drafted", "accepted", "tokens")}
    return Window(number, number + 1, "", name, places=(), busy=None, drafting=None, running=None, **counts)


def _cautions(view: SetView) -> list[str]:
    noun, least = view["noun"], view["longest"]
    found = {
        f"{_are(view['without'], noun)} without counts, and in no figure.": view["without"],
        f"{_are(view['plain'], noun)} without a draft, and in no figure of acceptance.": view["plain"]
        if view["whole"]["requests"]
        else 0,
        f"{plural(view['repeated'], noun)} repeat the prompt or the name of another; each counts.": view[
            "repeated"
        ],
        f"{_are(view['unfinished'], noun)} not finished: the counts are those up to now.": view["unfinished"],
        "Rounds are the target's forwards: how many of them verified a draft is not told.": view["by_steps"],
    }
    lengths = (
        [f"The longest drafts have {least[0]} to {least[1]} tokens: were all {many(noun)} of one setting?"]
        if least and least[0] != least[1] and "γ" not in view["setting"]["settings"]
        else []
    )
    n = view["whole"]["requests"]
    few = [f"{plural(n, noun)} say{'s' * (n == 1)} little of others."] if 0 < n < FEW else []
    return [text for text, is_so in found.items() if is_so] + lengths + few


def _are(n: int, noun: str) -> str:
    return f"{plural(n, noun)} {'is' if n == 1 else 'are'}"
