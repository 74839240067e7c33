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
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.engine.trace.trace import Trace

View = TypeVar("View")
Maker = TypeVar("Maker", bound=Callable[..., Any])
Rows: TypeAlias = Literal["rounds", "spans", "all", "sums"]
"""Which rows a section needs, in the order of the names: those of a range of rounds; all spans and
rounds; all rows; all rows, because it sums them."""


class Section(NamedTuple):
    """What the viewer draws of a run in one view."""

    title: str
    """Its name in the note about a fault."""
    make: Callable[[Trace], Any]
    one: bool
    """Whether it is one value or null, not a list."""
    need: Rows
    """The rows that it is made of. A section of a range of rounds is a list."""
    secret: bool
    """Whether it tells texts of the prompt: empty if these are redacted."""
    tokens: Callable[[Any], Iterable[int]]
    """The token ids whose texts it needs."""

    def of(self, trace: Trace, known: Rows, *, redacted: bool) -> Any:
        """Return the section of a trace with the `known` rows; empty if it needs others."""
        if (redacted and self.secret) or known not in ("all", self.need):
            return self.empty()
        return self.make(trace)

    def empty(self) -> Any:
        return None if self.one else []


_SECTIONS: dict[str, Section] = {}


def section(
    name: str,
    title: str,
    *,
    one: bool = False,
    need: Rows = "rounds",
    secret: bool = False,
    tokens: Callable[[Any], Iterable[int]] = lambda _: (),
) -> Callable[[Maker], Maker]:
    """Make a function the section `name` of the document; for the others see `Section`."""
    if one and need == "rounds":
        raise ValueError(f"section {name} is one value of a whole run: need must be spans, all or sums")

    def declare(make: Maker) -> Maker:
        _SECTIONS[name] = Section(title, make, one, need, secret, tokens)
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
