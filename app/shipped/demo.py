"""The traces of the race on the first page.

`python -m specscope.app.shipped.demo` records them again.

`assets/demo/demo.json` names the models (arguments of `specscope.open`), the prompt, the methods
and the sentence under each. Each run is a file of the format of docs/traces.md, packed with gzip.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import specscope
from specscope.app.shipped.packing import pack, unpack
from specscope.engine.trace.events import Header
from specscope.engine.types import Limits
from specscope.traces.facts.settings import models_text
from specscope.traces.judge.race import ONE_PASS
from specscope.traces.view.document import view_model
from specscope.traces.view.packed import packed

FOLDER = Path(__file__).parents[2] / "assets" / "demo"
MOST_BYTES = 300_000
"""Largest size of all files of the race."""


def plan() -> dict[str, Any]:
    return json.loads((FOLDER / "demo.json").read_text(encoding="utf-8"))


def files() -> list[Path]:
    return [FOLDER / f"{i}-{run['method']}.jsonl.gz" for i, run in enumerate(plan()["runs"])]


@cache
def demo_document() -> str:
    """Return the race as JSON: prompt, machine, a sentence per pane, and the viewer model."""
    found = plan()
    traces = [unpack(file) for file in files()]
    looks = [run["look"] for run in found["runs"]]
    shown = {"prompt": found["prompt"], "where": where(traces[-1].header), "looks": looks}
    return json.dumps({**shown, "model": packed(view_model(traces))}, allow_nan=False)


def where(header: Header) -> str:
    """Return the machine and the models of a measured race, and what its ranges mean."""
    facts = header.environment
    machine = f"{facts.get('host') or facts.get('processor')}, {facts.get('cores')} cores"
    return (
        f"{header.clock.capitalize()} on {machine}, with {models_text(header)}. In brackets: the speed-up if both "
        f"runs are up to {ONE_PASS:.0%} faster or slower when they are repeated."
    )


def record() -> None:
    """Run the methods and write their traces."""
    wanted = plan()
    limits = Limits(max_new_tokens=wanted["max_new_tokens"])
    with specscope.open(**wanted["open"]) as cluster:
        for i, (run, file) in enumerate(zip(wanted["runs"], files(), strict=True)):
            trace = cluster.run(run["method"], wanted["prompt"], config=run["config"], limits=limits)
            file.write_bytes(pack(trace, "demo", f"demo-{i}-{run['method']}"))
            sys.stdout.write(
                f"{file.name}: {trace.footer.status if trace.footer else '?'}, {file.stat().st_size:,} bytes\n"
            )


if __name__ == "__main__":
    record()
