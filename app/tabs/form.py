"""The controls of the playground, and the card of the prompt."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from specscope.app import pairs
from specscope.app.named import samples
from specscope.app.ray import RUNTIME, Ray
from specscope.app.render.html import note
from specscope.app.tabs.library import absent_note
from specscope.app.tabs.picker import build_picker
from specscope.app.tabs.requests import MOST_PASSES, MOST_SERVERS, OTHER, OWN, SERVER, USUAL, VIRTUAL, rows_of
from specscope.app.tabs.servers import build_question
from specscope.app.tabs.settings import HERE, Controls, asked, clusters, models, pairs_of
from specscope.app.tabs.wiring import QUIET, SMALL, Update, build_message
from specscope.engine.checkpoints.forms import FORMS, form_title
from specscope.engine.methods import METHODS
from specscope.engine.simulate.profile import profiles
from specscope.engine.types import Limits, Sampling

RUNTIMES = (
    ("This machine, processes", "local-process"),
    ("This machine, threads", "local-thread"),
    ("Virtual cluster", VIRTUAL),
)
_LINES: dict[str, Any] = {"lines": 1, "max_lines": 8}
_slider = partial(asked, kind=partial(gr.Slider, step=0.05, buttons=[]))
_number = partial(asked, min_width=110)


@dataclass(frozen=True, slots=True)
class PlaygroundSettings:
    """The values of the playground's controls, beside the picker; Run checks their ranges."""

    models: str = asked(
        "Models",
        kind=gr.Radio,
        choices=lambda: [*models(), ("My own", OWN), ("My server", SERVER)],
        show_label=False,
    )
    target: str = asked(
        "Target",
        "A name such as smollm2, a folder with safetensors files, a .gguf file, or a hub id.",
        max_lines=None,
    )
    head: str = asked(
        "Drafting heads",
        "Folders of this target's heads, one per line, for Medusa, EAGLE and the like.",
        elem_id="heads",
        **_LINES,
    )
    drafting: str = asked(
        "Drafter",
        "Usual: the one stored with the models; without one, int4 or int8, as is faster on this machine.",
        kind=gr.Radio,
        choices=lambda: [("Usual", USUAL), *((form_title(f), f) for f in FORMS), ("Another model", OTHER)],
        default=USUAL,
    )
    drafter: str = asked(
        "Another drafter",
        "For a target of your own, with its tokenizer. DSI can use several, one per line (Shift+Enter).",
        **_LINES,
    )
    servers: str = asked(
        "Addresses",
        "A running llama.cpp, vLLM or other server with OpenAI's routes, one address per line: each gets a "
        "pane of its own, such as one with drafts and one without.",
        placeholder="http://127.0.0.1:8080",
        max_lines=MOST_SERVERS,
    )
    server_key: str = asked(
        "Key",
        "Only for servers that ask for one: sent to each of these servers, and stored nowhere. "
        "Empty: SPECSCOPE_SERVER_KEY.",
        type="password",
        max_lines=None,
        html_attributes=gr.InputHTMLAttributes(autocomplete="off"),
    )
    remote: bool = asked(
        "Send my prompts to other machines, too",
        "Off: only servers of this machine are asked.",
        default=False,
    )
    probabilities: bool = asked(
        "Ask for p of the tokens",
        "llama.cpp: of tokens that it did not verify. It takes time, so leave it out of a race.",
        default=False,
    )
    together: str = asked(
        "More prompts",
        "Sent at the same time, blank lines separate them: how the server decodes several requests.",
        **_LINES,
    )
    temperature: float = _slider(
        "Temperature",
        "0 = always the most probable token.",
        minimum=0,
        maximum=2,
        default=Sampling().temperature,
        min_width=150,
    )
    max_new_tokens: float = _number(
        "New tokens",
        "Longest answer; it shares the context with the prompt.",
        default=Limits().max_new_tokens,
    )
    seed: float = _number("Seed", "The same seed gives the same answer.", default=Sampling().seed)
    top_k: float = _number(
        "Top-k", "Sample from the k most probable tokens; 0 = all.", default=Sampling().top_k
    )
    top_p: float = _slider(
        "Top-p",
        "Sample from the most probable tokens with this total probability.",
        minimum=0.05,
        maximum=1,
        default=Sampling().top_p,
    )
    stop: str = asked(
        "Stop strings",
        "One per line; the answer ends before the first that occurs.",
        elem_id="stop-strings",
        lines=2,
        max_lines=None,
    )
    runtime: str = asked("Devices", kind=gr.Radio, default="local-process")
    profile: str = asked(
        "Cluster",
        "Times are computed from its published speeds; tokens come from the models below.",
        choices=lambda: [one for one in clusters() if one[1] != HERE],
    )
    profile_pair: str = asked("Modelled pair")
    passes: int = asked(
        "Passes",
        "Measured runs alternate; the median and the spread are shown. A busy machine needs more than one.",
        kind=gr.Radio,
        choices=lambda: list(range(1, MOST_PASSES + 1)),
        default=1,
    )


