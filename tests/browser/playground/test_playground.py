"""The playground in a browser: chat, stop, replay, history, errors, themes, a batch."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from specscope.app.pairs import able, usual
from specscope.engine.methods import METHODS as KEYS
from tests.browser.looks import assert_looks
from tests.browser.playground.conftest import Server, Window
from tests.browser.playground.steps import (
    METHODS,
    answer,
    choose,
    fill,
    new_tokens,
    press_run,
    turn,
    type_prompt,
    unfold,
    viewer,
    wait_for,
)
from tests.engine.runtimes.processes import rested, worker_processes

pytestmark = pytest.mark.browser
BUSY = """(pane) => {
    const badge = document.createElement("span");
    badge.className = "ss-badge ss-warn";
    badge.textContent = "other load: 1.2 of 2 cores";
    pane.querySelector(".ss-marks").append(badge);
    const { width } = badge.getBoundingClientRect();
    badge.remove();
    return width;
}"""
"""Return the width of the warning that a pane has if other programs ran."""
FIRST_PAGE = """() => {
    const box = (name) => document.querySelector(name).getBoundingClientRect();
    return { prompt: box("#prompt textarea").bottom, race: box("#demo").top, raceEnd: box("#demo").bottom };
}"""
LATE_RESULTS = """window.fetch = ((plain) => async (input, init) => {
    const answer = await plain(input, init);
    if (!input.url?.includes("/queue/data")) return answer;
    const results = await answer.text();
    await new Promise((done) => setTimeout(done, window.late ?? 2000));
    return new Response(results, answer);
})(window.fetch);"""
"""A page reads its stream of results two seconds after the stream's end, until `late` is 0."""
HOSTILE = "Hello! <img src=x onerror=alert(1)> ${6 * 7} {{value}} `x` </script>"
ANOTHER_TURN = """(link) => {
    const done = document.querySelector('.app-turn[data-state="done"]');
    return done && [...done.querySelectorAll("a")].some((one) => one.textContent === "Permalink" && one.getAttribute("href") !== link);
}"""
STORY = "Tell me a story about a lighthouse keeper who is afraid of the dark."


def test_chat_replay_a_reload_stop_and_a_killed_worker(page: Page, server, window) -> None:
    type_prompt(page, STORY)
    new_tokens(page, 32)
    page.get_by_role("textbox", name="Prompt", exact=True).press("Control+Enter")
    expect(page.locator("#stop")).to_be_visible()
    wait_for(page, "done")
    panes = page.locator("#live-viewer .ss-pane")
    expect(panes).to_have_count(3)
    for pane, title in zip(panes.all(), METHODS, strict=True):
        expect(pane).to_be_visible()
        expect(pane.locator("h3")).to_contain_text(title)
        assert pane.evaluate(BUSY) <= pane.evaluate("(pane) => pane.clientWidth"), "the badge wraps"
    expect(page.locator("#panes")).to_be_hidden()
    text = [page.locator("#live-viewer .ss-text").nth(i).inner_text() for i in range(3)]
    assert text[0] == text[1] == text[2], "at temperature 0 all methods give the target's text"
    assert len(text[0].split()) > 10
    at, end = page.locator("#live-viewer .ss-clock").inner_text().split(" / ")
    assert at == end.removesuffix(" ms"), "a finished run is shown to its end"
    titles = page.locator("#live-viewer .ss-gantt .ss-gantt-title")
    expect(titles).to_have_count(3)
    for title in titles.all():
        expect(title).to_contain_text("measured · local-process")
    expect(page.locator("#live-viewer .ss-tables .ss-table").first.locator("tbody tr")).to_have_count(3)

    panes.nth(1).locator(".ss-accepted").first.hover()
    card = page.locator("#live-viewer .ss-float")
    expect(card).to_contain_text("accepted")
    expect(card).to_contain_text("step")

    slider = page.locator("#live-viewer input[type=range]").first
    slider.focus()
    slider.press("Home")
    expect(panes.nth(0).locator(".ss-token:visible")).to_have_count(0)
    slider.press("End")
    expect(panes.nth(0).locator(".ss-token").last).to_be_visible()

    prompt = page.get_by_role("textbox", name="Prompt", exact=True)
    expect(prompt).to_have_value(STORY)  # for other methods
    expect(page.locator("#follow").get_by_role("radio", name="starts fresh")).to_be_checked()
    answer(page, "Another one.", tokens=4)
    expect(page.locator(".app-past")).to_have_count(0)
    page.locator("#follow").get_by_role("radio").first.focus()
    page.keyboard.press("ArrowRight")  # one stop of Tab for the group
    expect(page.locator("#follow").get_by_role("radio", name="continues Autoregressive")).to_be_checked()
    page.locator("#follow").get_by_text("continues PEARL").click()
    answer(page, "And then?", tokens=8)
    expect(prompt).to_have_value("")
    expect(page.locator("#follow").get_by_role("radio", name="continues PEARL")).to_be_checked()
    page.locator(".app-past summary").click()
    expect(page.locator(".app-said").first).to_contain_text("Another one.")
    expect(page.locator(".app-said").last).to_contain_text("PEARL")

    page.locator("#clear").click()
    wait_for(page, "idle")
    expect(page.locator(".app-prompt")).to_have_count(0)
    a_reload_returns_to_the_running_race_which_escape_stops(page, window)
    a_killed_worker_ends_its_run_and_the_next_one_works(page, server)


