"""A run's settings as its heading shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.errors import UsageError
from engine.methods import METHODS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine.trace.events import Header

LONGEST = 32
"""Characters of a value in a heading."""


def shown_config(header: Header, redact_prompt: bool) -> dict[str, Any]:
    """Return a run's settings; redacted, without texts that a person wrote."""
    known = METHODS[header.method].settings() if header.method in METHODS else ()
    closed = {s.name for s in known if not s.free_text}
    return {
        name: value
        for name, value in header.config.items()
        if not redact_prompt or name in closed or not isinstance(value, str)
    }


def config_text(method: str, config: Mapping[str, Any]) -> str:
    """Return the settings that differ from their default, and gamma if a drafter drafts."""
    known = METHODS[method].settings() if method in METHODS else ()
    always = "gamma" if _uses_drafter(method, config) else ""
    defaults = {s.name: s.default for s in known if s.name != always}
    shown = {k: v for k, v in config.items() if k not in defaults or defaults[k] != v}
    return " · ".join(f"{'γ' if k == 'gamma' else k} {_text(v)}" for k, v in shown.items())


def _uses_drafter(method: str, config: Mapping[str, Any]) -> bool:
    """Return whether a method with these settings drafts with a model; True if unknown."""
    try:
        known = METHODS[method]
        return known.layout(known.configure(config)).needs_drafter
    except (KeyError, UsageError):
        return True


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1].rstrip() + "…"
