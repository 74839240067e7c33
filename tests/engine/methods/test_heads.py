"""Drafting heads in runs: drafts equal a slow reference, and their forwards are counted."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from functools import cache

import pytest

import specscope
from specscope.engine.heads.kinds import KINDS
from specscope.engine.sampling.draws import Draws, Key
from specscope.engine.types import Limits, Sampling, Typical
from tests.engine.heads.random_heads import make_head
from tests.engine.methods.head_runs import (
    METHODS,
    NEW,
    PROMPT,
    drafts,
    open_world,
    rounds,
    walk,
)
from tests.engine.methods.plain_heads import Plain
from tests.engine.sampling.test_typical import Reference

methods = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Return a function that opens a target of a family once, with its heads."""
    with ExitStack() as stack:

        @cache
        def world(family: str):
            return stack.enter_context(open_world(family, tmp_path_factory.mktemp(family)))

        yield world


@pytest.fixture
def world(worlds):
    return worlds("llama")


@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen3"])
@methods
def test_drafts_and_accepted_lengths_equal_the_reference(worlds, family, method):
    cluster, model, heads = worlds(family)
    kind, config = METHODS[method]
    trace = cluster.run(method, PROMPT, config=config, limits=Limits(NEW))
    plain = Plain(copy.deepcopy(model), heads / kind)
    for r, x, nodes in rounds(trace, plain, method, config):
        assert r.accepted == len(walk(plain, x, nodes))
    assert max(r.accepted for r in trace.rounds) > 0, "some drafts are accepted"


def test_masks_in_the_place_of_medusas_heads_draft_as_the_reference(world):
    """Four masks draft the four levels of Medusa's tree; the other reading leaves one mask out."""
    cluster, model, heads = world
    plain = Plain(copy.deepcopy(model), heads / "parallelspec_medusa")
    texts = dict[str, list[int]]()
    for first, masks in (("token", 3), ("mask", 4)):
        trace = cluster.run("parallelspec_medusa", PROMPT, config={"first": first}, limits=Limits(NEW))
        config = trace.header.config
        assert (config["masks"], config["tree"]) == (masks, "medusa")
        texts[first] = trace.token_ids()
        for r, x, nodes in rounds(trace, plain, "parallelspec_medusa", config):
            assert r.accepted == len(walk(plain, x, nodes))
            assert len([s for s in trace.spans if (s.kind, s.step) == ("draft", r.step)]) == bool(nodes)
    assert texts["token"] == texts["mask"]


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("medusa", {"layers": 2}),
        ("hydra", {"layers": 3}),
        ("eagle", {}),
        ("eagle", {"qkv_bias": True}),
        ("eagle2 with EAGLE-3", {"features": (2, 0), "qkv_bias": True}),
        ("eagle with EAGLE-3", {"norm_before_residual": True, "own_embedding": True}),
        ("eagle2 with EAGLE-3", {"draft_vocab": 0}),
        ("eagle with EAGLE-3", {"draft_vocab": 3}),
        ("parallelspec_eagle", {"tokenizer": None}),
        ("parallelspec_medusa", {"embedding_scale": 2.5}),
        *((key, {"own": False, "draft_vocab": 40}) for key in METHODS if "EAGLE-3" not in key),
    ],
)
def test_optional_parts_of_a_head_draft_as_the_reference(world, tmp_path, method, changes):
    cluster, model, _ = world
    (kind, config), target = METHODS[method], cluster.pair.target_path
    make_head(tmp_path / "head", kind, target, seed=9, scale=0.5, **{"own": True, **changes})
    with specscope.open(cluster.pair, runtime="local-thread", device="cpu", head=tmp_path / "head") as mine:
        trace = mine.run(method.split()[0], PROMPT, config=config, limits=Limits(8))
    assert list(rounds(trace, Plain(copy.deepcopy(model), tmp_path / "head"), method, config))


@pytest.mark.parametrize(
    ("method", "sampling"),
    [
        ("eagle", Sampling(0.9, seed=4)),
        ("eagle with EAGLE-3", Sampling(1.5, top_k=20, top_p=0.9, seed=8)),
        ("parallelspec_eagle", Sampling(1.5, top_k=20, top_p=0.9, seed=8)),
    ],
)
def test_sampled_drafts_equal_the_reference(world, method, sampling):
    cluster, model, heads = world
    kind, config = METHODS[method]
    trace = cluster.run(method, PROMPT, config=config, sampling=sampling, limits=Limits(NEW))
    plain = Plain(copy.deepcopy(model), heads / kind)
    assert list(rounds(trace, plain, method, config, sampling, Draws(sampling.seed, 0)))
    assert {d.rule for d in trace.decisions if d.node >= 0 and d.outcome != "discarded"} == {"ratio"}


