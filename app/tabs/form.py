"""The controls of the playground, the picker of methods (`assets/picker.js`), and the prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gradio as gr

from specscope.app import pairs
from specscope.app.named import bench_prompts
from specscope.app.ray import RUNTIME, Ray
from specscope.app.render.html import note
from specscope.app.tabs.library import absent_note
from specscope.app.tabs.requests import MOST_METHODS, MOST_PASSES, OTHER, OWN, SERVER, USUAL, VIRTUAL, rows_of
from specscope.app.tabs.servers import build_server
from specscope.app.tabs.wiring import QUIET, SMALL, Update, build_message
from specscope.engine.checkpoints.forms import FORMS, form_title
from specscope.engine.errors import UsageError
from specscope.engine.methods import BASELINE, METHODS, Method, Setting
from specscope.engine.simulate.profile import Profile, profiles
from specscope.engine.types import Limits, Sampling

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


RUNTIMES = (
    ("This machine, processes", "local-process"),
    ("This machine, threads", "local-thread"),
    ("Virtual cluster", VIRTUAL),
)


@dataclass
class Form:
    """The controls by name, in the order of the handlers' arguments."""

    controls: dict[str, gr.components.Component] = field(default_factory=dict)
    about: gr.HTML | None = None

    @property
    def offered(self) -> list[gr.components.Component | None]:
        """The components that depend on the chosen models."""
        return [self.controls["methods"], self.about]

    @property
    def inputs(self) -> list[gr.components.Component]:
        return list(self.controls.values())

    @property
    def remembered(self) -> dict[str, gr.components.Component]:
        """The controls that a page notes: all without a secret."""
        return {name: one for name, one in self.controls.items() if getattr(one, "type", "") != "password"}

    def values(self, given: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.controls, given, strict=True))

    def noted(self, given: Sequence[Any]) -> dict[str, Any]:
        """Return the values that a page has noted, by control; without those it cannot have."""
        given = given if len(given) == len(self.remembered) else ()
        rows = zip(self.remembered.items(), given, strict=False)
        return {name: value for (name, control), value in rows if _fits(name, control, value)}

    def shown(self, values: Mapping[str, Any]) -> Update:
        """Return the controls with these values."""
        update: Update = {self.controls[name]: value for name, value in values.items()}
        if "profile" in values:
            offered = _pairs(values["profile"], values.get("profile_pair"))
            update[self.controls["profile_pair"]] = gr.update(**offered)
        return update

    def add(self, name: str, control: gr.components.Component) -> gr.components.Component:
        self.controls[name] = control
        return control


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


def build_settings(form: Form, pair: str, ray: Ray | None = None) -> gr.Column:
    """Build the settings below the prompt; return the card of the models."""
    picker = form.add("methods", build_picker(pair))
    with gr.Column(elem_id="settings", elem_classes="app-plain"):
        with gr.Row(equal_height=False):
            with gr.Column(elem_classes="app-card", min_width=280) as models:
                _build_models(form, pair)
            with gr.Column(elem_classes="app-card", min_width=280):
                _build_sampling(form)
            with gr.Column(elem_classes="app-card", min_width=280):
                place = _build_place(form, ray)
        with gr.Column(elem_classes="app-card") as methods:
            gr.HTML("<h2>Methods</h2>")
            picker.render()
    for part in (place, methods):
        _show_when(form.controls["models"], SERVER, part, shown=False)
    return models


def _build_sampling(form: Form) -> None:
    usual = Sampling()
    gr.HTML("<h2>Sampling</h2>")
    with gr.Row(elem_classes="app-pair"):
        greedy = "0 = always the most probable token."
        _slider(form, "temperature", (0, 2), usual.temperature, "Temperature", greedy, min_width=150)
        longest = "Longest answer; it shares the context with the prompt."
        _number(form, "max_new_tokens", Limits().max_new_tokens, "New tokens", longest)
    with gr.Accordion("Seed, top-k, top-p, stop strings", open=False, elem_classes="app-fold"):
        with gr.Row(elem_classes="app-pair"):
            _number(form, "seed", usual.seed, "Seed", "The same seed gives the same answer.")
            _number(form, "top_k", usual.top_k, "Top-k", "Sample from the k most probable tokens; 0 = all.")
        nucleus = "Sample from the most probable tokens with this total probability."
        _slider(form, "top_p", (0.05, 1), usual.top_p, "Top-p", nucleus)
        ends = "One per line; the answer ends before the first that occurs."
        form.add("stop", gr.Textbox("", lines=2, label="Stop strings", info=ends, elem_id="stop-strings"))


def _slider(
    form: Form, name: str, ends: tuple[float, float], value: float, label: str, info: str, **more: Any
) -> None:
    named = {"label": label, "info": info, "elem_id": name.replace("_", "-"), "buttons": []}
    form.add(name, gr.Slider(*ends, value, step=0.05, **named, **more))


