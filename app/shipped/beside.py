"""The History's example: transformers' own assisted generation beside SpecScope's methods.

`python -m specscope.app.shipped.beside` records it again: the call of docs/examples/assisted.py,
watched, and the methods of `assets/examples/beside/beside.json` with the same models, prompt and
draft length.
"""

from __future__ import annotations

import json
import runpy
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specscope.app.shipped.packing import pack, unpack

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace
    from specscope.traces.database.store import Store

ROOT = Path(__file__).resolve().parents[2]  # of the checkout, not of the package
FOLDER = ROOT / "assets" / "examples" / "beside"
MOST_BYTES = 200_000
"""Largest size of all files of the example."""
GROUP = "example"


def plan() -> dict[str, Any]:
    return json.loads((FOLDER / "beside.json").read_text(encoding="utf-8"))


def files() -> list[Path]:
    """Return the files: the watched call first, then the methods in their order."""
    return [FOLDER / f"{i}-{name}.jsonl.gz" for i, name in enumerate(("transformers", *plan()["methods"]))]


def keep(store: Store) -> list[str]:
    """Store the runs of the example that are not stored yet; return the ids of all."""
    traces = [unpack(file) for file in files()]
    store.insert_missing(*traces)
    return [trace.header.run_id for trace in traces]


def record() -> None:
    """Record the three runs, whose tokens must be the same, and write their files."""
    from specscope.traces.facts.comparable import other_load

    traces = [_watched(), *_run_methods()]
    if any(trace.token_ids() != traces[0].token_ids() for trace in traces):
        raise SystemExit("the texts differ; no file was changed")
    for trace, file in zip(traces, files(), strict=True):
        file.write_bytes(pack(trace, GROUP))
        load = other_load(trace)
        busy = f", {load.warning}" if load and load.warning else ""
        sys.stdout.write(f"{file.name}: {trace.status}, {file.stat().st_size:,} bytes{busy}\n")


def _watched() -> Trace:
    """Return the trace of the second of two calls on one core: the first one warms torch up."""
    import torch

    from specscope.traces.imports.reading import read_traces

    wanted = plan()
    torch.set_num_threads(1)
    generate = runpy.run_path(str(ROOT / "docs" / "examples" / "assisted.py"))["generate"]
    with tempfile.TemporaryDirectory() as folder:
        for path in (f"{folder}/first.jsonl", f"{folder}/second.jsonl"):
            generate(path, wanted["prompt"], wanted["config"]["gamma"], wanted["max_new_tokens"])
        return read_traces(path).traces[0]


def _run_methods() -> list[Trace]:
    import specscope
    from specscope.engine.types import Limits

    wanted = plan()
    settings = {"config": wanted["config"], "limits": Limits(max_new_tokens=wanted["max_new_tokens"])}
    with specscope.open(**wanted["open"]) as cluster:
        return [cluster.run(method, wanted["prompt"], **settings) for method in wanted["methods"]]


if __name__ == "__main__":
    record()
