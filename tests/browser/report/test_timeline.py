"""A report opened from disk: hovering, keys, replay; the timeline: zoom, merged bars, its table."""

import pytest
from playwright.sync_api import expect

from specscope.traces.facts.waiting import decoding_clock
from specscope.traces.view.document import view_model
from tests.browser.report.opened import (
    Opened,
    bar_of,
    centre_of,
    colours,
    drawn_after,
    pane,
    visible_text,
    window,
)
from tests.traces.samples import sample_trace

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_report_opens_from_disk_without_errors_or_requests(opened, chromium, tmp_path, traces, theme):
    """A wide light one, which `no_complaints` checks; a narrow dark one on a sharp screen."""
    report = opened
    if theme == "dark":
        report = Opened(chromium, tmp_path, traces, width=800, theme="dark", device_scale_factor=2)
    else:
        opened.show(view_model(traces))
    page = report.ready()
    assert page.url.startswith("file:")
    assert page.get_attribute("#viewer", "data-state") == "ready"
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    card = page.evaluate("getComputedStyle(document.querySelector('.ss-card')).backgroundColor")
    assert card == ("rgb(17, 24, 39)" if theme == "dark" else "rgb(251, 252, 254)")
    span = next(s for s in traces[1].spans if s.kind == "verify")
    bar = "rgb(20, 128, 194)" if theme == "dark" else "rgb(0, 114, 178)"
    assert colours(page, centre_of(page, 1, span.id)) == [bar]
    if theme == "dark":
        width = "(() => { const c = document.querySelector('.ss-plot'); return c.width / c.clientWidth; })()"
        assert page.evaluate(width) == 2
        assert report.complaints == []
        page.close()


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
    assert (card.is_hidden(), page.locator(".ss-light").count()) == (True, 0)
    first, second = (pane(page, 1).locator(".ss-token:not(.ss-ghost)").nth(i) for i in (0, 1))
    first.focus()
    assert card.is_visible()
    assert first.get_attribute("aria-describedby") == card.get_attribute("id")
    page.keyboard.press("ArrowRight")
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
    assert colours(page, (left + 3, y), (right - 3, y)) == ["rgb(0, 114, 178)"] * 2
    assert "rgb(0, 114, 178)" not in colours(page, (left - 3, y), (right + 3, y))
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


# The timeline.


def test_pointing_at_a_span_marks_its_tokens_and_a_click_pins_it(page, traces):
    span = next(s for s in traces[1].spans if s.kind == "verify")
    x, y = centre_of(page, 1, span.id)
    page.mouse.move(x, y)
    decided = [d for d in traces[1].decisions if d.verify_span == span.id]
    assert pane(page, 1).locator(".ss-lit").count() == len(decided)
    assert page.locator(".ss-light-strong").count() == 1
    page.mouse.down()
    page.mouse.up()
    page.mouse.move(1, 1)
    assert "pinned" in page.locator(".ss-float").inner_text()
    page.keyboard.press("Escape")
    assert page.locator(".ss-float").is_hidden()


def test_keys_act_only_inside_the_viewer(page):
    page.locator("h1").click()
    before, shown = window(page), page.get_attribute(".specscope[data-window]", "data-window")
    page.keyboard.press("w")
    page.wait_for_timeout(300)
    assert window(page) == before
    page.locator(".ss-gantt").focus()
    drawn_after(page, lambda: page.keyboard.press("w"))
    zoomed = window(page)
    assert zoomed[1] - zoomed[0] == pytest.approx(0.6 * (before[1] - before[0]))
    page.keyboard.press(".")
    assert "GPU 1 · target" in page.locator(".ss-float").inner_text()
    page.keyboard.press("ArrowDown")
    assert "GPU 0 · drafter" in page.locator(".ss-float").inner_text()
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()
    page.get_by_role("button", name="Close").click()
    page.locator(".ss-gantt").focus()
    page.keyboard.press("f")
    expect(page.locator(".specscope[data-window]")).to_have_attribute("data-window", shown)


def test_dragging_and_ctrl_wheel_move_the_window_and_a_double_click_fits(page):
    before = window(page)
    page.locator(".ss-gantt").focus()
    drawn_after(page, lambda: page.keyboard.press("w"))
    zoomed = window(page)
    box = page.locator(".ss-plot").bounding_box()
    page.mouse.move(box["x"] + 500, box["y"] + 90)
    page.mouse.down()
    drawn_after(page, lambda: page.mouse.move(box["x"] + 400, box["y"] + 92))
    page.mouse.up()
    moved = window(page)
    width = zoomed[1] - zoomed[0]
    assert moved[1] - moved[0] == pytest.approx(width)
    assert moved[0] - zoomed[0] == pytest.approx(width * 100 / box["width"])
    assert page.locator(".ss-float").is_hidden(), "a drag pins no card"
    drawn_after(page, lambda: page.mouse.dblclick(box["x"] + 300, box["y"] + 90))
    assert window(page) == before
    before = window(page)
    box = page.locator(".ss-plot").bounding_box()
    share = 400 / box["width"]
    page.mouse.move(box["x"] + 400, box["y"] + 90)
    page.keyboard.down("Control")
    drawn_after(page, lambda: page.mouse.wheel(0, -100))
    page.keyboard.up("Control")
    zoomed = window(page)
    assert zoomed[1] - zoomed[0] < 0.8 * (before[1] - before[0])
    anchor = [low + share * (high - low) for low, high in (before, zoomed)]
    assert anchor[0] == pytest.approx(anchor[1], abs=0.5)
    top = page.evaluate("scrollY")
    page.mouse.wheel(0, 120)
    while page.evaluate("scrollY") == top:
        page.wait_for_timeout(20)
    assert window(page) == zoomed


