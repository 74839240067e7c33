"""What a file is that holds no counts, and what would: the words of `assets/refusals.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from specscope.traces.imports.request_trace import is_object

FILE = Path(__file__).resolve().parents[2] / "assets" / "refusals.toml"
_ANSWERS = {"choices", "content", "text", "timings", "tokens_predicted", "response", "meta_info"}
_JSON = re.compile(rb'\s*(?:\{\s*"|\[\s*[{\["])')
_SAFETENSORS = re.compile(rb"^.{6}\x00\x00\{", re.DOTALL)
_EMPTY = "give a file with a run, a log or an answer"


def _uncounted(row: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the choices of an answer of vLLM that counts nothing; None of another row."""
    choices, metrics = row.get("choices"), row.get("metrics")
    if "metrics" not in row or (is_object(metrics) and metrics.get("speculative_decoding")):
        return None
    return choices if isinstance(choices, list) and all(map(is_object, choices)) else None


_TESTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "request": lambda row: row.keys() & {"messages", "prompt", "input"} and not row.keys() & _ANSWERS,
    "models": lambda row: row.get("object") in ("list", "model"),
    "stopped": lambda row: any(isinstance(one.get("stop_reason"), str) for one in _uncounted(row) or ()),
    "several": lambda row: len(_uncounted(row) or ()) > 1,
    "unmetered": lambda row: _uncounted(row) is not None,
    "studio": lambda row: "choices" in row and is_object(row.get("stats")),
    "event": lambda row: str(row.get("object", "")).endswith(".chunk"),
    "error": lambda row: row.get("error"),
    "guidellm": lambda row: isinstance(row.get("benchmarks"), list),
    "config": lambda row: row.keys() & {"architectures", "model_type"},
    "folder": lambda row: "weight_map" in row or {"model", "added_tokens"} <= row.keys(),
}
"""The tests of values that need more than the names of fields."""


def named(content: bytes, rows: list[Any], otherwise: str = "") -> str:
    """Return what a file without counts is, and what to give in its place.

    Args:
        content: The file.
        rows: Its JSON values, or the first of them.
        otherwise: What to say of a file of no kind that has a name here.
    """
    kind = _of_bytes(content) or next((_of_value(row) for row in rows[:1]), None)
    if kind is None:
        text = content[:1_000_000].decode("utf-8", "replace")
        kind = _first("texts", lambda pattern: re.search(pattern, text, re.MULTILINE))
    if kind is None and otherwise:
        return otherwise
    if kind is None and not rows and _JSON.match(content):
        kind = "JSON that is cut or broken", "give the whole file"
    if kind is None:
        what = "JSON" if rows else "no text" if b"\0" in content[:4096] else "text"
        what = f"{what} of no form that is read" if rows or what == "text" else what
        kind = what, "docs/traces.md lists the forms"
    return f"it is {kind[0]}; {kind[1]}"


def _of_bytes(content: bytes) -> tuple[str, str] | None:
    if not content.strip():
        return "empty", _EMPTY
    if _SAFETENSORS.match(content[:9]):
        return "a model's weights (safetensors)", _words()["folder"]
    return _first("bytes", lambda begin: content.startswith(begin.encode("latin-1")))


def _of_value(row: Any) -> tuple[str, str] | None:
    if row in ({}, []):
        return "empty JSON", _EMPTY

    def fits(test: str | list[str]) -> Any:
        return _TESTS[test](row) if isinstance(test, str) else all(name in row for name in test)

    return _first("values", fits) if is_object(row) else None


def _first(table: str, fits: Callable[[Any], Any]) -> tuple[str, str] | None:
    """Return what the first row of a table that fits says."""
    row = next((row for row in _data()[table]["rows"] if fits(row["fits"])), None)
    return row and (row["what"], row["instead"].format(**_words()))


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


@cache
def _words() -> dict[str, str]:
    """Return the phrases of several rows; a phrase may hold those before it."""
    found = dict[str, str]()
    for name, text in _data()["words"].items():
        found[name] = text.format(**found)
    return found
