"""A report with every view, in both themes and three widths: axe, and no sideways scrolling."""

import pytest

import specscope
from specscope.engine.types import Limits
from specscope.traces.view.document import view_model
from tests.browser.looks import assert_looks
from tests.browser.report.opened import Opened
from tests.traces.samples import KINDS, sample_trace
from tests.traces.test_fan import ssd
from tests.traces.test_forecasts import expecting
from tests.traces.test_layers import easyspec
from tests.traces.test_ngrams import ahead
from tests.traces.test_servers import dsi

pytestmark = pytest.mark.browser
VIEWS = (
    *("aligned", "calibration", "fan", "forecast", "grams", "kv", "layers", "lengths", "packing"),
    *("pool", "sources", "tree", "tree-fork"),
)
PROMPTS = ("One fox, two foxes. One fox,", "Hi")


@pytest.fixture(scope="module")
def traces(beside, decode):
    """Runs that together have every view; the last one is lossy."""
    samples = [sample_trace(kind, tokens=8) for kind in ("pearl", "tree", "llma")]
    own = [beside(easyspec, gamma=3), beside(ahead), beside(ssd), beside(expecting)]
    own.append(beside(dsi, [True, False, True], 6, sp=2))
    own.append(decode("specbranch", "Hi", config={"threshold": 0.9, "length": 3}, limits=Limits(6)))
    batch = decode("ems", *PROMPTS, limits=Limits(6))
    uneven = {"gamma": 4, "schedule": "threshold"}
    own.append(decode("pearl", "Hi", config=uneven, limits=Limits(12)))
    load = specscope.Load((0.0, 0.0), 1, policy="minedraft")
    own.append(decode("speculative", *PROMPTS, limits=Limits(6), load=load))
    return [*samples, *own, batch, decode("medusa", "Hi", config={"acceptance": "typical"}, limits=Limits(6))]


def test_every_view_is_readable_and_fits_every_window(opened, traces):
    opened.show(view_model(traces))
    page = opened.ready()
    for view in VIEWS:
        assert page.locator(f".ss-{view}:visible").count(), view
    for kind in ("draft", "verify"):
        assert page.locator(f".ss-legend .ss-k-{kind}-second:visible").count(), kind
    folds = page.locator("#viewer details:not(.ss-menu)")
    for _ in range(2):  # the fold with the timeline's tables has folds, which it makes when it opens
        folds.evaluate_all("(all) => all.forEach((fold) => { fold.open = true; })")
        page.locator(".ss-tables details details").first.wait_for()
    page.locator(".ss-gantt").focus()
    page.keyboard.press("x")
    page.locator(".ss-range:visible").wait_for()
    assert_looks(page)
    page.locator(".ss-tree").get_by_role("button", name="Open large").first.click()
    assert_looks(page, ".ss-large")
    page.keyboard.press("Escape")


def test_the_tables_of_many_runs_scroll_inside_a_narrow_report(chromium, tmp_path):
    report = Opened(chromium, tmp_path, [sample_trace(kind, tokens=4) for kind in KINDS], width=400)
    page = report.ready()
    page.locator("#summary > summary").click()
    assert_looks(page, "#summary")
    page.set_viewport_size({"width": 400, "height": 950})
    table = page.get_by_role("group", name="All figures")
    table.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("(table) => table.scrollLeft > 0", arg=table.element_handle())
    assert report.complaints == []
    page.close()
