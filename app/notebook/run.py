"""How a trace shows itself, and its rows as a data frame; `engine.trace.trace` opens this door."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specscope.app.render import shown
from specscope.app.render.table import frame
from specscope.traces.export.tables import Table, rows_of

if TYPE_CHECKING:
    import pandas

    from specscope.engine.trace.trace import Trace


def html(trace: Trace) -> str:
    """Return a trace as HTML: its figures and the viewer."""
    return shown.run_output(trace)


def data_frame(trace: Trace, table: Table) -> pandas.DataFrame:
    """Return one table of a trace with the columns of its CSV export; UsageError: no such table."""
    columns, *rows = rows_of(trace, table)
    return frame(columns, rows)
