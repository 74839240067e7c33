"""List the methods with their settings."""

from __future__ import annotations

import argparse

from specscope.app.cli.common import answer
from specscope.app.cli.options import JSON
from specscope.engine.methods import METHODS

FIELDS = ("name", "type", "default", "doc", "low", "high", "choices", "auto", "lossy")
OPTIONS = (JSON,)


def run(args: argparse.Namespace) -> int:
    rows = [
        {
            "key": m.key,
            "title": m.title,
            "source": m.source,
            "summary": m.summary,
            "lossless": m.lossless(m.Config()),
            "head": m.layout(m.Config()).head or None,
            "settings": [
                {name: getattr(s, name) for name in FIELDS} | {"type": s.type.__name__} for s in m.settings()
            ],
        }
        for m in METHODS.values()
    ]
    lines = list[str]()
    for method in METHODS.values():
        lines.append(f"{method.key:20} {method.summary}")
        for s in method.settings():
            default = s.default if s.default != "" else '""'
            lines.append(f"{'':22}{s.name} = {default}: {s.doc}")
    return answer(args, {"methods": rows}, lines)
