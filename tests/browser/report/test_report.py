"""A report opened from disk: hovering, keys, replay and rejected drafts."""

import pytest

from specscope.traces.view.document import view_model
from specscope.traces.waiting import decoding_clock
from tests.browser.report.opened import Opened, bar_of, centre_of, colours, pane, visible_text

pytestmark = pytest.mark.browser


def assert_looks(report, traces, *, dark):
    page = report.ready()
    assert page.get_attribute("#viewer", "data-state") == "ready"
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    card = page.evaluate("getComputedStyle(document.querySelector('.ss-card')).backgroundColor")
    assert (card == "rgb(17, 24, 39)") == dark
    span = next(s for s in traces[1].spans if s.kind == "verify")
    assert colours(page, centre_of(page, 1, span.id)) == ["rgb(20, 128, 194)" if dark else "rgb(0, 114, 178)"]


def test_a_dark_narrow_report_opens_from_disk_without_errors_or_requests(chromium, tmp_path, traces):
    report = Opened(chromium, tmp_path, traces, width=800, theme="dark")
    assert_looks(report, traces, dark=True)
    assert report.complaints == []
    report.page.close()


def test_a_light_wide_report_opens_from_disk_without_errors_or_requests(opened, traces):
    """The fixture opened it, and `no_complaints` checks its complaints since."""
    assert opened.page.url.startswith("file:")
    opened.show(view_model(traces))
    assert_looks(opened, traces, dark=False)


def test_without_javascript_the_summary_is_open(chromium, tmp_path, traces):
    page = Opened(chromium, tmp_path, traces, java_script_enabled=False).page
    assert page.get_by_text("Forwards of the target while decoding").is_visible()
    assert page.get_by_text("seed = 7").first.is_visible()
    page.close()


def test_tokens_are_explained_by_hovering_and_by_keys_and_rejected_drafts_show_on_demand(page):
    pane(page, 1).locator(".ss-token.ss-accepted").first.hover()
    card = page.locator(".ss-float")
    text = card.inner_text()
    for word in ("accepted draft", "min(1, p/q)", "top 5", "token id", "since last commit", "GPU 1 · target"):
        assert word in text
    assert page.locator(".ss-light").count() == 2
    page.mouse.move(1, 1)
    assert card.is_hidden()
    assert page.locator(".ss-light").count() == 0
    first = pane(page, 1).locator(".ss-token:not(.ss-ghost)").first
    first.focus()
    card = page.locator(".ss-float")
    assert card.is_visible()
    assert first.get_attribute("aria-describedby") == card.get_attribute("id")
    page.keyboard.press("ArrowRight")
    second = pane(page, 1).locator(".ss-token:not(.ss-ghost)").nth(1)
    assert second.evaluate("(node) => node === document.activeElement")
    assert pane(page, 1).locator('[tabindex="0"]').count() == 1
    page.keyboard.press("Enter")
    page.mouse.move(1, 1)
    assert "pinned" in card.inner_text()
    page.keyboard.press("Escape")
    assert card.is_hidden()
    ghosts = pane(page, 1).locator(".ss-ghost")
    assert ghosts.count() > 0
    assert ghosts.first.is_hidden()
    page.get_by_label("rejected drafts").check()
    assert ghosts.first.is_visible()
    assert "line-through" in ghosts.first.locator("s").evaluate(
        "(node) => getComputedStyle(node).textDecorationLine"
    )
    ghosts.first.hover()
    assert "rejected draft" in page.locator(".ss-float").inner_text()


def test_slider_replay_and_steps_show_the_text_at_their_time(page, traces):
    model = view_model(traces)
    slider = page.get_by_label("Time since decoding began")
    for share in (0.0, 0.31, 0.77, 1.0):
        t = share * model["axis"]["max"]
        slider.evaluate("(node, t) => { node.value = t; node.dispatchEvent(new Event('input')); }", t)
        now = float(page.get_attribute("#viewer", "data-time"))
        assert now == pytest.approx(t, abs=0.01)
        for number, trace in enumerate(traces):
            clock = decoding_clock(trace)
            committed = [c.text for c in trace.commits if clock(c.time) <= now]
            assert visible_text(page, number) == "".join(committed)
        assert page.locator(".ss-veil").first.is_hidden() == (share == 1.0)
    trace, clock = traces[1], decoding_clock(traces[1])
    committed = {c.time for c in trace.commits}
    span = next(s for s in trace.spans if s.kind == "verify" and s.end in committed)
    left, right, y = bar_of(page, 1, span.id)
    inside, outside = (
        colours(page, (left + 3, y), (right - 3, y)),
        colours(page, (left - 3, y), (right + 3, y)),
    )
    assert inside == ["rgb(0, 114, 178)"] * 2
    assert "rgb(0, 114, 178)" not in outside
    for t, edge in ((clock(span.start), left), (clock(span.end), right)):
        for now in (t - 0.0005, t):
            page.evaluate("(t) => view.seek(t)", now)
            veil = page.locator(".ss-gantt .ss-veil").nth(1).bounding_box()
            assert veil["x"] == pytest.approx(edge, abs=1.5)
            text = "".join(c.text for c in trace.commits if clock(c.time) <= now)
            assert visible_text(page, 1) == text
    model = view_model(traces)
    commits = sorted({t["t"] for run in model["runs"] for t in run["tokens"]})
    lost = sorted({g["t"] for run in model["runs"] for g in run["ghosts"] if g["outcome"] == "rejected"})
    page.evaluate("view.seek(0)")
    times = []
    for name in ("Next commit", "Next commit", "Next rejection", "Previous commit"):
        page.get_by_role("button", name=name).click()
        times.append(float(page.get_attribute("#viewer", "data-time")))
    rejection = next(t for t in lost if t > commits[1])
    assert times == [commits[0], commits[1], rejection, max(t for t in commits if t < rejection)]


def test_playing_moves_all_runs_and_stops_at_the_end(page, traces):
    end = view_model(traces)["axis"]["max"]
    page.get_by_label("Replay speed").select_option("0.1")
    page.get_by_role("button", name="Play").click()
    page.wait_for_selector(f'#viewer:not([data-time="0"]):not([data-time="{end}"])')
    assert float(page.get_attribute("#viewer", "data-time")) < end
    page.get_by_label("Replay speed").select_option("10")
    page.get_by_role("button", name="Play").wait_for()
    assert float(page.get_attribute("#viewer", "data-time")) == end
