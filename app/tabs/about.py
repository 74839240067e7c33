"""The About tab."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import gradio as gr

from app.render.html import table, text
from app.tabs.wiring import QUIET
from engine.environment import environment
from engine.methods import METHODS, Method
from engine.simulate.profile import Profile, profiles
from traces.view.figures import figure_rows

PACKAGES = ("gradio", "plotly", "sqlmodel")


def build_about(tab: gr.Tab) -> None:
    """Lay out the tab, which is filled when it is opened: to name the GPUs, torch is imported."""
    page = gr.HTML(apply_default_css=False, elem_id="about")
    tab.select(_page, None, page, **QUIET)


def _page() -> str:
    return about_page(environment() | {name: version(name) for name in PACKAGES})


LIMITS = (
    "Measured times include all load on this machine, such as the browser that draws this page.",
    "Methods that share devices run one after another, so other load on the machine may slow only one of them.",
    "Virtual times are computed from published figures of the named devices. They show which device waits for "
    "which on such a cluster; they are not measurements.",
    "The bundled pair is a toy, so that it runs on any machine. Its answers are simple and often wrong.",
    "GPUs round differently for different numbers of rows: at temperature 0 two methods may differ where two "
    "tokens tie.",
)
KEYS = (
    ("Ctrl or ⌘ + Enter", "run the prompt"),
    ("Escape", "stop"),
    ("?", "in the timeline: show its keys"),
)


def about_page(facts: Mapping[str, Any]) -> str:
    left = (
        _card("What SpecScope does", _what()),
        _card("Limits", "<ul>" + "".join(f"<li>{text(line)}</li>" for line in LIMITS) + "</ul>"),
        _card("Keys", table(["", ""], [[f"<kbd>{text(k)}</kbd>", text(v)] for k, v in KEYS], "Keys")),
    )
    parts = (
        f"<div>{''.join(left)}</div>",
        _card(
            "This machine",
            table(["", ""], [[text(_name(k)), text(_value(v))] for k, v in facts.items()], "Versions"),
        ),
        _card("Methods", _methods()),
        _card("Virtual clusters", _clusters()),
        _card("What the figures mean", _figures()),
    )
    return f'<div class="app-about specscope">{"".join(parts)}</div>'


def _card(title: str, body: str) -> str:
    return f'<section class="ss-card"><h2>{text(title)}</h2>{body}</section>'


def _what() -> str:
    return (
        "<p>SpecScope runs speculative-decoding methods on one engine and shows, for each, when drafter and target "
        "work, which one waits for the other, which rule accepted each token, and the cost.</p>"
        "<p>The page connects only to its own server. It loads nothing from other sites.</p>"
    )


def _methods() -> str:
    rows = [[text(m.title), text(m.summary), text(_lossless(m)), text(m.source)] for m in METHODS.values()]
    return table(["method", "summary", "lossless", "source"], rows, "Methods")


def _lossless(method: Method) -> str:
    """Return "yes", with the settings under which the method is lossy."""
    lossy = [f"{s.name} = {choice}" for s in method.settings() for choice in s.lossy]
    return ", ".join(["yes", *(f"not with {choice}" for choice in lossy)])


def _clusters() -> str:
    clusters = [Profile.load(name) for name in profiles()]
    rows = [
        [text(p.title), text("; ".join(pair.title for pair in p.pairs.values())), text(p.source)]
        for p in clusters
    ]
    return table(["cluster", "pairs", "source of the figures"], rows, "Virtual clusters")


def _figures() -> str:
    rows = [[text(row["label"]), text(row["definition"])] for row in figure_rows()]
    return table(["figure", "definition"], rows, "Figures")


def _name(key: str) -> str:
    return {"gpus": "GPUs", "cores": "CPU cores"}.get(key, key)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)
