"""List the methods with their settings."""

from __future__ import annotations

import argparse

from app.cli.common import add_json, print_json
from engine.methods import METHODS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


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
    if args.json:
        print_json({"methods": rows})
        return 0
    for row in rows:
        print(f"{row['key']:20} {row['summary']}")
        for s in row["settings"]:
            default = s["default"] if s["default"] != "" else '""'
            print(f"{'':22}{s['name']} = {default}: {s['doc']}")
    return 0
