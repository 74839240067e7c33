"""A warning if other programs load the machine while runs are compared."""

from __future__ import annotations

import psutil

from specscope.engine.cluster.occupancy import processor_time
from specscope.engine.trace.events import TOO_BUSY
from specscope.engine.trace.load import ProcessorTime, used, used_by_others
from specscope.traces.facts.comparable import OtherLoad

__all__ = ["ProcessorTime", "busy_since", "busy_warning", "read_load"]


def read_load() -> ProcessorTime:
    """Return the processor time used until now, by all programs and by this one and its workers.

    On Linux workers that have ended count, too.
    """
    if (known := used()) is not None:
        return known
    me = psutil.Process()
    return processor_time((me, *me.children(recursive=True)))


def busy_warning(before: ProcessorTime, after: ProcessorTime, cores: int) -> str:
    used = used_by_others(before, after)
    if used is None or used < TOO_BUSY:
        return ""
    return (
        f"Other programs used {OtherLoad(used, cores).text} meanwhile: the times may be wrong. "
        "Run more passes, or close other programs."
    )


def busy_since(before: ProcessorTime) -> str:
    return busy_warning(before, read_load(), psutil.cpu_count() or 1)
