"""The Advise tab: which method fits GPUs and two models, where each lies, how fast, how sure."""

from __future__ import annotations

import base64
import threading
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from specscope.app.jobs.service import Service
from specscope.app.jobs.stored import find_traces
from specscope.app.render.advise import html, page
from specscope.app.render.html import alert, note
from specscope.app.render.lab import progress
from specscope.app.tabs.requests import at
from specscope.app.tabs.settings import Experiment, asked, check, marked, read, row
from specscope.engine.errors import OutOfMemory, SpecScopeError
from specscope.engine.simulate.shapes import data, with_shape
from specscope.traces.advise.acceptance import acceptance_of, parse_other, parse_rates
from specscope.traces.advise.answer import Answer, answered
from specscope.traces.advise.others import KINDS, Other
from specscope.traces.advise.question import DTYPES, MOST_CONTEXT, MOST_NEW, Question, parse_batches
from specscope.traces.advise.words import facts, refusal

_ADVISE = (
    "Which method, and where does each model sit? Sizes and times are computed from data sheets, nothing is downloaded; "
    "the methods' own code runs on them in virtual time. A model is a known one, or the path of a config.json. The "
    "acceptance rate is a number (0.7), a range (0.6:0.8), one for each place of a draft (0.9,0.8,0.6), or unknown. A "
    "drafting head (EAGLE, MTP) and copied n-grams are compared if their own rate is given. Not compared: heads that draft "
    "all tokens at once (Medusa, ParallelSpec, DFlash), as a drafter is asked for one at a time here; trees, as nothing "
    "plans them here; and drafts that the models write beside the text (look-ahead, Ouroboros), as no rate says how much."
)


def shapes() -> list[tuple[str, str]]:
    return [(shape["title"], name) for name, shape in data("shapes").items()]


@dataclass(frozen=True, slots=True)
class AdviceSettings:
    """The values of the Advise tab's controls."""

    count: int = asked("Cards", bounds=(1, 64), said="the number of cards")
    card: str = asked("Card", choices=lambda: [(c["name"], key) for key, c in data("gpus")["cards"].items()])
    target: str = asked("Target", choices=shapes, allow_custom_value=True)
    drafter: str = asked("Drafter", choices=shapes, allow_custom_value=True)
    dtype: str = asked("Target's weights", choices=lambda: list(DTYPES))
    drafter_dtype: str = asked(
        "Drafter's weights", choices=lambda: [("As the target's", ""), *((d, d) for d in DTYPES)]
    )
    rates: str = asked("Acceptance rate", placeholder="unknown")
    recorded: str = asked("Or that of a stored run", placeholder="its id")
    head: str = asked("Acceptance of a drafting head", placeholder="not compared")
    ngrams: str = asked("Acceptance of copied n-grams", placeholder="not compared")
    batches: str = asked("Batch sizes")
    context: int = asked("Tokens of a prompt", bounds=(1, MOST_CONTEXT), said="the context")
    tokens: int = asked("New tokens", bounds=(16, MOST_NEW), said="new tokens")
    engine: str = asked(
        "Engine", choices=lambda: [("With CUDA graphs", "graphs"), ("Eager transformers", "eager")]
    )

    def __post_init__(self) -> None:
        check(self, "advise")


CONTROLS = {
    "the card": "advise-card",
    "the dtype": "advise-dtype",
    "the drafter's dtype": "advise-drafter-dtype",
    "the engine": "advise-engine",
    "the acceptance rate": "advise-rates",
    "the number of batch sizes": "advise-batches",
    "the batch": "advise-batches",
}
"""A control that an error names by what it counts."""


def usual_settings() -> AdviceSettings:
    return AdviceSettings(**read("advise")["settings"])


def question_of(given: AdviceSettings, service: Service) -> Question:
    """Return the question of the controls; FormError names the one that is wrong."""
    with at("advise-rates"):
        expected = parse_rates(str(given.rates or "unknown").strip())
    if given.recorded:
        with at("advise-recorded"):
            (trace,) = find_traces(service, str(given.recorded).strip())
            expected = acceptance_of(trace)
    others = tuple[Other, ...]()
    for kind in KINDS:
        with at(f"advise-{kind}"):
            others += parse_other(kind, str(getattr(given, kind) or "").strip())
    with at("advise-batches"):
        batches = parse_batches(str(given.batches))
    for role, shape in (("target", given.target), ("drafter", given.drafter)):
        with at(f"advise-{role}"):
            with_shape({"shape": str(shape)}, f"the {role}'s ")
    with at("advise-card", CONTROLS):
        return Question(
            given.count,
            str(given.card),
            str(given.target),
            str(given.drafter),
            str(given.dtype),
            str(given.drafter_dtype or ""),
            batches=batches,
            context=given.context,
            tokens=given.tokens,
            engine=str(given.engine),
            others=others,
            **expected._asdict(),
        )


def build_advise(service: Service) -> Experiment[AdviceSettings]:
    made = Experiment("advise", usual_settings(), service, _work, example)
    with made.card("My GPUs, my models", _ADVISE) as controls:
        with row():
            controls.add("count", "card", "target", "drafter")
        with row():
            controls.add("dtype", "drafter_dtype", "rates", "recorded")
        with row():
            controls.add("head", "ngrams", "batches", "context")
        with row():
            controls.add("tokens", "engine")
            made.add_buttons("Advise")
        made.add_result()
    return made


def _work(service: Service, given: AdviceSettings, stop: threading.Event) -> Generator[tuple[str, str]]:
    answer, drawn, done, total = Answer(question_of(given, service)), "", 0, 1
    yield progress(0, 1, "places"), ""
    try:
        for done, total in answered(answer, stop):
            option = answer.options[-1]
            service.hold(option.traces)
            yield progress(done, total, "places", f"{option.title}, batch {option.batch}"), drawn
        found = facts(answer)
    except OutOfMemory as error:
        yield alert(refusal(answer.question, error)), drawn
    except SpecScopeError as error:
        yield alert(error), drawn
    else:
        ended = (
            f"Stopped after {done} of {total} places."
            if done < total
            else f"{total} places, in virtual time."
        )
        yield note(ended), html(found) + _saved(page(found))


def _saved(document: str) -> str:
    """Return a link that saves the answer as a page of its own."""
    content = base64.b64encode(document.encode()).decode()
    return f'<p><a class="app-link" download="advice.html" href="data:text/html;base64,{content}">Save this answer as a page</a></p>'


def example() -> str:
    """Return the answer of the finished example; its runs cannot be opened."""
    return marked("Advise") + html(read("advise")["result"], links=False)


def make_example(service: Service) -> dict[str, Any]:
    """Answer the usual settings; return the result."""
    answer = Answer(question_of(usual_settings(), service))
    for _ in answered(answer):
        pass
    return {"result": facts(answer)}
