"""A report opened from disk, in Debian's Chromium: what a person sees, hovers, plays and presses."""

import itertools
import json
import shutil
from dataclasses import replace

import pytest
from playwright.sync_api import expect, sync_playwright

from engine.runtime.events import Footer
from engine.runtime.trace import Trace
from tests.traces.samples import KINDS, sample_events, sample_trace
from traces.export.report import render_report
from traces.replay import state_at
from traces.view import view_model

pytestmark = pytest.mark.browser
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]
HOSTILE = "</script><img src=x onerror=alert(1)><b>bold</b><a href=https://example.org>x</a>"


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


class Opened:
    """A page with a report, and everything it complained about or asked for."""

    def __init__(self, browser, folder, traces, *, width=1400, theme="light", **context):
        file = folder / "report.html"
        file.write_text(render_report(traces), encoding="utf-8")
        self.page = browser.new_page(viewport={"width": width, "height": 950}, color_scheme=theme, **context)
        self.page.set_default_timeout(120_000)
        self.complaints = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("dialog", lambda d: self.complaints.append(f"dialog: {d.message}") or d.dismiss())
        self.page.on(
            "request", lambda r: self.complaints.append(r.url) if not r.url.startswith("file:") else None
        )
        self.page.goto(file.as_uri())

    def ready(self):
        self.page.wait_for_selector("#viewer[data-drawn]")
        return self.page

    def show(self, model, **options):
        """Replace what the viewer shows."""
        self.page.evaluate(
            """([text, options]) => {
                window.view.destroy();
                const root = document.getElementById("viewer");
                for (const key of Object.keys(root.dataset)) delete root.dataset[key];
                window.view = SpecScope.mount(root, JSON.parse(text), options);
            }""",
            [json.dumps(model), options],
        )
        return self.page


@pytest.fixture(scope="module")
def compared():
    return [
        sample_trace("autoregressive"),
        sample_trace("speculative", acceptance=0.6),
        sample_trace("pearl"),
    ]


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory, compared):
    report = Opened(browser, tmp_path_factory.mktemp("report"), compared)
    report.ready()
    yield report
    assert report.complaints == []
    report.page.close()


@pytest.fixture
def page(opened, compared):
    page = opened.show(view_model(compared))
    page.mouse.move(1, 1)
    page.wait_for_selector("#viewer[data-drawn]")
    return page


def update(page, traces):
    page.evaluate("(text) => view.update(JSON.parse(text))", json.dumps(view_model(traces)))


def pane(page, number):
    return page.locator(".ss-pane").nth(number)


def visible_text(page, number):
    """Return the text of a pane as it stands, without the drafts that did not make it."""
    return page.evaluate(
        """(number) => [...document.querySelectorAll(".ss-pane")[number].querySelectorAll(".ss-token:not(.ss-ghost)")]
            .filter((node) => getComputedStyle(node).visibility === "visible").map((node) => node.textContent).join("")""",
        number,
    )


def centre_of(page, run, span):
    """Return where a span is on the screen, by letting the viewer mark it."""
    page.evaluate("document.querySelector('.ss-gantt').scrollIntoView()")
    frame = page.locator(".ss-plot").bounding_box()
    return page.evaluate(
        """([text, run, span, frame]) => {
            const model = JSON.parse(text);
            const axis = document.querySelector(".ss-plot")._fullLayout.xaxis;
            const track = model.runs[run].tracks.findIndex((t) => t.spans.id.includes(span));
            const spans = model.runs[run].tracks[track].spans;
            const at = spans.id.indexOf(span);
            const names = new Set(model.runs.flatMap((r) => r.tracks.map((t) => t.label)));
            const labels = [...document.querySelectorAll(".ss-row-label")].filter((n) => names.has(n.title));
            const before = model.runs.slice(0, run).reduce((sum, r) => sum + r.tracks.length, 0);
            const box = labels[before + track].getBoundingClientRect();
            return [frame.x + axis.l2p((spans.start[at] + spans.end[at]) / 2), box.top + 12];
        }""",
        [page.locator("#model").text_content(), run, span, frame],
    )


