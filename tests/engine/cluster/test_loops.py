"""Runs that begin on a running event loop: in a notebook's cell, or in a coroutine."""

import asyncio
import os
import signal
import time
from contextlib import closing

import pytest

import specscope
from specscope.engine.trace.events import Commit
from specscope.engine.types import Limits

VIRTUAL = {"runtime": "virtual", "profile": "pearl-4xA100"}
PLACES = {
    "virtual": VIRTUAL,
    "thread": {"runtime": "local-thread", "device": "cpu"},
    "process": {"device": "cpu"},
}


def under_asyncio_run(cell):
    async def main():
        return cell()

    return asyncio.run(main())


def in_a_notebook(cell):
    """Call a cell as a kernel does whose loop runs for ever: from a callback, outside any task."""
    loop, outcomes = asyncio.new_event_loop(), []

    def execute():
        try:
            outcomes.append(cell())
        finally:
            loop.stop()

    with closing(loop):
        loop.call_soon(execute)
        loop.run_forever()
    return outcomes[0]


def decoded(place):
    """Return the text and the events' number of a run, and of a measurement before it."""
    with specscope.open("bundled", **place) as cluster:
        seen = []
        trace = cluster.run("speculative", "Tell me a story.", limits=Limits(12), listener=seen.append)
        return trace.text, trace.status, bool(cluster.c), seen[-1] is trace.footer


@pytest.mark.parametrize(
    ("host", "place"),
    [(under_asyncio_run, "virtual"), (in_a_notebook, "thread"), (in_a_notebook, "process")],
)
def test_a_run_on_a_running_loop_has_the_usual_text(host, place):
    text, *_ = decoded(VIRTUAL)
    assert len(text) > 20
    assert host(lambda: decoded(PLACES[place])) == (text, "done", True, True)


@pytest.mark.parametrize(("host", "presses"), [(under_asyncio_run, 4), (in_a_notebook, 1)])
def test_ctrl_c_cancels_a_run_on_a_running_loop(host, presses):
    seen, later = [], []

    def listen(event):
        seen.append(event)
        if isinstance(event, Commit) and sum(isinstance(e, Commit) for e in seen) == 2:
            for _ in range(presses):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.3)

    def cell():
        with specscope.open("bundled", **PLACES["thread"]) as cluster:
            try:
                cluster.run("autoregressive", "Tell me a story.", limits=Limits(2000), listener=listen)
            finally:
                later.append(cluster.run("autoregressive", "Hi", limits=Limits(4)).status)

    with pytest.raises(KeyboardInterrupt):
        host(cell)
    assert (seen[-1].status, len(seen[-1].texts)) == ("cancelled", 1)
    assert len(later) == 1, "the cluster was whole"
