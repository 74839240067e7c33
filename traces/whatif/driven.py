"""What a recording can drive: methods whose drafts it holds, or can stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specscope.engine.errors import UsageError
from specscope.traces.facts.places import has_trees
from specscope.traces.whatif.drawn import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specscope.engine.methods import Method
    from specscope.engine.trace.trace import Trace
    from specscope.traces.whatif.recording import RecordedRun


def check_method(recording: RecordedRun, method: Method, config: Mapping[str, Any]) -> None:
    cfg = method.configure(config)
    layout = method.layout(cfg)
    if layout.head:
        raise UsageError(
            f"{method.key} drafts with a head, which reads hidden states; {recording.name} has none: "
            "choose a method with a drafter, or one that copies, or a run of this method with its own settings"
        )
    if layout.needs_drafter and not recording.rates.known:
        raise UsageError(
            f"{recording.name} tested no draft of a drafter, so {method.key} has none to replay: "
            "record a method with a drafter"
        )
    plain = bool(method.plain) and all(getattr(cfg, name) == value for name, value in method.plain.items())
    copies = not (layout.needs_drafter or method.baseline or plain)
    if copies and not recording.has_ids:
        raise UsageError(
            f"{method.key} copies from the text, and the token ids of {recording.name} are unknown: "
            "choose a method with a drafter"
        )
    for s in method.settings():
        if s.free_text and not s.default and getattr(cfg, s.name):  # a document
            raise UsageError(f"{s.name} is a text, and a recording has no tokenizer: leave it empty")


def check_drafts(recording: RecordedRun, replay: Trace) -> None:
    title = replay.header.title
    if replay.pooled:
        raise UsageError(
            f"{title} drafts n-grams that the models write beside the text; {recording.name} has only the text: "
            "choose another method"
        )
    ends = bounds(replay.header)
    if ends and not any(test.q for output in recording.outputs for test in output.tests.values()):
        raise UsageError(
            f"{title} ends a draft at an uncertain token, and {recording.name} has no probabilities of its drafts: "
            f"choose settings without a {ends[0]}, or another method"
        )
    if replay.forks and not recording.has_ranks:
        raise UsageError(
            f"{title} guesses the target's own tokens, and {recording.name} has no ranks of tokens that were not drafted: "
            "choose another method, or a run at temperature 0"
        )
    if has_trees(replay.decisions) and not recording.has_ranks:
        raise UsageError(
            f"{title} drafts trees, and {recording.name} has no ranks of tokens that were not drafted: choose a chain, "
            "such as width 1, another method, a run at temperature 0, or one of such trees with its own settings"
        )
