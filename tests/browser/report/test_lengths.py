"""Draft lengths in a report: columns, reasons, replay, pointing and keys."""

import pytest
from playwright.sync_api import expect

import specscope
from specscope.engine.types import Limits, Sampling
from specscope.traces.view.document import view_model
from specscope.traces.view.lengths import lengths
from tests.browser.report.opened import update
from tests.traces.samples import sample_trace

pytestmark = pytest.mark.browser
VIEW = ".ss-lengths"
DRAFT = ".ss-lengths-draft"
UNEVEN = {"gamma": 4, "schedule": "threshold"}


@pytest.fixture(scope="module")
def trace(decode):
    return decode("speculative", "Tell me a story.", config=UNEVEN, sampling=Sampling(0.7), limits=Limits(40))


@pytest.fixture(scope="module")
def traces(trace):
    return [sample_trace("autoregressive"), trace]


def heights(page, look):
    """Return the height of a kind of block in each draft, in tokens; the highest one asks for 4."""
    found = page.locator(DRAFT).evaluate_all(
        """(all, look) => all.map((one) => one.querySelector(`.ss-lengths-${look}`)?.getAttribute("height") ?? 0)""",
        look,
    )
    return [round(float(height) / 96 * 4, 6) for height in found]


def test_a_column_has_what_was_asked_drafted_and_accepted(page, trace):
    rows = lengths(trace)
    expect(page.locator(VIEW)).to_have_count(1)
    expect(page.locator(DRAFT)).to_have_count(len(rows))
    assert heights(page, "asked") == [r["asked"] for r in rows]
    assert heights(page, "accepted") == [r["accepted"] for r in rows]
    assert heights(page, "lost") == [r["lost"] for r in rows]
    assert heights(page, "open") == [0] * len(rows)
    signs = page.locator(DRAFT).evaluate_all("(all) => all.map((one) => one.textContent)")
    assert signs == [{"uncertain": "?", "end": "|"}.get(r["stop"], "") for r in rows]
    assert "?" in signs
    ended = sum(r["stop"] == "uncertain" for r in rows)
    expect(page.locator(f"{VIEW} .ss-detail")).to_contain_text(f"{ended} at an uncertain token")
    expect(page.locator(f"{VIEW} .ss-legend")).to_contain_text("at an uncertain token")


def test_pointing_and_keys_tell_of_a_draft_and_light_its_forwards(page, trace):
    rows = lengths(trace)
    at = next(i for i, r in enumerate(rows) if r["stop"] == "uncertain" and r["drafted"] > 1)
    row = rows[at]
    says = f"Step {row['step']}: 4 tokens asked for, {row['drafted']} drafted, {row['accepted']} accepted. It ended at an uncertain token."
    page.locator(DRAFT).nth(at).hover()
    expect(page.locator(f"{VIEW} .ss-detail")).to_have_text(says)
    expect(page.locator(".ss-float")).to_be_visible()
    page.mouse.move(1, 1)
    expect(page.locator(f"{VIEW} .ss-detail")).to_contain_text("On average")
    page.locator(f"{DRAFT}[tabindex='0']").focus()
    for _ in range(at):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == says
    expect(page.locator(f"{VIEW} .ss-detail")).to_have_text(says)
    expect(page.locator(f"{DRAFT}.ss-pool-lit")).to_have_count(1)
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.dataset.at") == str(len(rows) - 1)
    page.keyboard.press("Escape")


def test_replay_fades_later_drafts_and_nothing_moves(page, trace):
    rows = lengths(trace)
    height = page.locator(VIEW).bounding_box()["height"]
    page.evaluate("(t) => view.seek(t)", rows[4]["t"])
    expect(page.locator(f"{DRAFT}.ss-lengths-later")).to_have_count(sum(r["t"] > rows[4]["t"] for r in rows))
    assert page.locator(VIEW).bounding_box()["height"] == height
    page.evaluate("view.seek(1e9)")
    expect(page.locator(f"{DRAFT}.ss-lengths-later")).to_have_count(0)


def test_the_columns_are_those_of_the_timelines_window(opened, traces, trace):
    rows = lengths(trace)
    low, high = rows[2]["t"] - 0.01, rows[6]["t"] + 0.01
    page = opened.show(view_model(traces), fragment=f"window={low},{high}")
    opened.ready()
    expect(page.locator(DRAFT)).to_have_count(5)
    page.get_by_role("button", name="fit").click()
    expect(page.locator(DRAFT)).to_have_count(len(rows))


def test_the_chosen_sequence_of_a_load_is_shown(opened, decode):
    trace = decode(
        "speculative",
        "Tell me a story.",
        "Hi",
        config={"gamma": 3, "schedule": "average"},
        limits=Limits(20),
        load=specscope.Load((0.0, 0.0), batch=2),
    )
    page = opened.show(view_model([trace]))
    opened.ready()
    for sequence in (1, 0):
        page.get_by_label("Sequence of Speculative", exact=False).select_option(str(sequence))
        count = sum(r["sequence"] == sequence for r in lengths(trace))
        expect(page.locator(DRAFT)).to_have_count(count)
        expect(page.locator(f"{VIEW} .ss-note")).to_have_text(f"sequence {sequence + 1} of 2")


def test_a_growing_run_keeps_its_view(page, traces):
    before = page.locator(f"{VIEW} .ss-detail").inner_text()
    update(page, traces)
    expect(page.locator(f"{VIEW} .ss-detail")).to_have_text(before)
    expect(page.locator(VIEW)).to_have_count(1)
