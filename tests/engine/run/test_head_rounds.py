"""Rounds of drafting heads on the device have the texts and rows of rounds on the host."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

import specscope
from specscope.engine.heads.modules import target_ids
from specscope.engine.model.cache import Cache
from specscope.engine.model.decoder import Decoder
from specscope.engine.types import Limits, Sampling
from specscope.engine.worker import rounds
from specscope.engine.worker.device_rounds import DeviceRound
from tests.engine.heads.random_heads import SEEDS, make_heads
from tests.engine.methods.pairs import make_pair
from tests.engine.model.tiny import CONTEXT
from tests.engine.run.rounds_on_host import check, on_the_host

PROMPTS = [(5, 9, 33, 7, 60, 2), (1,), (8, 8, 9, 41), (3, 44)]
WARM = Sampling(0.9, top_k=50, top_p=0.95, seed=3)
SAMPLINGS = [Sampling(), Sampling(1.0, seed=1), WARM, Sampling(1.4, top_k=2, seed=9)]
TREE = "[[0],[1],[2],[0,0],[0,1],[1,0],[0,0,0],[0,0,1],[1,0,0]]"
WIDE = "[[0],[1],[2],[3],[0,0],[0,1],[0,2],[0,3],[2,0],[3,0]]"
"""A level with more places than a head of three tokens fills."""
WAYS = {
    "eagle": [{"tree": TREE}, {"tree": TREE, "drafts": "greedy"}],
    "eagle2": [{"top": 3, "depth": 4, "total": 7}, {"top": 4, "depth": 3, "total": 30}],
    "medusa": [{"tree": TREE}],
    "hydra": [{"tree": TREE}],
    "parallelspec_eagle": [{"tree": TREE}, {"tree": TREE, "drafts": "greedy"}],
    "parallelspec_medusa": [{"tree": TREE}, {"tree": TREE, "first": "mask"}],
    "mtp": [{"gamma": 3}, {"gamma": 4, "drafts": "greedy"}],
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Return a function that opens a cluster of one device with a family's target and heads."""
    clusters = dict[str, specscope.Cluster]()
    patch = pytest.MonkeyPatch()
    patch.setattr("os.sched_getaffinity", lambda _: {0})

    def of(family: str = "llama", kinds: Iterable[str] = SEEDS, **options: object) -> specscope.Cluster:
        key = f"{family} {options}"
        if key not in clusters:
            pair, _ = make_pair(tmp_path_factory.mktemp(family), family, "other")
            heads = make_heads(tmp_path_factory.mktemp("heads") / family, pair.target_path, kinds, **options)
            pair = replace(pair, heads_path=heads)
            clusters[key] = specscope.open(pair, device="cpu", runtime="local-thread", forward="static")
        return clusters[key]

    yield of
    for cluster in clusters.values():
        cluster.close()
    patch.undo()


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("begins", ["as asked", "ahead"])
@pytest.mark.parametrize("method", WAYS)
def test_rounds_of_a_head_write_the_host_s_rows(method, begins, sampling, opened, counted, monkeypatch):
    monkeypatch.setattr(rounds, "AHEAD", {"cpu"} if begins == "ahead" else set())
    cluster = opened()
    for number, config in enumerate(WAYS[method]):
        prompt = PROMPTS[(number + SAMPLINGS.index(sampling)) % len(PROMPTS)]
        how = {"config": config, "sampling": sampling, "limits": Limits(30)}
        check(cluster.run(method, prompt, **how), on_the_host(cluster, method, prompt, **how))
    assert counted[0] > 2
    assert (counted[2] > 0) == (begins == "ahead")


def compare(cluster, method, prompt, **how):
    """Check a run's rows against the host's, and return its trace."""
    trace = cluster.run(method, prompt, **how)
    check(trace, on_the_host(cluster, method, prompt, **how))
    return trace


@pytest.mark.parametrize("family", ["mistral-window", "gemma2", "gpt2", "opt", "qwen3"])
def test_trees_after_targets_of_other_families(family, opened, ahead, counted):
    """With windows, learned positions and normed queries."""
    cluster = opened(family, methods := ("eagle", "medusa", "parallelspec_medusa"))
    for method in methods:
        how = {"config": WAYS[method][0], "sampling": SAMPLINGS[1], "limits": Limits(30)}
        compare(cluster, method, PROMPTS[2], **how)
    assert counted[0] > 10


