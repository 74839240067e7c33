"""The verdict on a run in plain words: how fast, why, and what would help. Measured facts only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from specscope.engine.checkpoints.forms import form_of
from specscope.traces.facts.comparable import batch_size, drafts
from specscope.traces.facts.imported import origin
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.places import has_trees, level_rate
from specscope.traces.facts.rates import OVERLAP, rates_of
from specscope.traces.facts.settings import predicted_speedup
from specscope.traces.facts.waiting import divided
from specscope.traces.judge.advice import GAIN, Advice, advise, longest_drafter
from specscope.traces.judge.causes import by_drafter, slow
from specscope.traces.judge.health import health
from specscope.traces.judge.race import Racer, Speed, speedup_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specscope.engine.trace.events import Header
    from specscope.engine.trace.trace import Trace
    from specscope.traces.facts.metrics import Metrics
    from specscope.traces.facts.places import LevelRate

LOADED = "under the load of other programs."
UNDIVIDED = "How a step is divided between drafting and verifying is not known."
OFTEN = 0.25
"""Share of wrong first tokens from which on another drafter is named."""
FEWEST = 8
"""Rounds that must have judged a first token."""
_FORMS = {"": "int4", "int4": "int8", "int8": ""}
"""Form of a drafter -> the form that is right more often; none for int8."""
_REASONS = {
    "int4": "The target's own weights in 4 bits (int4) need no training, and on the models that were measured they are "
    "seldom wrong (docs/models.md).",
    "int8": "These weights seem to lie on no 4-bit grid; int8 loses less (docs/models.md).",
}


class RunVerdict(TypedDict):
    """The sentences under a pane."""

    summary: str
    """Speed-up and main facts; empty if the run is not done or has no baseline but itself."""
    reason: str
    """Why it is not faster than plain decoding, or cannot be as fast as it seems; else empty."""
    advice: str
    """What would help; empty if nothing is predicted to."""
    run: Advice | None
    drafter: str
    """That it is often wrong, and which one is wrong less often, or how each of several did."""
    other: OtherDrafter | None
    health: str
    """Loops, long stretches of rejections or acceptances, or drift; empty if there are none."""


NONE: RunVerdict = {
    "summary": "",
    "reason": "",
    "advice": "",
    "run": None,
    "drafter": "",
    "other": None,
    "health": "",
}


def verdict(i: int, racers: Sequence[Racer], metrics: Metrics, audited: str | None = None) -> RunVerdict:
    """Return the verdict on run i of a race.

    A cause is named only for a loss that is larger than the range of the passes, and nothing for
    times that other programs may have changed.
    """
    racer, trace = racers[i], racers[i].trace
    if trace.status != "done":
        return NONE
    found: RunVerdict = {**_of_drafter(trace, metrics), "health": health(trace, audited)}
    faster = speedup_of(racer, racers)
    if faster is None or racer.baseline in (None, i):
        return found
    baseline, title = racers[racer.baseline], trace.header.title
    if racer.loaded or baseline.loaded:
        return {**found, "summary": f"{title} about {faster.value:.1f}× {LOADED}"}
    facts = "" if not drafts(trace) else f": {_facts(trace, metrics, faster.value, baseline.trace)}"
    lacking = " The load by other programs was not recorded." if racer.unknown or baseline.unknown else ""
    text, advice = ("", None) if racer.doubt else _advice(i, racers, metrics, baseline.trace)
    why = racer.doubt or _why(trace, metrics, baseline.trace, faster)
    return {
        **found,
        "summary": f"{title} {_compared(faster)}{facts}.{_predicted(trace)}{lacking}",
        "reason": why,
        "advice": text,
        "run": advice,
    }


def _predicted(trace: Trace) -> str:
    speed = predicted_speedup(trace.header)
    return "" if speed is None else f" The plan predicted {speed:.2f}×."


def _why(trace: Trace, metrics: Metrics, baseline: Trace, faster: Speed) -> str:
    """Return why a run is not faster than plain decoding, whatever its passes leave open."""
    loses = faster.high < 1 or (faster.low == faster.high and round(faster.value, 2) <= 1)
    if not loses or not drafts(trace):
        return ""
    return slow(trace, metrics, baseline, faster.value, faster.high) if divided(trace) else UNDIVIDED


def _of_drafter(trace: Trace, metrics: Metrics) -> RunVerdict:
    header, text = trace.header, wrong_drafter(trace.header, metrics.draft_forwards, metrics.per_level)
    if not text:
        return {**NONE, "drafter": by_drafter(trace)}
    form = better_form(header.drafter_path)
    other = OtherDrafter(method=header.method, config=header.config, drafter=form)
    return {**NONE, "drafter": text, "other": other}


def _compared(faster: Speed) -> str:
    if faster.low < faster.high and faster.low <= 1 <= faster.high:
        return f"{faster.text}, no difference from plain decoding that these passes can show"
    if faster.low == faster.high and round(faster.value, 2) == 1:
        return "as fast as plain decoding"
    return faster.text


def _facts(trace: Trace, metrics: Metrics, faster: float, baseline: Trace) -> str:
    both, brings = metrics.waiting.get("both") or 0.0, metrics.tokens_per_target_forward
    if both >= OVERLAP:
        right = level_rate(metrics.per_level)
        noun = "levels had a right draft" if has_trees(trace.decisions) else "drafts were right"
        tested = "" if right is None else f", and {100 * right:.0f} % of the tested {noun}"
        work = f"drafter and target worked at the same time for {100 * both:.0f} % of decoding{tested}"
    elif brings is None:
        work = "no forward of the target was recorded"
    else:
        what = "target forward" if divided(trace) else "step"
        unit = (measure(baseline).tokens_per_target_forward or 1.0) if batch_size(baseline) > 1 else 1.0
        each = "" if unit == 1 else f", which bring {unit:.2f} each"
        work = f"a {what} brought {brings:.2f} tokens in the time of {brings / unit / faster:.2f} plain ones{each}"
    return "; ".join(filter(None, (work, _lost(trace, metrics))))


def _lost(trace: Trace, metrics: Metrics) -> str:
    per_round = metrics.mean_accepted_length
    if has_trees(trace.decisions) and per_round is not None:
        return f"{per_round:.2f} tokens of each tree were accepted"
    if not metrics.drafted or metrics.accepted is None:
        return "nothing was drafted"
    lost = metrics.drafted - metrics.accepted
    noun = "copied tokens" if metrics.draft_forwards == 0 else "drafts"
    return f"{lost} of {metrics.drafted} {noun} were thrown away"


def _advice(i: int, racers: Sequence[Racer], metrics: Metrics, baseline: Trace) -> tuple[str, Advice | None]:
    racer = racers[i]
    beside = [r for r in racers if r.baseline == racer.baseline]
    rivals = [(r.trace.header, speed.value) for r in beside if (speed := speedup_of(r, racers))]
    measured = speedup_of(racer, racers)
    assert measured is not None
    best = advise(racer.trace, metrics, baseline, measured.value, rivals)
    if best is not None and best["speedup"] > measured.high:
        same = best["method"] == racer.trace.header.method
        name = best["setting"] if same else f"{best['title']} with {best['setting']}"
        return (
            f"Try {name}: predicted {best['speedup']:.2f}× instead of {measured.value:.2f}×.",
            None if origin(racer.trace.header) else best,
        )
    helped = measured.high > 1 or any(speed >= GAIN for _, speed in rivals)
    return "" if helped else _needed(racer.trace, metrics, baseline), None


def _needed(trace: Trace, metrics: Metrics, baseline: Trace) -> str:
    limit, rates = longest_drafter(trace, metrics, baseline), rates_of(trace, metrics, baseline)
    if limit is None or rates is None:
        return ""
    if limit <= 0:
        return (
            f"No setting is predicted to help: a target forward of two rows takes {rates.forward(2):.2f} plain tokens, "
            "so even a drafter that takes no time would not pay."
        )
    if rates.draft <= limit:
        return ""
    return (
        f"No setting is predicted to help: a drafter forward takes {rates.draft:.2f} plain tokens; one that takes "
        f"less than {limit:.2f} would pay at this acceptance."
    )


class OtherDrafter(TypedDict):
    """A run with another drafter."""

    method: str
    config: dict[str, Any]
    drafter: str


def better_form(drafter_path: str) -> str:
    return _FORMS[form_of(drafter_path)]


def wrong_drafter(header: Header, draft_forwards: int | None, levels: Iterable[LevelRate]) -> str:
    """Return that a drafter is often wrong, and which one is wrong less often; else nothing.

    `draft_forwards` and `levels` are those of the drafter's runs. A virtual run has no such
    sentence: its profile has the times of one drafter.
    """
    by_model = draft_forwards and header.drafter_path and "head" not in header.environment
    if header.virtual or origin(header) or not by_model:
        return ""
    form, first = better_form(header.drafter_path), next((one for one in levels if one.level == 1), None)
    if not form or first is None or first.reached < FEWEST or 1 - first.rate < OFTEN:
        return ""
    return f"This drafter is wrong in {100 * (1 - first.rate):.0f} % of the first tokens. {_REASONS[form]}"
