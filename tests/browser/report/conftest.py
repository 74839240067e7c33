"""A report of three runs, or of those that a file's own fixture `traces` returns."""

import pytest

from tests.browser.report.opened import Opened
from tests.traces.samples import sample_trace
from traces.view.document import view_model


@pytest.fixture(scope="module")
def traces():
    return [
        sample_trace("autoregressive"),
        sample_trace("speculative", acceptance=0.6),
        sample_trace("pearl"),
    ]


@pytest.fixture(scope="module")
def opened(chromium, tmp_path_factory, traces):
    report = Opened(chromium, tmp_path_factory.mktemp("report"), traces)
    report.ready()
    yield report
    assert report.complaints == []
    report.page.close()


@pytest.fixture
def page(opened, traces):
    page = opened.show(view_model(traces))
    page.mouse.move(1, 1)
    page.wait_for_selector("#viewer[data-drawn]")
    return page
