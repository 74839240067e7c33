"""The About tab."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import gradio as gr

from specscope.app.render.html import table, text
from specscope.app.tabs.wiring import QUIET
from specscope.engine.environment import environment
from specscope.engine.methods import METHODS, Method
from specscope.engine.simulate.profile import Profile, profiles
from specscope.traces.view.figures import figure_rows

PACKAGES = ("gradio", "plotly", "sqlmodel")


def build_about(tab: gr.Tab) -> None:
    """Lay out the tab, which is filled when it is opened: to name the GPUs, torch is imported."""
    page = gr.HTML(apply_default_css=False, elem_id="about")
    tab.select(_page, None, page, **QUIET)


def _page() -> str:
    return about_page(environment() | {name: version(name) for name in PACKAGES})


WHAT = (
    "<p>SpecScope runs speculative-decoding methods on one engine and shows, for each, when drafter and target "
    "work, which one waits for the other, which rule accepted each token, and the cost.</p>"
    "<p>The page connects only to its own server. It loads nothing from other sites.</p>"
)
NAMES = {"gpus": "GPUs", "cores": "CPU cores"}
LIMITS = (
    "Measured times include all load on this machine, such as the browser that draws this page.",
    "Methods that share devices run one after another, so other load on the machine may slow only one of them.",
    "Virtual times are computed from published figures of the named devices. They show which device waits for "
    "which on such a cluster; they are not measurements.",
    "The bundled pair is a toy, so that it runs on any machine. Its answers are simple and often wrong.",
    "GPUs round differently for different numbers of rows: at temperature 0 two methods may differ where two "
    "tokens tie.",
)
KEYS = (("Ctrl or ⌘ + Enter", "run the prompt"), ("Escape", "stop"), ("?", "in the timeline: show its keys"))


def about_page(facts: Mapping[str, Any]) -> str:
    limits = "".join(f"<li>{text(line)}</li>" for line in LIMITS)
    keys = [[f"<kbd>{text(key)}</kbd>", text(does)] for key, does in KEYS]
    machine = [[text(NAMES.get(key, key)), text(_value(value))] for key, value in facts.items()]
    methods = [[text(m.title), text(m.summary), text(_lossless(m)), text(m.source)] for m in METHODS.values()]
    clusters = [
        [text(p.title), text("; ".join(pair.title for pair in p.pairs.values())), text(p.source)]
        for p in map(Profile.load, profiles())
    ]
    figures = [[text(row["label"]), text(row["definition"])] for row in figure_rows()]
    left = (
        _card("What SpecScope does", WHAT),
        _card("Limits", f"<ul>{limits}</ul>"),
        _card("Keys", table(["", ""], keys, "Keys")),
    )
    parts = (
        f"<div>{''.join(left)}</div>",
        _card("This machine", table(["", ""], machine, "Versions")),
        _card("Methods", table(["method", "summary", "lossless", "source"], methods, "Methods")),
        _card(
            "Virtual clusters",
            table(["cluster", "pairs", "source of the figures"], clusters, "Virtual clusters"),
        ),
        _card("What the figures mean", table(["figure", "definition"], figures, "Figures")),
    )
    return f'<div class="app-about specscope">{"".join(parts)}</div>'


def _card(title: str, body: str) -> str:
    return f'<section class="ss-card"><h2>{text(title)}</h2>{body}</section>'


def _lossless(method: Method) -> str:
    """Return "yes", with the settings under which the method is lossy."""
    lossy = [f"{s.name} = {choice}" for s in method.settings() for choice in s.lossy]
    return ", ".join(["yes", *(f"not with {choice}" for choice in lossy)])


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)
