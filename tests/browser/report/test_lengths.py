"""Draft lengths and calibration in a report: columns, reasons, replay, pointing and keys."""

from dataclasses import replace

import pytest
from playwright.sync_api import expect

import specscope
from specscope.engine.types import Limits
from specscope.traces.view.audit import audit_view
from specscope.traces.view.calibration import calibration_views
from specscope.traces.view.lengths import lengths
from tests.browser.report.opened import update
from tests.traces.samples import sample_trace, with_header

pytestmark = pytest.mark.browser
VIEW = ".ss-lengths"
DRAFT = ".ss-lengths-draft"
BIN = ".ss-calibration-bin"


@pytest.fixture(scope="module")
def traces(runs):
    return [sample_trace("autoregressive"), runs["lengths"]]


def heights(page, look):
    """Return the height of a kind of block in each draft, in tokens; the highest one asks for 4."""
    found = page.locator(DRAFT).evaluate_all(
        """(all, look) => all.map((one) => one.querySelector(`.ss-lengths-${look}`)?.getAttribute("height") ?? 0)""",
        look,
    )
    return [round(float(height) / 96 * 4, 6) for height in found]


def test_a_column_has_what_was_asked_drafted_and_accepted_and_replay_fades_later_ones(page, traces):
    rows = lengths(traces[1])
    expect(page.locator(VIEW)).to_have_count(1)
    expect(page.locator(DRAFT)).to_have_count(len(rows))
    for look, name in (("asked", "asked"), ("accepted", "accepted"), ("lost", "lost")):
        assert heights(page, look) == [r[name] for r in rows]
    assert heights(page, "open") == [0] * len(rows)
    signs = page.locator(DRAFT).evaluate_all("(all) => all.map((one) => one.textContent)")
    assert signs == [{"uncertain": "?", "end": "|"}.get(r["stop"], "") for r in rows]
    assert "?" in signs
    ended = sum(r["stop"] == "uncertain" for r in rows)
    expect(page.locator(f"{VIEW} .ss-detail")).to_contain_text(f"{ended} at an uncertain token")
    expect(page.locator(f"{VIEW} .ss-legend")).to_contain_text("at an uncertain token")
    height = page.locator(VIEW).bounding_box()["height"]
    page.evaluate("(t) => view.seek(t)", rows[4]["t"])
    expect(page.locator(f"{DRAFT}.ss-lengths-later")).to_have_count(sum(r["t"] > rows[4]["t"] for r in rows))
    assert page.locator(VIEW).bounding_box()["height"] == height, "nothing moves"
    page.evaluate("view.seek(1e9)")
    expect(page.locator(f"{DRAFT}.ss-lengths-later")).to_have_count(0)


def test_pointing_and_keys_tell_of_a_draft_and_light_its_forwards(page, traces):
    rows = lengths(traces[1])
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


def test_the_columns_are_those_of_the_timelines_window_and_of_the_chosen_sequence(opened, traces, decode):
    rows = lengths(traces[1])
    page = opened.runs(traces, fragment=f"window={rows[2]['t'] - 0.01},{rows[6]['t'] + 0.01}")
    expect(page.locator(DRAFT)).to_have_count(5)
    page.get_by_role("button", name="fit").click()
    expect(page.locator(DRAFT)).to_have_count(len(rows))
    config, load = {"gamma": 3, "schedule": "average"}, specscope.Load((0.0, 0.0), batch=2)
    trace = decode("speculative", "Tell me a story.", "Hi", config=config, limits=Limits(20), load=load)
    opened.runs([trace])
    for sequence in (1, 0):
        page.get_by_label("Sequence of Speculative", exact=False).select_option(str(sequence))
        count = sum(r["sequence"] == sequence for r in lengths(trace))
        expect(page.locator(DRAFT)).to_have_count(count)
        expect(page.locator(f"{VIEW} .ss-note")).to_have_text(f"sequence {sequence + 1} of 2")


def test_calibration_has_a_table_of_places_and_a_diagram_by_pointing_and_keys(opened, runs, decode):
    trace, view = runs["calibration"], ".ss-calibration"
    views, traces = calibration_views(trace), [sample_trace("autoregressive"), trace]
    page = opened.runs(traces)
    card, detail = page.locator(view), page.locator(f"{view} .ss-detail")
    expect(card).to_have_count(1)
    lines = card.locator("tbody tr")
    expect(lines).to_have_count(len(views))
    for number, row in enumerate(views):
        expect(lines.nth(number)).to_contain_text(f"{row['error']:.3f}")
    for place in (2, 1, 0):
        row = next(v for v in views if v["place"] == place)
        card.get_by_role("button", name=f"place {place}" if place else "all places").click()
        expect(page.locator(BIN)).to_have_count(len(row["bins"]["low"]))
        expect(page.locator(f"{BIN} .ss-calibration-expected")).to_have_count(len(row["bins"]["low"]))
        name = f"Place {place}" if place else "All places"
        expect(detail).to_contain_text(f"{name}: {row['tested']} tested tokens, q {row['q']:.2f} on average")

    bins = views[0]["bins"]
    page.locator(BIN).nth(1).hover()
    expect(detail).to_contain_text(f"{bins['accepted'][1]} of {bins['tested'][1]} tested tokens accepted")
    page.mouse.move(1, 1)
    expect(detail).to_contain_text("All places")
    page.locator(f"{BIN}[tabindex='0']").focus()
    page.keyboard.press("End")
    last = f"{bins['accepted'][-1]} of {bins['tested'][-1]} tested tokens accepted"
    assert last in page.evaluate("document.activeElement.getAttribute('aria-label')")
    expect(page.locator(f"{BIN}[tabindex='0']")).to_have_count(1)

    place = card.get_by_role("button", name="place 2")
    place.focus()
    page.keyboard.press("Enter")
    update(page, traces)  # a growing run keeps its place and its focus
    expect(place).to_have_attribute("aria-pressed", "true")
    expect(place).to_be_focused()

    opened.runs([decode("speculative", "Hi", limits=Limits(20))])
    expect(page.locator(BIN).first).to_be_attached()
    expect(page.locator(f"{BIN} .ss-calibration-expected")).to_have_count(0)  # at temperature 0
    assert "expected" not in page.locator(f"{view} thead").inner_text()


def test_the_audit_has_a_row_for_all_each_place_and_each_stretch_and_marks_a_contradiction(opened, runs):
    trace = runs["calibration"]
    turned = [replace(d, outcome="rejected") if d.outcome == "accepted" else d for d in trace.decisions]
    wrong = with_header(replace(trace, decisions=turned), run_id="wrong")
    page = opened.runs([trace, wrong])
    for i, run in enumerate((trace, wrong)):
        view, card = audit_view(run), page.locator(".ss-audit").nth(i)
        parts = [view["whole"], *view["places"], *view["stretches"]]
        expect(card.locator("tbody tr")).to_have_count(len(parts))
        for number, part in enumerate(parts):
            cells = card.locator("tbody tr").nth(number).locator("td").all_inner_texts()
            assert cells[:3] == [f"{part['tested']}", f"{part['low']:.1f}", f"{part['kept']}"]
        expect(card.locator(".ss-detail")).to_have_text(
            view["sentence"] or "No contradiction to min(1, p/q)."
        )
    expect(page.locator(".ss-audit-away")).not_to_have_count(0)
    expect(page.locator(".ss-audit-sentence")).to_have_count(1)
