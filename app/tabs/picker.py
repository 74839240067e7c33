"""The picker of methods (`assets/picker.js`): what it offers, and its value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from specscope.app import pairs
from specscope.app.named import bench_prompts
from specscope.app.tabs.requests import MOST_METHODS
from specscope.engine.methods import BASELINE, METHODS, Method, Setting

TEMPLATE = '<div class="app-picker-root"></div>'
"""Constant, so that Gradio never renders it again."""
GROUPS = ("No drafter", "Copying", "Many sequences", "Small drafter", "Heads")
PRESETS: dict[str, tuple[str, ...]] = {
    "the five papers": (BASELINE, "pearl", "dsi", "easyspec", "parallelspec_eagle", "ems"),
    "no training needed": (BASELINE, "llma", "prompt_lookup", "lookahead"),
}
"""Methods by preset; a pair leaves out those that it cannot run."""
ONE_LINE = 900
"""A text setting of at most this many characters (a name, a path) gets a one-line control."""


def build_picker(pair: str) -> gr.HTML:
    """Return the picker with the usual methods of a pair, which is not on the page yet."""
    return gr.HTML(
        value=value_of(pair, [(key, {}) for key in pairs.usual(pair)]),
        label="Methods",
        html_template=TEMPLATE,
        js_on_load=f"SpecScopePicker.mount(element, props, watch, {json.dumps(contents())});",
        apply_default_css=False,
        elem_id="methods",
        render=False,
    )


def value_of(pair: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    return json.dumps(
        {"pair": pair, "chosen": [{"method": method, "config": config} for method, config in rows]}
    )


def contents() -> dict[str, Any]:
    return {
        "most": MOST_METHODS,
        "groups": GROUPS,
        "methods": [_row(METHODS[key]) for key in sorted(METHODS, key=_rank)],
        "presets": [{"title": title, "methods": keys} for title, keys in PRESETS.items()],
        "pairs": {
            name: {"title": pairs.label(name), "reasons": pairs.reasons(name), "usual": pairs.usual(name)}
            for name in pairs.NAMES
        },
        "samples": bench_prompts(),
    }


def group_of(method: Method) -> str:
    layout = method.layout(method.Config())
    if method.batched:
        return "Many sequences"
    if layout.head:
        return "Heads"
    if layout.needs_drafter:
        return "Small drafter"
    return "Copying" if any(s.name == "copy" for s in method.settings()) else "No drafter"


def _rank(key: str) -> int:
    """Return the place of a method in the list: the usual ones first, then the others by key."""
    return pairs.USUAL.index(key) if key in pairs.USUAL else len(pairs.USUAL)


def _row(method: Method) -> dict[str, Any]:
    """Return a method as the picker shows it; settings with a single choice are left out."""
    line = method.summary.partition(": ")[2] or method.summary
    return {
        "key": method.key,
        "title": method.title,
        "line": line[:1].upper() + line[1:],
        "source": method.source,
        "group": group_of(method),
        "batched": method.batched,
        "settings": [control_of(s) for s in method.settings() if len(s.choices) != 1],
    }


def control_of(setting: Setting) -> dict[str, Any]:
    """Return the control of one field of a method's Config.

    `kind` is flag, choice, whole, number, line or text. A number's `low` is 0 if the method can
    choose the value itself.
    """
    kinds = {bool: "flag", int: "whole", float: "number"}
    text = "line" if setting.high and setting.high <= ONE_LINE else "text"
    return {
        "name": setting.name,
        "label": label_of(setting),
        "kind": "choice" if setting.choices else kinds.get(setting.type, text),
        "default": setting.default,
        "doc": setting.doc,
        "low": 0 if setting.auto else setting.low,
        "high": setting.high,
        "choices": [[c, f"{c} (lossy)" if c in setting.lossy else c] for c in setting.choices],
    }


WORDS = {"sp": "target servers (sp)"}
"""Labels of settings whose name is an abbreviation."""


def label_of(setting: Setting) -> str:
    """Return a field's label, with the meaning of 0 if the method can choose the value."""
    return WORDS.get(setting.name, setting.name.replace("_", "-")) + (
        f" (0 = {setting.auto})" if setting.auto else ""
    )
