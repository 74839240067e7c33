"""One report for all modules; each shows the runs of its fixture `traces`."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import specscope
from specscope import Limits, Load, Sampling
from tests.browser.report.opened import Opened
from tests.traces.samples import routed, sample_trace
from tests.traces.scripted import ahead, dsi, easyspec, expecting, ssd

UNEVEN = {"gamma": 4, "schedule": "threshold"}
"""Settings with which drafts end at uncertain tokens."""


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
    return opened.runs(traces)


@pytest.fixture(scope="package")
def runs(beside, decode):
    """Runs that together have every view, each by the view that it is for."""
    story, batch = "Tell me a story.", ("One fox, two foxes. One fox,", "Hi")
    return {
        "fan": beside(ssd, forks=2),
        "grams": beside(ahead),
        "forecast": beside(expecting, "hybrid", gamma=2),
        "layers": beside(easyspec, gamma=3),
        "pool": beside(dsi, [True, True, False, *[True] * 4, False, True, True], 14, sp=3),
        "tree": sample_trace("tree", tokens=40, acceptance=0.6),
        "experts": routed(decode("speculative", story, config=UNEVEN, limits=Limits(24))),
        "sources": sample_trace("llma", tokens=60, acceptance=0.7),
        "calibration": decode("speculative", story, sampling=Sampling(0.7), limits=Limits(60)),
        "lengths": decode("speculative", story, config=UNEVEN, sampling=Sampling(0.7), limits=Limits(40)),
        "tree-fork": decode("specbranch", "Hi", config={"threshold": 0.9, "length": 3}, limits=Limits(6)),
        "aligned": decode("pearl", "Hi", limits=Limits(12)),
        "packing": decode("ems", *batch, limits=Limits(6)),
        "load": decode("speculative", *batch, limits=Limits(6), load=Load((0.0, 0.0), 1, policy="minedraft")),
        "lossy": decode("medusa", "Hi", config={"acceptance": "typical"}, limits=Limits(6)),
    }