def a_reload_returns_to_the_running_race_which_escape_stops(page: Page, window: Window) -> None:
    """The text of a stopped turn stays, and the next pane says why it has none."""
    new_tokens(page, 1500)
    box = page.locator("#temperature input[type=number]")
    box.fill("2")  # a text of 478 tokens in each pane: the last one has no token before Escape
    box.press("Tab")
    page.get_by_role("button", name="A lighthouse keeper").click()
    expect(page.get_by_role("textbox", name="Prompt", exact=True)).to_have_value(STORY)
    press_run(page, turn(page, "queued", "running"))
    tokens = page.locator("#panes .ss-token")
    tokens.first.wait_for()
    running = page.url
    page.reload()  # not window.reload(), which waits until nothing runs
    tokens.nth(3).wait_for()
    assert page.url == running
    expect(page.locator(".app-prompt")).to_have_text(STORY)
    page.keyboard.press("Escape")
    wait_for(page, "cancelled")
    viewer(page).wait_for()
    expect(page.locator("#live-viewer .ss-token").first).to_be_visible()
    expect(page.locator("#panes .app-pane").last).to_contain_text("Stopped before the first token")
    expect(page.locator("#run")).to_be_visible()
    left = ("AbortError", "Connection errored out")  # what Gradio writes when an open call is left
    window.complaints = [text for text in window.complaints if not any(part in text for part in left)]


def a_killed_worker_ends_its_run_and_the_next_one_works(page: Page, server: Server) -> None:
    choose(page, "PEARL", False)
    worker = worker_processes(server.process.pid)[-1]
    idle = rested(worker)
    page.locator("#run").click()
    while sum(worker.cpu_times()[:2]) < idle + 0.2:  # of the seconds that the text takes
        time.sleep(0.01)
    worker.suspend()  # the run cannot end before a busy page shows it
    wait_for(page, "running")
    worker.kill()
    wait_for(page, "failed")
    viewer(page).wait_for()
    failed = page.locator('#live-viewer .ss-pane[data-status="failed"]')
    expect(failed).to_have_count(1)
    expect(failed).to_contain_text("was killed by SIGKILL")
    expect(page.locator('#live-viewer .ss-pane[data-status="done"]')).to_have_count(1)
    answer(page, "Hello again!", tokens=8)
    expect(page.locator('#live-viewer .ss-pane[data-status="done"]')).to_have_count(2)


