"""The viewer's speed in headless Chromium: opening a long run, moving in it, runs that grow."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import engine
from app.bench.figures import Figure
from app.bench.plan import Note
from engine.errors import UsageError, one_line
from engine.trace.trace import Trace
from engine.types import Limits
from traces.export.assets import viewer_script, viewer_style
from traces.view.delta import Delta, delta
from traces.view.document import view_model
from traces.view.packed import packed
from traces.waiting import decode_window

if TYPE_CHECKING:
    from playwright.sync_api import Page

SIZES = (1_000, 10_000, 100_000)
"""Numbers of spans of the documents that are opened and moved."""
PANES, TOKENS, DELTAS = 4, 600, 40
"""Runs that grow at once, their tokens, and the deltas that bring them, ten a second."""
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
PAGE = '<!doctype html><meta charset="utf-8"><style>{}</style><div id="viewer"></div><script>{}</script>'
OPEN = """async (text) => {
    const root = document.getElementById("viewer");
    const begun = performance.now();
    window.view = SpecScope.mount(root, JSON.parse(text), {});
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    return performance.now() - begun;
}"""
MOVE = """async ([frames, keys]) => {
    const box = document.querySelector(".ss-gantt");
    const times = [];
    const { left, top, width } = box.getBoundingClientRect();
    const at = { clientX: left + width / 2, clientY: top + 90, bubbles: true, cancelable: true };
    let last = await new Promise(requestAnimationFrame);
    for (let i = 0; i < frames; i++) {
        const way = i < frames / 2 ? 1 : -1;
        const turn = keys === "zoom" ? { ctrlKey: true, deltaY: -30 * way } : { shiftKey: true, deltaY: 30 * way };
        box.dispatchEvent(new WheelEvent("wheel", { ...at, ...turn }));
        const now = await new Promise(requestAnimationFrame);
        times.push(now - last);
        last = now;
    }
    return times;
}"""
GROW = """async (rounds) => {
    const times = [];
    let growing = true;
    const watch = (async () => {
        let last = await new Promise(requestAnimationFrame);
        while (growing) {
            const now = await new Promise(requestAnimationFrame);
            times.push(now - last);
            last = now;
        }
    })();
    for (const deltas of rounds) {
        for (const delta of deltas) window.view.extend(delta);
        await new Promise((done) => setTimeout(done, 100));
    }
    growing = false;
    await watch;
    return times;
}"""


def measure(sizes: Sequence[int], repeats: int, note: Note) -> dict[str, Figure]:
    """Return the figures of opening, panning and zooming for each size, and of live growth.

    Args:
        sizes: Spans of each document.
        repeats: How often each document is opened and moved.
        note: Called with the name of each measurement.

    Raises:
        UsageError: Playwright or Chromium is missing.
    """
    figures: dict[str, Figure] = {}
    if find_spec("playwright") is None:
        raise UsageError("--viewer needs Playwright, a package for tests; pip install -e '.[dev]'")
    note("a run to repeat")
    base = virtual_run()
    with chromium() as page:
        for size in sizes:
            note(f"{size:,} spans")
            figures |= _moved(page, repeated(base, size), size, repeats)
            note("")
        note("live")
        figures["viewer_live_fps"] = _live(page, base)
        note("")
    return figures


def virtual_run() -> Trace:
    """Return a run of the bundled pair on a virtual cluster."""
    with engine.open("bundled", runtime="virtual", profile="pearl-3xA100") as cluster:
        return cluster.run("speculative", "Tell me a story.", limits=Limits(96))


@contextmanager
def chromium() -> Iterator[Page]:
    """Yield an empty page of headless Chromium: the system's, else Playwright's.

    Raises:
        UsageError: Chromium is missing.
    """
    from playwright.sync_api import Error, sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        except Error as error:
            raise UsageError(
                f"--viewer needs Chromium ({one_line(error)[:80]}); playwright install chromium"
            ) from None
        try:
            yield browser.new_page(viewport={"width": 1400, "height": 950})
        finally:
            browser.close()


def repeated(base: Trace, spans: int) -> Trace:
    """Return a run of at least this many spans: a run's decoding, again and again."""
    start, end = decode_window(base)
    decoding = [s for s in base.spans if s.kind != "prefill"]
    times = -(-max(0, spans - len(base.spans)) // len(decoding)) + 1
    step, ids = max(r.step for r in base.rounds), max(s.id for s in base.spans) + 1
    trace = Trace(base.header, pieces=dict(base.pieces), spans=[s for s in base.spans if s.kind == "prefill"])
    for k in range(times):
        later, steps, first = k * (end - start), k * step, k * ids
        place = k * len(base.commits)
        trace.spans += [
            replace(s, id=s.id + first, start=s.start + later, end=s.end + later, step=s.step + steps)
            for s in decoding
        ]
        trace.rounds += [
            replace(r, step=r.step + steps, time=r.time + later, span=r.span + first) for r in base.rounds
        ]
        trace.commits += [
            replace(c, step=c.step + steps, position=c.position + place, time=c.time + later)
            for c in base.commits
        ]
        trace.decisions += [
            replace(
                d,
                step=d.step + steps,
                position=d.position + place,
                draft_span=d.draft_span + first if d.draft_span >= 0 else -1,
                verify_span=d.verify_span + first if d.verify_span >= 0 else -1,
            )
            for d in base.decisions
        ]
    trace.footer = trace.new_footer("done")
    return trace


def _moved(page: Page, trace: Trace, name: int, repeats: int) -> dict[str, Figure]:
    """Open a document and move in it."""
    text = json.dumps(packed(view_model([trace])), separators=(",", ":"))
    opened, panned, zoomed = list[float](), list[float](), list[float]()
    for _ in range(repeats):
        page.set_content(PAGE.format(viewer_style(), viewer_script()))
        opened.append(page.evaluate(OPEN, text))
        zoomed.append(_rate(page.evaluate(MOVE, [60, "zoom"])))
        page.locator(".ss-gantt").press("w")
        panned.append(_rate(page.evaluate(MOVE, [60, "pan"])))
    detail = {
        "spans": len(trace.spans),
        "tokens": len(trace.commits),
        "document_mb": round(len(text) / 1e6, 2),
    }
    return {
        f"viewer_open_ms_{name}": Figure(tuple(opened), "ms", detail=detail),
        f"viewer_pan_fps_{name}": Figure(tuple(panned), "frames/s"),
        f"viewer_zoom_fps_{name}": Figure(tuple(zoomed), "frames/s"),
    }


def _rate(times: Sequence[float]) -> float:
    """Return frames per second from the ms between frames."""
    return 1000 * len(times) / sum(times)


def _live(page: Page, base: Trace) -> Figure:
    """Let several runs grow at once, and count the frames."""
    whole = repeated(base, 0)
    while len(whole.commits) < TOKENS:
        whole = repeated(base, len(whole.spans) + 1)
    traces = [replace(whole, header=replace(whole.header, run_id=f"run{i}")) for i in range(PANES)]
    begun = [replace(_steps(t, -1, 2), footer=None) for t in traces]
    last = max(s.step for s in whole.spans)
    cuts = [2 + (last - 2) * i // DELTAS for i in range(DELTAS + 1)]
    rounds = [[_delta(t, low, high) for t in traces] for low, high in pairwise(cuts)]
    page.set_content(PAGE.format(viewer_style(), viewer_script()))
    page.evaluate(OPEN, json.dumps(packed(view_model(begun))))
    times = page.evaluate(GROW, rounds)
    detail = {"runs": PANES, "tokens": len(whole.commits), "worst_frame_ms": round(max(times), 1)}
    return Figure((_rate(times),), "frames/s", detail=detail)


def _steps(trace: Trace, low: int, high: int) -> Trace:
    """Return the part of a run with steps above `low`, up to `high`."""
    rows: dict[str, Any] = {
        name: [row for row in getattr(trace, name) if low < row.step <= high]
        for name in ("spans", "rounds", "decisions", "commits")
    }
    return replace(trace, **rows)


def _delta(trace: Trace, low: int, high: int) -> Delta:
    part = _steps(trace, low, high)
    return delta(trace.header.run_id, [*part.spans, *part.commits], high, ended=False)
