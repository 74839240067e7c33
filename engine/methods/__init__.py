"""All methods. Importing this package registers every file in its folder."""

import importlib
import pkgutil

from engine.methods.registry import METHODS, Method, Setting, find

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")

BASELINE = next(method.key for method in METHODS.values() if method.baseline)
"""The method that speed-ups are taken over."""

__all__ = ["BASELINE", "METHODS", "Method", "Setting", "find"]