@pytest.mark.parametrize(("width", "theme"), list(itertools.product((1400, 800), ("light", "dark"))))
def test_a_report_opens_from_disk_without_a_word(browser, tmp_path, compared, width, theme):
    report = Opened(browser, tmp_path, compared, width=width, theme=theme)
    page = report.ready()
    assert page.get_attribute("#viewer", "data-state") == "ready"
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    dark = (
        page.evaluate("getComputedStyle(document.querySelector('.ss-card')).backgroundColor")
        == "rgb(17, 24, 39)"
    )
    assert dark == (theme == "dark")
    drawn = page.evaluate("document.querySelector('.ss-plot').data.map((trace) => trace.marker?.color)")
    assert ("rgb(20, 128, 194)" in drawn) == dark, "plotly draws in the theme's colours"
    assert report.complaints == []
    page.close()


def test_without_javascript_the_summary_is_open(browser, tmp_path, compared):
    page = Opened(browser, tmp_path, compared, java_script_enabled=False).page
    assert page.get_by_text("Forwards of the target while decoding").is_visible()
    assert page.get_by_text("seed = 7").first.is_visible()
    page.close()


def test_hovering_a_token_explains_it_and_marks_its_spans(page):
    pane(page, 1).locator(".ss-token.ss-accepted").first.hover()
    card = page.locator(".ss-float")
    text = card.inner_text()
    for word in ("accepted draft", "min(1, p/q)", "top 5", "token id", "since last commit", "GPU 1 · target"):
        assert word in text
    assert page.locator(".ss-light").count() == 2
    page.mouse.move(1, 1)
    assert card.is_hidden()
    assert page.locator(".ss-light").count() == 0


def test_the_keyboard_reaches_every_token(page):
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


def test_the_slider_shows_the_text_at_its_time(page, compared):
    model = view_model(compared)
    slider = page.get_by_label("Time since decoding began")
    for share in (0.0, 0.31, 0.77, 1.0):
        t = share * model["axis"]["max"]
        slider.evaluate("(node, t) => { node.value = t; node.dispatchEvent(new Event('input')); }", t)
        now = float(page.get_attribute("#viewer", "data-time"))
        assert now == pytest.approx(t, abs=0.01)
        for number, trace in enumerate(compared):
            assert visible_text(page, number) == state_at(trace, now)["texts"][0]
        assert page.locator(".ss-veil").first.is_hidden() == (share == 1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_replay_in_the_page_and_in_python_agree(opened, kind):
    trace = sample_trace(kind, acceptance=0.6)
    run = json.loads(json.dumps(view_model([trace])["runs"][0]))
    edges = {t for track in run["tracks"] for key in ("start", "end") for t in track["spans"][key]}
    times = sorted({t + shift for t in edges for shift in (-0.0005, 0, 0.0005)})
    states = opened.page.evaluate(
        "([run, times]) => times.map((t) => SpecScope.stateAt(run, t))", [run, times]
    )
    assert states == [state_at(trace, t) for t in times]


def test_playing_moves_all_runs_and_stops_at_the_end(page, compared):
    end = view_model(compared)["axis"]["max"]
    page.get_by_label("Replay speed").select_option("0.1")
    page.get_by_role("button", name="Play").click()
    page.wait_for_selector(f'#viewer:not([data-time="0"]):not([data-time="{end}"])')
    assert float(page.get_attribute("#viewer", "data-time")) < end
    page.get_by_label("Replay speed").select_option("10")
    page.get_by_role("button", name="Play").wait_for()
    assert float(page.get_attribute("#viewer", "data-time")) == end


def test_steps_go_to_commits_and_rejections(page, compared):
    model = view_model(compared)
    commits = sorted({t["t"] for run in model["runs"] for t in run["tokens"]})
    lost = sorted({g["t"] for run in model["runs"] for g in run["ghosts"] if g["outcome"] == "rejected"})
    page.evaluate("view.seek(0)")
    times = []
    for name in ("Next commit", "Next commit", "Next rejection", "Previous commit"):
        page.get_by_role("button", name=name).click()
        times.append(float(page.get_attribute("#viewer", "data-time")))
    rejection = next(t for t in lost if t > commits[1])
    assert times == [commits[0], commits[1], rejection, max(t for t in commits if t < rejection)]


def test_rejected_drafts_show_on_demand(page):
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


def test_pointing_at_a_span_marks_its_tokens_and_a_click_pins_it(page, compared):
    span = next(s for s in compared[1].spans if s.kind == "verify")
    x, y = centre_of(page, 1, span.id)
    page.mouse.move(x, y)
    decided = [d for d in compared[1].decisions if d.verify_span == span.id]
    assert pane(page, 1).locator(".ss-lit").count() == len(decided)
    assert page.locator(".ss-light-strong").count() == 1
    page.mouse.down()
    page.mouse.up()
    page.mouse.move(1, 1)
    assert "pinned" in page.locator(".ss-float").inner_text()
    page.keyboard.press("Escape")
    assert page.locator(".ss-float").is_hidden()


def window(page):
    return page.evaluate("document.querySelector('.ss-plot')._fullLayout.xaxis.range")


def drawn_after(page, action):
    before = page.get_attribute("#viewer", "data-drawn")
    action()
    page.wait_for_selector(f'#viewer[data-drawn]:not([data-drawn="{before}"])')


def test_keys_act_only_inside_the_viewer(page):
    page.locator("h1").click()
    before = window(page)
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
    drawn_after(page, lambda: page.keyboard.press("f"))
    assert window(page) == before


def test_dragging_zooms_all_runs_and_a_double_click_fits(page):
    before = window(page)
    box = page.locator(".ss-plot").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 90)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 92, steps=4)
    drawn_after(page, page.mouse.up)
    zoomed = window(page)
    assert zoomed[1] - zoomed[0] == pytest.approx((before[1] - before[0]) * 200 / box["width"], rel=0.05)
    assert page.evaluate("document.querySelector('.ss-plot')._fullLayout.xaxis3.range") == zoomed
    drawn_after(page, lambda: page.mouse.dblclick(box["x"] + 300, box["y"] + 90))
    assert window(page) == before


