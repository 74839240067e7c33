"""List the methods with their settings."""

from __future__ import annotations

import argparse

from app.cli.common import answer
from app.cli.options import JSON, add_options
from engine.methods import METHODS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, JSON)


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
                {
                    "name": s.name,
                    "type": s.type.__name__,
                    "default": s.default,
                    "doc": s.doc,
                    "low": s.low,
                    "high": s.high,
                    "choices": list(s.choices),
                    "auto": s.auto,
                    "lossy": list(s.lossy),
                }
                for s in m.settings()
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
