"""Moving about in the timeline of a report: map, ranges, arrows, search, tracks, pins, links."""

import csv
import math
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import expect

from specscope.traces.view.document import view_model
from tests.browser.report.opened import bar_of, centre_of, drawn_after, window

pytestmark = pytest.mark.browser


def press(page, *keys):
    page.locator(".ss-gantt").focus()
    for key in keys:
        drawn_after(page, lambda key=key: page.keyboard.press(key))


def test_the_map_shows_the_window_and_moves_it(page):
    press(page, "w", "w", "w")
    low, high = window(page)
    whole = page.locator(".ss-map-plot").bounding_box()
    frame = page.locator(".ss-map-window").bounding_box()
    begin, end = frame["x"], frame["x"] + frame["width"]
    page.mouse.move((begin + end) / 2, frame["y"] + 4)
    page.mouse.down()
    drawn_after(page, lambda: page.mouse.move((begin + end) / 2 + 60, frame["y"] + 4))
    page.mouse.up()
    moved = window(page)
    assert moved[1] - moved[0] == pytest.approx(high - low)
    assert (moved[0] - low) / (high - low) == pytest.approx(60 / frame["width"], rel=0.03)
    drawn_after(page, lambda: page.mouse.click(whole["x"] + 40, frame["y"] + 4))
    jumped = window(page)
    assert jumped[0] < moved[0]
    assert jumped[1] - jumped[0] == pytest.approx(high - low)


def parts_in(run, low, high):
    """Return {(device, name): parts in ms} of the work and the waits in a range."""
    names = {
        "draft": "waits for the drafter",
        "verify": "waits for the target",
        "host": "idle, no device works",
    }
    groups = {}
    for track in run["tracks"]:
        spans = track["spans"]
        for kind, fate, start, end in zip(*(spans[k] for k in ("kind", "fate", "start", "end")), strict=True):
            name = f"{kind}, discarded" if fate in ("rejected", "discarded") else kind
            groups.setdefault((track["label"], name), []).append(min(end, high) - max(start, low))
        for start, end, reason in track["waits"]:
            groups.setdefault((track["label"], names[reason]), []).append(min(end, high) - max(start, low))
    inside = {key: sorted(p for p in parts if p > 0) for key, parts in groups.items()}
    return {key: parts for key, parts in inside.items() if parts}


def test_a_range_has_figures_and_a_csv_file(page, traces):
    box = page.locator(".ss-plot").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 90)
    page.keyboard.down("Shift")
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 90, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    panel = page.get_by_label("Figures of the range", exact=True).first
    expect(panel).to_be_visible()
    low, high = window(page)
    pixel = (high - low) / box["width"]
    expected = parts_in(view_model(traces)["runs"][1], low + 300 * pixel, low + 500 * pixel)
    with page.expect_download() as started:
        panel.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(started.value.path().read_text().splitlines()))
    found = {(r["device"], r["work or wait"]): r for r in rows if r["run"].startswith("Speculative")}
    assert found.keys() == expected.keys()
    for key, parts in expected.items():
        p95 = parts[math.ceil(0.95 * len(parts)) - 1]
        assert int(found[key]["count"]) == len(parts)
        figures = [float(found[key][f"{name} (ms)"]) for name in ("total", "mean", "p95")]
        assert figures == pytest.approx([sum(parts), sum(parts) / len(parts), p95], abs=0.3)
    assert panel.locator("tbody tr").count() == len(rows)
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    press(page, "w")
    page.keyboard.press("x")
    expect(panel).to_be_visible()