def test_an_error_is_a_line_at_run_and_leads_to_its_control(page: Page) -> None:
    line, prompt = page.locator("#alert .app-alert"), page.get_by_role("textbox", name="Prompt", exact=True)
    page.locator("#run").click()
    expect(line).to_contain_text("the prompt is empty")
    expect(prompt).to_be_focused()
    type_prompt(page, "word " * 3000)
    press_run(page, turn(page, "failed"))
    expect(line).to_contain_text("2304")
    expect(line).to_contain_text("shorten the prompt")
    expect(page.locator("#panes .app-pane").first).to_contain_text("The message at Run says what to correct")
    expect(page.get_by_text("shorten the prompt")).to_have_count(1)
    type_prompt(page, "Hello!")
    unfold(page)
    page.get_by_role("button", name="PEARL: settings").click()
    fill(page.locator("#pearl-gamma"), "-3")
    page.get_by_role("button", name="PEARL: settings").click()
    page.get_by_role("searchbox", name="Search methods").fill("medusa")
    page.evaluate("scrollTo(0, 0)")
    for _ in range(2):  # the second time the same message
        press_run(page, page.locator("#pearl-gamma:focus"), seconds=30, key=True)
        refused(page, "gamma", "-3; it must be at least 1 and at most 32, or 0 (planned)")
        expect(page.locator("#pearl-gamma")).to_be_in_viewport()
        expect(page.locator("#error-note")).to_be_in_viewport()
        page.evaluate("scrollTo(0, 0)")
        expect(line.get_by_role("button", name="gamma (0 = planned)")).to_be_in_viewport()
        prompt.focus()
    page.locator("#pearl-gamma").fill("0")
    expect(page.locator("[aria-invalid=true], #error-note")).to_have_count(0)
    refuse(page, "#max-new-tokens input", "0", "New tokens", "max_new_tokens is 0; it must be at least 1")
    page.locator("#settings .app-fold > button", has_text="Seed").click()
    fill(page.locator("#top-k input"), "-1")
    page.locator("#settings .app-fold > button", has_text="Seed").click()
    expect(page.locator("#top-k")).to_be_hidden()
    press_run(page, line.filter(has_text="top_k is -1; it must be at least 0"), seconds=30)
    refused(page, "Top-k", "top_k is -1; it must be at least 0")
    expect(page.locator("#top-k input")).to_be_focused()
    fill(page.locator("#top-k input"), "0")
    for title in METHODS:
        choose(page, title, False)
    press_run(page, line.filter(has_text="choose 1 to 6"))
    samples_fill_a_batch_and_a_further_prompt_that_is_too_long_is_refused(page)
    the_other_tabs_lead_to_their_controls(page)


def the_other_tabs_lead_to_their_controls(page: Page) -> None:
    page.get_by_role("tab", name="Lab").click()
    fill(page.locator("#lab-values input, #lab-values textarea").first, "1-99")
    page.locator("#lab-start").click()
    expect(page.locator("#lab-message .app-alert")).to_contain_text("Values: gamma is 99")
    expect(page.locator("#lab-values [aria-invalid=true]")).to_be_focused()
    page.get_by_role("tab", name="Load").click()
    fill(page.locator("#load-sizes input, #load-sizes textarea").first, "0")
    page.locator("#load-start").click()
    expect(page.locator("#load-message .app-alert")).to_contain_text("Batch sizes: a batch size is 0")
    expect(page.locator("#load-sizes [aria-invalid=true]")).to_be_focused()


def choose_batch(page: Page) -> Locator:
    """Compare EMS-SD with speculative decoding; return the box of prompts, filled with samples."""
    for title in ("Speculative decoding", "EMS-SD"):
        choose(page, title, True)
    page.get_by_role("button", name="EMS-SD: settings").click()
    page.locator("#ems-fill").click()
    box = page.locator("#ems-prompts")
    expect(box).not_to_have_value("")
    return box


