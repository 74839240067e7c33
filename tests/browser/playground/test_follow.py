"""Another process writes a trace; the page shows it live, and stores it after its footer."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Page, Route, expect

from specscope.engine.trace.jsonl import to_json
from tests.browser.looks import assert_looks
from tests.browser.playground.conftest import ROOT, Server, Window, playing
from tests.browser.playground.steps import press_run, viewer
from tests.traces.samples import sample_events

pytestmark = pytest.mark.browser
PRINTED = ROOT / "tests" / "traces" / "imported" / "printed"
WRITER = """
import sys, time
from specscope.engine.trace.jsonl import from_json, to_json

events = [from_json(line) for line in open(sys.argv[1], encoding="utf-8")]
with open(sys.argv[2], "w", encoding="utf-8") as file:
    for number, event in enumerate(events):
        if event.tag == "span" and event.kind == "draft" and event.step == 1:
            print(time.time(), flush=True)
        if number == len(events) // 2 and sys.argv[4:]:
            sys.stdin.readline()
        line = to_json(event) + "\\n"
        for part in (line[:30], line[30:]):
            file.write(part)
            file.flush()
        time.sleep(float(sys.argv[3]))
print("done", flush=True)
"""
"""Writes the events of a run to a file, with a pause after each; prints when it draws the first
draft, and may wait for a line of its input before the second half."""
WATCH = """() => {
    window.barAt = 0;
    const colour = getComputedStyle(document.documentElement.querySelector(".specscope")).getPropertyValue("--ss-draft");
    const [r, g, b] = colour.trim().slice(1).match(/../g).map((part) => parseInt(part, 16));
    const look = () => {
        const canvas = document.querySelector("#history-viewer canvas.ss-plot");
        const { data } = canvas?.width && canvas.height ? canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height) : { data: [] };
        for (let i = 0; i < data.length; i += 4) {
            if (data[i] === r && data[i + 1] === g && data[i + 2] === b) window.barAt = Date.now() / 1000;
        }
        if (!window.barAt) setTimeout(look, 20);
    };
    look();
}"""
"""Note when the timeline's canvas has the colour of drafts."""


KEEP = """() => {
    const { mount } = SpecScope;
    SpecScope.mount = (root, model, options) => {
        const view = mount(root, model, options);
        window.shown = [model];
        return { ...view, update: (next) => { window.shown.push(next); view.update(next); } };
    };
}"""
"""Keep the documents that the viewer shows; deltas change them in place."""
SPANS = "shown.at(-1).runs[0].tracks.reduce((sum, track) => sum + track.spans.id.length, 0)"


class Files(NamedTuple):
    """The server that follows files, and their folder."""

    server: Server
    folder: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Files]:
    folder = tmp_path_factory.mktemp("follow")
    options = (str(folder / "run.jsonl"), "--folder", str(folder), "--db", str(folder / "traces.db"))
    with playing(*options, command="follow", SPECSCOPE_CACHE=str(folder), HF_HUB_CACHE=str(folder)) as server:
        yield Files(server, folder)


@pytest.fixture
def followed(files: Files, window: Window):
    """Return a function that opens the page of a file, which must not complain."""

    def start(query: str) -> Page:
        page = window.open()
        page.set_viewport_size({"width": 1400, "height": 950})
        page.goto(f"{files.server.url.partition('/?')[0]}{query}")
        return page

    yield start
    complaints, window.complaints = window.complaints, []
    window.close()
    assert [text for text in complaints if "Canvas2D" not in text] == []


def recorded(folder: Path, run_id: str, tokens: int = 24) -> Path:
    """Return a file of a recorded run in the order in which its rows became known."""
    events = sample_events("pearl", tokens=tokens)
    lines = [to_json(event) for event in events]
    path = folder / f"{run_id}.recorded"
    path.write_text("\n".join(lines).replace("sample-pearl", run_id) + "\n", encoding="utf-8")
    return path


