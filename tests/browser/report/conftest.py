"""One report for all modules; each shows the runs of its fixture `traces`."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import specscope
from specscope.traces.view.document import view_model
from tests.browser.report.opened import Opened
from tests.traces.samples import sample_trace


@pytest.fixture(scope="package")
def beside():
    """Call a function in a thread: Playwright's event loop runs in the tests' own."""
    with ThreadPoolExecutor(1) as thread:
        yield lambda function, *args, **options: thread.submit(function, *args, **options).result()


@pytest.fixture(scope="package")
def decode(beside):
    """Run a method on a virtual cluster with the bundled pair."""
    cluster = beside(specscope.open, runtime="virtual", profile="pearl-4xA100")
    yield lambda method, *prompts, **options: beside(cluster.run, method, *prompts, **options)
    beside(cluster.close)


@pytest.fixture(scope="module")
def traces():
    return [
        sample_trace("autoregressive"),
        sample_trace("speculative", acceptance=0.6),
        sample_trace("pearl"),
    ]


@pytest.fixture(scope="package")
def opened(chromium, tmp_path_factory):
    report = Opened(chromium, tmp_path_factory.mktemp("report"), [sample_trace("pearl")])
    report.ready()
    yield report
    report.page.close()


@pytest.fixture(autouse=True)
def no_complaints(request):
    """Check that the shared page logged no error and asked for nothing outside."""
    yield
    if "opened" in request.fixturenames:
        report = request.getfixturevalue("opened")
        complaints, report.complaints[:] = list(report.complaints), []
        assert complaints == []


@pytest.fixture
def page(opened, traces):
    page = opened.show(view_model(traces))
    page.mouse.move(1, 1)
    return opened.ready()