def test_every_length_of_an_output(opened, ahead):
    for tokens in range(1, 9):
        for method in ("eagle", "hydra", "parallelspec_eagle"):
            how = {"config": WAYS[method][0], "sampling": WARM, "limits": Limits(tokens)}
            compare(opened(), method, PROMPTS[0], **how)


def test_the_context_may_be_full(opened, ahead):
    prompt = PROMPTS[0] * 5
    for tokens in (CONTEXT - len(prompt) - 1, CONTEXT - len(prompt)):
        for method in ("eagle", "parallelspec_medusa", "medusa"):
            how = {"config": WAYS[method][0], "sampling": WARM, "limits": Limits(tokens)}
            compare(opened(), method, prompt, **how)


@pytest.mark.parametrize("method", ["eagle", "medusa", "hydra"])
def test_a_round_that_begins_after_the_end_is_cancelled(method, opened, ahead):
    text = opened().run("autoregressive", PROMPTS[0], sampling=WARM, limits=Limits(20)).token_ids()
    config, drafts, late = WAYS[method][0], {"eagle": 3, "medusa": 1, "hydra": 3}[method], 0
    for eos in dict.fromkeys(text):
        how = {"config": config, "sampling": WARM, "limits": Limits(40, eos=(eos,))}
        trace = compare(opened(), method, PROMPTS[0], **how)
        cancelled = [(span.kind, span.model) for span in trace.spans if span.outcome == "cancelled"]
        ended = [*[("draft", "drafter")] * drafts, ("verify", "target"), ("sample", "target")]
        assert cancelled in ([], ended)
        late += bool(cancelled)
    assert late > 3


def test_heads_and_models_take_turns(opened, ahead, counted):
    """Each finds what the others left in the caches, and leaves what they find."""
    order = [
        "eagle",
        "speculative",
        "medusa",
        "tree",
        "eagle",
        "eagle2",
        "parallelspec_eagle",
        "autoregressive",
    ]
    for method in [*order, "mtp", "dflash", "hydra", "mtp"]:
        config = WAYS.get(method, [{}])[0]
        for sampling, prompt in ((Sampling(), PROMPTS[2]), (Sampling(0.7, seed=5), PROMPTS[0])):
            how = {"config": config, "sampling": sampling, "limits": Limits(20)}
            compare(opened(), method, prompt, **how)
    assert counted[0] > 40


def test_a_head_may_draft_a_part_of_the_tokens(opened, ahead, counted):
    """And some of a level's places have no token then."""
    cluster = opened("llama", ("eagle", "medusa", "hydra", "parallelspec_eagle"), draft_vocab=3)
    for method in ("eagle", "medusa", "hydra", "parallelspec_eagle"):
        for sampling in SAMPLINGS[:3]:
            how = {"config": {"tree": WIDE}, "sampling": sampling, "limits": Limits(24)}
            compare(cluster, method, PROMPTS[2], **how)
    assert counted[0] > 40


def test_typical_acceptance_needs_the_host(opened, ahead, counted):
    how = {"config": {"tree": TREE, "acceptance": "typical"}, "sampling": WARM, "limits": Limits(24)}
    compare(opened(), "medusa", PROMPTS[0], **how)
    assert counted[0] == 1, "it is not tried again"


class WithoutHost(TorchDispatchMode):
    """Fails at operations that no CUDA graph holds: they read from the device, or copy to it."""

    HOSTED = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "lift_fresh", "bincount", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert not name.startswith(self.HOSTED), f"{name} needs the host"
        if name in ("index", "index_put", "index_put_"):
            numbers = [index for index in args[1] if index is not None]
            assert all(index.dtype != torch.bool for index in numbers), "a mask's size is not known"
        return func(*args, **kwargs or {})


def test_no_operation_of_a_round_needs_the_host(opened, monkeypatch):
    """A GPU's graph could not hold it."""
    cluster, computed, compute = opened(scale=0.3), [], DeviceRound._compute  # not one with rounds

    def checked(self):
        with WithoutHost():
            compute(self)
        computed.append(self)

    monkeypatch.setattr(DeviceRound, "_compute", checked)
    others = {"speculative": [{"gamma": 3}], "tree": [{"width": 3, "depth": 3}], "autoregressive": [{}]}
    for method, configs in (WAYS | others).items():
        for config, sampling in product(configs, SAMPLINGS[:2]):
            before = len(computed)
            cluster.run(method, PROMPTS[0], config=config, sampling=sampling, limits=Limits(20))
            assert len(computed) > before, method


