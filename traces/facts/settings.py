"""A run's settings as its heading shows them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from specscope.engine.checkpoints.forms import form_of, model_name
from specscope.engine.drafting.static import tree
from specscope.engine.errors import UsageError
from specscope.engine.methods import METHODS
from specscope.engine.run.policies import FIXED
from specscope.traces.facts.requests import load_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specscope.engine.trace.events import Header

LONGEST = 32


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
    """Return the settings that differ from their usual value, and gamma if a drafter drafts."""
    known = METHODS[method].settings() if method in METHODS else ()
    always = "gamma" if _uses_drafter(method, config) else ""
    usual = {
        s.name: (s.default, s.default if s.paper is None else s.paper) for s in known if s.name != always
    }
    shown = {k: v for k, v in config.items() if v not in usual.get(k, ())}
    trees, auto = {s.name for s in known if s.paper is not None}, {s.name: s.auto for s in known if s.auto}
    texts = {k: _tree_text(v) if k in trees else _text(v or auto.get(k, v)) for k, v in shown.items()}
    return " · ".join(f"{'γ' if k == 'gamma' else k} {text}" for k, text in texts.items())


def policy_text(header: Header) -> str:
    """Return the policy of a run under load; empty for fixed drafts."""
    load = load_of(header)
    return "" if load is None or load.policy == FIXED else load.policy


def drafter_text(header: Header) -> str:
    """Return the name of a drafter that is a target in fewer bits; empty for another one."""
    named = form_of(header.drafter_path) and _uses_drafter(header.method, header.config)
    return model_name(header.drafter_path) if named else ""


def models_text(header: Header) -> str:
    """Return the name of a run's pair, and of a drafter that is its target in fewer bits."""
    pair = str(header.environment.get("pair") or model_name(header.target_path))
    form = form_of(header.drafter_path)
    return f"{pair}, drafter {form}" if form and not pair.endswith(form) else pair


class _Planned(NamedTuple):
    """The facts of `specscope.engine.drafting.planner.Plan`."""

    nodes: int
    levels: int
    tokens: float
    speedup: float
    low: float
    high: float
    runs: int
    others: float
    shared: bool


def planned_text(header: Header) -> str:
    """Return the prediction of a planned draft as a line; empty if the draft was not planned."""
    plan = _planned(header)
    if plan is None:
        return _by_speed(header)
    size = _size(plan.nodes, plan.levels)
    last = "the last run" if plan.runs == 1 else f"each of the last {plan.runs} runs"
    seen = f"{plan.low:.2f} to {plan.high:.2f} by {last} of this method and pair on this machine"
    speed = f"{plan.speedup:.2f}×" + (f" ({seen})" if plan.runs else "")
    slower = "" if plan.speedup >= 1 else ": plain decoding is faster"
    disturbed = f"; measured while other programs used {plan.others:.1f} cores" if plan.others else ""
    shared = (
        "; both models are on one GPU, where drafting beside a verification saves no time"
        if plan.shared
        else ""
    )
    return (
        f"planned: {size}, predicted {plan.tokens:.1f} tokens per forward, {speed}{slower}{shared}{disturbed}"
    )


def _by_speed(header: Header) -> str:
    """Return why a draft that was chosen by c is as long as it is; empty for any other one."""
    c, gamma = header.environment.get("c"), header.config.get("gamma")
    opened = header.environment.get("open")
    chosen = isinstance(opened, dict) and "gamma" in opened
    if not (
        chosen
        and isinstance(c, float)
        and isinstance(gamma, int)
        and gamma in range(1, 1000)
        and abs(gamma - c) <= 1
    ):
        return ""
    return (
        f"γ {gamma}, because one target forward was measured to take as long as {c:.1f} drafter forwards; "
        "a slower drafter gets shorter drafts"
    )


def predicted_speedup(header: Header) -> float | None:
    plan = _planned(header)
    return None if plan is None else plan.speedup


def _planned(header: Header) -> _Planned | None:
    plan = header.environment.get("planned", {})
    try:
        size, tokens = (int(plan["nodes"]), int(plan["levels"])), float(plan["tokens_per_forward"])
        learned = float(plan.get("low", 0)), float(plan.get("high", 0)), int(plan.get("runs", 0))
        more = float(plan.get("others", 0)), plan.get("shared") is True
        return _Planned(*size, tokens, float(plan["speedup"]), *learned, *more)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        return None


def _size(nodes: int, levels: int) -> str:
    if nodes == levels > 1:
        return f"{nodes} tokens in a row"
    return f"{_plural(nodes, 'node')} in {_plural(levels, 'level')}"


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _uses_drafter(method: str, config: Mapping[str, Any]) -> bool:
    """Return whether a method with these settings drafts with a model; True if unknown."""
    try:
        known = METHODS[method]
        return known.layout(known.configure(config)).needs_drafter
    except (KeyError, UsageError):
        return True


def _tree_text(value: Any) -> str:
    """Return the name or file of a tree, or the size of a tree given by its paths."""
    if str(value).startswith("["):
        with suppress(UsageError):
            shape = tree(str(value))
            return _size(len(shape.paths), shape.depth)
    return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1].rstrip() + "…"