def test_texts_of_a_run_stay_text(browser, tmp_path):
    trace = sample_trace("speculative", tokens=8)
    devices = tuple(replace(d, label=HOSTILE) for d in trace.header.devices)
    trace.header = replace(
        trace.header,
        title=HOSTILE,
        prompts=(HOSTILE,),
        config={HOSTILE: HOSTILE},
        devices=devices,
        profile=HOSTILE,
    )
    trace.pieces = dict.fromkeys(trace.pieces, HOSTILE)
    trace.commits = [replace(c, text=HOSTILE) for c in trace.commits]
    trace.footer = replace(trace.footer, error=HOSTILE)
    report = Opened(browser, tmp_path, [trace])
    page = report.ready()
    page.get_by_label("rejected drafts").check()
    page.locator(".ss-token").first.hover()
    assert HOSTILE in page.locator(".ss-float").inner_text()
    page.locator(".ss-gantt").focus()
    page.keyboard.press(".")
    for fold in page.locator("#viewer details summary:visible").all():
        fold.click()
    assert page.locator("#viewer").locator("img, a, script, iframe").count() == 0
    assert page.get_by_text("bold").first.evaluate("(node) => node.tagName") != "B"
    page.wait_for_timeout(200)
    assert report.complaints == []
    page.close()


def test_a_dark_ancestor_and_the_class_theme_decide(opened, compared):
    page = opened.show(view_model(compared), theme="class")
    page.wait_for_selector("#viewer[data-drawn]")
    colour = "getComputedStyle(document.querySelector('#viewer .ss-card')).backgroundColor"
    assert page.evaluate(colour) == "rgb(251, 252, 254)"
    drawn_after(page, lambda: page.evaluate("document.body.classList.add('dark')"))
    assert page.evaluate(colour) == "rgb(17, 24, 39)"
    shown = page.evaluate("document.querySelector('.ss-plot').data.map((trace) => trace.marker?.color)")
    assert "rgb(20, 128, 194)" in shown
    page.evaluate("document.body.classList.remove('dark')")


def test_a_viewer_in_a_hidden_tab_is_drawn_when_it_is_shown(opened, compared):
    opened.page.evaluate("document.getElementById('viewer').hidden = true")
    page = opened.show(view_model(compared))
    page.evaluate("document.getElementById('viewer').hidden = false")
    page.wait_for_selector("#viewer[data-drawn]")
    assert page.locator(".ss-plot .barlayer").count() > 0