@pytest.mark.parametrize("family", ["qwen2-window", "mistral-window"])
def test_trees_deeper_than_a_window(family, opened, ahead):
    """A node does not see an ancestor outside of its window, whatever rows are between them."""
    for width, depth in ((2, 5), (3, 4), (2, 8)):
        for sampling in SAMPLINGS[:2]:
            how = {"config": {"width": width, "depth": depth}, "sampling": sampling, "limits": Limits(24)}
            compare(opened(family, ("eagle",)), "tree", PROMPTS[2], **how)


@pytest.mark.parametrize(("top", "depth", "total"), [(10, 6, 59), (8, 4, 40), (4, 5, 24)])
def test_more_nodes_may_grow_than_are_verified(top, depth, total, opened, ahead, counted):
    """Room is needed for the latter."""
    config = {"top": top, "depth": depth, "total": total}
    trace = compare(opened(), "eagle2", PROMPTS[0], config=config, sampling=WARM, limits=Limits(40))
    assert counted[0] == sum(row.drafted > 0 for row in trace.rounds) > 10


def test_a_larger_cache_takes_the_place_of_the_last_one(opened, ahead, monkeypatch):
    """Rounds that were made for a cache go with it."""
    made, init = list[weakref.ref[Cache]](), Cache.__init__

    def new(self, *args):
        init(self, *args)
        made.append(weakref.ref(self))

    monkeypatch.setattr(Cache, "__init__", new)
    cluster, tokens, alive = opened(scale=0.31), 8, 0
    for method in ("autoregressive", "speculative", "tree", "medusa", "eagle"):
        for _ in range(3):
            tokens += 3
            config = WAYS.get(method, [{}])[0]
            cluster.run(method, PROMPTS[0], config=config, sampling=WARM, limits=Limits(tokens))
            gc.collect()
            alive = sum(cache() is not None for cache in made)
            assert alive <= 4, "of the target, the drafter, a head's layer, and one being made"
    assert len(made) > 10


def test_features_stay_with_their_cache(opened, ahead):
    """Rounds of heads find them again after runs of other methods."""
    cluster, made, new = opened(), set[int](), DeviceRound.__init__

    def counted(self, target, *args):
        new(self, target, *args)
        made.add(id(target.cache.features))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceRound, "__init__", counted)
        for method in ("medusa", "speculative", "eagle", "autoregressive") * 3:
            how = {"config": WAYS.get(method, [{}])[0], "sampling": WARM, "limits": Limits(12)}
            cluster.run(method, PROMPTS[0], **how)
    assert len(made - {id(None)}) <= 1


SHORT = ("eagle", "medusa", "hydra", "parallelspec_eagle", "parallelspec_medusa")


@pytest.mark.parametrize("captured", [False, True], ids=["as asked", "captured, ahead"])
def test_much_is_accepted(captured, opened, monkeypatch):
    """The target's tokens are the few that heads draft. Of a graph a first run is thrown away."""

    def twice(compute, pool):
        compute()
        return compute

    if captured:
        monkeypatch.setattr(rounds, "AHEAD", {"cpu"})
        monkeypatch.setattr("specscope.engine.worker.rounds.graph_pool", lambda device: device)
        monkeypatch.setattr("specscope.engine.worker.device_rounds.captured", twice)
    cluster, logits, known = (
        opened("llama", SHORT, draft_vocab=5, scale=0.3 + captured),
        Decoder.logits,
        list[int](),
    )

    def biased(self, x):
        out = logits(self, x)
        if out.shape[1] <= len(known):
            return out
        others = torch.ones(out.shape[1], dtype=torch.bool)
        others[known] = False
        return 0.3 * out.masked_fill(others, -60.0)

    monkeypatch.setattr(Decoder, "logits", biased)
    for method in (*SHORT, "eagle2"):
        d2t = load_file(cluster.pair.heads_path / method.replace("2", "") / "model.safetensors")["d2t"]
        known[:] = target_ids(d2t).tolist()
        accepted, depths = 0, set[int]()
        for config, sampling in product(
            WAYS[method], (Sampling(), Sampling(1.0, seed=1), Sampling(1.2, top_k=3))
        ):
            how = {"config": config, "sampling": sampling, "limits": Limits(24)}
            trace = compare(cluster, method, PROMPTS[0], **how)
            accepted += sum(row.accepted for row in trace.rounds)
            depths |= {row.accepted for row in trace.rounds}
        assert accepted > 12, method
        assert len(depths) > 2, method
