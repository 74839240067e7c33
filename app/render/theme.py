"""The page's Gradio theme: the viewer's colours, flat controls, no nested boxes."""

from __future__ import annotations

import gradio as gr

FONT = ("system-ui", "-apple-system", "Segoe UI", "sans-serif")
INK, MUTED, LINE = ("#1d2433", "#e6e9f0"), ("#5b6579", "#9aa4b5"), ("#e2e6ec", "#263249")
PAGE, CARD, FIELD = ("#ffffff", "#0b0f19"), ("#fbfcfe", "#111827"), ("#ffffff", "#0d1422")
EDGE, ACCENT, SOFT = ("#8791a3", "#6b7890"), ("#3d3dff", "#8f8fff"), ("#eeeeff", "#20244a")
BUTTON, HOVER, ON_ACCENT = ("#ffffff", "#172033"), ("#f2f4f8", "#1f2a40"), ("#ffffff", "#0b0f19")
STOP, NONE = ("#b42318", "#ff9a8f"), ("transparent", "transparent")
PRESSED = ("#2a2ae0", "#a9a9ff")

COLOURS = {
    "body_background_fill": PAGE,
    "body_text_color": INK,
    "body_text_color_subdued": MUTED,
    "background_fill_primary": FIELD,
    "background_fill_secondary": CARD,
    "border_color_primary": LINE,
    "border_color_accent": ACCENT,
    "color_accent_soft": SOFT,
    "link_text_color": ACCENT,
    "link_text_color_hover": INK,
    "link_text_color_visited": ACCENT,
    "block_background_fill": NONE,
    "block_border_color": NONE,
    "block_info_text_color": MUTED,
    "block_title_text_color": INK,
    "block_label_text_color": INK,
    "checkbox_background_color": FIELD,
    "checkbox_background_color_hover": FIELD,
    "checkbox_background_color_focus": FIELD,
    "checkbox_background_color_selected": ACCENT,
    "checkbox_border_color": EDGE,
    "checkbox_border_color_selected": ACCENT,
    "checkbox_border_color_focus": ACCENT,
    "checkbox_label_background_fill": NONE,
    "checkbox_label_background_fill_hover": NONE,
    "checkbox_label_background_fill_selected": NONE,
    "checkbox_label_text_color": INK,
    "checkbox_label_text_color_selected": INK,
    "checkbox_label_border_color": NONE,
    "checkbox_label_border_color_selected": NONE,
    "input_background_fill": FIELD,
    "input_background_fill_focus": FIELD,
    "input_border_color": EDGE,
    "input_border_color_focus": ACCENT,
    "input_border_color_hover": INK,
    "input_placeholder_color": MUTED,
    "slider_color": ACCENT,
    "loader_color": ACCENT,
    "button_primary_background_fill": ACCENT,
    "button_primary_background_fill_hover": PRESSED,
    "button_primary_border_color": ACCENT,
    "button_primary_text_color": ON_ACCENT,
    "button_primary_text_color_hover": ON_ACCENT,
    "button_secondary_background_fill": BUTTON,
    "button_secondary_background_fill_hover": HOVER,
    "button_secondary_border_color": EDGE,
    "button_secondary_text_color": INK,
    "button_cancel_background_fill": BUTTON,
    "button_cancel_background_fill_hover": HOVER,
    "button_cancel_border_color": STOP,
    "button_cancel_text_color": STOP,
    "button_cancel_text_color_hover": STOP,
}
"""(light, dark) by theme variable."""
SIZES = {
    "block_border_width": "0px",
    "block_border_width_dark": "0px",
    "block_padding": "0px",
    "block_radius": "8px",
    "block_shadow": "none",
    "block_shadow_dark": "none",
    "block_title_text_size": "13px",
    "block_title_text_weight": "550",
    "block_info_text_size": "12px",
    "button_border_width": "1px",
    "button_small_padding": "5px 13px",
    "button_small_radius": "7px",
    "button_small_text_size": "13px",
    "button_small_text_weight": "550",
    "checkbox_border_radius": "4px",
    "checkbox_label_padding": "2px 0",
    "checkbox_label_border_width": "0px",
    "checkbox_label_shadow": "none",
    "checkbox_label_shadow_hover": "none",
    "checkbox_label_shadow_active": "none",
    "checkbox_label_gap": "6px 16px",
    "checkbox_label_text_size": "13.5px",
    "checkbox_label_text_weight": "400",
    "form_gap_width": "0px",
    "input_border_width": "1px",
    "input_border_width_dark": "1px",
    "input_padding": "7px 10px",
    "input_radius": "7px",
    "input_shadow": "none",
    "input_shadow_focus": "none",
    "input_shadow_focus_dark": "none",
    "input_text_size": "14px",
    "layout_gap": "12px",
}


def build_theme() -> gr.themes.Base:
    light = {name: value[0] for name, value in COLOURS.items()}
    dark = {f"{name}_dark": value[1] for name, value in COLOURS.items()}
    base = gr.themes.Base(
        font=FONT, font_mono=("ui-monospace", "monospace"), text_size="sm", spacing_size="sm"
    )
    return base.set(**light, **dark, **SIZES)
