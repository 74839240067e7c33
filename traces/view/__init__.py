"""The viewer's document, one plain JSON value; each file makes a section of it, found by `section`.

The page draws the document and computes nothing from it but pixels. Times are milliseconds since
decoding began (the end of the last prefill), so runs share one axis and prefill has negative times.
A run in progress works, too.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from specscope.traces.facts.waiting import WHOLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.engine.trace.trace import Trace
    from specscope.traces.facts.waiting import Around

View = TypeVar("View")
Maker = TypeVar("Maker", bound=Callable[..., Any])


class Section(NamedTuple):
    """What the viewer draws of a run in one view."""

    title: str
    """Its name in the note about a fault."""
    make: Callable[..., Any]
    """Takes the trace, and `around` if it has this parameter."""
    one: bool
    """Whether it is one value or null, not a list."""
    whole: bool
    """Whether it needs the whole run: empty for a part."""
    timed: bool
    """Whether its rows have a time `t`, by which they are cut to a part."""
    secret: bool
    """Whether it tells texts of the prompt: empty if these are redacted."""
    tokens: Callable[[Any], Iterable[int]]
    """The token ids whose texts it needs."""

    def of(self, trace: Trace, around: Around, *, redacted: bool) -> Any:
        if (redacted and self.secret) or (self.whole and around is not WHOLE):
            return self.empty()
        return self.make(trace, *[around] * ("around" in signature(self.make).parameters))

    def empty(self) -> Any:
        return None if self.one else []


_SECTIONS: dict[str, Section] = {}


def section(
    name: str,
    title: str,
    *,
    one: bool = False,
    whole: bool = False,
    timed: bool = False,
    secret: bool = False,
    tokens: Callable[[Any], Iterable[int]] = lambda _: (),
) -> Callable[[Maker], Maker]:
    """Make a function the section `name` of the document; for the others see `Section`."""

    def declare(make: Maker) -> Maker:
        _SECTIONS[name] = Section(title, make, one, whole, timed, secret, tokens)
        return make

    return declare


@cache
def all_sections() -> dict[str, Section]:
    """Return the sections of all files of this folder, by name."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return dict(sorted(_SECTIONS.items()))


def row_of(view: type[View], row: object, **others: Any) -> View:
    """Return a view's fields: `others`, and those of the same name of an event."""
    return cast(
        "View",
        {name: others[name] if name in others else getattr(row, name) for name in view.__annotations__},
    )


def columns_of(view: type[View], rows: Sequence[object], **others: Any) -> View:
    """Return a view's columns: `others`, and the fields of the same name of events."""
    known = {
        name: [getattr(row, name) for row in rows] for name in view.__annotations__ if name not in others
    }
    return cast("View", {name: others.get(name, known.get(name)) for name in view.__annotations__})
