"""The viewer's document, one plain JSON value; each file makes one section of it.

The page draws the document and computes nothing from it but pixels. Times are milliseconds since
decoding began (the end of the last prefill), so runs share one axis and prefill has negative times.
A run in progress works, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

View = TypeVar("View")


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