def _number(form: Form, name: str, value: float, label: str, info: str) -> None:
    """Add a number. Its range is checked on Run, to show the message beside it."""
    form.add(name, gr.Number(value, label=label, info=info, elem_id=name.replace("_", "-"), min_width=110))


def _build_place(form: Form, ray: Ray | None) -> gr.Column:
    """Build the card of the place; return the part that a server does not have."""
    gr.HTML("<h2>Where it runs</h2>")
    here = "this machine or on Ray's nodes" if ray else "this machine"
    about = f"Times are measured on {here}, or computed from a cluster's published figures."
    places = [*RUNTIMES, *([(ray.title, RUNTIME)] if ray else [])]
    names = profiles()
    first = names[0] if names else None
    with gr.Column(scale=0, elem_classes="app-plain") as devices:
        runtime = gr.Radio(places, value=RUNTIMES[0][1], label="Devices", info=about, elem_id="runtime")
        form.add("runtime", runtime)
        with _hidden() as virtual:
            about = "Times are computed from its published speeds; tokens come from the models below."
            clusters = [(Profile.load(name).title, name) for name in names]
            profile = gr.Dropdown(clusters, value=first, label="Cluster", info=about, elem_id="profile")
            form.add("profile", profile)
            pair = gr.Dropdown(**_pairs(first or ""), label="Modelled pair", elem_id="profile-pair")
            form.add("profile_pair", pair)
    about = (
        "Measured runs alternate; the median and the spread are shown. A busy machine needs more than one."
    )
    passes = gr.Radio(list(range(1, MOST_PASSES + 1)), value=1, label="Passes", info=about, elem_id="passes")
    form.add("passes", passes)
    _show_when(runtime, VIRTUAL, virtual)
    profile.change(lambda *given: gr.update(**_pairs(*given)), [profile, pair], pair, **QUIET)
    return devices


def _build_models(form: Form, pair: str) -> None:
    gr.HTML("<h2>Models</h2>")
    choices = [*((pairs.label(name), name) for name in pairs.NAMES), ("My own", OWN), ("My server", SERVER)]
    models = gr.Radio(choices, value=pair, label="Models", show_label=False, elem_id="models")
    form.add("models", models)
    form.about = gr.HTML(note(pairs.about(pair)), elem_id="about-models")
    with _hidden() as own:
        where = "A name such as smollm2, a folder with safetensors files, a .gguf file, or a hub id."
        form.add("target", gr.Textbox("", label="Target", info=where, elem_id="target"))
        heads = "Folders of this target's heads, one per line, for Medusa, EAGLE and the like."
        head = gr.Textbox("", label="Drafting heads", info=heads, elem_id="heads", lines=1, max_lines=8)
        form.add("head", head)
    with gr.Column(scale=0, elem_classes="app-plain") as ours:
        _build_drafter(form)
    with _hidden() as server:
        build_server(form.add)
    _show_when(models, OWN, own)
    _show_when(models, SERVER, server)
    _show_when(models, SERVER, ours, shown=False)
    models.change(None, [models, form.controls["methods"]], form.offered, js=offer_script(), **QUIET)


def _build_drafter(form: Form) -> None:
    about = "Usual: the one stored with the models; without one, int4 or int8, as is faster on this machine."
    choices = [("Usual", USUAL), *((form_title(name), name) for name in FORMS), ("Another model", OTHER)]
    kind = gr.Radio(choices, value=USUAL, label="Drafter", info=about, elem_id="drafting")
    form.add("drafting", kind)
    with _hidden() as named:
        same = (
            "For a target of your own, with its tokenizer. DSI can use several, one per line (Shift+Enter)."
        )
        drafter = gr.Textbox("", label="Another drafter", info=same, elem_id="drafter", lines=1, max_lines=8)
        form.add("drafter", drafter)
    _show_when(kind, OTHER, named)


def _hidden() -> gr.Column:
    return gr.Column(scale=0, visible=False, elem_classes="app-plain")


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


def _pairs(name: str, pair: str | None = None) -> dict[str, Any]:
    """Return the choices of a profile's modelled pair; `pair` stays chosen if it has it."""
    try:
        chosen = Profile.load(name)
    except UsageError:
        return {"choices": [], "value": None}
    value = pair if pair in chosen.pairs else chosen.default
    return {"choices": [(one.title, key) for key, one in chosen.pairs.items()], "value": value}


SAMPLES = Path(__file__).parents[2] / "assets" / "prompts" / "samples.json"


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


def samples() -> list[dict[str, str]]:
    return json.loads(SAMPLES.read_text(encoding="utf-8"))
