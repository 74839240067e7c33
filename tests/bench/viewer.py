"""The viewer's speed in headless Chromium: opening a long run, moving in it, runs that grow.

The bars are on what a person waits for: seconds and frames per second. A busy machine makes them
worse, too. The CPU time of the page's main thread shows whether the page itself is slow.
`python -m tests.bench.viewer [--quick] [--json]`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

import specscope
from specscope.app.bench.figures import Bar, Measurement, Note
from specscope.app.jobs.long import LongRuns
from specscope.app.jobs.service import Service
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits
from specscope.traces.database.store import Store
from specscope.traces.export.assets import viewer_script, viewer_style
from specscope.traces.facts.waiting import decode_window
from specscope.traces.view.document import view_model
from specscope.traces.view.packed import Delta, delta, packed
from tests.bench import script
from tests.browser.conftest import launched

if TYPE_CHECKING:
    from playwright.sync_api import Page

SIZES = (1_000, 10_000, 100_000)
"""Numbers of spans of the documents that are opened and moved."""
PANES, TOKENS, DELTAS = 4, 600, 40
"""Runs that grow at once, their tokens, and the deltas that bring them, ten a second."""
FRAMES = 60
"""Frames in which the window moves."""
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
GROW = """async (deltas) => {
    let frames = 0;
    const end = performance.now() + 100;
    for (const delta of deltas) window.view.extend(delta);
    while (performance.now() < end) {
        await new Promise(requestAnimationFrame);
        frames++;
    }
    return frames;
}"""


BARS = {
    "viewer_answer_ms_100000": Bar(at_most=150),
    "viewer_rounds_ms_100000": Bar(at_most=150),
    "viewer_first_ms_100000": Bar(at_most=500),
    "viewer_open_ms_100000": Bar(at_most=1000),
    "viewer_pan_fps_100000": Bar(at_least=57),
    "viewer_zoom_fps_100000": Bar(at_least=57),
    "viewer_live_fps": Bar(at_least=30),
}


def measure(sizes: Sequence[int], repeats: int, note: Note) -> dict[str, Measurement]:
    """Return the figures of the server's answers, opening and moving for each size, and of growth.

    Each document is opened and moved `repeats` times.
    """
    figures: dict[str, Measurement] = {}
    base = virtual_run()
    with chromium() as page:
        for size in sizes:
            note(f"{size:,} spans")
            trace = repeated(base, size)
            figures |= answered(page, trace, size, repeats) | _moved(page, trace, size, repeats)
            note("")
        note("live")
        figures |= _live(page, base)
        note("")
    return figures


def answered(page: Page, trace: Trace, name: int, repeats: int) -> dict[str, Measurement]:
    """Return the ms of the server's answers for a stored run, and of the first picture."""
    times: dict[str, list[float]] = {"answer": [], "first": [], "spans": [], "rounds": []}
    detail = dict[str, float]()
    with TemporaryDirectory() as folder:
        with Store(Path(folder) / "traces.db") as store:
            store.insert(trace)
        run, middle = trace.header.run_id, trace.rounds[len(trace.rounds) // 2].step
        service = Service(Path(folder) / "traces.db")
        try:
            long = LongRuns(service)
            for _ in range(repeats):
                text, took = _timed(lambda: long.document(run) or packed(view_model([trace])))
                times["answer"].append(took)
                page.set_content(PAGE.format(viewer_style(), viewer_script()))
                times["first"].append(page.evaluate(OPEN, text))
                times["spans"].append(_timed(lambda: long.spans(run))[1])
                times["rounds"].append(_timed(lambda: long.rounds(run, max(0, middle - 100), middle + 99))[1])
                detail["document_mb"] = round(len(text) / 1e6, 2)
        finally:
            service.close()
    return {
        f"viewer_{key}_ms_{name}": Measurement(tuple(found), "ms", detail=detail if key == "answer" else {})
        for key, found in times.items()
    }


def _timed(answer: Callable[[], Any]) -> tuple[str, float]:
    begun = perf_counter()
    text = json.dumps(answer(), separators=(",", ":"))
    return text, 1000 * (perf_counter() - begun)


def virtual_run() -> Trace:
    with specscope.open("bundled", runtime="virtual", profile="pearl-3xA100") as cluster:
        return cluster.run("speculative", "Tell me a story.", limits=Limits(96))


@contextmanager
def chromium() -> Iterator[Page]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launched(playwright)
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
        later, steps, first, place = k * (end - start), k * step, k * ids, k * len(base.commits)
        trace.spans += _shifted(decoding, id=first, start=later, end=later, step=steps)
        trace.rounds += _shifted(base.rounds, step=steps, time=later, span=first)
        trace.commits += _shifted(base.commits, step=steps, position=place, time=later)
        judged = {"draft_span": first, "verify_span": first}
        trace.decisions += _shifted(base.decisions, step=steps, position=place, **judged)
    trace.footer = trace.new_footer("done")
    return trace


def _shifted(rows: Sequence[Any], **offsets: int) -> list[Any]:
    """Return rows with offsets added to their fields; -1, no span, stays."""
    return [
        replace(row, **{name: at + by for name, by in offsets.items() if (at := getattr(row, name)) >= 0})
        for row in rows
    ]


def _moved(page: Page, trace: Trace, name: int, repeats: int) -> dict[str, Measurement]:
    text = json.dumps(packed(view_model([trace])), separators=(",", ":"))
    opened, worked, frames = list[float](), list[float](), dict[str, list[float]]()
    for _ in range(repeats):
        page.set_content(PAGE.format(viewer_style(), viewer_script()))
        clock = MainThread(page)
        opened.append(page.evaluate(OPEN, text))
        worked.append(clock.lap())
        for way in ("zoom", "pan"):
            page.locator(".ss-gantt").press("w")
            clock.lap()
            times = page.evaluate(MOVE, [FRAMES, way])
            frames.setdefault(f"{way}_cpu_ms", []).append(clock.lap() / FRAMES)
            frames.setdefault(f"{way}_fps", []).append(1000 * len(times) / sum(times))
    megabytes = round(len(text) / 1e6, 2)
    detail = {"spans": len(trace.spans), "tokens": len(trace.commits), "document_mb": megabytes}
    found = {
        f"viewer_open_ms_{name}": Measurement(tuple(opened), "ms", detail=detail),
        f"viewer_open_cpu_ms_{name}": Measurement(tuple(worked), "CPU ms"),
    }
    for key, values in frames.items():
        unit = "frames/s" if key.endswith("fps") else "CPU ms/frame"
        found[f"viewer_{key}_{name}"] = Measurement(tuple(values), unit)
    return found


class MainThread:
    """The CPU time of a page's main thread."""

    def __init__(self, page: Page) -> None:
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._last = 0.0
        self.lap()

    def lap(self) -> float:
        metrics: list[dict[str, Any]] = self._session.send("Performance.getMetrics")["metrics"]
        now = next(float(m["value"]) for m in metrics if m["name"] == "TaskDuration")
        spent, self._last = 1000 * (now - self._last), now
        return spent


def _live(page: Page, base: Trace) -> dict[str, Measurement]:
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
    clock, started = MainThread(page), perf_counter()
    frames, spent = list[int](), list[float]()
    for deltas in rounds:
        frames.append(page.evaluate(GROW, deltas))
        spent.append(clock.lap())
    detail = {"runs": PANES, "tokens": len(whole.commits)}
    worst = max(s / f for s, f in zip(spent, frames, strict=True))
    return {
        "viewer_live_cpu_ms": Measurement((sum(spent) / sum(frames),), "CPU ms/frame", detail=detail),
        "viewer_live_worst_cpu_ms": Measurement((worst,), "CPU ms/frame"),
        "viewer_live_fps": Measurement(
            (sum(frames) / (perf_counter() - started),), "frames/s", detail=detail
        ),
    }


def _steps(trace: Trace, low: int, high: int) -> Trace:
    rows: dict[str, Any] = {
        name: [row for row in getattr(trace, name) if low < row.step <= high]
        for name in ("spans", "rounds", "decisions", "commits")
    }
    return replace(trace, **rows)


def _delta(trace: Trace, low: int, high: int) -> Delta:
    part = _steps(trace, low, high)
    return delta(trace.header.run_id, [*part.spans, *part.commits], high, ended=False)


if __name__ == "__main__":
    script.main(
        script.options(__doc__), lambda args, note: (measure(SIZES, 1 if args.quick else 2, note), {}), BARS
    )