def test_a_live_run_grows_in_place(opened):
    header, *rows = sample_events("pearl")
    trace = Trace(header)
    page = opened.show(view_model([trace]))
    assert page.get_attribute("#viewer", "data-state") == "live"
    assert "Waiting for the first token" in pane(page, 0).inner_text()
    for row in rows[: len(rows) // 2]:
        trace.add(row)
    update(page, [trace])
    assert page.get_by_role("group", name="Replay").is_hidden()
    page.evaluate("document.querySelector('.ss-token').kept = true")
    for row in rows[len(rows) // 2 :]:
        trace.add(row)
    update(page, [trace])
    assert page.get_attribute("#viewer", "data-state") == "ready"
    assert page.evaluate("document.querySelector('.ss-token').kept"), "tokens that are there stay"
    assert visible_text(page, 0) == trace.text
    update(page, [sample_trace("speculative")])
    assert visible_text(page, 0) == sample_trace("speculative").text
    ghosts = view_model([sample_trace("speculative")])["runs"][0]["ghosts"]
    assert pane(page, 0).locator(".ss-ghost").count() == len(ghosts)


def test_ghosts_stand_in_front_of_their_token_however_they_came(opened):
    header, *rows = sample_events("speculative", tokens=30, acceptance=0.6)
    order = "[...document.querySelectorAll('.ss-token')].map((node) => node.getAttribute('aria-label'))"
    trace = Trace(header)
    page = opened.show(view_model([trace]))
    for count, row in enumerate(rows):
        trace.add(row)
        if count % 25 == 0:
            update(page, [trace])
    update(page, [trace])
    grown = page.evaluate(order)
    opened.show(view_model([trace]))
    assert grown == page.evaluate(order)


def test_empty_failed_and_unknown_are_said(opened):
    page = opened.show(view_model([]))
    assert page.get_attribute("#viewer", "data-state") == "empty"
    assert page.get_by_text("Nothing to show yet").is_visible()
    trace = sample_trace("pearl")
    trace.footer = Footer("failed", ("",), ("",), trace.footer.time, "worker cpu:1 died; run again")
    page = opened.show(view_model([trace]))
    assert page.get_by_role("alert").inner_text() == "worker cpu:1 died; run again"
    page = opened.show(view_model([sample_trace("autoregressive")]))
    assert page.locator(".ss-note").inner_text().startswith("no drafts in this run")
    page = opened.show({**view_model([]), "model": 99})
    assert page.get_attribute("#viewer", "data-state") == "error"
    assert "version 99" in page.get_by_role("alert").inner_text()


def test_too_many_bars_become_shares_and_it_says_so(opened):
    trace = sample_trace("speculative", tokens=2400)
    model = view_model([trace])
    page = opened.show(model)
    page.wait_for_selector("#viewer[data-drawn]")
    assert "too many for one view" in page.locator(".ss-detail").inner_text()
    bars = page.evaluate(
        "document.querySelector('.ss-plot').data.reduce((n, t) => n + (t.type === 'bar' ? t.x.length : 0), 0)"
    )
    assert bars <= 5500
    page.locator(".ss-gantt").focus()
    for _ in range(8):
        page.keyboard.press("w")
    # a slow machine may draw between two presses: wait for what the last one leads to. (`wait_for_function` polls
    # with eval, which the report's content security policy forbids.)
    expect(page.locator(".ss-detail")).to_have_text("")


def test_shares_add_up_to_the_work(opened):
    looks = [
        {"kind": "draft", "bars": [{"start": 0, "end": 3, "lane": 0}, {"start": 5, "end": 6, "lane": 0}]},
        {"kind": "verify", "bars": [{"start": 3, "end": 5, "lane": 0}]},
    ]
    first, second = opened.page.evaluate("(looks) => SpecScope.shareBars(looks, 0, 8, 2)", looks)
    assert first["bars"] == [
        {"start": 0, "end": 4, "lane": 0, "low": 0, "high": 0.75},
        {"start": 4, "end": 8, "lane": 0, "low": 0, "high": 0.25},
    ]
    assert second["bars"] == [
        {"start": 0, "end": 4, "lane": 0, "low": 0.75, "high": 1},
        {"start": 4, "end": 8, "lane": 0, "low": 0.25, "high": 0.5},
    ]


def test_the_table_holds_what_the_timeline_shows(page, compared):
    page.get_by_text("The timeline as a table").click()
    lines = page.locator("table", has_text="Work and waiting per device, PEARL").locator("tbody tr")
    lines.first.wait_for()  # the table is filled once its fold is open
    rows = lines.all_inner_texts()
    verifies = [s for s in compared[2].spans if s.kind == "verify"]
    row = next(r.split("\t") for r in rows if r.split("\t")[:2] == ["GPU 1 · target", "verify"])
    assert row[2] == str(len(verifies))
    assert row[3] == f"{sum(s.end - s.start for s in verifies) / 1e6:.1f} ms"
    assert any("waits for the drafter" in r for r in rows)
