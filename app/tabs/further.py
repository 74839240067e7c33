"""Further prompts for a method that decodes batches: typed or filled in from samples."""

from __future__ import annotations

import json
from pathlib import Path

import gradio as gr

from app.tabs.wiring import QUIET

PROMPTS = Path(__file__).parents[2] / "assets" / "prompts"


def build_further(key: str) -> gr.Textbox:
    """Build the box for a method's further prompts, with a button that fills in samples."""
    box = gr.Textbox(
        "",
        label="further prompts",
        info="Decoded in the same run as the prompt above; separate prompts by blank lines.",
        lines=3,
        max_lines=10,
        elem_id=f"{key}-prompts",
    )
    samples = sample_prompts()
    with gr.Row():
        count = gr.Slider(
            1,
            len(samples),
            value=min(7, len(samples)),
            step=1,
            label="samples",
            buttons=[],
            elem_id=f"{key}-samples",
        )
        fill = gr.Button("Fill with samples", size="sm", min_width=0, elem_id=f"{key}-fill")
    # In the browser, so that a click on Run right after it uses the new value.
    fill.click(None, count, box, js=f"(n) => {json.dumps(samples)}.slice(0, n).join('\\n\\n')", **QUIET)
    return box


def sample_prompts() -> list[str]:
    """Return the sample prompts: those of the bench."""
    return json.loads((PROMPTS / "bench.json").read_text(encoding="utf-8"))["prompts"]
