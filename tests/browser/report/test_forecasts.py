"""Forecasts of suffix trees in a report: a column for each round, a sentence, and the table."""

import pytest
from playwright.sync_api import expect

from specscope.traces.view.document import view_model
from specscope.traces.view.forecasts import forecasts, sums_of
from tests.browser.report.opened import centre_of, update
from tests.traces.samples import sample_trace
from tests.traces.test_forecasts import expecting

pytestmark = pytest.mark.browser
VIEW = ".ss-forecast"


@pytest.fixture(scope="module")
def trace(beside):
    return beside(expecting, "hybrid", gamma=2)


@pytest.fixture(scope="module")
def traces(trace):
    return [sample_trace("llma"), trace]


def assert_shown(page, row):
    note = page.locator(f"{VIEW} .ss-detail")
    expect(note).to_contain_text(f"Step {row['step']}: ")
    if row["tree"]:
        expect(note).to_contain_text(f"{row['score']:.2f} tokens expected of a copy, {row['drafter']:.2f} of")
    else:
        expect(note).to_contain_text("no match")
    by = "copied" if row["copied"] else "by the drafter"
    tokens = f"{row['drafted']} token{'' if row['drafted'] == 1 else 's'}"
    expect(note).to_contain_text(
        f"{tokens} {by}, {row['accepted']} accepted" if row["drafted"] else "A plain step"
    )


def test_only_a_run_with_suffix_trees_has_the_view(page):
    expect(page.locator(VIEW)).to_have_count(1)


def test_the_legend_has_the_sums_of_each_kind(page, trace):
    legend = page.get_by_label("Legend of the suffix trees")
    sums = sums_of(forecasts(trace))
    assert {row["by"] for row in sums} == {"own", "finished", "drafter"}
    for i, row in enumerate(sums):
        expect(legend.locator("li").nth(i)).to_contain_text(
            f"{row['drafted']} drafted, {row['expected']:.1f} expected, {row['accepted']} accepted"
        )


def test_replay_and_pointing_show_a_round_and_nothing_moves(page, trace):
    rows = forecasts(trace)
    height = page.locator(VIEW).bounding_box()["height"]
    for row in (rows[0], rows[3], rows[-1]):
        page.evaluate("(t) => view.seek(t)", row["t"])
        assert_shown(page, row)
        assert page.locator(VIEW).bounding_box()["height"] == height
    page.mouse.move(*centre_of(page, 1, trace.rounds[2].span))
    assert_shown(page, rows[2])
    page.mouse.move(1, 1)
    assert_shown(page, rows[-1])
    page.locator(f"{VIEW} svg").hover(position={"x": 20, "y": 20})
    assert_shown(page, rows[1])


def test_the_table_of_rounds_has_the_forecasts(page, trace):
    page.get_by_text("The timeline as a table").click()
    page.get_by_text(f"{len(trace.rounds)} rounds").last.click()
    table = page.locator("table").filter(has=page.get_by_text("Rounds, Suffix hybrid", exact=False))
    assert table.locator("thead th").all_inner_texts()[-3:] == [
        "match",
        "expected of a copy",
        "of the drafter",
    ]
    for i, row in enumerate(forecasts(trace)[:8]):
        cells = table.locator("tbody tr").nth(i).locator("td").all_inner_texts()
        assert cells[-3:] == [str(row["match"]), f"{row['score']:.2f}", f"{row['drafter']:.2f}"]


def test_a_finished_text_is_named_and_marked(page, trace):
    copy = next(c for c in trace.copies if c.document >= 0)
    name = page.locator(".ss-pane").nth(1).get_by_role("heading", name=f"Finished text {copy.document + 1}")
    expect(name).to_have_count(1)


def test_a_growing_run_keeps_its_view(page, traces):
    update(page, traces)
    expect(page.locator(VIEW)).to_have_count(1)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_chart_fits_in_both_themes(opened, trace, theme):
    with opened.looking(theme, 400):
        opened.show(view_model([trace]))
        page = opened.ready()
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
