"""Look-ahead window and pool of n-grams in a report: by replay, by pointing, and as a table."""

import re

import pytest
from playwright.sync_api import expect

from specscope.traces.view.document import view_model
from specscope.traces.view.ngrams import ngrams
from tests.browser.report.opened import centre_of, update
from tests.traces.samples import sample_trace
from tests.traces.test_ngrams import ahead

pytestmark = pytest.mark.browser
VIEW = ".ss-grams"


@pytest.fixture(scope="module")
def trace(beside):
    return beside(ahead)


@pytest.fixture(scope="module")
def traces(trace):
    return [sample_trace("speculative"), trace]


def block(page, title):
    return page.locator(f"{VIEW}-body > div").filter(has=page.get_by_role("heading", name=title))


def texts(page, selector):
    return page.locator(f"{VIEW} {selector}").evaluate_all(
        """(rows) => rows.map((row) => [...row.querySelectorAll(".ss-gram-token")].map((t) => [t.title, t.className.trim()]))"""
    )


def assert_shown(page, trace, row):
    expect(page.locator(f"{VIEW} .ss-detail")).to_contain_text(f"Step {row['step']}: ")
    shown = [[title for title, _ in line] for line in texts(page, "table tr")]
    assert shown == [[f"“{trace.pieces[i]}”" for i in level] for level in row["window"]]
    tried = block(page, "Tried from the pool").locator("li")
    expect(tried).to_have_count(len(row["tried"]))
    for i, gram in enumerate(row["tried"]):
        looks = tried.nth(i).locator(".ss-gram-token").evaluate_all("(all) => all.map((t) => t.className)")
        kept = ["accepted" if at <= gram["accepted"] else "lost" for at in range(1, len(gram["ids"]))]
        assert [re.search(r"ss-gram-(first|accepted|lost)", look)[1] for look in looks] == ["first", *kept]
        assert f"{gram['accepted']} accepted" in tried.nth(i).get_attribute("aria-label")
    expect(block(page, "Gained").locator("li")).to_have_count(len(row["gained"]))


def test_only_a_run_with_a_pool_has_the_view(page):
    expect(page.locator(VIEW)).to_have_count(1)
    expect(page.locator(f"{VIEW} .ss-note")).to_have_text("the target looks ahead")


def test_replay_shows_the_last_round_and_nothing_moves(page, trace):
    rows = ngrams(trace)
    height = page.locator(VIEW).bounding_box()["height"]
    whole = next(r for r in rows if any(t["accepted"] == 3 for t in r["tried"]))
    for row in (rows[0], rows[4], whole, rows[-1]):
        page.evaluate("(t) => view.seek(t)", row["t"])
        assert_shown(page, trace, row)
        assert page.locator(VIEW).bounding_box()["height"] == height


def test_pointing_at_a_verification_shows_its_round(page, trace):
    rows = ngrams(trace)
    page.evaluate("view.seek(1e9)")
    assert_shown(page, trace, rows[-1])
    judged = trace.rounds[6]
    page.mouse.move(*centre_of(page, 1, judged.span))
    assert_shown(page, trace, next(r for r in rows if r["step"] == judged.step))
    page.mouse.move(1, 1)
    assert_shown(page, trace, rows[-1])


def test_the_table_of_rounds_has_the_counts(page, trace):
    page.get_by_text("The timeline as a table").click()
    page.get_by_text(f"{len(trace.rounds)} rounds").click()
    table = page.locator("table").filter(has=page.get_by_text("Rounds, Lookahead", exact=False))
    assert table.locator("thead th").all_inner_texts()[-3:] == [
        "n-grams tried",
        "n-grams gained",
        "in the pool",
    ]
    for i, row in enumerate(ngrams(trace)[:8]):
        cells = table.locator("tbody tr").nth(i).locator("td").all_inner_texts()
        assert cells[-3:] == [str(len(row["tried"])), str(len(row["gained"])), str(row["size"])]


def test_a_growing_run_keeps_its_view(page, traces):
    page.evaluate("view.seek(1e9)")
    before = page.locator(f"{VIEW} .ss-detail").inner_text()
    update(page, traces)
    expect(page.locator(f"{VIEW} .ss-detail")).to_have_text(before)
    expect(page.locator(VIEW)).to_have_count(1)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_window_fits_in_both_themes(opened, trace, theme):
    with opened.looking(theme, 800):
        opened.show(view_model([trace]))
        page = opened.ready()
        assert page.evaluate("document.documentElement.scrollWidth") <= 800
