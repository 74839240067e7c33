"""`specscope.diff`: the difference of two runs, as `specscope diff` and the page show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specscope.app.render import shown
from specscope.app.render.analysis import difference
from specscope.app.render.html import app_page, name_of
from specscope.app.render.table import frame
from specscope.engine.errors import named_arguments
from specscope.engine.trace.trace import Trace
from specscope.traces.judge import diff as differences

if TYPE_CHECKING:
    import pandas

HEIGHT = 560


@dataclass(frozen=True, slots=True, repr=False)
class Difference:
    """Two runs and their difference."""

    first: Trace
    second: Trace
    found: differences.Diff

    @property
    def names(self) -> tuple[str, str]:
        headers = (self.first.header, self.second.header)
        titles = [name_of(h) for h in headers]
        if titles[0] == titles[1]:
            titles = [f"{title} (run {h.run_id})" for title, h in zip(titles, headers, strict=True)]
        return titles[0], titles[1]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of `specscope diff`."""
        return self.found.to_dict()

    def frame(self) -> pandas.DataFrame:
        """Return a row per device and kind of work or wait; docs/notebook.md has the columns."""
        columns = (
            "role",
            "first_device",
            "second_device",
            "what",
            "wait",
            "first_ms",
            "second_ms",
            "change_ms",
        )
        rows = [
            (w.role, *w.devices, s.what, s.wait, s.first / 1e6, s.second / 1e6, s.change / 1e6)
            for w in self.found.waterfalls
            for s in w.steps
        ]
        return frame(columns, rows)

    def __repr__(self) -> str:
        first, second = self.names
        time, longer = abs(self.found.difference) / 1e6, self.found.difference > 0
        return f"Difference({second} decoded {time:,.1f} ms {'longer' if longer else 'shorter'} than {first})"

    def _repr_html_(self) -> str:
        line = f"{self.names[1]} beside {self.names[0]}"
        times = [[name, f"{t / 1e6:,.1f}"] for name, t in zip(self.names, self.found.decode, strict=True)]
        times.append(["difference", f"{self.found.difference / 1e6:+,.1f}"])
        page = app_page(line, difference(self.found, self.names, drawn=False))
        table = shown.figures_table(["run", "decoding, ms"], times)
        return shown.framed(page, line, table, HEIGHT)


@named_arguments
def diff(first: Trace, second: Trace) -> Difference:
    """Return the difference of two runs; UsageError if one is in progress or has no times."""
    return Difference(first, second, differences.diff(first, second))
