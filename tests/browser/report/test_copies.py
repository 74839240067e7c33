"""The sources of copied drafts in a report: marks in prompt, reference and output."""

import pytest

from specscope.traces.facts.waiting import decoding_clock
from specscope.traces.view.document import view_model
from specscope.traces.view.ngrams import copies
from tests.browser.report.opened import centre_of, pane
from tests.traces.samples import DOCUMENT, PROMPT, WORDS, sample_trace

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def trace(runs):
    return runs["sources"]


@pytest.fixture(scope="module")
def traces(trace):
    return [sample_trace("autoregressive"), trace]


def read(tokens):
    return "".join(WORDS[t] for t in tokens)


def chosen(trace, document, inside=True):
    """Return an accepted copy from a document (-1: prompt, or output if not `inside`)."""
    prompt = len(PROMPT)
    accepted = {d.step for d in trace.decisions if d.node == 0 and d.outcome == "accepted"}
    for copy in copies(trace):
        where = copy["document"] == document and (document >= 0 or (copy["start"] < prompt) == inside)
        if where and copy["step"] in accepted and copy["start"] - copy["match"] < copy["start"]:
            return copy
    raise AssertionError("the sample has no such copy")


def token(page, copy):
    """Return the node of the first copied token."""
    return pane(page, 1).locator(".ss-token:not(.ss-ghost)").nth(copy["position"] - len(PROMPT))


def marks(page, name):
    """Return the marked texts of the prompt or the reference: matched, copied, exact."""
    block = page.locator(".ss-source-text").and_(page.get_by_label(name, exact=True))
    return [
        block.locator(kind).all_inner_texts() for kind in ("mark.ss-match", "mark.ss-source", ".ss-exact")
    ]


def expected(copy, texts):
    """Return the matched and the copied texts of a copy; [] for tokens outside `texts`."""
    start, end = copy["start"], min(copy["start"] + copy["length"], len(texts))
    parts = (texts[start - copy["match"] : start], texts[start:end])
    return [[read(part)] if part else [] for part in parts]


@pytest.mark.parametrize(
    ("by", "document", "name", "texts"),
    [("mouse", -1, "Prompt", PROMPT), ("keys", 0, "Reference", DOCUMENT)],
)
def test_pointing_at_a_copied_token_marks_its_source(page, trace, by, document, name, texts):
    copy = chosen(trace, document)
    node = token(page, copy)
    if by == "mouse":
        node.hover()
    else:
        node.focus()
    matched, copied, exact = marks(page, name)
    assert [matched, copied] == expected(copy, texts)
    assert exact == [WORDS[texts[copy["start"]]].lstrip()]
    other = "Reference" if name == "Prompt" else "Prompt"
    assert marks(page, other) == [[], [], []]
    round_ = next(r for r in trace.rounds if r.step == copy["step"])
    note = f"step {copy['step']}: {copy['match']} match, {copy['length']} copied, {round_.accepted} accepted"
    assert page.get_by_text(note, exact=True).is_visible()
    card = page.locator(".ss-float").inner_text()
    place = "the prompt" if document < 0 else "the reference text"
    assert (
        f"Copied from {place}, from token {copy['start'] + 1} on, after {copy['match']} matching token"
        in card
    )
    assert "It was copied and the target's own draw at this place was the same token" in card
    assert "The drafter" not in card
    page.mouse.move(1, 1)
    node.evaluate("(node) => node.blur()")
    assert page.locator("mark").count() == 0


def test_a_source_in_the_output_and_the_source_of_a_verification_are_marked(page, trace):
    copy = chosen(trace, -1, inside=False)
    token(page, copy).hover()
    own = pane(page, 1).locator(".ss-token:not(.ss-ghost)")
    positions = range(copy["start"], min(copy["start"] + copy["length"], copy["position"]))
    assert own.locator("xpath=self::*[contains(@class,'ss-source')]").all_inner_texts() == [
        own.nth(p - len(PROMPT)).inner_text() for p in positions
    ]
    assert own.locator("xpath=self::*[contains(@class,'ss-exact')]").count() == 1
    assert "Copied from the output" in page.locator(".ss-float").inner_text()
    page.mouse.move(1, 1)
    copy = chosen(trace, 0)
    span = next(r.span for r in trace.rounds if r.step == copy["step"])
    page.mouse.move(*centre_of(page, 1, span))
    assert marks(page, "Reference") == [*expected(copy, DOCUMENT), []]
    assert "Copied from the reference text" in page.locator(".ss-float").inner_text()


def test_a_rejected_copy_shows_its_source(page, trace):
    steps = {c["step"]: c for c in copies(trace) if c["document"] == 0}
    lost = [g for g in view_model([trace])["runs"][0]["ghosts"] if g["outcome"] == "rejected"]
    at, ghost = next((i, g) for i, g in enumerate(lost) if g["step"] in steps)
    page.get_by_label("rejected drafts").check()
    node = pane(page, 1).locator(".ss-ghost.ss-rejected").nth(at)
    assert node.get_attribute("aria-label").endswith(f"rejected draft, step {ghost['step']}")
    node.hover()
    assert marks(page, "Reference")[:2] == expected(steps[ghost["step"]], DOCUMENT)
    assert "It was copied, but the target's own draw" in page.locator(".ss-float").inner_text()


def test_replay_marks_the_source_of_the_last_round(page, trace):
    clock = decoding_clock(trace)
    by_step = {c["step"]: c for c in copies(trace)}
    seen = set()
    for r in trace.rounds[:-1]:
        page.evaluate("(t) => view.seek(t)", clock(r.time))
        copy = by_step.get(r.step)
        for name, document, texts in (("Prompt", -1, PROMPT), ("Reference", 0, DOCUMENT)):
            marked = copy and copy["document"] == document and copy["start"] - copy["match"] < len(texts)
            assert marks(page, name) == ([*expected(copy, texts), []] if marked else [[], [], []]), (
                r.step,
                name,
            )
            seen.add((name, bool(marked)))
    assert len(seen) == 4, "each source is marked in some rounds and not in others"
    page.evaluate("view.seek(1e9)")
    assert page.locator("mark").count() == 0, "at the end nothing is marked"


def test_a_long_prompt_scrolls_to_the_mark(page, trace):
    model = view_model([trace])
    model["runs"][0]["sources"][1]["texts"][:0] = [f" word{i}" for i in range(400)]
    for copy in model["runs"][0]["copies"]:
        copy["start"] += 400 * (copy["document"] == 0)
    page.evaluate("(model) => view.update(model)", model)
    text = page.locator(".ss-source-text").nth(1)
    assert text.evaluate("(node) => node.scrollTop") == 0
    top = page.evaluate("scrollY")
    pane(page, 0).locator(".ss-token:not(.ss-ghost)").nth(chosen(trace, 0)["position"] - len(PROMPT)).focus()
    box, mark = text.bounding_box(), text.locator("mark").first.bounding_box()
    assert box["y"] <= mark["y"] <= box["y"] + box["height"] - mark["height"]
    assert page.evaluate("scrollY") == top


def test_a_run_without_copies_and_a_redacted_run_show_no_sources(page, opened, trace):
    assert pane(page, 0).locator(".ss-sources").is_hidden()
    assert pane(page, 1).locator(".ss-sources").is_visible()
    page = opened.show(view_model([trace], redact_prompt=True))
    assert pane(page, 0).locator(".ss-sources").is_hidden()
    pane(page, 0).locator(".ss-token").nth(chosen(trace, -1)["position"] - len(PROMPT)).hover()
    assert page.locator(".ss-quote").count() == 0, "the prompt's words stay out of the card"
