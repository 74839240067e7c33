"""The settings of a card, each declared once: its control, its id on the page, and its range."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, fields
from math import inf
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import gradio as gr

from specscope.app import pairs
from specscope.app.jobs.service import Service
from specscope.app.render.html import badge, note, text
from specscope.app.tabs.requests import at
from specscope.app.tabs.wiring import QUIET, SMALL, Stops, WorkState, build_message, plain_html
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
    info: str | None = None,
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
        metadata={
            "label": label,
            "choices": choices,
            "bounds": bounds,
            "said": said,
            "look": {"info": info, **look},
        },
    )


def clusters() -> list[tuple[str, str]]:
    return [*((Profile.load(name).title, name) for name in profiles()), ("This machine, measured", HERE)]


def models() -> list[tuple[str, str]]:
    return [(pairs.label(key), key) for key in pairs.NAMES]


def ids_of(settings: Any, tab: str) -> dict[str, str]:
    """Return the ids of the controls by setting, for errors that name one (`requests.at`)."""
    return {one.name: "-".join(filter(None, (tab, *one.name.split("_")))) for one in fields(settings)}


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
    """Controls by setting, which begin with the values of `first`; their ids begin with `tab`."""

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
        self.add(pair, **pairs_of(getattr(self.first, profile), getattr(self.first, pair)))
        offer: Callable[..., Any] = lambda *chosen: gr.update(**pairs_of(*chosen))  # noqa: E731
        self[profile].change(offer, [self[profile], self[pair]], self[pair], **QUIET)

    @property
    def inputs(self) -> list[gr.components.Component]:
        return [*self.made.values()]

    def values(self, given: Sequence[Any]) -> dict[str, Any]:
        """Return the values of `inputs` by setting."""
        return dict(zip(self.made, given, strict=True))

    def settings(self, given: Sequence[Any]) -> S:
        """Return the settings with the values of `inputs`."""
        return type(self.first)(**self.values(given))


_KINDS: Mapping[str, Any] = {"str": gr.Textbox, "int": gr.Number, "float": gr.Number, "bool": gr.Checkbox}
Work: TypeAlias = Callable[[Service, S, threading.Event], Generator[tuple[str, str]]]
"""Yields (message, result) until it has ended, or until its event is set."""


class Experiment(Generic[S]):
    """A card of the page: settings, Start and Stop, a message, and the result of its work.

    `example` returns the result that is shown until the work has been started.
    """

    def __init__(
        self, tab: str, first: S, service: Service, work: Work[S], example: Callable[[], str] = str
    ) -> None:
        self.controls, self.service, self.stops = Controls(tab, first), service, Stops()
        self._work, self._example = work, example

    @contextmanager
    def card(self, title: str, about: str) -> Generator[Controls[S]]:
        """Lay out the card around its controls."""
        with gr.Column(elem_id=self.controls.tab, elem_classes="app-card"):
            gr.HTML(f"<h2>{title}</h2>{note(about)}")
            yield self.controls

    def add_buttons(self, title: str) -> None:
        tab = self.controls.tab
        self.start = gr.Button(title, variant="primary", elem_id=f"{tab}-start", **SMALL)
        self.stop = gr.Button("Stop", interactive=False, elem_id=f"{tab}-stop", **SMALL)

    def add_result(self, name: str = "result", **look: Any) -> None:
        """Lay out message and result, and let the buttons start and stop the work."""
        tab = self.controls.tab
        self.message = build_message(f"{tab}-message")
        self.result = plain_html(elem_id=f"{tab}-{name}", **look)
        self.name = gr.Textbox("", visible=False)
        shown: list[gr.components.Component] = [self.name, self.message, self.result]
        self.stops.connect(self.start, self.stop, self.run, self.controls.inputs, shown)

    def first(self, name: str) -> Any:
        """Return the example; nothing once there is a result."""
        return gr.skip() if name else self._example()

    def run(self, *given: Any) -> Iterator[WorkState]:
        return self.stops.states(lambda stop: self._work(self.service, self.controls.settings(given), stop))


def row(**more: Any) -> gr.Row:
    return gr.Row(elem_classes="app-whatif", equal_height=True, **more)


def pairs_of(name: str, pair: str | None = None) -> dict[str, Any]:
    """Return the choices of a cluster's modelled pair; `pair` stays chosen if it is one of them.

    This machine has none.
    """
    if name not in profiles():
        return {"choices": [("None", "")], "value": ""}
    known = Profile.load(name)
    value = pair if pair in known.pairs else known.default
    return {"choices": [(one.title, key) for key, one in known.pairs.items()], "value": value}
