"""The controls of the playground: built from what methods, sampling and profiles declare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from app.tabs.further import build_further
from app.tabs.plan import CHOSEN, MOST, VIRTUAL, WHERE, listed
from app.tabs.wiring import QUIET
from engine.errors import UsageError
from engine.methods import METHODS, Setting
from engine.simulate.profile import Profile, profiles
from engine.types import Limits, Sampling

RUNTIMES = (
    ("This machine, processes", "local-process"),
    ("This machine, threads", "local-thread"),
    ("Virtual cluster", VIRTUAL),
)
_SHORT = 400
"""A text of so many characters at most is a name or a path: one line."""


@dataclass
class Form:
    """The controls by name, in the order in which handlers get their values."""

    controls: dict[str, gr.components.Component] = field(default_factory=dict)
    alerts: dict[str, gr.HTML] = field(default_factory=dict)
    """Where a message about each part is shown."""

    @property
    def inputs(self) -> list[gr.components.Component]:
        """What a handler takes."""
        return list(self.controls.values())

    def values(self, given: Sequence[Any]) -> dict[str, Any]:
        """Return the handler's arguments by name."""
        return dict(zip(self.controls, given, strict=True))

    def add(self, name: str, control: gr.components.Component) -> gr.components.Component:
        """Keep a control under its name and return it."""
        self.controls[name] = control
        return control

    def alert(self, where: str) -> None:
        """Place the message line of a part of the form here."""
        assert where in WHERE, f"{where} is not a part of the form"
        self.alerts[where] = gr.HTML(elem_id=f"alert-{where}")


def build_settings(form: Form) -> None:
    """Lay out the settings below the prompt: methods, sampling, where it runs."""
    with gr.Row(elem_id="settings", equal_height=False):
        with gr.Column(elem_classes="app-card", min_width=300):
            _build_methods(form)
        with gr.Column(elem_classes="app-card", min_width=260):
            _build_sampling(form)
        with gr.Column(elem_classes="app-card", min_width=300):
            _build_place(form)
            _build_models(form)


def _build_methods(form: Form) -> None:
    gr.HTML("<h2>Methods</h2>")
    chosen = form.add(
        "methods",
        gr.CheckboxGroup(
            [(METHODS[key].title, key) for key in listed()],
            value=listed()[: len(CHOSEN)],
            label=f"Compare 2 to {MOST}",
            elem_id="methods",
        ),
    )
    form.alert("methods")
    folds: dict[str, gr.Accordion] = {}
    for key in listed():
        method = METHODS[key]
        settings = [s for s in method.settings() if len(s.choices) != 1]
        if settings:
            folds[key] = gr.Accordion(
                f"{method.title}: settings", open=False, visible=key in CHOSEN, elem_classes="app-fold"
            )
            with folds[key]:
                for setting in settings:
                    form.add(f"{key}.{setting.name}", control_for(setting, elem_id=f"{key}-{setting.name}"))
                if method.batched:
                    form.add(f"{key}.prompts", build_further(key))

    def show_folds(picked: list[str]) -> list[Any]:
        return [gr.update(visible=key in picked) for key in folds]

    chosen.change(show_folds, chosen, list(folds.values()), **QUIET)


def control_for(setting: Setting, elem_id: str | None = None) -> gr.components.Component:
    """Return the control of one field of a method's Config."""
    label, common = label_of(setting), {"info": setting.doc, "elem_id": elem_id}
    if setting.type is bool:
        return gr.Checkbox(value=setting.default, label=label, **common)
    if setting.choices:
        choices = [(f"{c} (lossy)" if c in setting.lossy else c, c) for c in setting.choices]
        return gr.Radio(choices, value=setting.default, label=label, **common)
    if setting.type in (int, float) and setting.low is not None and setting.high is not None:
        step = 1 if setting.type is int else (setting.high - setting.low) / 100
        low = 0 if setting.auto else setting.low
        return gr.Slider(
            low, setting.high, value=setting.default, step=step, label=label, buttons=[], **common
        )
    if setting.type in (int, float):
        return gr.Number(
            value=setting.default, precision=0 if setting.type is int else None, label=label, **common
        )
    lines = 1 if setting.high and setting.high <= _SHORT else 3
    return gr.Textbox(value=setting.default, lines=lines, max_lines=8, label=label, **common)


def label_of(setting: Setting) -> str:
    """Return a field's name as people read it, with what its 0 stands for where it is left open."""
    return setting.name.replace("_", "-") + (f" (0 = {setting.auto})" if setting.auto else "")


