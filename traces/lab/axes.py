"""Axes of a sweep: a numeric field of a method's Config, its drafter, or the rate of its drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from specscope.engine.checkpoints.forms import model_name
from specscope.engine.errors import UsageError, shown
from specscope.engine.methods import METHODS, Setting

if TYPE_CHECKING:
    from specscope.engine.methods import Method

ACCEPTANCE = "acceptance_rate"
"""Name of the axis whose values are acceptance rates: drafts are scripted, no model decodes."""
RATE = Setting("acceptance rate", float, 0.5, "", 0.0, 1.0, (), "")
DRAFTER = "drafter"
"""Name of the axis whose values are drafters: `int4`, `int8`, `USUAL`, or a model's path."""
USUAL = "usual"
"""The drafter of the models that decode: the pair's own, or the one that was named."""
Value: TypeAlias = float | str
MOST_CELLS = 60
_CHAINS = frozenset({"gamma", "lookahead"})
"""Fields that are the length of a chain of drafts."""


class Axis(NamedTuple):
    """One axis of a sweep."""

    name: str
    values: tuple[Value, ...]

    @property
    def title(self) -> str:
        return self.name.replace("_", " ")

    @property
    def scripted(self) -> bool:
        return self.name == ACCEPTANCE

    @property
    def drafters(self) -> bool:
        return self.name == DRAFTER

    @property
    def ordered(self) -> list[Value]:
        """The values: numbers from the smallest on, drafters as they were named."""
        numbers = [value for value in self.values if not isinstance(value, str)]
        return [*sorted(numbers)] or [*self.values]


def value_text(value: Value) -> str:
    return model_name(value) if isinstance(value, str) else f"{value:g}"


def numeric(method: Method) -> list[Setting]:
    return [s for s in method.settings() if s.type in (int, float)]


def sweepable() -> list[str]:
    return [key for key, method in METHODS.items() if numeric(method)]


def can_be_scripted(method: Method) -> bool:
    """Return whether drafts of a given acceptance rate can replace the method's drafter.

    The drafts are a drafter's chains, or a block's. Other heads, copies, pools and batches need
    real text.
    """
    chain = any(s.name in _CHAINS for s in numeric(method))
    return chain and (has_drafter(method) or drafts_at_once(method)) and not method.batched


def drafts_at_once(method: Method) -> bool:
    """Return whether a head drafts all levels in one forward."""
    return method.layout(method.configure({})).at_once


def has_drafter(method: Method) -> bool:
    return method.layout(method.configure({})).needs_drafter


def names_of(method: Method) -> list[str]:
    names = [s.name for s in numeric(method)]
    names += [ACCEPTANCE] if can_be_scripted(method) else []
    return names + ([DRAFTER] if has_drafter(method) else [])


def axis(method: Method, name: str, text: str) -> Axis:
    """Return an axis from its values as text, see `numbers`; drafters are names with commas."""
    found = Axis(name, ())
    if name == ACCEPTANCE:
        found = found._replace(values=numbers(text, RATE))
    elif name == DRAFTER:
        found = found._replace(values=tuple(dict.fromkeys(filter(None, map(str.strip, text.split(","))))))
    else:
        field = next((s for s in numeric(method) if s.name == name), None)
        if field is not None:
            found = found._replace(values=numbers(text, field))
    check_axis(method, found)
    return found


def check_axis(method: Method, given: Axis) -> None:
    """Raise UsageError for an unknown axis, or a value that is missing or out of range."""
    names = names_of(method)
    if given.name not in names:
        known = f"it has {', '.join(names)}" if names else f"choose one of {', '.join(sweepable())}"
        raise UsageError(f"{method.key} has no sweep over {shown(given.name)}; {known}")
    if not given.values:
        example = "int4, int8" if given.drafters else "1-4, 8"
        raise UsageError(f"the sweep over {given.name} has no values; write for example {example}")
    for value in given.values:
        if given.scripted:
            RATE.parse(value)
        elif not given.drafters:
            method.configure({given.name: value})


def numbers(text: str, field: Setting) -> tuple[float, ...]:
    """Return the numbers of `1-4, 8` or `1:4,8`; with fractions, of `0.1:0.5:0.1, 0.9`."""
    whole = field.type is int
    found = list[float]()
    for part in filter(None, map(str.strip, text.split(","))):
        try:
            first, *rest = map(field.type, (part.replace("-", ":") if whole else part).split(":"))
        except (ValueError, OverflowError):
            raise UsageError(f"{shown(part)} is no {_forms(whole)}") from None
        if len(rest) > 2 or (rest and not whole and len(rest) < 2):
            raise UsageError(f"{shown(part)} is no {_forms(whole)}: a range has its step")
        last, step = (*rest, 1)[:2] if rest else (first, 1)
        for end in (first, last):
            field.parse(end)
        if not (first <= last and step > 0):
            raise UsageError(
                f"the range {shown(part)} of {field.name} does not rise; {field.name} must be {field.allowed}"
            )
        steps = (last - first) / step
        if steps >= MOST_CELLS:
            raise UsageError(f"the range {shown(part)} has more than {MOST_CELLS} values; give a longer step")
        values = (first + i * step for i in range(int(steps + 1e-9) + 1))
        found += values if whole else (round(value, 12) for value in values)
    return tuple(dict.fromkeys(found))


def _forms(whole: bool) -> str:
    if whole:
        return "whole number or range; write for example 1-4, 8"
    return "number or range; write for example 0.1, 0.5 or 0.1:0.5:0.1"
