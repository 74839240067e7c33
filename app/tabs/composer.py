"""The card with the prompt: examples, system prompt, and the buttons of a turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gradio as gr

from app.render.models import absent_note
from app.tabs.form import Form
from app.tabs.wiring import QUIET, Update

SAMPLES = Path(__file__).parents[2] / "assets" / "prompts" / "samples.json"


class Composer:
    """The card's components.

    Args:
        form: Takes the place of the prompt's error.
        chosen: Whether the pair to open with was chosen; otherwise the card says which is absent.
    """

    def __init__(self, form: Form, *, chosen: bool) -> None:
        with gr.Column(elem_id="composer", elem_classes="app-card"):
            self.prompt = gr.Textbox(
                "",
                label="Prompt",
                show_label=False,
                lines=2,
                max_lines=12,
                placeholder="Type a prompt for all methods, or pick an example. Ctrl+Enter runs it.",
                elem_id="prompt",
                autofocus=True,
            )
            form.alert("prompt")
            self.follow = gr.Radio(
                [], label="Your next message continues the answer of", visible=False, elem_id="follow"
            )
            with gr.Row(elem_id="actions"):
                self._build_actions()
            self.notice = gr.HTML("" if chosen else absent_note(), elem_id="notice")
            with gr.Accordion("System prompt", open=False, elem_classes="app-fold"):
                self.system = gr.Textbox(
                    "",
                    label="System prompt",
                    show_label=False,
                    lines=2,
                    placeholder="Optional: instructions for the model, placed before the conversation.",
                    elem_id="system",
                )

    def _build_actions(self) -> None:
        self.samples = gr.Dataset(
            components=[self.prompt],
            samples=[[s["prompt"]] for s in samples()],
            sample_labels=[s["title"] for s in samples()],
            show_label=False,
            label="Examples",
            container=False,
            elem_id="samples",
        )
        small: dict[str, Any] = {"size": "sm", "min_width": 0}
        self.clear = gr.Button("New conversation", elem_id="clear", visible=False, **small)
        self.again = gr.Button("Regenerate", elem_id="again", visible=False, **small)
        self.stop = gr.Button("Stop", elem_id="stop", variant="stop", visible=False, **small)
        self.go = gr.Button("Run", elem_id="run", variant="primary", **small)
        # In the browser, so that a click on Run right after it uses the new value.
        # A Dataset's value in the browser is the index of the sample.
        pick = f"(number) => {json.dumps([s['prompt'] for s in samples()])}[number]"
        self.samples.click(None, self.samples, self.prompt, js=pick, **QUIET)

    @property
    def buttons(self) -> list[gr.Button]:
        """The buttons of a turn."""
        return [self.clear, self.again, self.stop, self.go]

    def shown(self, *, running: bool) -> Update:
        """Show the buttons that a turn needs."""
        follow = {self.follow: gr.update(visible=False)} if running else {}
        return {
            self.go: gr.update(visible=not running),
            self.stop: gr.update(visible=running),
            self.again: gr.update(visible=not running),
            self.clear: gr.update(visible=not running),
            **follow,
        }


def samples() -> list[dict[str, str]]:
    """Return the examples: title and prompt of each."""
    return json.loads(SAMPLES.read_text(encoding="utf-8"))