def test_waits_and_lost_work_are_hatched_in_the_theme_s_colours(page, traces):
    """Lost drafts have two colours of their kind; waits have an edge of the side they wait for."""
    losing = {d.draft_span for d in traces[1].decisions if d.outcome in ("rejected", "discarded")}
    using = {d.draft_span for d in traces[1].decisions if d.outcome == "accepted"}
    drafts = [s.id for s in traces[1].spans if s.kind == "draft"]

    def across(span):
        left, right, y = bar_of(page, 1, span)
        row = [(x, y) for x in range(int(left) + 2, int(right) - 1)]
        return set(colours(page, *row))

    lost = next(i for i in drafts if i in losing - using)
    kept = next(i for i in drafts if i in using)
    assert across(kept) == {"rgb(230, 159, 0)"}
    assert {"rgb(230, 159, 0)", "rgb(160, 108, 0)"} <= across(lost)
    verify = next(s.id for s in traces[1].spans if s.kind == "verify" and s.step > 1)
    left, _, y = bar_of(page, 1, verify)
    assert colours(page, (left - 30, y)) != colours(page, (left + 5, y))
    before = max((s for s in traces[1].spans if s.kind == "verify" and s.id < verify), key=lambda s: s.id)
    _, right, y = bar_of(page, 1, before.id)
    found = colours(page, *((right + x, y) for x in range(8)))
    assert "rgb(230, 159, 0)" in found, "the edge of a wait for the drafter"


def test_too_many_bars_become_shares_with_a_note(opened):
    trace = sample_trace("speculative", tokens=2400)
    page = opened.show(view_model([trace]))
    page.wait_for_selector("#viewer[data-drawn]")
    assert "too many for one view" in page.locator(".ss-gantt ~ .ss-detail").inner_text()
    page.locator(".ss-gantt").focus()
    for _ in range(8):
        page.keyboard.press("w")
    # A slow machine may draw between two presses: wait for the drawing after the last one.
    # (`wait_for_function` polls with eval, which the report's content security policy forbids.)
    expect(page.locator(".ss-gantt ~ .ss-detail")).to_have_text("")


MOVED = """() => new Promise((done) => {
    const [root, canvas, box] = ["#viewer", ".ss-plot", ".ss-gantt"].map((name) => document.querySelector(name));
    const pictures = [];
    const watch = new MutationObserver(() => {
        pictures.push([root.dataset.picture, canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data]);
        if (root.dataset.picture === "sketch") return;
        watch.disconnect();
        const [sketch, exact] = [pictures[0][1], pictures.at(-1)[1]];
        let [apart, opaque] = [0, 0];
        for (let i = 0; i < exact.length; i += 4) {
            if (exact[i + 3] < 255) continue;
            opaque++;
            for (let k = 0; k < 3; k++) apart += Math.abs(sketch[i + k] - exact[i + k]) / 3;
        }
        done([pictures.map(([kind]) => kind), opaque, apart / opaque]);
    });
    watch.observe(root, { attributes: true, attributeFilter: ["data-picture"] });
    const { left, width } = box.getBoundingClientRect();
    const turn = { clientX: left + width / 2, deltaY: -30, ctrlKey: true, bubbles: true, cancelable: true };
    const now = performance.now;
    performance.now = () => 1; // both turns at one moment: the window moves
    for (let i = 0; i < 2; i++) box.dispatchEvent(new WheelEvent("wheel", turn));
    performance.now = now;
})"""


def test_a_moving_window_is_sketched_and_one_at_rest_is_exact(page):
    kinds, opaque, apart = page.evaluate(MOVED)
    assert (kinds[0], kinds[-1]) == ("sketch", "exact")
    assert opaque > 10_000
    assert 0 < apart < 16, "the mean difference of a colour: the pictures differ at edges only"


def test_the_table_has_the_data_of_the_timeline_and_every_share_says_of_what(page, traces):
    page.locator(".ss-gantt").scroll_into_view_if_needed()
    hints = page.evaluate(
        """() => [...document.querySelectorAll(".ss-gantt-head .ss-headline > span:not(.ss-rest)")].slice(0, 6).map((span) => {
          const { left, top, width, height } = span.getBoundingClientRect();
          return document.elementFromPoint(left + width / 2, top + height / 2)?.closest("[title]")?.title ?? "none";
        })"""
    )
    of = "Share of decoding, from the end of prefill to the last token: "
    assert [hint.startswith(of) for hint in hints] == [True] * 6, hints
    page.get_by_text("The timeline as a table").click()
    lines = page.locator("table", has_text="Work and waiting per device, PEARL").locator("tbody tr")
    lines.first.wait_for()  # the table is filled once its fold is open
    rows = lines.all_inner_texts()
    verifies = [s for s in traces[2].spans if s.kind == "verify"]
    row = next(r.split("\t") for r in rows if r.split("\t")[:2] == ["GPU 1 · target", "verify"])
    assert row[2] == str(len(verifies))
    assert row[3] == f"{sum(s.end - s.start for s in verifies) / 1e6:.1f} ms"
    assert any("waits for the drafter" in r for r in rows)