class Form:
    """The settings below the prompt."""

    def __init__(self, pair: str, ray: Ray | None = None) -> None:
        self.made = Controls("", PlaygroundSettings(models=pair, profile=profiles()[0]))
        self.controls = self.made.made
        """The controls by name, in the order of the handlers' arguments."""
        picker = self.controls["methods"] = build_picker(pair)
        with gr.Column(elem_id="settings", elem_classes="app-plain"):
            with gr.Row(equal_height=False):
                with gr.Column(elem_classes="app-card", min_width=280) as self.card:
                    self._build_models(pair)
                with gr.Column(elem_classes="app-card", min_width=280):
                    self._build_sampling()
                with gr.Column(elem_classes="app-card", min_width=280):
                    self._build_place(ray)
            with gr.Column(elem_classes="app-card") as methods:
                gr.HTML("<h2>Methods</h2>")
                picker.render()
        _show_when(self.controls["models"], SERVER, methods, shown=False)

    def _build_models(self, pair: str) -> None:
        made = self.made
        gr.HTML("<h2>Models</h2>")
        made.add("models")
        self.about = gr.HTML(note(pairs.about(pair)), elem_id="about-models")
        with _part(made["models"], OWN):
            made.add("target", "head")
        with _part(made["models"], SERVER, shown=False):
            made.add("drafting")
            with _part(made["drafting"], OTHER):
                made.add("drafter")
        with _part(made["models"], SERVER):
            made.add("servers", "server_key", "remote", "probabilities", "together")
            build_question(made)
        chosen = [made["models"], made["methods"]]
        made["models"].change(None, chosen, self.offered, js=offer_script(), **QUIET)

    def _build_sampling(self) -> None:
        gr.HTML("<h2>Sampling</h2>")
        with gr.Row(elem_classes="app-pair"):
            self.made.add("temperature", "max_new_tokens")
        with gr.Accordion("Seed, top-k, top-p, stop strings", open=False, elem_classes="app-fold"):
            with gr.Row(elem_classes="app-pair"):
                self.made.add("seed", "top_k")
            self.made.add("top_p", "stop")

    def _build_place(self, ray: Ray | None) -> None:
        made = self.made
        gr.HTML("<h2>Where it runs</h2>")
        here = "this machine or on Ray's nodes" if ray else "this machine"
        about = f"Times are measured on {here}, or computed from a cluster's published figures."
        with _part(made["models"], SERVER, shown=False):
            made.add("runtime", choices=[*RUNTIMES, *([(ray.title, RUNTIME)] if ray else [])], info=about)
            with _part(made["runtime"], VIRTUAL):
                made.add_cluster("profile", "profile_pair")
        made.add("passes")

    @property
    def offered(self) -> list[gr.components.Component]:
        """The components that depend on the chosen models."""
        return [self.controls["methods"], self.about]

    @property
    def remembered(self) -> dict[str, gr.components.Component]:
        """The controls that a page notes: all without a secret."""
        return {name: one for name, one in self.controls.items() if getattr(one, "type", "") != "password"}

    def noted(self, given: Sequence[Any]) -> dict[str, Any]:
        """Return the values that a page has noted, by control; without those it cannot have."""
        given = given if len(given) == len(self.remembered) else ()
        rows = zip(self.remembered.items(), given, strict=False)
        return {name: value for (name, control), value in rows if _fits(name, control, value)}

    def shown(self, values: Mapping[str, Any]) -> Update:
        """Return the controls with these values."""
        update: Update = {self.controls[name]: value for name, value in values.items()}
        if "profile" in values:
            offered = pairs_of(values["profile"], values.get("profile_pair"))
            update[self.controls["profile_pair"]] = gr.update(**offered)
        return update


