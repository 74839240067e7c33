"""Sets, and each compared with the first that drafts nothing, else with the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from specscope.traces.sets.figures import SetView, part_of, split, view_of
from specscope.traces.sets.members import SetMember
from specscope.traces.sets.sentences import interval, plural, sentences

MOST_SETS = 8
"""Sets that are shown; more settings than these are no sets but single runs."""


class Against(TypedDict):
    """Two sets, by what is in both of them."""

    name: str
    requests: int
    speedup: float | None
    """Ratio of all tokens / all seconds."""
    mean_speedup: float | None
    """Ratio of the mean tokens/s of the requests, as Spec-Bench and EAGLE print it."""
    length: float | None
    baseline_length: float | None


class ComparedView(TypedDict):
    """A set compared with another."""

    name: str
    baseline: str
    whole: Against
    categories: list[Against]
    sentences: list[str]


class ToldSet(SetView):
    """A set with its sentences."""

    sentences: list[str]


class SetsView(TypedDict):
    """The sets of some runs."""

    sets: list[ToldSet]
    left_out: int
    """Settings beyond `MOST_SETS`."""
    note: str
    """What differs where there are several settings; else empty."""
    compared: list[ComparedView]


def sets_of(groups: Sequence[Sequence[SetMember]]) -> SetsView:
    """Return the sets of groups of members, each split where settings differ."""
    found = [
        (f"{number}: {name}" if len(groups) > 1 else name, members)
        for number, group in enumerate(groups, 1)
        # a run may be named twice: by its id, and by its set
        for name, members in split([*{(m.run, m.part): m for m in group}.values()])
    ]
    shown = found[:MOST_SETS]
    views: list[ToldSet] = []
    for name, members in shown:
        view = view_of(name, members)
        views.append({**view, "sentences": sentences(view, members)})
    return {
        "sets": views,
        "left_out": len(found) - len(shown),
        "note": _mixed([name for name, _ in found]) if len(found) > len(groups) else "",
        "compared": _compared(shown),
    }


def _mixed(names: Sequence[str]) -> str:
    return f"{plural(len(names), 'setting')} are mixed; they are not pooled: each is a set of its own."


def _compared(sets: Sequence[tuple[str, list[SetMember]]]) -> list[ComparedView]:
    if len(sets) < 2:
        return []
    baseline = next((one for one in sets if all(m.drafted == 0 for m in one[1])), sets[0])
    return [
        _against(one, baseline)
        for one in sets
        if one is not baseline and one[1][0].noun == baseline[1][0].noun
    ]


def _against(one: tuple[str, list[SetMember]], baseline: tuple[str, list[SetMember]]) -> ComparedView:
    mine, theirs, note = _common(one[1], baseline[1])
    whole = _ratio("all", mine, theirs)
    names = sorted({m.category for m in mine} & {m.category for m in theirs} - {""})
    by_name = [
        (name, *([m for m in some if m.category == name] for some in (mine, theirs))) for name in names
    ]
    categories = [_ratio(*row) for row in by_name] if len(names) > 1 else []
    texts = [
        _faster(whole, categories),
        _printed(whole),
        _step(mine, theirs),
        _accepts(mine, theirs, baseline[0]),
        note,
    ]
    return {
        "name": one[0],
        "baseline": baseline[0],
        "whole": whole,
        "categories": categories,
        "sentences": [text for text in texts if text],
    }


def _common(mine: list[SetMember], theirs: list[SetMember]) -> tuple[list[SetMember], list[SetMember], str]:
    """Return the members of the same prompts or names, if both sets tell these; else all."""
    known = [{m.same for m in some if m.same is not None} for some in (mine, theirs)]
    if any(m.same is None for m in (*mine, *theirs)):
        return mine, theirs, "That both had the same prompts is not known."
    both = known[0] & known[1]
    if not both:
        return mine, theirs, "They have no prompt in common."
    found = [[m for m in some if m.same in both] for some in (mine, theirs)]
    left = len(mine) + len(theirs) - len(found[0]) - len(found[1])
    return found[0], found[1], f"{plural(left, 'request')} of only one of them left out." if left else ""


def _ratio(name: str, mine: Sequence[SetMember], theirs: Sequence[SetMember]) -> Against:
    a, b = part_of(name, mine, steps=_stepped(mine)), part_of(name, theirs, steps=_stepped(theirs))
    return {
        "name": name,
        "requests": len(mine),
        "speedup": a["speed"] / b["speed"] if a["speed"] and b["speed"] else None,
        "mean_speedup": a["mean_speed"] / b["mean_speed"] if a["mean_speed"] and b["mean_speed"] else None,
        "length": a["length"]["value"],
        "baseline_length": b["length"]["value"],
    }


def _stepped(members: Sequence[SetMember]) -> bool:
    return any(m.drafts is None for m in members)


def _faster(whole: Against, categories: Sequence[Against]) -> str:
    if whole["speedup"] is None:
        return ""
    known = sorted((one["speedup"], one["name"]) for one in categories if one["speedup"])
    ends = f": {known[0][1]} {known[0][0]:.2f}×, {known[-1][1]} {known[-1][0]:.2f}×" if len(known) > 1 else ""
    return f"{whole['speedup']:.2f}× over {plural(whole['requests'], 'request')}{ends}."


def _printed(whole: Against) -> str:
    pooled, mean = whole["speedup"], whole["mean_speedup"]
    if pooled is None or mean is None or round(pooled, 2) == round(mean, 2):
        return ""
    return f"By the mean of each request's tokens/s, which Spec-Bench and EAGLE print, it is {mean:.2f}×."


def _step(mine: Sequence[SetMember], theirs: Sequence[SetMember]) -> str:
    """Return what a step costs in steps of the other set, and what it brings."""
    costs: list[float] = []
    for some in (mine, theirs):
        known = [m for m in some if m.seconds and m.steps]
        if len(known) < len(some) or any(m.clock == "utc" for m in some):
            return ""
        costs.append(sum(m.seconds or 0.0 for m in known) / sum(m.steps or 0 for m in known))
    brings = [sum(m.tokens or 0 for m in some) / sum(m.steps or 0 for m in some) for some in (mine, theirs)]
    return (
        f"A step takes {costs[0] / costs[1]:.1f} of the other's ({1e3 * costs[0]:.3g} against {1e3 * costs[1]:.3g} ms) and "
        f"brings {brings[0]:.1f} tokens against {brings[1]:.1f}."
    )


def _accepts(mine: Sequence[SetMember], theirs: Sequence[SetMember], name: str) -> str:
    """Return the acceptance lengths of two sets that both draft."""
    parts = [part_of("", some, steps=_stepped(some)) for some in (mine, theirs)]
    a, b = (part["length"] for part in parts)
    if a["value"] is None or b["value"] is None:
        return ""
    ends = [a["low"], a["high"], b["low"], b["high"]]
    one = None not in ends and (a["low"] or 0) <= (b["high"] or 0) and (b["low"] or 0) <= (a["high"] or 0)
    doubt = "; the intervals overlap" if one else ""
    return f"Acceptance length {interval(a)} against {interval(b)} of {name}{doubt}."
