"""Everything that opens a stored run: documents, windows, reports, exports, analyses, what-ifs."""

from __future__ import annotations

import io
import json
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import gradio as gr
from fastapi import FastAPI
from fastapi.testclient import TestClient

from specscope.app.cli.export import FORMATS, TABLES, write
from specscope.app.jobs.service import Service
from specscope.app.render.addresses import EXPORTS
from specscope.app.render.history import runs_table
from specscope.app.tabs.analysis import Analysis
from specscope.app.web.routes import build_router
from specscope.engine.errors import UsageError
from specscope.traces.facts.metrics import measure
from specscope.traces.judge.health import health
from specscope.traces.view.long import long_run
from specscope.traces.whatif.replay import Change, what_if
from tests.security.odd import refusal

SECONDS = 60
"""Of all views of a small file, on a busy machine: a loop over values takes years."""
MEGABYTES = 700


@contextmanager
def bounded(what: str) -> Iterator[None]:
    """Fail if the block takes too long or too much memory."""

    def late(*_: object) -> None:
        raise TimeoutError(f"{what}: more than {SECONDS} s")

    before, known = _megabytes(), signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, known)
    assert _megabytes() - before < MEGABYTES, what


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Opener:
    """A service with its routes and its analysis, which opens the runs of its database."""

    def __init__(self, service: Service) -> None:
        self.service = service
        app = FastAPI()
        app.include_router(build_router(service))
        self._client = TestClient(app)
        with gr.Blocks():
            self._analysis = Analysis(service)

    def open(self, run_id: str, *, replay: bool = True) -> None:
        """Open a stored run in every way; AssertionError if one fails but by a UsageError."""
        store = self.service.store
        assert store is not None
        trace = store.load(run_id)
        runs, total = store.runs(query=run_id)
        assert "damaged" not in [summary.status for summary in runs]
        json.dumps(runs_table(runs, total, 0, 50))
        for address in self._addresses(run_id):
            answer = self._client.get(address)
            if answer.status_code != 200:  # a refusal, such as a timeline of a run without times
                assert answer.status_code == 404, (address, answer.text[:300])
                assert "\n" not in answer.json()["error"], address
            assert "fault of SpecScope" not in answer.text, (address, answer.text[-2000:])
        size = store.extent(run_id)
        if size is not None and size.spans:
            long_run(size, store.opening(run_id, size, 20), *store.columns(run_id, size))
        health(trace)
        measure(trace).to_dict()
        for form in FORMATS:
            for table in TABLES if form == "csv" else ("tokens",):
                refusal(lambda form=form, table=table: write(trace, form, table, io.StringIO()), UsageError)
        assert self._analysis.show([trace, trace])
        if replay:
            for method in ("", "pearl", "llma"):
                change = Change("pearl-4xA100", method=method)
                refusal(lambda change=change: what_if(trace, change), UsageError)

    def _addresses(self, run_id: str) -> Iterator[str]:
        for way in ("", "&whole=true"):
            yield f"/specscope/model?runs={run_id}{way}"
        yield f"/specscope/spans?run={run_id}"
        yield f"/specscope/rounds?run={run_id}&first=0&last=3"
        for way in ("", "&redact_prompt=true"):
            yield f"/specscope/report.html?runs={run_id}{way}"
        yield from (f"/specscope/export/{run_id}/{form}" for form in EXPORTS)