def writing(source: Path, file: Path, pause: float, *hold: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(source), str(file), str(pause), *hold]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(page: Page, state: str):
    return page.locator(f'#follow-line .app-turn[data-state="{state}"]')


def until_bar(page: Page, files: Files, number: int) -> float:
    """Write a run; return the seconds from its first draft to the bar, and wait for its footer."""
    file = files.folder / "run.jsonl"
    file.unlink(missing_ok=True)
    page.goto(files.server.url)
    expect(line(page, "running")).to_contain_text("Waiting: run.jsonl does not exist yet.")
    page.evaluate(WATCH)
    process = writing(recorded(files.folder, f"followed{number}"), file, 0.01, "hold")
    assert process.stdout is not None
    written = float(process.stdout.readline())
    page.wait_for_function("() => window.barAt")
    seconds = page.evaluate("() => window.barAt") - written
    expect(line(page, "running")).to_contain_text(
        re.compile(r"\d+ tokens · \d+% of drafts accepted · [\d.]+ tokens/s")
    )
    expect(page.locator("#follow-panes .ss-token").nth(3)).to_be_visible()
    expect(page.locator("#follow-panes h3")).to_contain_text("PEARL")
    expect(page.locator("#history-viewer .app-live")).to_be_visible()
    process.communicate("\n", timeout=60)
    assert process.returncode == 0
    expect(line(page, "done")).to_contain_text(f"Run followed{number} is stored.")
    return seconds


def test_the_first_bar_appears_within_a_second_and_the_run_is_stored_at_its_footer(
    files, followed, window
) -> None:
    """The other processes of a busy machine may delay one writing, not each of three."""
    page = followed("/?tab=history")
    assert files.server.url.endswith("/?follow=run.jsonl")
    delays = []
    for number in range(3):
        window.settle()  # leaving an open call is an error in Gradio's log
        delays.append(until_bar(page, files, number))
        if delays[-1] < 1:
            break
    assert min(delays) < 1, delays
    viewer(page, "#history-viewer").wait_for()
    expect(page).to_have_url(re.compile(r"[?&]run=followed\d$"))
    expect(page.locator("#follow-panes .app-pane")).to_have_count(0)
    expect(page.locator("#history-viewer .ss-pane")).to_contain_text("132.3 tok/s")
    expect(page.locator("#history-viewer .ss-table").first).to_be_visible()
    page.get_by_role("button", name="All runs").click()
    expect(page.locator('tr[data-run="followed0"]')).to_contain_text("done")

    page.get_by_label("Follow a file").select_option("run.jsonl")
    again = "Not stored: a run with this id is already stored"
    expect(line(page, "done")).to_contain_text(again)
    page.evaluate("document.querySelector('#follow-line .app-follow').dataset.before = ''")
    page.get_by_role("button", name="Follow again").click()
    expect(page.locator("#follow-line [data-before]")).to_have_count(0)  # the file is followed anew
    expect(line(page, "done")).to_contain_text(again)
    viewer(page, "#history-viewer").wait_for()
    page.get_by_role("button", name="All runs").click()
    expect(page.locator(".app-runs tbody tr")).to_have_count(len(delays))
    expect(page.locator("#follow-line .app-follow")).to_have_count(0)


