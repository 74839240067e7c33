"""The About page: what runs here, what the words mean, and what this machine cannot show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.render.html import table, text
from engine.methods import METHODS, Method
from engine.simulate.profile import Profile, profiles
from traces.view.figures import figure_rows

LIMITS = (
    "Measured times are those of this machine with the load it had: the browser that draws the page takes part of it.",
    "Methods that share devices run one after another: other load on the machine may slow only one of them.",
    "Virtual times come from published figures of the devices named. They show who waits for whom on such a cluster, "
    "and are not a measurement.",
    "The bundled pair is small on purpose, so that it runs on any machine. It answers simply and is often wrong.",
    "On a graphics card numbers are rounded differently: at temperature 0 two methods may differ where two tokens tie.",
)
KEYS = (
    ("Ctrl or ⌘ + Enter", "run the prompt"),
    ("Escape", "stop"),
    ("?", "in the timeline: all its keys"),
)


def about_page(facts: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        facts: What `engine.environment` says of this machine, with versions of the page's own packages.
    """
    left = (
        _card("What this is", _what()),
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
        "<p>SpecScope runs speculative-decoding methods on one engine and shows what each one does: who drafts, who "
        "verifies, who waits for whom, which token was accepted by which rule, and what it cost.</p>"
        "<p>The page talks to the program on this machine only. Nothing is sent anywhere.</p>"
    )


def _methods() -> str:
    rows = [[text(m.title), text(m.summary), text(_lossless(m)), text(m.source)] for m in METHODS.values()]
    return table(["method", "in one sentence", "same text as the target alone", "source"], rows, "Methods")


def _lossless(method: Method) -> str:
    """Return whether a method writes what the target alone would, and with which settings it does not."""
    lossy = [f"{s.name} = {choice}" for s in method.settings() for choice in s.lossy]
    return ", ".join(["yes", *(f"not with {each}" for each in lossy)])


def _clusters() -> str:
    known = [Profile.load(name) for name in profiles()]
    rows = [
        [text(p.title), text(", ".join(pair.title for pair in p.pairs.values())), text(p.source)]
        for p in known
    ]
    return table(["cluster", "pairs", "source of its figures"], rows, "Virtual clusters")


def _figures() -> str:
    rows = [[text(row["label"]), text(row["definition"])] for row in figure_rows()]
    return table(["figure", "definition"], rows, "Figures")


def _name(key: str) -> str:
    return {"gpus": "graphics cards", "cores": "processor cores"}.get(key, key)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)
