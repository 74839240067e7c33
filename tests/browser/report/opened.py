"""A report opened from disk, and helpers for its tests."""

import json
from contextlib import contextmanager

from specscope.traces.export.report import render_report
from specscope.traces.view.document import view_model

WIDTH, HEIGHT = 1400, 950


class Opened:
    """A file in a page, and its complaints: errors, dialogs and requests.

    `traces` are the runs of a report, or the text of another file.
    """

    def __init__(self, browser, folder, traces, *, width=WIDTH, theme="light", **context):
        file = folder / "report.html"
        file.write_text(traces if isinstance(traces, str) else render_report(traces), encoding="utf-8")
        self.page = browser.new_page(
            viewport={"width": width, "height": HEIGHT}, color_scheme=theme, **context
        )
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

    @contextmanager
    def looking(self, theme, width):
        """Change the theme and the width of the window."""
        self.page.emulate_media(color_scheme=theme)
        self.page.set_viewport_size({"width": width, "height": HEIGHT})
        try:
            yield self
        finally:
            self.page.emulate_media(color_scheme="light")
            self.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})

    def show(self, model, **options):
        """Show another document in a new viewer, as if the report had been made of it."""
        self.page.evaluate(
            """([text, options]) => {
                window.view.destroy();
                const root = document.getElementById("viewer");
                for (const key of Object.keys(root.dataset)) delete root.dataset[key];
                document.getElementById("model").textContent = text;
                scrollTo(0, 0);
                window.view = SpecScope.mount(root, JSON.parse(text), options);
            }""",
            [json.dumps(model), options],
        )
        return self.page

    def runs(self, traces, **options):
        """Show runs, with the pointer outside; return the page when they are drawn."""
        self.show(view_model(traces), **options).mouse.move(1, 1)
        return self.ready()


def update(page, traces):
    page.evaluate("(text) => view.update(JSON.parse(text))", json.dumps(view_model(traces)))


def pane(page, number):
    return page.locator(".ss-pane").nth(number)


def visible_text(page, number):
    """Return the visible text of a pane, without its ghosts."""
    return page.evaluate(
        """(number) => [...document.querySelectorAll(".ss-pane")[number].querySelectorAll(".ss-token:not(.ss-ghost)")]
            .filter((node) => getComputedStyle(node).visibility === "visible").map((node) => node.textContent).join("")""",
        number,
    )


def centre_of(page, run, span):
    """Return the place of a span on the screen: the middle of its bar."""
    left, right, y = bar_of(page, run, span)
    return (left + right) / 2, y


def bar_of(page, run, span):
    """Return the left and right edge of a span's bar on the screen, and its middle's y."""
    page.evaluate("document.querySelector('.ss-gantt').scrollIntoView()")
    frame, (low, high) = page.locator(".ss-plot").bounding_box(), window(page)
    start, end, y = page.evaluate(
        """([text, run, span]) => {
            const model = SpecScope.unpack(JSON.parse(text));
            const track = model.runs[run].tracks.findIndex((t) => t.spans.id.includes(span));
            const spans = model.runs[run].tracks[track].spans;
            const at = spans.id.indexOf(span);
            const names = new Set(model.runs.flatMap((r) => r.tracks.map((t) => t.label)));
            const labels = [...document.querySelectorAll(".ss-row-label")].filter((n) => names.has(n.title));
            const before = model.runs.slice(0, run).reduce((sum, r) => sum + r.tracks.length, 0);
            const box = labels[before + track].getBoundingClientRect();
            return [spans.start[at], spans.end[at], box.top + 12];
        }""",
        [page.locator("#model").text_content(), run, span],
    )
    x = [frame["x"] + frame["width"] * (t - low) / (high - low) for t in (start, end)]
    return *x, y


def window(page):
    """Return the first and the last time of the timeline's window, in ms."""
    return [float(t) for t in page.get_attribute(".specscope[data-window]", "data-window").split()]


def zoomed(page, times):
    """Zoom in by the keyboard; return the window at rest."""
    box = page.locator(".ss-gantt")
    box.focus()
    for _ in range(times):
        before = page.get_attribute(".specscope[data-window]", "data-window")
        box.press("w")
        page.wait_for_selector(f'.specscope[data-window]:not([data-window="{before}"])')
    last = None
    while last != (last := window(page)):
        page.wait_for_timeout(200)
    return last


def colours(page, *places):
    """Return the colours `rgb(r, g, b)` that the timeline has at places of the screen."""
    return page.evaluate(
        """(places) => {
            const canvas = document.querySelector(".ss-plot");
            const frame = canvas.getBoundingClientRect();
            const ratio = canvas.width / frame.width;
            return places.map(([x, y]) => {
                const [r, g, b] = canvas.getContext("2d").getImageData(Math.floor((x - frame.x) * ratio), Math.floor((y - frame.y) * ratio), 1, 1).data;
                return `rgb(${r}, ${g}, ${b})`;
            });
        }""",
        places,
    )


def drawn_after(page, action):
    before = page.get_attribute("#viewer", "data-drawn")
    action()
    page.wait_for_selector(f'#viewer[data-drawn]:not([data-drawn="{before}"])')


def contrast(one, other):
    """Return the contrast of two colours `rgb(r, g, b)`, 1 to 21."""

    def light(colour):
        parts = [int(c) / 255 for c in colour.strip("rgb()").split(",")[:3]]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
