"""All methods: importing this package imports, and so registers, every file of the folder."""

import importlib
import pkgutil

from specscope.engine.methods.registry import METHODS, Method, Setting, Situation, find

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")

BASELINE = next(method.key for method in METHODS.values() if method.baseline)

__all__ = ["BASELINE", "METHODS", "Method", "Setting", "Situation", "find"]
