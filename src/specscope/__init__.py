"""SpecScope: every speculative-decoding method on one engine, and what each step of it did.

These are the public names; `engine`, `traces`, `app` and `assets` beside this file are links to the
folders at the top of the repository (an installed package holds the folders themselves).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specscope.app.notebook.compare import compare
    from specscope.app.notebook.diff import diff
    from specscope.app.notebook.sweep import sweep
    from specscope.engine.cluster.open import open  # noqa: A004 - specscope.open(...) is the front door
    from specscope.engine.cluster.session import Cluster
    from specscope.engine.drafting.suffix import Finished
    from specscope.engine.errors import SpecScopeError, UsageError
    from specscope.engine.run.serving import Load
    from specscope.engine.servers.session import connect
    from specscope.engine.trace.record import record
    from specscope.engine.trace.watch import watch
    from specscope.engine.types import Limits, Sampling

__all__ = [
    "Cluster",
    "Finished",
    "Limits",
    "Load",
    "Sampling",
    "SpecScopeError",
    "UsageError",
    "compare",
    "connect",
    "diff",
    "open",
    "record",
    "sweep",
    "watch",
]
_HOME = {
    "Cluster": "specscope.engine.cluster.session",
    "Finished": "specscope.engine.drafting.suffix",
    "Limits": "specscope.engine.types",
    "Load": "specscope.engine.run.serving",
    "Sampling": "specscope.engine.types",
    "SpecScopeError": "specscope.engine.errors",
    "UsageError": "specscope.engine.errors",
    "compare": "specscope.app.notebook.compare",
    "connect": "specscope.engine.servers.session",
    "diff": "specscope.app.notebook.diff",
    "open": "specscope.engine.cluster.open",
    "record": "specscope.engine.trace.record",
    "sweep": "specscope.app.notebook.sweep",
    "watch": "specscope.engine.trace.watch",
}
"""Name -> module."""


def __getattr__(name: str) -> Any:
    """Import on first use: rows and errors can be read without waiting for torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'specscope' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