@pytest.mark.parametrize("typical", [Typical(0.09, 0.3), Typical(1.0, 1.0)], ids=str)
def test_typical_acceptance_equals_a_reference_without_a_cache(world, typical):
    cluster, model, heads = world
    sampling = Sampling(0.7, top_k=40, seed=6)
    config = {"tree": "eagle", "acceptance": "typical", "epsilon": typical.epsilon, "delta": typical.delta}
    trace = cluster.run("medusa", PROMPT, config=config, sampling=sampling, limits=Limits(NEW))
    plain = Plain(copy.deepcopy(model), heads / "medusa")
    lengths, done, draws = set(), trace.token_ids(), Draws(sampling.seed, 0)
    for r, x, nodes in rounds(trace, plain, "medusa", config):
        texts = [x]
        for node in nodes:
            texts.append([*texts[node.parent + 1], node.token])
        ps = [plain.p(text, sampling) for text in texts]
        best = Reference(ps, [tuple(n) for n in nodes], typical).best()
        end = best[-1] + 1 if best else 0
        own = draws.choose(Key(len(texts[end]), "target"), ps[end])
        expected_tokens = [*(nodes[n].token for n in best), own][: r.emitted]
        assert done[len(x) - len(PROMPT) :][: r.emitted] == expected_tokens
        assert r.accepted == len(best)
        lengths.add(len(best))
    assert len(lengths) > 1
    assert not trace.header.lossless
    outcomes = {(d.outcome, d.rule) for d in trace.decisions if d.node >= 0 and d.rule}
    assert ("accepted", "typical") in outcomes
    assert {rule for _, rule in outcomes} == {"typical"}
    assert all((d.rule == "") == (d.verify_span < 0) == (d.p is None) for d in trace.decisions)


@methods
def test_drafting_needs_no_target_forward_and_one_head_forward_per_level_or_tree(world, method):
    cluster, _, _ = world
    trace = cluster.run(method, PROMPT, config=METHODS[method][1], limits=Limits(NEW))
    for r in trace.rounds:
        spans = [s for s in trace.spans if s.step == r.step]
        assert len([s for s in spans if s.kind == "verify"]) == 1
        nodes = drafts(trace)[r.step]
        drafted = [d for d in trace.decisions if d.step == r.step and d.node >= 0]
        levels = len({d.position for d in drafted})
        forwards = [s for s in spans if s.kind == "draft"]
        assert all(s.model == "drafter" for s in forwards)
        if method in ("medusa", "parallelspec_medusa", "parallelspec_eagle"):
            assert len(forwards) == bool(nodes), "one for the whole tree"
        elif not method.startswith("eagle2"):  # its rerank may remove all nodes of a level
            assert len(forwards) == levels, "one for each level"
        assert {d.draft_span for d in drafted} <= {s.id for s in forwards}
    devices = {s.device for s in trace.spans}
    assert len(devices) == 1, "the head is on the target's device"


@methods
def test_a_head_drafts_nothing_in_the_first_round_after_a_prompt_of_one_token(world, method):
    cluster, _, _ = world
    trace = cluster.run(method, [7], config=METHODS[method][1], limits=Limits(6))
    assert trace.rounds[0].mode == "plain"
    assert all(r.drafted for r in trace.rounds[1:-1])
    assert trace.token_ids() == cluster.run("autoregressive", [7], limits=Limits(6)).token_ids()


@pytest.mark.parametrize("method", [key for key, (kind, _) in METHODS.items() if KINDS[kind].layered])
def test_a_heads_layer_keeps_rows_of_accepted_tokens_only(world, method):
    """Each draft first forwards the rows of the accepted tokens and of the target's own token."""
    cluster, _, _ = world
    trace = cluster.run(method, PROMPT, config=METHODS[method][1], limits=Limits(NEW))
    masks = trace.header.config.get("masks", 0)
    text = len(PROMPT)
    cached = text - 2  # the first token has no row, the last is not cached
    for r in trace.rounds:
        first = next((s for s in trace.spans if s.step == r.step and s.kind == "draft"), None)
        if first is not None:
            levels = len(PROMPT) + NEW - text
            assert (first.context, first.rows) == (cached, text - 1 - cached + min(masks, levels - 1))
            cached = text - 1
        text += r.emitted


@methods
def test_a_run_without_a_head_keeps_no_hidden_states(world, method):
    cluster = world[0].of(method)
    (worker,) = (w for w in cluster.placement.workers if "target" in w._host.forwards.models)
    cluster.run(method.split()[0], PROMPT, limits=Limits(4))
    assert worker._host.forwards.cache("target").features is not None
    cluster.run("autoregressive", PROMPT, limits=Limits(4))
    assert worker._host.forwards.cache("target").features is None
