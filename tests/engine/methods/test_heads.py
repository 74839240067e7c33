"""Drafting heads in runs: drafts equal a slow reference, and their forwards are counted."""

from __future__ import annotations

import copy
import json
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import specscope
from specscope.engine.drafting.static import tree
from specscope.engine.errors import ModelError, UsageError
from specscope.engine.heads.kinds import KINDS
from specscope.engine.sampling.draws import Draws, Key
from specscope.engine.types import Limits, Sampling, Typical
from tests.engine.heads.random_heads import make_head
from tests.engine.methods.head_runs import METHODS, NEW, PROMPT, drafts, open_world, rounds, walk
from tests.engine.methods.plain_heads import Plain
from tests.engine.sampling.test_typical import Reference

methods = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
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
        spans = [s for s in trace.spans if s.step == r.step]
        assert len([s for s in spans if s.kind == "verify"]) == 1, "drafting needs no target forward"
        forwards = [s for s in spans if s.kind == "draft"]
        drafted = [d for d in trace.decisions if d.step == r.step and d.node >= 0]
        assert all(s.model == "drafter" for s in forwards)
        if method in ("medusa", "parallelspec_medusa", "parallelspec_eagle", "dflash"):
            assert len(forwards) == bool(nodes), "one for the whole tree"
        elif not method.startswith("eagle2"):  # its rerank may remove all nodes of a level
            assert len(forwards) == len({d.position for d in drafted}), "one for each level"
        assert {d.draft_span for d in drafted} <= {s.id for s in forwards}
    assert len({s.device for s in trace.spans}) == 1, "the head is on the target's device"
    assert max(r.accepted for r in trace.rounds) > 0, "some drafts are accepted"


WARM = Sampling(1.5, top_k=20, top_p=0.9, seed=8)


@pytest.mark.parametrize(
    ("method", "more", "sampling"),
    [
        ("eagle", {}, Sampling(0.9, seed=4)),
        ("eagle with EAGLE-3", {}, WARM),
        ("parallelspec_eagle", {}, WARM),
        ("dflash", {}, WARM),
        ("mtp", {}, WARM),
        # four masks draft the four levels of Medusa's tree; the other reading leaves one mask out
        ("parallelspec_medusa", {"first": "token"}, Sampling()),
        ("parallelspec_medusa", {"first": "mask"}, Sampling()),
    ],
)
def test_sampled_drafts_and_those_of_masks_equal_the_reference(world, method, more, sampling):
    cluster, model, heads = world
    (kind, config), draws = METHODS[method], None if sampling.greedy else Draws(sampling.seed, 0)
    trace = cluster.run(method, PROMPT, config=config | more, sampling=sampling, limits=Limits(NEW))
    used = trace.header.config
    assert not more or (used["masks"], used["tree"]) == (4 if more["first"] == "mask" else 3, "medusa")
    plain = Plain(copy.deepcopy(model), heads / kind)
    assert list(rounds(trace, plain, method, used if more else config, sampling, draws))
    rules = {d.rule for d in trace.decisions if d.node >= 0 and d.outcome != "discarded"}
    assert rules == {"match" if sampling.greedy else "ratio"}


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("medusa", {"layers": 2}),
        ("medusa", {"draft_vocab": 40}),
        ("hydra", {"layers": 3}),
        ("eagle", {}),
        ("eagle", {"qkv_bias": True}),
        ("eagle2 with EAGLE-3", {"features": (2, 0), "qkv_bias": True}),
        ("eagle with EAGLE-3", {"norm_before_residual": True, "own_embedding": True}),
        ("eagle2 with EAGLE-3", {"draft_vocab": 0}),
        ("eagle with EAGLE-3", {"draft_vocab": 3}),
        ("parallelspec_eagle", {"tokenizer": None}),
        ("parallelspec_medusa", {"embedding_scale": 2.5}),
        ("mtp", {"qkv_bias": True, "embedding_scale": 2.5}),
        ("dflash", {"mask_token": 7, "embedding_scale": 2.5, "features": (3, 0)}),
        ("dflash", {"causal": True, "windows": (3, 0, 3), "own_lm_head": True, "draft_vocab": 40}),
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


@pytest.mark.parametrize("method", [key for key, (kind, _) in METHODS.items() if KINDS[kind].layered])
def test_a_heads_layer_keeps_rows_of_accepted_tokens_only(world, method):
    """Each draft first forwards the rows of the accepted tokens and of the target's own token."""
    cluster, _, _ = world
    trace = cluster.run(method, PROMPT, config=METHODS[method][1], limits=Limits(NEW))
    masks, block = trace.header.config.get("masks", 0), METHODS[method][0] == "dflash" and 4
    text = len(PROMPT)
    cached = text - 2  # the first token has no row, the last is not cached
    for r in trace.rounds:
        first = next((s for s in trace.spans if s.step == r.step and s.kind == "draft"), None)
        if first is not None:
            levels = len(PROMPT) + NEW - text
            extra = 1 + min(block, levels) if block else min(masks, levels - 1)
            assert (first.context, first.rows) == (cached, text - 1 - cached + extra)
            cached = text - 1
        text += r.emitted


