"""The settings of a tab, each declared once: its control, its id on the page, and its range."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from math import inf
from pathlib import Path
from typing import Any, Generic, TypeVar

import gradio as gr

from specscope.app import pairs
from specscope.app.render.html import badge, text
from specscope.app.tabs.requests import at
from specscope.app.tabs.wiring import QUIET, SMALL
from specscope.engine.errors import UsageError
from specscope.engine.simulate.profile import Profile, profiles
from specscope.engine.types import check_range

S = TypeVar("S")
HERE = "here"
"""Value of a cluster for measured runs on this machine."""

FOLDER = Path(__file__).parents[2] / "assets" / "examples"


def read(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def marked(button: str, clock: str = "") -> str:
    """Return the line above an example."""
    source = badge(clock) if clock else ""
    line = text(
        f"A finished example with the settings above. {button} runs it here, and then its traces open."
    )
    return f'<p class="app-note" data-state="example">{badge("example", "warn")} {source} {line}</p>'


def asked(
    label: str,
    *,
    choices: Callable[[], Sequence[Any]] | None = None,
    bounds: tuple[float, float] | None = None,
    said: str = "",
    default: Any = "",
    **look: Any,
) -> Any:
    """Declare a setting, whose type chooses its control; `look` are arguments of that.

    A message about its `bounds` calls it `said`, or by its name; a fraction is more than the first
    bound.
    """
    return field(
        default=default,
        metadata={"label": label, "choices": choices, "bounds": bounds, "said": said, "look": look},
    )


def clusters() -> list[tuple[str, str]]:
    return [*((Profile.load(name).title, name) for name in profiles()), ("This machine, measured", HERE)]


def models() -> list[tuple[str, str]]:
    return [(pairs.label(key), key) for key in pairs.NAMES]


def ids_of(settings: Any, tab: str) -> dict[str, str]:
    """Return the ids of the controls by setting, for errors that name one (`requests.at`)."""
    return {one.name: f"{tab}-{one.name.replace('_', '-')}" for one in fields(settings)}


def check(settings: Any, tab: str) -> None:
    """Convert the numbers of a tab's settings and check their bounds; an empty control is 0."""
    ids = ids_of(settings, tab)
    for one in fields(settings):
        if one.type not in ("int", "float"):
            continue
        value, bounds = getattr(settings, one.name) or 0, one.metadata["bounds"]
        value = int(value) if isinstance(value, float) and value.is_integer() else value
        with at(ids[one.name]):
            name = one.metadata["said"] or one.name
            check_range(name, value, *(bounds or (-inf, inf)), exclusive=one.type == "float")
        object.__setattr__(settings, one.name, int(value) if one.type == "int" else float(value))


class Controls(Generic[S]):
    """The controls of a tab by setting; they begin with the values of `first`."""

    def __init__(self, tab: str, first: S) -> None:
        self.tab, self.first, self.made = tab, first, dict[str, Any]()
        self._ids, self._declared = ids_of(first, tab), {one.name: one for one in fields(first)}  # pyright: ignore[reportArgumentType]

    def __getitem__(self, name: str) -> Any:
        return self.made[name]

    def add(self, *names: str, **more: Any) -> None:
        """Lay out controls; `more` replaces what is declared."""
        for name in names:
            declared = self._declared[name]
            look: dict[str, Any] = {**declared.metadata["look"], **more}
            look = {"label": declared.metadata["label"], "elem_id": self._ids[name], **look}
            if (choices := declared.metadata["choices"]) is not None:
                look = {"choices": choices(), **look}
            value = look.pop("value", getattr(self.first, name))
            kind: Any = look.pop("kind", gr.Dropdown if "choices" in look else _KINDS[str(declared.type)])
            if kind is gr.Number:
                look.setdefault("precision", 0 if declared.type == "int" else None)
            elif kind is gr.Textbox:
                look.setdefault("max_lines", 1)
            self.made[name] = kind(value=value, **look)

    def add_cluster(self, profile: str, pair: str) -> None:
        """Lay out a cluster and its modelled pair, which follows it."""
        self.add(profile)
        offered = pairs_of(getattr(self.first, profile))
        self.add(pair, choices=offered["choices"], value=getattr(self.first, pair) or offered["value"])
        offer: Callable[[str], Any] = lambda name: gr.update(**pairs_of(name))  # noqa: E731
        self[profile].change(offer, self[profile], self[pair], **QUIET)

    def add_buttons(self, title: str) -> tuple[gr.Button, gr.Button]:
        start = gr.Button(title, variant="primary", elem_id=f"{self.tab}-start", **SMALL)
        return start, gr.Button("Stop", interactive=False, elem_id=f"{self.tab}-stop", **SMALL)

    @property
    def inputs(self) -> list[gr.components.Component]:
        return [*self.made.values()]

    def settings(self, given: Sequence[Any]) -> S:
        """Return the settings with the values of `inputs`."""
        return type(self.first)(**dict(zip(self.made, given, strict=True)))


_KINDS: Mapping[str, Any] = {"str": gr.Textbox, "int": gr.Number, "float": gr.Number}


def row(**more: Any) -> gr.Row:
    return gr.Row(elem_classes="app-whatif", equal_height=True, **more)


def pairs_of(name: str) -> dict[str, Any]:
    """Return the choices of a cluster's modelled pair; this machine has none."""
    try:
        profile = Profile.load(name) if name in profiles() else None
    except UsageError:
        profile = None
    if profile is None:
        return {"choices": [("None", "")], "value": ""}
    return {"choices": [(p.title, key) for key, p in profile.pairs.items()], "value": profile.default}