def test_arrows_lead_from_drafts_to_their_verification_and_search_finds_outcomes_steps_kinds_and_texts(
    page, traces
):
    judged = {}
    for d in traces[1].decisions:
        if d.draft_span >= 0 and d.verify_span >= 0:
            judged.setdefault(d.verify_span, {})[d.draft_span] = d.outcome
    span, drafts = next((s, o) for s, o in judged.items() if {"accepted", "rejected"} <= set(o.values()))
    left, right, y = bar_of(page, 1, span)
    page.mouse.click((left + right) / 2, y)
    arrows = page.locator(".ss-flow")
    expect(arrows).to_have_count(len(drafts))
    expect(page.locator(".ss-flow.ss-flow-lost")).to_have_count(list(drafts.values()).count("rejected"))
    page.keyboard.press("Escape")
    expect(arrows).to_have_count(0)
    model = view_model(traces)
    rejected = [g for run in model["runs"] for g in run["ghosts"] if g["outcome"] == "rejected"]
    page.locator(".ss-gantt").focus()
    page.keyboard.press("/")
    box, count = page.get_by_label("Search"), page.locator(".ss-search output")
    card = page.locator(".ss-float")
    expect(box).to_be_focused()
    box.fill("rejected")
    expect(count).to_have_text(f"{len(rejected)} found")
    box.press("Enter")
    expect(count).to_have_text(f"1 of {len(rejected)}")
    expect(card).to_contain_text("rejected draft")
    box.press("Shift+Enter")
    expect(count).to_have_text(f"{len(rejected)} of {len(rejected)}")
    spans = [s for t in traces for s in t.spans]
    rows = [row for run in model["runs"] for row in (*run["tokens"], *run["ghosts"])]
    for query, n in (
        ("pre-verify", sum(s.kind == "pre-verify" for s in spans)),
        ("step 1", sum(s.step == 1 for s in spans)),
        ("PURRED", sum("purred" in row["text"] for row in rows)),
    ):
        box.fill(query)
        expect(count).to_have_text(f"{n} found")
        box.press("Enter")
        expect(card).to_contain_text("pinned")
    box.fill("zebra")
    expect(count).to_have_text("nothing found")
    box.press("Escape")
    expect(card).to_be_hidden()


def test_tracks_can_be_hidden_and_moved(page):
    labels = page.locator(".ss-row-label", has_text="GPU")
    before = [text.split("\n")[0] for text in labels.all_inner_texts()]
    page.locator(".ss-menu > summary").click()
    page.locator(".ss-menu-line").get_by_role("checkbox").first.uncheck()
    expect(labels).to_have_count(len(before) - 1)
    page.locator(".ss-menu-line").get_by_role("button", name="Move GPU 1 · target up").nth(1).click()
    names = [text.split("\n")[0] for text in labels.all_inner_texts()]
    assert names[:2] == ["GPU 1 · target", "GPU 0 · drafter"]
    page.keyboard.press("Escape")
    expect(page.locator(".ss-menu-list")).to_be_hidden()


def test_a_link_has_the_view_and_opens_it_again(page, opened, traces):
    press(page, "w", "w")
    shown = window(page)
    span = next(s for s in traces[2].spans if s.kind == "verify" and s.step > 2)
    page.get_by_label("Search").fill("step 3")
    page.get_by_label("Search").press("Enter")
    page.get_by_label("rejected drafts").check()
    page.get_by_role("button", name="link").click()
    values = parse_qs(page.evaluate("location.hash.slice(1)"))
    low, high = map(float, values["window"][0].split(","))
    assert (low, high) == pytest.approx(window(page), abs=0.01)
    assert high - low == pytest.approx(shown[1] - shown[0], abs=0.01)
    assert values["view"] == ["rejected"]
    assert values["span"][0].startswith("0.")
    opened.show(view_model(traces), fragment=f"window={low},{high}&at={high}&span=2.{span.id}&view=rejected")
    assert f"span\n{span.id}" in page.locator(".ss-float").inner_text().lower()
    assert page.get_by_label("rejected drafts").is_checked()
    assert float(page.get_attribute("#viewer", "data-time")) == high
    opened.show(view_model(traces), fragment="window=9,1&span=7.7&token=x&range=a,b&at=&__proto__=1")
    assert page.locator(".ss-float").is_hidden(), "a fragment of other runs shows nothing"


