"""The speculation cache in a report: by replay, by pointing, and as a table."""

import pytest
from playwright.sync_api import expect

from specscope.traces.view.document import view_model
from specscope.traces.view.fan import fans, hits
from tests.browser.report.opened import centre_of, update
from tests.traces.samples import sample_trace
from tests.traces.test_fan import ssd

pytestmark = pytest.mark.browser
VIEW = ".ss-fan"


@pytest.fixture(scope="module")
def trace(beside):
    return beside(ssd, forks=2)


@pytest.fixture(scope="module")
def traces(trace):
    return [sample_trace("speculative"), trace]


def row(page, name):
    return page.locator(f"{VIEW} tr").filter(has=page.get_by_role("rowheader", name=name, exact=True))


def assert_shown(page, trace, fan):
    expect(page.locator(f"{VIEW} .ss-detail")).to_contain_text(f"Step {fan['step']}: ")
    guesses = fan["guesses"]
    expect(page.locator(f"{VIEW} .ss-guess[title]")).to_have_count(len(guesses["token"]))
    taken = page.locator(f"{VIEW} td .ss-guess-taken")
    expect(taken).to_have_count(guesses["taken"].count(True))
    if fan["result"] == "hit":
        own = trace.pieces[fan["own"]]
        assert f"“{own}”" in taken.get_attribute("title")
        assert taken.locator("xpath=..").get_attribute("class") == "ss-fan-outcome"
    own = row(page, "target").locator(".ss-gram-token")
    expect(own).to_have_count(0 if fan["own"] is None else 1)
    looks = row(page, "draft").locator(".ss-gram-token").evaluate_all("(all) => all.map((t) => t.className)")
    lost = len(fan["trunk"]) - fan["accepted"]
    assert ["rejected" in look for look in looks] == [False] * fan["accepted"] + [True] * lost


def test_only_a_run_with_branches_has_the_view(page, trace):
    expect(page.locator(VIEW)).to_have_count(1)
    places = hits(trace)
    found, most = (sum(place[name] for place in places) for name in ("hits", "lookups"))
    expect(page.locator(f"{VIEW} .ss-note")).to_have_text(f"{found} hits in {most} lookups")
    texts = row(page, "hits").locator("td").all_inner_texts()
    counts = {place["place"]: f"{place['hits']}/{place['lookups']}" for place in places}
    assert [text.strip() for text in texts] == [counts.get(i, "–") for i in range(len(texts))]


def test_replay_shows_the_last_round_and_nothing_moves(page, trace):
    rows = fans(trace)
    height = page.locator(VIEW).bounding_box()["height"]
    chosen = [next(one for one in rows if one["result"] == result) for result in ("hit", "miss", "end")]
    for fan in chosen:
        page.evaluate("(t) => view.seek(t)", fan["t"])
        assert_shown(page, trace, fan)
        assert page.locator(VIEW).bounding_box()["height"] == height


def test_pointing_at_the_drafters_work_shows_its_round(page, trace):
    rows = fans(trace)
    page.evaluate("view.seek(1e9)")
    assert_shown(page, trace, rows[-1])
    for kind in ("verify", "branch", "glue"):
        span = next(s for s in trace.spans if s.kind == kind and s.step == rows[2]["step"])
        page.mouse.move(*centre_of(page, 1, span.id))
        assert_shown(page, trace, rows[2])
    page.mouse.move(1, 1)
    assert_shown(page, trace, rows[-1])


def test_the_card_of_wasted_work_says_why(page, trace):
    taken = {fork.step for fork in trace.forks if fork.taken}
    missed = next(f["step"] for f in fans(trace) if f["step"] not in taken)
    for kind, text in (
        ("glue", "No branch after it was taken"),
        ("branch", "None of its tokens was accepted"),
    ):
        span = next(s for s in trace.spans if s.kind == kind and s.step == missed)
        page.mouse.move(*centre_of(page, 1, span.id))
        expect(page.get_by_role("tooltip")).to_contain_text(text)
    page.mouse.move(1, 1)


def test_the_table_of_rounds_has_the_lookups(page, trace):
    page.get_by_text("The timeline as a table").click()
    page.get_by_text(f"{len(trace.rounds)} rounds").click()
    table = page.locator("table").filter(has=page.get_by_text("Rounds, SSD", exact=False))
    assert table.locator("thead th").all_inner_texts()[-2:] == ["branches", "lookup"]
    for i, fan in enumerate(fans(trace)[:6]):
        cells = table.locator("tbody tr").nth(i).locator("td").all_inner_texts()
        assert cells[-2:] == [str(len(fan["guesses"]["token"])), fan["result"]]


def test_the_keyboard_reaches_the_view_and_opens_it_large(page):
    page.evaluate("view.seek(1e9)")
    page.locator(f"{VIEW} .ss-fan-body").focus()
    expect(page.locator(f"{VIEW} .ss-fan-body")).to_be_focused()
    page.locator(VIEW).get_by_role("button", name="Open large").press("Enter")
    expect(page.locator(".ss-large[open] .ss-fan-body table")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".ss-large[open]")).to_have_count(0)


def test_a_growing_run_keeps_its_view(page, traces):
    page.evaluate("view.seek(1e9)")
    before = page.locator(f"{VIEW} .ss-detail").inner_text()
    update(page, traces)
    expect(page.locator(f"{VIEW} .ss-detail")).to_have_text(before)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_view_fits_in_both_themes(opened, trace, theme):
    with opened.looking(theme, 800):
        opened.show(view_model([trace]))
        page = opened.ready()
        assert page.evaluate("document.documentElement.scrollWidth") <= 800