def _fits(name: str, control: Any, value: Any) -> bool:
    """Return whether a control of the page can have a value; Run checks its range."""
    if name == "profile_pair":  # its choices are those of the profile
        return isinstance(value, str)
    if name == "methods":
        return isinstance(value, str) and all(
            isinstance(row, dict) and row.get("method") in METHODS and isinstance(row.get("config"), dict)
            for row in rows_of(value)
        )
    if isinstance(control, gr.Radio | gr.Dropdown):
        return value in [choice for _, choice in control.choices]
    if isinstance(control, gr.Checkbox):
        return isinstance(value, bool)
    kinds = str if isinstance(control, gr.Textbox) else (int, float)
    return isinstance(value, kinds)


@contextmanager
def _part(control: gr.components.Component, value: str, *, shown: bool = True) -> Generator[None]:
    """Lay out a part of the form that is there while a control has a value, or has not."""
    with gr.Column(scale=0, visible=not shown, elem_classes="app-plain") as part:
        yield
    _show_when(control, value, part, shown=shown)


def offer_script() -> str:
    """Return the JavaScript that offers the methods of the chosen models.

    It keeps a choice that the user made, if the models can run it.
    """
    notes = {name: note(pairs.about(name)) for name in pairs.NAMES}
    about = f"{{__type__: 'update', value: {json.dumps(notes)}[models] ?? ''}}"
    return f"(models, chosen) => [SpecScopePicker.offer(models, chosen), {about}]"


def _show_when(
    control: gr.components.Component,
    value: str,
    part: gr.components.Component | gr.Column,
    *,
    shown: bool = True,
) -> None:
    """Show a part of the form while a control has a value, or has not, by JavaScript alone."""
    equal = "===" if shown else "!=="
    update = f"(value) => ({{ __type__: 'update', visible: value {equal} {json.dumps(value)} }})"
    control.change(None, control, part, js=update, **QUIET)


class Composer:
    """The card with the prompt; without a `chosen` pair it says which model is absent."""

    def __init__(self, *, chosen: bool) -> None:
        with gr.Column(elem_id="composer", elem_classes="app-card"):
            hint = "Type a prompt for all methods, or pick an example. Ctrl+Enter runs it."
            self.prompt = _text("Prompt", "prompt", hint, max_lines=12, autofocus=True)
            self.alert = build_message("alert")
            self.follow = gr.Radio([], label="Your next message", visible=False, elem_id="follow")
            with gr.Row(elem_id="actions"):
                self._build_actions()
            self.notice = gr.HTML("" if chosen else absent_note(), elem_id="notice")
            with gr.Accordion("System prompt", open=False, elem_classes="app-fold"):
                hint = "Optional: instructions for the model, placed before the conversation."
                self.system = _text("System prompt", "system", hint)

    def _build_actions(self) -> None:
        prompts = [s["prompt"] for s in samples()]
        self.samples = gr.Dataset(
            components=[self.prompt],
            samples=[[prompt] for prompt in prompts],
            sample_labels=[s["title"] for s in samples()],
            show_label=False,
            label="Examples",
            container=False,
            elem_id="samples",
        )
        self.clear = gr.Button("Clear", elem_id="clear", visible=False, **SMALL)
        self.again = gr.Button("Same message again", elem_id="again", visible=False, **SMALL)
        self.stop = gr.Button("Stop", elem_id="stop", variant="stop", visible=False, **SMALL)
        self.go = gr.Button("Run", elem_id="run", variant="primary", **SMALL)
        # In the browser, so that a click on Run right after it uses the new value.
        # A Dataset's value in the browser is the index of the sample.
        self.samples.click(
            None, self.samples, self.prompt, js=f"(number) => {json.dumps(prompts)}[number]", **QUIET
        )

    @property
    def buttons(self) -> list[gr.Button]:
        return [self.clear, self.again, self.stop, self.go]

    def shown(self, *, running: bool) -> Update:
        shown: Update = {self.stop: gr.update(visible=running)}
        shown |= {button: gr.update(visible=not running) for button in (self.go, self.again, self.clear)}
        return shown | ({self.follow: gr.update(visible=False)} if running else {})


def _text(label: str, name: str, hint: str, **more: Any) -> gr.Textbox:
    return gr.Textbox("", label=label, show_label=False, lines=2, placeholder=hint, elem_id=name, **more)
