"""Placement: the devices of a layout, and their order in a run's header."""

import pytest

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.local_devices import LocalDevices
from specscope.engine.cluster.options import Options
from specscope.engine.cluster.placement import Placement
from specscope.engine.errors import UsageError
from specscope.engine.layout import Layout, Separate
from specscope.engine.trace.events import Device
from specscope.engine.types import Limits
from tests.engine.worker.harness import scripted_cluster


class _Cores(LocalDevices):
    """Twelve cores, with models that take no time to load."""

    def start_worker(self, assignment):
        with scripted_cluster(lambda path: 5, lambda path: 5) as cluster:
            return cluster.placement.pool.start_worker(assignment)

    def loader(self, model, assignment):
        with scripted_cluster(lambda path: 5, lambda path: 5) as cluster:
            return cluster.placement.pool.loader(model, assignment)


def test_a_pool_is_listed_with_the_drafter_first_and_then_as_people_count():
    cores = tuple(Device(f"cpu:{i}", "", f"CPU core {i}", "cpu") for i in range(12))
    pool = _Cores(Pair.find("bundled"), Options(), cores)
    place = Placement("local-process", pool, Layout())
    workers = place.workers_for(Layout(Separate(targets=11)))
    assert [(d.name, d.role) for d in workers.devices] == [
        ("cpu:0", "drafter"),
        *((f"cpu:{i}", "target") for i in range(1, 12)),
    ]


@pytest.mark.parametrize(
    ("profile", "pair", "step_us"),
    [("A100-OPT", "opt-6.7b", 12_397), ("8xA100", "llama-3-70-vanilla", 116_104)],
)
def test_a_profiles_pair_without_a_drafter_runs_the_methods_that_need_none(profile, pair, step_us):
    place = {"runtime": "virtual", "profile": profile, "profile_pair": pair, "tokens": "bernoulli:0.5"}
    with specscope.open(**place) as cluster:
        plain = cluster.run("autoregressive", [5, 6], limits=Limits(3))
        (first, *_) = (s for s in plain.spans if s.kind == "verify")
        assert (first.end - first.start) // 1000 == step_us
        for method, config in (("llma", {}), ("ems", {"base": "plain"})):
            assert cluster.run(method, [5, 6], config=config, limits=Limits(3)).status == "done"
        message = rf"the pair {pair} of the profile {profile} has no drafter; choose"
        with pytest.raises(UsageError, match=message):
            cluster.run("speculative", [5, 6], limits=Limits(3))


def virtual(tokens):
    return specscope.open(runtime="virtual", profile="8xA100", tokens=tokens)


@pytest.mark.parametrize(
    ("tokens", "chances"),
    [("bernoulli:0.6", {1.0}), ("bernoulli:0.6:doubt=0.5:misses=0.5", {0.3, 0.8})],
)
def test_scripted_drafts_doubt_if_asked(tokens, chances):
    with virtual(tokens) as cluster:
        trace = cluster.run("speculative", [5, 6], config={"gamma": 3}, limits=Limits(30))
    assert {round(d.q, 3) for d in trace.decisions if d.node >= 0 and d.q is not None} == chances


@pytest.mark.parametrize("rest", ["", ":1.5", ":0.5:spread=1", ":0.5:doubt"])
def test_a_wrong_token_source_is_refused(rest):
    message = f"tokens is 'bernoulli{rest}'; it must be pair or bernoulli:RATE"
    with pytest.raises(UsageError, match=message):
        virtual(f"bernoulli{rest}")
