"""The playground's page and its runs: how fast Stop shows, and how much an open page slows runs.

A server of its own and headless Chromium, four methods of up to 600 tokens each, one after another
on the devices of this machine. A busy machine makes both figures worse.
`python -m tests.bench.page [--quick] [--json]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from specscope.app.bench.figures import Bar, Measurement
from specscope.app.jobs.runs import RunRequest
from specscope.app.jobs.service import Service
from specscope.engine.errors import SpecScopeError
from specscope.engine.types import Limits, Sampling
from specscope.traces.database.store import Store
from specscope.traces.facts.waiting import decode_window
from tests.bench import script
from tests.bench.soak import serving
from tests.bench.viewer import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from specscope.app.bench.figures import Note
    from specscope.engine.trace.trace import Trace

PROMPT = "Tell me a story about a lighthouse keeper."
MORE = ("Prompt lookup",)
"""Methods ticked in addition to the page's usual ones."""
TOKENS = 600
"""Most tokens of a run."""
TEMPERATURE = 2
"""At temperature 0 the bundled pair's texts are short: a fast machine ends the turn before Stop."""
PATIENCE_MS = 180_000
"""Longest wait for a state of the page."""
FORGET = 'if (location.protocol !== "about:") { sessionStorage.clear(); localStorage.clear(); }'
"""The page keeps its conversation over a reload; each turn begins without one."""
PRESS = """() => document.querySelector('.app-turn:not([data-state="idle"])')
    || void document.getElementById("run").click()"""
"""Presses Run until a turn begins: Gradio drops a press while an earlier call ends."""
PANES = """() => ["#panes .app-pane", "#live-viewer .ss-pane"]
    .map((panes) => document.querySelectorAll(panes).length).find((count) => count)"""
"""Returns the number of panes: while the turn runs, or in the viewer if it has ended already."""
STOP = """() => new Promise((done) => {
    const shown = () => document.querySelector('.app-turn[data-state="cancelled"]');
    const seen = () => shown() && requestAnimationFrame(() => setTimeout(() => {
        observer.disconnect();
        done(performance.now() - begun);
    }));
    const observer = new MutationObserver(seen);
    observer.observe(document.body, { subtree: true, childList: true, attributes: true });
    const begun = performance.now();
    document.getElementById("stop").click();
})"""
"""Returns the ms from a click on Stop to the end of the first frame that shows it."""


BARS = {"page_stop_ms": Bar(at_most=200), "page_share": Bar(at_most=1.3)}


@dataclass(frozen=True, slots=True)
class Turns:
    """Turns of the playground in a browser."""

    page: Page
    address: str
    more: Sequence[str] = MORE
    tokens: int = TOKENS

    def press(self) -> int:
        page = self.page
        page.set_default_timeout(PATIENCE_MS)
        page.add_init_script(FORGET)
        page.goto(self.address)
        page.locator("#run").wait_for()
        for title in self.more:
            page.locator("#methods").get_by_role("checkbox", name=title, exact=True).set_checked(True)
        length = page.get_by_role("spinbutton", name="New tokens")
        length.fill(str(self.tokens))
        length.press("Tab")
        warmth = page.locator("#temperature input[type=number]")
        warmth.fill(str(TEMPERATURE))
        warmth.press("Tab")
        page.get_by_role("textbox", name="Prompt", exact=True).fill(PROMPT)
        page.locator("#methods input:checked").nth(len(self.more)).wait_for(state="attached")
        page.wait_for_function(PRESS, polling=5000)
        return page.wait_for_function(PANES).json_value()

    def finish(self) -> None:
        self.page.locator('.app-turn[data-state="done"]').wait_for()
        self.page.locator('#live-viewer [data-state="ready"]').first.wait_for()

    def stop(self) -> float:
        """Press Stop while the last pane runs; return the ms until the page shows it."""
        self.page.locator("#panes .app-pane").last.locator(".ss-token").nth(3).wait_for()
        return self.page.evaluate(STOP)

    def leave(self) -> None:
        """Close the document, so that it asks the server for nothing."""
        self.page.goto("about:blank")


def measure(repeats: int, note: Note) -> dict[str, Measurement]:
    """Return the time of Stop, and the time of runs with an open page over that without one.

    Each is measured `repeats` times.
    """
    with TemporaryDirectory() as folder:
        database = Path(folder) / "traces.db"
        note("a server")
        with serving(database) as (address, _), chromium() as page:
            turns = Turns(page, address)
            note("Stop")
            stopped = tuple(_stopped(turns) for _ in range(1 + repeats))[1:]  # the first loads the models
            note("page share")
            service = Service(Path(folder) / "alone.db")
            try:
                shares, tokens = page_shares(turns, database, repeats, lambda trace: alone(service, trace))
            finally:
                service.close()
    detail = {"panes": len(tokens), "tokens": tokens}
    return {
        "page_stop_ms": Measurement(stopped, "ms", detail={"panes": len(tokens)}),
        "page_share": Measurement(shares, "decoding time with the page / without it", detail=detail),
    }


def _stopped(turns: Turns) -> float:
    turns.press()
    try:
        return turns.stop()
    finally:
        turns.leave()


def page_shares(
    turns: Turns, database: Path, repeats: int, repeat: Callable[[Trace], Trace]
) -> tuple[tuple[float, ...], list[int]]:
    """Return the ratios of decoding times, and the tokens of each run."""
    shares, tokens = list[float](), list[int]()
    for i in range(repeats + 1):
        turns.press()
        turns.finish()
        turns.leave()
        with_page = last_turn(database)
        without = [repeat(trace) for trace in with_page]
        for ours, theirs in zip(with_page, without, strict=True):
            if ours.status != "done" or ours.token_ids() != theirs.token_ids():
                raise SpecScopeError(f"{ours.header.title} wrote another text without the page")
        tokens = [len(trace.commits) for trace in with_page]
        if i:  # the first turn warms both up
            shares.append(sum(map(_seconds, with_page)) / sum(map(_seconds, without)))
    return tuple(shares), tokens


def _seconds(trace: Trace) -> float:
    start, end = decode_window(trace)
    return (end - start) / 1e9


def last_turn(database: Path) -> list[Trace]:
    with Store(database, readonly=True) as store:
        newest = store.runs(limit=1)[0][0].header.run_id
        return [store.load(run) for run in store.group(newest)]


def alone(service: Service, trace: Trace) -> Trace:
    """Make a run of the page again, with its settings and planned values, without a page."""
    header = trace.header
    request = RunRequest(
        header.method,
        [{"role": "user", "content": PROMPT}],
        config=header.config,
        sampling=Sampling(**header.sampling),
        limits=Limits(header.limits["max_new_tokens"]),
    )
    run = service.start(request)
    run.wait()
    found = run.trace()
    if found is None or run.state != "done":
        raise SpecScopeError(f"{header.title} failed without the page: {run.error}")
    return found


if __name__ == "__main__":
    script.main(script.options(__doc__), lambda args, note: (measure(1 if args.quick else 3, note), {}), BARS)