def _build_sampling(form: Form) -> None:
    usual = Sampling()
    gr.HTML("<h2>Sampling</h2>")
    with gr.Row(elem_classes="app-pair"):
        warm = gr.Slider(
            0,
            2,
            usual.temperature,
            step=0.05,
            label="Temperature",
            info="0 takes the most probable token.",
            elem_id="temperature",
            buttons=[],
            min_width=150,
        )
        form.add("temperature", warm)
        _number(form, "max_new_tokens", Limits().max_new_tokens, "New tokens", "At most this many.")
    form.alert("sampling")
    with gr.Accordion("Seed, top-k, top-p, stop strings", open=False, elem_classes="app-fold"):
        with gr.Row(elem_classes="app-pair"):
            _number(form, "seed", usual.seed, "Seed", "The same seed, the same answer.")
            _number(form, "top_k", usual.top_k, "Top-k", "Keep this many; 0 keeps all.")
        nucleus = gr.Slider(
            0.05,
            1,
            usual.top_p,
            step=0.05,
            label="Top-p",
            info="Keep the most probable tokens that together reach this share.",
            elem_id="top-p",
            buttons=[],
        )
        form.add("top_p", nucleus)
        ends = gr.Textbox(
            "",
            lines=2,
            label="Stop strings",
            info="One a line; the answer ends before the first one.",
            elem_id="stop-strings",
        )
        form.add("stop", ends)


def _number(form: Form, name: str, value: float, label: str, info: str) -> None:
    """Place a number. Its range is checked when it is used: then the message can stand beside it."""
    form.add(name, gr.Number(value, label=label, info=info, elem_id=name.replace("_", "-"), min_width=110))


def _build_place(form: Form) -> None:
    gr.HTML("<h2>Where it runs</h2>")
    about = "On this machine times are measured; on a virtual cluster they come from its published figures."
    runtime = gr.Radio(list(RUNTIMES), value=RUNTIMES[0][1], label="Devices", info=about, elem_id="runtime")
    form.add("runtime", runtime)
    known = profiles()
    with gr.Column(scale=0, visible=False, elem_classes="app-plain") as virtual:
        profile = gr.Dropdown(
            [(Profile.load(name).title, name) for name in known],
            value=known[0] if known else None,
            label="Cluster",
            info="Published speeds of its devices give the times; the tokens come from the models below.",
            elem_id="profile",
        )
        form.add("profile", profile)
        pair = gr.Dropdown(**_pairs(known[0] if known else ""), label="Modelled pair", elem_id="profile-pair")
        form.add("profile_pair", pair)
    form.alert("place")
    _show_when(runtime, VIRTUAL, virtual)
    profile.change(lambda name: gr.update(**_pairs(name)), profile, pair, **QUIET)


def _build_models(form: Form) -> None:
    choices = [("The bundled pair (a toy)", "bundled"), ("My own", "own")]
    models = form.add("models", gr.Radio(choices, value="bundled", label="Models", elem_id="models"))
    with gr.Column(scale=0, visible=False, elem_classes="app-plain") as own:
        where = "A name such as smollm2, a folder with safetensors, a .gguf file, or a hub id."
        form.add("target", gr.Textbox("", label="Target", info=where, elem_id="target"))
        same = "Must have the target's tokenizer. Several, one in a line (Shift+Enter), can race in DSI."
        drafter = gr.Textbox("", label="Drafter", info=same, elem_id="drafter", lines=1, max_lines=8)
        form.add("drafter", drafter)
        heads = "Folders of heads of this target, one in a line, for Medusa, EAGLE and the like; each takes its kind."
        head = gr.Textbox("", label="Drafting heads", info=heads, elem_id="heads", lines=1, max_lines=8)
        form.add("head", head)
    form.alert("models")
    _show_when(models, "own", own)


def _show_when(control: gr.components.Component, value: str, part: gr.Column) -> None:
    """Show a part of the form while a control has a value. The page does it alone: no event can get lost."""
    update = f"(value) => ({{ __type__: 'update', visible: value === {json.dumps(value)} }})"
    control.change(None, control, part, js=update, **QUIET)


def _pairs(name: str) -> dict[str, Any]:
    """Return choices and value of the pair dropdown for a profile."""
    try:
        chosen = Profile.load(name)
    except UsageError:
        return {"choices": [], "value": None}
    return {"choices": [(pair.title, key) for key, pair in chosen.pairs.items()], "value": chosen.default}
