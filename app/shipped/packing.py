"""Traces that SpecScope ships: JSONL files packed with gzip, without the folders of a machine."""

from __future__ import annotations

import gzip
import io
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from specscope.engine.trace.jsonl import read_jsonl, write_jsonl
from specscope.engine.trace.trace import Trace


def pack(trace: Trace, group: str, run_id: str = "") -> bytes:
    """Return a trace as a packed file; without `run_id` under its own id.

    Of the models' paths the last two parts are kept.
    """
    header = trace.header
    environment = {k: v for k, v in header.environment.items() if not _is_local(v)}
    paths = {name: _short(getattr(header, name)) for name in ("target_path", "drafter_path")}
    named = replace(header, run_id=run_id or header.run_id, group=group, environment=environment, **paths)
    text = io.StringIO()
    write_jsonl(replace(trace, header=named), text)
    return gzip.compress(text.getvalue().encode(), mtime=0)


def unpack(file: Path) -> Trace:
    return read_jsonl(gzip.decompress(file.read_bytes()).decode().split("\n"))


def _short(path: str) -> str:
    return "/".join(PurePath(path).parts[-2:])


def _is_local(value: Any) -> bool:
    return isinstance(value, str) and PurePath(value).is_absolute()