def wait_until_the_time_is_in_the_window(page):
    """The window is written when the timeline is painted, after the time."""
    page.wait_for_function(
        """() => {
          const [low, high] = document.querySelector(".specscope[data-window]").dataset.window.split(" ").map(Number);
          const time = Number(document.querySelector("#viewer").dataset.time);
          return low <= time && time <= high;
        }"""
    )


def test_a_step_to_a_rejection_moves_the_window_there(page):
    press(page, "w", "w", "w", "w")
    for _ in range(3):
        page.keyboard.press("p")
    wait_until_the_time_is_in_the_window(page)
    page.evaluate("view.seek(0)")
    assert window(page)[0] > 0, "a time that is set does not move the window"
    page.keyboard.press("n")
    wait_until_the_time_is_in_the_window(page)


def test_the_next_rejection_is_looked_for_from_the_view_or_the_selection(page, traces):
    rows = [ghost for run in view_model(traces)["runs"] for ghost in run["ghosts"]]
    times = sorted({row["t"] for row in rows if row["outcome"] == "rejected"})

    def stepped(key):
        page.keyboard.press(key)
        return pytest.approx(float(page.get_attribute("#viewer", "data-time")), abs=1e-6)

    page.locator(".ss-gantt").focus()
    assert times[0] == stepped("n"), "at its end, a run is looked through from its beginning"
    page.evaluate("view.seek(1e9)")
    press(page, "f", "w", "w", "w")
    low, high = window(page)
    assert high < page.evaluate("Number(document.querySelector('.ss-slider').max)")
    assert next(t for t in times if t > low) == stepped("n")
    page.evaluate("view.seek(1e9)")
    page.keyboard.press("f")
    page.keyboard.press(".")  # its card shows the effect: a frame may draw both keys at once
    expect(page.locator(".ss-float.ss-pinned")).to_be_visible()
    for _ in range(8):
        page.keyboard.press(".")
    page.get_by_role("button", name="link").click()
    run, span = map(int, parse_qs(page.evaluate("location.hash.slice(1)"))["span"][0].split("."))
    start = next(s.start for s in traces[run].spans if s.id == span) / 1e6
    (shown, *_) = view_model(traces)["runs"][run]["tracks"][0]["spans"]["start"]
    origin = traces[run].spans[0].start / 1e6 - shown
    assert next(t for t in times if t > start - origin) == stepped("n")
    expect(page.locator(".ss-float")).to_be_hidden()


INKED = """() => {
    const canvas = document.querySelector(".ss-pins-plot");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return data.some((value, i) => i % 4 === 3 && value > 0);
}"""


def test_a_pinned_track_stays_in_view_and_is_in_the_link(page, opened, traces):
    pins = page.get_by_role("region", name="Pinned tracks")
    expect(pins).to_be_hidden()
    page.locator(".ss-menu > summary").click()
    page.get_by_role("button", name="Pin GPU 0 · drafter").nth(1).click()
    expect(page.get_by_role("button", name="Pin GPU 0 · drafter").nth(1)).to_be_focused()
    page.keyboard.press("Escape")
    expect(pins).to_contain_text("PEARL")
    page.mouse.move(*centre_of(page, 0, next(s.id for s in traces[0].spans if s.kind == "verify")))
    drawn_after(page, lambda: page.keyboard.press("t"))
    expect(pins.get_by_role("button")).to_have_count(2)
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    page.locator(".ss-gantt-card").last.scroll_into_view_if_needed()
    assert pins.bounding_box()["y"] == pytest.approx(0, abs=1)
    assert page.evaluate(INKED)
    frame = page.locator(".ss-pins-plot").bounding_box()
    page.mouse.move(frame["x"] + frame["width"] / 3, frame["y"] + 13)
    expect(page.locator(".ss-float")).to_contain_text("GPU 0 · drafter")
    page.get_by_role("button", name="link").click()
    assert parse_qs(page.evaluate("location.hash.slice(1)"))["pins"] == ["2.0,0.0"]
    opened.show(view_model(traces), fragment="pins=0.0,__proto__.length,9.9")
    expect(pins.get_by_role("button")).to_have_count(1)
    pins.get_by_role("button").click()
    expect(pins).to_be_hidden()