def samples_fill_a_batch_and_a_further_prompt_that_is_too_long_is_refused(page: Page) -> None:
    box = choose_batch(page)
    samples = box.input_value().split("\n\n")
    assert len(samples) == 7
    fill(box, "Short.\n\n" + "word " * 4000)
    type_prompt(page, "Hi")
    refusal = page.locator("#alert .app-alert")
    press_run(page, refusal.filter(has_text="prompt 2 of 3 (counted from 0)"), seconds=30)
    expect(refusal).to_contain_text("context")
    expect(box).to_be_focused()

    unfold(page)
    fill(box, "\n\n".join(samples))
    answer(page, "Tell me a joke.", 12)
    expect(refusal).to_have_count(0)
    batches = viewer(page).locator(".ss-pane").filter(has_text="EMS-SD")
    expect(batches).to_have_count(2)
    expect(batches.nth(0)).to_contain_text("baseline")
    batch = batches.nth(1)
    expect(batch.locator(".ss-verdict")).to_contain_text("EMS-SD")
    expect(batch.locator("details.ss-sequence")).to_have_count(8)
    expect(batch.locator("details.ss-sequence summary").nth(3)).to_contain_text(samples[2][:30])
    expect(viewer(page).locator(".ss-packing [role=listitem]").first).to_be_visible()
    other = viewer(page).locator(".ss-pane").filter(has_text="Speculative decoding")
    expect(other.locator("details.ss-sequence")).to_have_count(0)


def refuse(page: Page, box: str, value: str, label: str, message: str) -> None:
    """Type a wrong value, press Run, and look for the message and the focus; then type 8."""
    fill(page.locator(box), value)
    press_run(page, page.locator("#alert .app-alert", has_text=message), seconds=30)
    refused(page, label, message)
    expect(page.locator(box)).to_be_focused()
    fill(page.locator(box), "8")


def refused(page: Page, label: str, message: str) -> None:
    line = page.locator("#alert .app-alert")
    expect(line).to_contain_text(message)
    expect(line.get_by_role("button")).to_contain_text(label)


def test_back_leads_through_all_that_was_seen_and_history_opens_exports_imports_searches_and_deletes(
    page: Page, window, tmp_path
) -> None:
    """The link of a run is opened anew by a reload."""
    prompt, tab = page.locator(".app-prompt"), page.get_by_role("tab", selected=True)
    rows = page.locator(".app-runs tbody tr")
    answer(page, "First question", tokens=6)
    first = page.url
    answer(page, "Remember the word zanzibar.", tokens=6)
    assert "?race=" in first
    assert "?race=" in page.url != first
    link = page.get_by_role("link", name="Permalink").get_attribute("href")
    page.get_by_role("tab", name="Lab").click()
    expect(page).to_have_url(re.compile(r"[?&]tab=lab$"))
    page.get_by_role("tab", name="History").click()
    page.get_by_role("textbox", name="Search").fill("zanzibar")  # before the list is there
    expect(rows).to_have_count(3)
    page.locator(".app-runs [data-group]").first.click()
    viewer(page, "#history-viewer").wait_for()
    expect(page).to_have_url(re.compile(r"[?&]run=\w+,\w+,\w+$"))
    assert sorted(re.findall(r"\w+", link)) == sorted(re.findall(r"\w+", page.url.rpartition("/")[2]))
    window.reload()
    viewer(page, "#history-viewer").wait_for()
    expect(page.locator("#history-viewer .ss-pane")).to_have_count(3)
    expect(page.locator(".app-opened h2")).to_have_text("3 runs compared")
    page.go_back()
    expect(rows.first).to_be_visible()
    expect(page).to_have_url(re.compile(r"[?&]tab=history$"))
    page.go_back()
    expect(tab).to_have_text("Lab")
    page.go_back()
    expect(tab).to_have_text("Playground")
    expect(prompt).to_have_text("Remember the word zanzibar.")
    page.go_back()
    expect(prompt).to_have_text("First question")
    assert page.url == first
    page.go_back()
    wait_for(page, "idle")
    page.go_forward()
    expect(prompt).to_have_text("First question")
    wait_for(page, "done")
    page.get_by_role("tab", name="History").click()
    page.get_by_role("tab", name="Playground").click()
    expect(page).to_have_url(first)

    page.get_by_role("tab", name="History").click()
    page.get_by_role("textbox", name="Search").fill("zanzibar")
    expect(rows).to_have_count(3)
    export_and_import(page, rows, tmp_path / "trace.jsonl")
    page.get_by_role("textbox", name="Search").fill("zanzibar")
    expect(rows).to_have_count(4)

    for box in rows.get_by_role("checkbox").all():
        box.check()
    expect(page.locator("#history-delete")).to_have_text("Delete 4")
    page.locator("#history-delete").click()
    expect(page.locator("#history-confirm")).to_contain_text("Delete these 4 runs")
    page.get_by_role("button", name="Delete for good").click()
    expect(page.locator("#history-message")).to_contain_text("4 runs deleted")
    expect(page.locator('#history-table [data-state="empty"]')).to_be_visible()


