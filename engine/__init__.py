"""SpecScope's engine: one decoder, one runtime and one trace for every decoding method."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.cluster.open import open  # noqa: A004 - engine.open(...) is the front door
    from engine.cluster.session import Cluster
    from engine.drafting.suffix import Finished
    from engine.errors import SpecScopeError, UsageError
    from engine.run.serving import Load
    from engine.trace.record import record
    from engine.trace.watch import watch
    from engine.types import Limits, Sampling

__all__ = [
    "Cluster",
    "Finished",
    "Limits",
    "Load",
    "Sampling",
    "SpecScopeError",
    "UsageError",
    "open",
    "record",
    "watch",
]
_HOME = {
    "Cluster": "engine.cluster.session",
    "Finished": "engine.drafting.suffix",
    "Limits": "engine.types",
    "Load": "engine.run.serving",
    "Sampling": "engine.types",
    "SpecScopeError": "engine.errors",
    "UsageError": "engine.errors",
    "compare": "app.notebook.compare",
    "diff": "app.notebook.diff",
    "open": "engine.cluster.open",
    "record": "engine.trace.record",
    "sweep": "app.notebook.sweep",
    "watch": "engine.trace.watch",
}
"""Name -> module; `compare`, `sweep` and `diff` are doors to the app, see docs/decisions.md."""


def __getattr__(name: str) -> Any:
    """Import on first use: rows and errors can be read without waiting for torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
