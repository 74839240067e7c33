"""Tables as pandas data frames; pandas is imported when the first one is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specscope.engine.errors import UsageError

if TYPE_CHECKING:
    import pandas


def frame(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> pandas.DataFrame:
    """Return rows as a data frame; UsageError without pandas."""
    try:
        from pandas import DataFrame
    except ModuleNotFoundError:
        raise UsageError(
            "a frame needs pandas, which is not installed; install it: pip install pandas"
        ) from None
    return DataFrame([dict(zip(columns, row, strict=True)) for row in rows], columns=[*columns])
