"""Any cards, models and batches have an answer or a refusal; better cards are never slower."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specscope.app.render.advise import html
from specscope.engine.errors import OutOfMemory
from specscope.engine.simulate.roofline import WEIGHT_BITS
from specscope.engine.simulate.shapes import data
from specscope.traces.advise.answer import advise, estimates, plain_estimate
from specscope.traces.advise.others import KINDS, Other
from specscope.traces.advise.question import Question
from specscope.traces.advise.words import facts, refusal
from specscope.traces.lab.plan import default

KNOWN = ("llama-3.1-70b", "llama-3.1-8b", "qwen3-0.6b", "qwen3-30b-a3b", "mixtral-8x7b")
KEYS = tuple(entrant.key for entrant in default().methods)


@st.composite
def shapes(draw: st.DrawFn) -> str | dict[str, Any]:
    if draw(st.booleans()):
        return draw(st.sampled_from(KNOWN))
    heads = draw(st.sampled_from((1, 2, 4, 8, 16)))
    table: dict[str, Any] = {
        "title": draw(st.sampled_from(("a model", "<b>", "70%"))),
        "source": "typed",
        "layers": draw(st.integers(1, 120)),
        "dim": 64 * draw(st.integers(1, 256)),
        "ffn": 64 * draw(st.integers(1, 1024)),
        "kv_heads": heads,
        "heads": heads * draw(st.integers(1, 8)),
        "head_dim": draw(st.sampled_from((64, 128))),
        "vocab": draw(st.integers(100, 300_000)),
        "tied": draw(st.booleans()),
    }
    if draw(st.booleans()):
        experts = draw(st.integers(2, 64))
        used = draw(st.integers(1, experts))
        table |= {"experts": experts, "experts_per_token": used, "expert_ffn": 64 * draw(st.integers(1, 64))}
    return table


@st.composite
def cards(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "name": "a card",
        "source": "typed",
        "link": "typed",
        "memory_gib": draw(st.integers(1, 400)),
        "bandwidth_gb_s": draw(st.integers(50, 8000)),
        "peak_tflops": draw(st.integers(20, 3000)),
        "link_gb_s": draw(st.integers(4, 1000)),
    }


links = st.fixed_dictionaries({"collective_us": st.floats(1, 50), "hop_us": st.floats(0.1, 5)})


@st.composite
def questions(draw: st.DrawFn) -> dict[str, Any]:
    low, high = sorted(draw(st.lists(st.floats(0.01, 0.99), min_size=2, max_size=2)))
    return {
        "count": draw(st.sampled_from((1, 2, 3, 4, 5, 8, 16))),
        "card": "typed",
        "target": draw(shapes()),
        "drafter": draw(shapes()),
        "dtype": draw(st.sampled_from(tuple(WEIGHT_BITS))),
        "drafter_dtype": draw(st.sampled_from(("", *WEIGHT_BITS))),
        "rates": (low, high),
        "batches": (draw(st.sampled_from((1, 2, 7, 64))),),
        "context": draw(st.sampled_from((1, 100, 4096, 1 << 17, 1 << 20))),
        "engine": draw(st.sampled_from(("graphs", "eager"))),
        "others": tuple(
            Other(kind, (low, high), tuple(draw(st.lists(st.floats(0.01, 0.99), max_size=3))))
            for kind in draw(st.lists(st.sampled_from(tuple(KINDS)), unique=True))
        ),
        "methods": tuple(draw(st.lists(st.sampled_from(KEYS), unique=True, min_size=1, max_size=2))),
    }


@contextmanager
def hardware(card: dict[str, Any], link: dict[str, float]):
    """A card of one's own, named `typed`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(data("gpus")["cards"], "typed", card)
        patch.setitem(data("gpus")["links"], "typed", link)
        yield


def fastest(fields: dict[str, Any]) -> float:
    """Return the most tokens per second by the closed forms; 0 if the target fits in no way."""
    question = Question(**fields)
    (batch,) = question.batches
    refused = ""
    try:
        plain = plain_estimate(question, batch)
    except OutOfMemory as error:
        refused = refusal(question, error)
    if refused:
        assert "\n" not in refused
        return 0.0
    found = estimates(question, batch, left_out := {})
    assert all(reason and "\n" not in reason for reason in left_out.values())
    assert all(one.speedup() > 0 and one.kept for one in (plain, *found))
    return max(one.tokens_per_second for one in (plain, *found))


any_cluster = given(questions(), cards(), links, st.floats(1, 4), st.floats(1, 20), st.floats(0.01, 1))


@settings(max_examples=30, deadline=None)
@any_cluster
def test_more_memory_or_faster_links_never_make_the_answer_slower(fields, card, link, memory, wider, waits):
    never_slower(fields, card, link, memory, wider, waits)


@pytest.mark.timeout(1800)
@settings(max_examples=170, deadline=None)
@any_cluster
def test_the_same_of_500_clusters_and_models(fields, card, link, memory, wider, waits):
    """An example has three clusters."""
    never_slower(fields, card, link, memory, wider, waits)


@settings(max_examples=4, deadline=None)
@given(questions(), cards(), links)
def test_any_question_is_answered_or_refused_in_one_line(fields, card, link):
    answered_or_refused(fields, card, link)


@pytest.mark.timeout(1800)
@settings(max_examples=20, deadline=None)
@given(questions(), cards(), links)
def test_the_same_of_20_questions(fields, card, link):
    answered_or_refused(fields, card, link)


def answered_or_refused(fields: dict[str, Any], card: dict[str, Any], link: dict[str, float]) -> None:
    """Run the placements of a question, and read its answer."""
    with hardware(card, link):
        refused, answer = "", None
        try:
            answer = advise(Question(**fields | {"tokens": 16, "context": min(fields["context"], 512)}))
        except OutOfMemory as error:
            refused = str(error)
        assert "\n" not in refused
        if answer is None:
            return
        found = json.loads(json.dumps(facts(answer)))
        for option in found["batches"][0]["options"]:
            assert 0 < option["low"] <= option["speedup"] <= option["high"]
            assert option["cards"] <= fields["count"]
            assert len(option["memory"]) == option["cards"]
            most = max(sum(part["bytes"] for part in parts) for parts in option["memory"].values())
            assert most <= card["memory_gib"] * 2**30
        assert "<b>" not in html(found).replace("<b style", "").replace("<b class", "")


def never_slower(
    fields: dict[str, Any],
    card: dict[str, Any],
    link: dict[str, float],
    memory: float,
    wider: float,
    waits: float,
) -> None:
    with hardware(card, link):
        usual = fastest(fields) * (1 - 1e-12)  # sums of other parts are rounded otherwise
    larger = card | {"memory_gib": card["memory_gib"] * memory}
    with hardware(larger, link):
        assert fastest(fields) >= usual
    wide, quick = card | {"link_gb_s": card["link_gb_s"] * wider}, {k: v * waits for k, v in link.items()}
    with hardware(wide, quick):
        assert fastest(fields) >= usual