def test_files_are_followed_beside_each_other_a_wrong_line_ends_one_and_what_is_there_is_imported(
    files, followed
) -> None:
    for name in ("left", "right"):
        lines = recorded(files.folder, name).read_text(encoding="utf-8").splitlines(keepends=True)
        (files.folder / f"{name}, too.jsonl").write_text("".join(lines[:120]), encoding="utf-8")
    page = followed("/?follow=left%252C%20too.jsonl,right%252C%20too.jsonl")
    expect(page.locator("#follow-panes .app-pane")).to_have_count(2)
    expect(page.locator("#history-viewer .app-live .ss-gantt .ss-gantt-title")).to_have_count(2)
    with (files.folder / "left, too.jsonl").open("a") as file:
        file.write("<img src=x onerror=alert(1)>\n")
    expect(line(page, "failed")).to_contain_text("left, too.jsonl: line 121: Expecting value")
    expect(line(page, "running")).to_have_count(1)
    page.get_by_role("tab", name="Playground").click()
    page.get_by_role("tab", name="History").click()
    name = re.compile(r"follow=left%252C\+too.jsonl,right%252C\+too.jsonl|follow=left%252C%2520too")
    expect(page).to_have_url(name)
    page.get_by_role("button", name="All runs").click()
    expect(page).to_have_url(re.compile(r"[?&]tab=history$"))
    expect(line(page, "failed")).to_have_count(0)
    page.go_back()  # both are followed again, and the left one fails again
    expect(line(page, "failed")).to_have_count(1)
    running = line(page, "running")
    expect(running).to_have_count(1)
    expect(running).to_contain_text("Following.")
    assert_looks(page, "#follow-line")
    running.get_by_role("button", name="Stop").click()
    expect(line(page, "cancelled")).to_contain_text("the file has no footer yet, so the run is not stored")
    viewer(page, "#history-viewer").wait_for()
    page.get_by_role("button", name="Import what is there").click()
    expect(page.locator("#follow-line")).to_contain_text("Run right is stored.")
    page.get_by_role("button", name="All runs").click()
    expect(page.locator('tr[data-run="right"]')).to_contain_text("incomplete")
    page.go_back()  # from the list to the opened run
    expect(page).to_have_url(re.compile(r"[?&]run=left,right$"))


def test_a_late_document_hides_no_rows_that_came_meanwhile(files, followed) -> None:
    source = recorded(files.folder, "late", tokens=200)
    lines = source.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]
    source.write_text("".join(lines), encoding="utf-8")
    (files.folder / "late.jsonl").touch()
    page = followed("/?follow=late.jsonl")
    expect(line(page, "running")).to_contain_text("the header of late.jsonl is not written yet")
    page.evaluate(KEEP)

    def delay(route: Route) -> None:
        answer = route.fetch()
        time.sleep(1)
        route.fulfill(response=answer)

    page.route("**/specscope/model*", delay)
    process = writing(source, files.folder / "late.jsonl", 8 / len(lines))
    page.wait_for_function("() => window.shown?.length >= 2")
    assert process.wait(60) == 0
    spans = sum('"event":"span"' in one for one in lines)
    page.wait_for_function(f"() => {SPANS} === {spans}", timeout=20_000)


def test_a_log_that_is_named_in_the_field_is_drawn_as_it_grows(files, followed) -> None:
    log, content = files.folder / "server.log", (PRINTED / "04-vllm.log").read_text()
    log.write_text(content)
    page = followed("/?tab=history")
    page.get_by_role("button", name="Follow what is being written").click()
    for text, said in (
        (str(files.folder / "no" / "x"), "is no folder"),
        ("http://192.0.2.1:9", "is another machine"),
    ):
        page.get_by_label("Path or address").fill(text)
        shown = page.locator("#history-message", has_text=said)
        press_run(page, shown, seconds=20, button="#follow-begin")
    page.get_by_label("Path or address").fill(str(log))
    page.get_by_label("Path or address").press("Enter")
    windows = page.locator("#history-viewer .ss-counts")
    expect(windows).to_contain_text("3 windows: 730 of 2312 drafted tokens were accepted")
    with log.open("a") as file:
        file.write(content.replace("09:0", "10:0"))
    expect(windows).to_contain_text("6 windows: 1460 of 4624 drafted tokens were accepted")
    expect(page.locator("#follow-panes")).to_contain_text("10:04:04 · 210 drafts · 0/840 accepted (0%)")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(line(page, "done")).to_contain_text("1156 rounds · 2612 tokens · 32% of drafts accepted")
    assert_looks(page, "#history-open")