def export_and_import(page: Page, rows: Locator, file: Path) -> None:
    """Open the first run, download its trace, and import it under another id."""
    run = rows.first.get_attribute("data-run")
    rows.first.get_by_role("button", name="Open").click()
    page.get_by_text("Download the data").click()
    with page.expect_download() as started:
        page.get_by_role("link", name="trace.jsonl").click()
    started.value.save_as(file)
    lines = file.read_text().splitlines()
    header = json.loads(lines[0])
    assert header["run_id"] == run
    file.write_text("\n".join([json.dumps({**header, "run_id": "imported01"}), *lines[1:]]) + "\n")
    page.get_by_role("button", name="All runs").click()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import", exact=True).click()
    chooser.value.set_files(file)
    expect(page.locator("#history-message")).to_contain_text("imported01 was imported")
    expect(page.locator('tr[data-run="imported01"]')).to_be_visible()


INK_AND_GROUND = (
    "[getComputedStyle(document.querySelector('#live-viewer h3')).color,"
    " getComputedStyle(document.body).backgroundColor].map(c => c.match(/[\\d.]+/g).slice(0, 3).map(Number))"
)


def is_dark(page: Page) -> bool:
    return page.evaluate("document.body.classList.contains('dark')")


def test_both_themes_fit_a_narrow_window(open_page, window) -> None:
    """The page has the system's theme until another one is chosen, which is kept."""
    page = open_page(theme="dark", width=800)
    answer(page, "Hello!", tokens=6)
    for theme in ("dark", "light"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_function(
            "(dark) => document.body.classList.contains('dark') === dark", arg=theme == "dark"
        )
        ink, ground = map(sum, page.evaluate(INK_AND_GROUND))
        assert (ink > ground) == (theme == "dark")
        assert abs(ink - ground) > 300
    page.get_by_role("tab", name="History").click()
    page.locator("#history-example").click()
    page.locator("#whatif-chart .main-svg").first.wait_for()
    assert_looks(page, "#whatif")
    page.get_by_role("button", name="All runs").click()
    page.locator(".app-runs [data-group]").first.wait_for()
    for tab in ("Playground", "History", "Lab", "About"):
        page.set_viewport_size({"width": 800, "height": 950})
        page.get_by_role("tab", name=tab).click()
        page.locator('[role="tabpanel"]:visible').first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1"), tab
        assert_looks(page)
    for dark in (True, False):
        page.get_by_role("button", name="Light or dark").click()
        assert is_dark(page) == dark
        window.reload()
        page.locator('[role="tabpanel"]:visible').first.wait_for()
        assert is_dark(page) == dark, "the choice is kept"
        page.emulate_media(color_scheme="dark")


# Without worker processes: the tests above share those of one cluster, which a virtual one closes.


def test_on_load_a_finished_race_plays_until_it_is_hidden_and_methods_are_picked(open_page, window) -> None:
    """The page that is opened again, and used then, gets its scripts late."""
    page = open_page(motion="no-preference")
    race = page.locator("#demo .app-demo-root")
    expect(race.locator(".ss-pane")).to_have_count(3)
    expect(race.get_by_role("list", name="Legend")).to_have_count(1)
    expect(race.locator(".app-demo-line rect.app-band-both").first).to_be_attached()
    for width, height in ((400, 800), (1400, 900)):
        page.set_viewport_size({"width": width, "height": height})
        places = page.evaluate(FIRST_PAGE)
        assert places["prompt"] <= height, (width, places)
        assert places["prompt"] <= places["race"], (width, places)
    assert places["raceEnd"] <= 900, places
    expect(race.locator(".ss-replay")).to_have_attribute("data-races", "1")
    expect(race.get_by_role("button", name="Play")).to_be_visible()  # it ends by itself
    page.get_by_role("button", name="The whole timeline").click()
    expect(race.locator(".app-look").first).to_be_visible()
    assert len(set(race.locator(".app-look").all_text_contents())) == 3
    race.locator(".ss-menu > summary").click()
    race.locator(".ss-menu").get_by_role("button", name="Pin").first.click()
    race.locator(".ss-gantt-card").last.evaluate("(card) => card.scrollIntoView()")
    pins = race.get_by_role("region", name="Pinned tracks").bounding_box()
    assert pins is not None
    assert abs(pins["y"]) <= 1, "a container that scrolls would keep them from sticking"
    page.locator("#demo").get_by_role("button", name="Hide").click()
    expect(race.locator(".ss-pane")).to_have_count(0)
    with window.late("**/files/*.js*", seconds=0.25):
        page = open_page(motion="no-preference")
    expect(page.get_by_role("button", name="Watch a finished race")).to_be_visible()
    expect(page.locator("#demo .ss-pane")).to_have_count(0)
    the_list_of_methods_follows_the_chosen_models(page)
    the_picker_searches_presets_and_runs_a_method_twice(page)
    after_a_virtual_run_the_settings_fold_the_answer_stays_and_a_reload_keeps_all(page, window)


def test_the_example_of_the_history_opens_with_a_choice_for_difference_and_what_if(open_page) -> None:
    """It is opened by a call that joins while the stream of the results before ends."""
    page = open_page(script=LATE_RESULTS)
    page.locator("#run").click()
    page.get_by_role("tab", name="History").click()
    page.locator("#history-example").click()
    viewer(page, "#history-viewer").wait_for()
    page.evaluate("window.late = 0")
    difference = page.locator("#difference")
    expect(page.locator("#history-viewer h3")).to_contain_text(["assisted generation", *METHODS[1:]])
    expect(page.locator("#history-viewer")).to_contain_text("different clocks: do not compare speeds")
    expect(difference).to_contain_text("different clock.")
    pick(page, difference, "First run", METHODS[2])
    expect(difference).to_contain_text(re.compile(r"Speculative decoding.* decoded .* than PEARL"))
    expect(difference).not_to_contain_text("cannot be compared")
    whatif = page.locator("#whatif")
    pick(page, whatif, "Run", METHODS[2])
    page.locator("#whatif-replay").click()
    expect(page.locator("#whatif-viewer h3").first).to_contain_text(METHODS[2])
    fill(page.locator("#whatif-settings input, #whatif-settings textarea").first, "gamma=99")
    page.locator("#whatif-replay").click()
    expect(page.locator("#whatif-message .app-alert")).to_contain_text("Settings: gamma is 99")
    expect(page.locator("#whatif-settings [aria-invalid=true]")).to_be_focused()
    fill(page.locator("#whatif-settings input, #whatif-settings textarea").first, "")
    fill(page.locator("#whatif-devices input"), "5000")
    page.locator("#whatif-replay").click()
    expect(page.locator("#whatif-message .app-alert")).to_contain_text("devices is 5000")
    expect(page.locator("#whatif-devices [aria-invalid=true]")).to_be_focused()
    page.get_by_role("button", name="All runs").click()
    page.get_by_role("textbox", name="Search").fill("race:example")
    expect(page.locator(".app-runs [data-group]", has_text="example")).to_have_count(3)


def pick(page: Page, card: Locator, name: str, choice: str) -> None:
    card.get_by_role("combobox", name=name, exact=True).click()
    page.get_by_role("option", name=choice).click()


def the_list_of_methods_follows_the_chosen_models(page: Page) -> None:
    methods = page.locator("#methods").get_by_role("checkbox")
    pearl = page.locator("#methods").get_by_role("checkbox", name="PEARL", exact=True)
    expect(methods).to_have_count(len(able("bundled")))
    page.get_by_role("radio", name="SmolLM2 135M Instruct").check()
    expect(methods).to_have_count(len(able("smollm2")))
    for key in usual("smollm2"):
        expect(
            page.locator("#methods").get_by_role("checkbox", name=KEYS[key].title, exact=True)
        ).to_be_checked()
    expect(pearl).to_be_checked()
    expect(page.locator("#about-models")).to_contain_text("8,192 tokens")
    expect(page.locator("#drafter")).to_be_hidden()
    page.get_by_role("radio", name="Another model").check()
    expect(page.locator("#drafter")).to_be_visible()
    page.get_by_role("radio", name="weights in 4 bits (int4), no training").check()
    expect(page.locator("#drafter")).to_be_hidden()
    page.get_by_role("radio", name="Usual", exact=True).check()
    page.get_by_role("radio", name="The bundled pair (a toy)").check()
    expect(pearl).to_be_checked()
    expect(page.locator("#about-models")).to_contain_text("A toy for tests")
    expect(page.locator("#model-smollm2")).to_contain_text("Apache-2.0")
    expect(page.locator("#get-smollm2")).to_be_visible()


def the_picker_searches_presets_and_runs_a_method_twice(page: Page) -> None:
    search = page.get_by_role("searchbox", name="Search methods")
    search.fill("medusa")
    boxes = page.locator("#methods").get_by_role("checkbox")
    expect(boxes).to_have_count(2)
    search.fill("")
    page.get_by_role("button", name="no training needed").click()
    expect(page.locator("#methods").get_by_role("checkbox", name="LLMA", exact=True)).to_be_checked()
    page.get_by_role("button", name="usual", exact=True).click()
    page.get_by_role("button", name="PEARL: settings").click()
    page.locator("#pearl-gamma").fill("5")
    page.locator('[data-pick="again pearl"]').click()
    page.locator("#pearl-2-gamma").fill("2")
    page.get_by_role("radio", name="Virtual cluster").check()
    expect(page.get_by_role("combobox", name="Cluster")).to_be_visible()
    answer(page, HOSTILE, tokens=6)
    titles = page.locator("#live-viewer .ss-pane h3")
    expect(titles.nth(2)).to_have_text("PEARL · γ 5")
    expect(titles.nth(3)).to_have_text("PEARL · γ 2")


def after_a_virtual_run_the_settings_fold_the_answer_stays_and_a_reload_keeps_all(
    page: Page, window: Window
) -> None:
    live = page.locator("#live-viewer")
    expect(live.locator(".ss-gantt .ss-gantt-title").first).to_contain_text("virtual · 8xA100")
    expect(live.locator(".ss-badge", has_text="measured")).to_have_count(0)
    expect(page.locator("#settings")).to_be_hidden()
    expect(page.locator(".app-folded")).to_contain_text("6 new tokens")
    expect(page.locator("#turn")).to_be_in_viewport()
    expect(live.locator(".ss-token.ss-future")).to_have_count(0)  # no replay takes the answer away
    expect(live.locator(".ss-replay:not([data-races])")).to_be_visible()
    live.get_by_label("Replay speed").select_option("0.1")
    live.get_by_role("button", name="Play").click()
    live.locator(".ss-token.ss-future").first.wait_for(state="attached")
    advised = live.locator(".ss-verdict button")
    expect(live.locator(".ss-verdict-main")).to_have_count(3)
    window.reload()
    viewer(page).wait_for()
    expect(page.locator(".app-prompt")).to_have_text(HOSTILE)
    expect(page.locator("#demo .ss-pane")).to_have_count(0)
    if advised.count():
        name = advised.first.inner_text()
        link = page.get_by_role("link", name="Permalink").get_attribute("href")
        advised.first.click()
        page.wait_for_function(ANOTHER_TURN, arg=link)  # a short run may never be seen running
        viewer(page).wait_for()
        assert name.startswith("Run ")
        expect(live.locator('.ss-pane[data-status="done"]')).to_have_count(3)
        wait_for(page, "done")