def test_a_run_without_a_head_stores_no_hidden_states(world):
    """Those of the last run stay with the cache, for graphs read them there."""
    cluster = world[0].of("eagle")
    (worker,) = (w for w in cluster.placement.workers if "target" in w._host.forwards.models)
    cluster.run("eagle", PROMPT, limits=Limits(4))
    kept = worker._host.forwards.cache("target").features
    before = kept.clone()
    cluster.run("autoregressive", PROMPT, limits=Limits(8))
    assert worker._host.forwards.cache("target").features is kept
    assert torch.equal(kept, before)


# Heads, settings and trees that do not fit are refused before anything is loaded.


@pytest.fixture
def pair(world):
    return world[0].pair


DEEP = f"paths = {[[0] * n for n in range(1, 8)]}\n"


@pytest.mark.parametrize(
    ("method", "head", "config", "message"),
    [
        ("medusa", "hydra", {}, "is a head of kind hydra; this method needs one of kind medusa"),
        ("eagle2", None, {}, "no drafting head of kind eagle; name one with --head, or train it"),
        ("medusa", "", {"heads": 6}, "heads is 6; it must be at least 0 and at most 5"),
        ("hydra", "", {"tree": "oak"}, "there is no tree 'oak'; choose one of eagle, medusa"),
        ("parallelspec_eagle", "", {"masks": 5}, "masks is 5; it must be at least 0 and at most 4"),
        ("medusa", "", {"tree": "deep.toml"}, "has 7 levels; the head drafts at least 1 and at most 5"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_head_is_loaded(
    pair, tmp_path, monkeypatch, method, head, config, message
):
    """Afterwards the cluster still works."""
    monkeypatch.chdir(tmp_path)
    Path("deep.toml").write_text(DEEP)
    path = make_head(tmp_path / "head", head, pair.target_path) if head else None
    pair = pair if head is not None else replace(pair, heads_path=None)
    with specscope.open(pair, runtime="local-thread", device="cpu", head=path) as cluster:
        with pytest.raises((UsageError, ModelError), match=message):
            cluster.run(method, PROMPT, config=config, limits=Limits(4))
        assert not any(w._host.forwards.heads for w in cluster.placement.workers), "no head is loaded"
        assert cluster.run("autoregressive", PROMPT, limits=Limits(2)).status == "done"


def test_tokens_without_hidden_states_are_refused(pair):
    with specscope.open(pair, runtime="virtual", profile="pearl-4xA100", tokens="bernoulli:0.8") as cluster:
        with pytest.raises(UsageError, match=r"that are bernoulli:0\.8 have none: set tokens to pair"):
            cluster.run("medusa", PROMPT, limits=Limits(4))


def test_a_head_with_fewer_levels_than_the_papers_tree_drafts_its_first_levels(pair, tmp_path):
    path = make_head(tmp_path / "head", "medusa", pair.target_path, heads=2)
    with specscope.open(pair, runtime="local-thread", device="cpu", head=path) as cluster:
        cluster.check("medusa")
        trace = cluster.run("medusa", PROMPT, limits=Limits(6))
        with pytest.raises(UsageError, match="the tree medusa has 4 levels; the head drafts at least 1"):
            cluster.run("medusa", PROMPT, config={"tree": "medusa"}, limits=Limits(6))
    paths = tree(trace.header.config["tree"]).paths
    assert paths == tree("medusa").cut(2).paths
    assert trace.header.config["heads"] == max(map(len, paths)) == 2


def test_a_users_tree_is_drafted(world, tmp_path):
    (tmp_path / "mine.toml").write_text("paths = [[1], [0], [0, 0], [1, 0]]\n")
    trace = world[0].run("hydra", PROMPT, config={"tree": str(tmp_path / "mine.toml")}, limits=Limits(9))
    assert [n.parent for n in drafts(trace)[1]] == [-1, -1, 0, 1]
    assert trace.header.environment["head"].endswith("hydra")


def test_the_bundled_trees_are_those_of_the_papers():
    for name, counts in (("medusa", [10, 28, 23, 2]), ("eagle", [4, 8, 8, 3, 2])):
        paths = tree(name).paths
        assert [sum(len(p) == n for p in paths) for n in range(1, 1 + tree(name).depth)] == counts


def test_a_text_longer_than_the_heads_context_is_refused(pair, tmp_path):
    path = make_head(tmp_path / "head", "eagle", pair.target_path)
    config = json.loads((path / "config.json").read_text())
    config["shape"]["max_position_embeddings"] = 20
    (path / "config.json").write_text(json.dumps(config))
    with specscope.open(pair, runtime="local-thread", device="cpu", head=path) as cluster:
        with pytest.raises(UsageError, match=r"are 21 tokens together; the head .* knows at most 20"):
            cluster.run("eagle", PROMPT, limits=Limits(17))
        assert len(cluster.run("eagle", PROMPT, limits=Limits(16)).token_ids()) == 16
