"""Worker processes that draft together: the same rows as one, also after a stopped run."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from specscope.engine.errors import UsageError
from specscope.engine.types import Limits, Sampling
from tests.engine.runtimes.processes import PROMPT, TWO, at_span, ranks


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, seed=5)])
@pytest.mark.parametrize("config", [{}, {"width": 4}, {"calibrate": False}], ids=str)
def test_two_devices_write_the_rows_of_one(cluster, sampling, config):
    def rows(devices: int):
        settings = {"gamma": 4, "devices": devices, **config}
        trace = cluster.run("easyspec", PROMPT, config=settings, sampling=sampling, limits=Limits(24))
        decided = [(d.position, d.token, d.p, d.q, d.u, d.outcome) for d in trace.decisions]
        return decided, [(r.drafted, r.accepted, r.emitted) for r in trace.rounds], trace.token_ids()

    assert rows(2) == rows(1)


def test_other_methods_run_on_the_same_workers_in_between(cluster):
    before = [w.pid for w in ranks(cluster)]
    texts = [
        cluster.run(method, PROMPT, config=config, limits=Limits(24)).text
        for method, config in (("easyspec", TWO), ("pearl", {"gamma": 3}), ("easyspec", TWO), ("tree", {}))
    ]
    assert len(set(texts)) == 1
    assert [w.pid for w in ranks(cluster)] == before


def test_turns_of_a_stopped_run_do_not_disturb_the_next_one(cluster):
    for spans in (7, 31):
        stop = threading.Event()
        listen = at_span(spans, stop.set)
        config = {"gamma": 16, **TWO}
        stopped = cluster.run(
            "easyspec", PROMPT, config=config, limits=Limits(2000), listener=listen, cancel=stop
        )
        assert stopped.status == "cancelled"
        plain = cluster.run("autoregressive", PROMPT, limits=Limits(24))
        assert cluster.run("easyspec", PROMPT, config=config, limits=Limits(24)).text == plain.text


def test_too_many_devices_are_refused(cluster, monkeypatch):
    pool = cluster.placement.pool
    monkeypatch.setattr(cluster.placement, "pool", replace(pool, devices=pool.devices[:2]))
    with pytest.raises(UsageError, match="devices is 4; it must be at least 0 and at most 2"):
        cluster.run("easyspec", PROMPT, config={"devices": 4}, limits=Limits(4))
