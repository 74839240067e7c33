"""Drafting heads on real runs: every draft is that of a slow reference, its forwards are counted, and bad input is refused."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from itertools import groupby

import pytest
import torch

import engine
from engine.drafters.static import tree
from engine.draws import Draws, Key
from engine.errors import ModelError, UsageError
from engine.heads.form import LAYERED
from engine.pairs.pair import Pair
from engine.types import Limits, Sampling, Typical
from tests.engine.heads.made import make_head, make_heads, with_eagle3
from tests.engine.methods.pairs import save_with_tokenizer
from tests.engine.methods.plain_heads import Node, Plain, dynamic_tree, static_tree
from tests.engine.model import tiny
from tests.engine.test_typical import Reference

METHODS = {
    "medusa": ("medusa", {}),
    "hydra": ("hydra", {}),
    "eagle": ("eagle", {}),
    "eagle2": ("eagle", {"top": 4, "depth": 4, "total": 12}),
    "parallelspec_medusa": ("parallelspec_medusa", {}),
    "parallelspec_eagle": ("parallelspec_eagle", {"masks": 3}),
    "eagle with EAGLE-3": ("eagle3", {}),
    "eagle2 with EAGLE-3": ("eagle3", {"top": 4, "depth": 4, "total": 12}),
}
"""The kind of head of each method, and settings."""
PROMPT, NEW = [5, 9, 23, 4], 22
methods = pytest.mark.parametrize("method", METHODS)


def drifting(family: str) -> torch.nn.Module:
    """A target whose tokens are much alike, so that heads that know little are right now and then."""
    model = tiny.reference(family, seed=3)
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(0.6)
        model.get_output_embeddings().weight[10:16].add_(0.06)
    return model


class Clusters:
    """Two clusters of one target: the heads of the second are EAGLE-3's."""

    def __init__(self, *clusters: engine.Cluster) -> None:
        self._clusters = clusters
        self.pair = clusters[0].pair

    def of(self, method: str) -> engine.Cluster:
        return self._clusters["EAGLE-3" in method]

    def run(self, method: str, *prompts, **settings):
        return self.of(method).run(method.split()[0], *prompts, **settings)


@pytest.fixture(scope="module", params=["llama", "mistral-window", "qwen3"])
def world(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    model = drifting(request.param)
    save_with_tokenizer(model, folder / "target")
    heads = make_heads(folder / "heads", folder / "target", scale=0.5)
    pair = replace(Pair.of(folder / "target"), heads_path=heads)
    third = with_eagle3(pair, folder / "eagle3")
    with (
        engine.open(pair, runtime="local-thread", device="cpu") as cluster,
        engine.open(third, runtime="local-thread", device="cpu") as other,
    ):
        yield Clusters(cluster, other), model, heads


def drafts(trace) -> dict[int, list[Node]]:
    """The nodes of each round's draft."""
    rows = sorted((d for d in trace.decisions if d.node >= 0), key=lambda d: (d.step, d.node))
    found = {step: [Node(d.token, d.parent) for d in ds] for step, ds in groupby(rows, key=lambda d: d.step)}
    return {r.step: found.get(r.step, []) for r in trace.rounds}


def expected(
    plain: Plain,
    method: str,
    config: dict,
    x: list[int],
    levels: int,
    sampling: Sampling,
    draws: Draws | None,
) -> list[Node]:
    rows = plain.rows(x)
    if "top" in config:
        return dynamic_tree(rows, config["top"], min(config["depth"], levels), config["total"])
    depth = config.get("masks", 99) + 1
    paths = {
        p
        for p in tree(config.get("tree") or ("eagle" if method.endswith("eagle") else "medusa")).paths
        if len(p) <= depth
    }
    return static_tree(rows, paths, min(levels, max(map(len, paths))), x, sampling, draws)


def walk(plain: Plain, x: list[int], nodes: list[Node]) -> list[int]:
    """The tokens of the longest path that the target's argmax follows."""
    at, path = -1, list[int]()
    while True:
        own = plain.own(x + path)
        child = next((i for i, n in enumerate(nodes) if n == (own, at)), None)
        if child is None:
            return path
        at, path = child, [*path, own]


@methods
def test_every_draft_and_every_accepted_length_is_that_of_the_reference(world, method):
    cluster, model, heads = world
    kind, config = METHODS[method]
    trace = cluster.run(method, PROMPT, config=config, limits=Limits(NEW))
    plain = Plain(copy.deepcopy(model), heads / kind)
    x, lengths, done = list(PROMPT), set(), trace.token_ids()
    for r, (step, nodes) in zip(trace.rounds, drafts(trace).items(), strict=True):
        levels = len(PROMPT) + NEW - len(x)
        assert nodes == expected(plain, method, trace.header.config | config, x, levels, Sampling(), None), (
            step
        )
        assert r.accepted == len(walk(plain, x, nodes))
        lengths.add(r.accepted)
        x = PROMPT + done[: len(x) - len(PROMPT) + r.emitted]
    assert x == PROMPT + done
    assert max(lengths) > 0, "some drafts are accepted"


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
    ],
)
def test_heads_with_output_matrices_biases_and_layers_of_their_own_draft_as_the_reference(
    world, tmp_path, method, changes
):
    cluster, model, _ = world
    (kind, config), target = METHODS[method], cluster.pair.target_path
    make_head(tmp_path / "head", kind, target, own=True, seed=9, scale=0.5, **changes)
    with engine.open(cluster.pair, runtime="local-thread", device="cpu", head=tmp_path / "head") as mine:
        trace = mine.run(method.split()[0], PROMPT, config=config, limits=Limits(8))
    plain, x = Plain(copy.deepcopy(model), tmp_path / "head"), list(PROMPT)
    for r, nodes in zip(trace.rounds, drafts(trace).values(), strict=True):
        levels = len(PROMPT) + 8 - len(x)
        assert nodes == expected(plain, method, trace.header.config | config, x, levels, Sampling(), None)
        x = PROMPT + trace.token_ids()[: len(x) - len(PROMPT) + r.emitted]


@pytest.mark.parametrize("method", ["eagle", "eagle with EAGLE-3", "parallelspec_eagle"])
@pytest.mark.parametrize("sampling", [Sampling(0.9, seed=4), Sampling(1.5, top_k=20, top_p=0.9, seed=8)])
def test_every_sampled_draft_is_that_of_the_reference(world, method, sampling):
    cluster, model, heads = world
    kind, config = METHODS[method]
    trace = cluster.run(method, PROMPT, config=config, sampling=sampling, limits=Limits(NEW))
    plain = Plain(copy.deepcopy(model), heads / kind)
    x, done = list(PROMPT), trace.token_ids()
    for r, (step, nodes) in zip(trace.rounds, drafts(trace).items(), strict=True):
        levels = len(PROMPT) + NEW - len(x)
        draws = Draws(sampling.seed, 0)
        assert nodes == expected(plain, method, trace.header.config | config, x, levels, sampling, draws), (
            step
        )
        x = PROMPT + done[: len(x) - len(PROMPT) + r.emitted]
    assert {d.rule for d in trace.decisions if d.node >= 0 and d.outcome != "discarded"} == {"ratio"}


@pytest.mark.parametrize("typical", [Typical(0.09, 0.3), Typical(0.0, 1.0), Typical(1.0, 1.0)], ids=str)
def test_typical_acceptance_of_a_run_is_that_of_a_reference_without_a_cache(world, typical):
    cluster, model, heads = world
    sampling = Sampling(0.7, top_k=40, seed=6)
    config = {"acceptance": "typical", "epsilon": typical.epsilon, "delta": typical.delta}
    trace = cluster.run("medusa", PROMPT, config=config, sampling=sampling, limits=Limits(NEW))
    plain = Plain(copy.deepcopy(model), heads / "medusa")
    x, lengths, done, draws = list(PROMPT), set(), trace.token_ids(), Draws(sampling.seed, 0)
    for r, nodes in zip(trace.rounds, drafts(trace).values(), strict=True):
        levels = len(PROMPT) + NEW - len(x)
        assert nodes == expected(plain, "medusa", trace.header.config, x, levels, Sampling(), None)
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
        x = PROMPT + done[: len(x) - len(PROMPT) + r.emitted]
    assert x == PROMPT + done
    assert len(lengths) > 1
    assert not trace.header.lossless
    told = {(d.outcome, d.rule) for d in trace.decisions if d.node >= 0 and d.rule}
    assert ("accepted", "typical") in told
    assert {rule for _, rule in told} == {"typical"}
    assert all((d.rule == "") == (d.verify_span < 0) == (d.p is None) for d in trace.decisions)


def test_typical_acceptance_at_temperature_0_is_the_exact_run(world):
    cluster, _, _ = world
    one, other = (
        cluster.run("medusa", PROMPT, config={"acceptance": rule}, limits=Limits(NEW))
        for rule in ("exact", "typical")
    )
    timeless = [[replace(d, draft_span=0, verify_span=0) for d in t.decisions] for t in (one, other)]
    assert timeless[0] == timeless[1]
    assert one.token_ids() == other.token_ids()
    assert other.header.lossless, "at temperature 0 nothing is lossy"


# What a draft costs, and what it leaves.


@methods
def test_drafting_takes_no_forward_of_the_target_and_the_head_the_forwards_it_should(world, method):
    cluster, _, _ = world
    trace = cluster.run(method, PROMPT, config=METHODS[method][1], limits=Limits(NEW))
    for r in trace.rounds:
        spans = [s for s in trace.spans if s.step == r.step]
        assert len([s for s in spans if s.kind == "verify"]) == 1
        nodes = drafts(trace)[r.step]
        levels = (
            1
            + max(d.position for d in trace.decisions if d.step == r.step and d.node >= 0)
            - min(d.position for d in trace.decisions if d.step == r.step and d.node >= 0)
            if nodes
            else 0
        )
        forwards = [s for s in spans if s.kind == "draft"]
        assert all(s.model == "drafter" for s in forwards)
        if method in ("medusa", "parallelspec_medusa", "parallelspec_eagle"):
            assert len(forwards) == bool(nodes), "one for the whole tree"
        elif not method.startswith("eagle2"):  # a level of its tree may lose all its nodes to the rerank
            assert len(forwards) == levels, "one for each level"
        assert {d.draft_span for d in trace.decisions if d.step == r.step and d.node >= 0} <= {
            s.id for s in forwards
        }
    devices = {s.device for s in trace.spans}
    assert len(devices) == 1, "the head sits on the target's device"


@methods
def test_a_text_has_to_be_begun_before_a_head_can_draft(world, method):
    cluster, _, _ = world
    trace = cluster.run(method, [7], config=METHODS[method][1], limits=Limits(6))
    assert trace.rounds[0].mode == "plain"
    assert all(r.drafted for r in trace.rounds[1:-1])
    assert trace.token_ids() == cluster.run("autoregressive", [7], limits=Limits(6)).token_ids()


@pytest.mark.parametrize("method", [key for key, (kind, _) in METHODS.items() if kind in LAYERED])
def test_rows_of_predicted_states_and_masks_are_never_read_again(world, method):
    """Each draft begins with exactly the rows that are new: the accepted tokens and the target's own."""
    cluster, _, _ = world
    trace = cluster.run(method, PROMPT, config=METHODS[method][1], limits=Limits(NEW))
    masks = trace.header.config.get("masks", 0)
    text = len(PROMPT)
    cached = (
        text - 2
    )  # the row of a token reads the state of the one before: the first has none, the last is not cached
    for r in trace.rounds:
        first = next((s for s in trace.spans if s.step == r.step and s.kind == "draft"), None)
        if first is not None:
            levels = len(PROMPT) + NEW - text
            assert (first.context, first.rows) == (cached, text - 1 - cached + min(masks, levels - 1))
            cached = text - 1
        text += r.emitted


@methods
def test_no_head_no_features(world, method):
    cluster = world[0].of(method)
    cluster.run(method.split()[0], PROMPT, limits=Limits(4))
    cluster.run("autoregressive", PROMPT, limits=Limits(4))
    (worker,) = {id(w): w for w in cluster.placement.workers if "target" in w._host.forwards.models}.values()
    assert worker._host.forwards._keeps["target"] == ()
    assert worker._host.forwards.cache("target").features is None


# Bad input.


def refused(pair: Pair, method: str, message: str, **config: object) -> None:
    with engine.open(pair, runtime="local-thread", device="cpu") as cluster:
        with pytest.raises((UsageError, ModelError), match=message):
            cluster.run(method, PROMPT, config=config, limits=Limits(4))
        assert not any(w._host.forwards.heads for w in cluster.placement.workers), "nothing is half-loaded"
        assert cluster.run("autoregressive", PROMPT, limits=Limits(2)).status == "done"


@pytest.fixture
def pair(world):
    return world[0].pair


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 48}, "for another target: its hidden_size is 48, that of .* is 32"),
        ({"vocab_size": 101}, "for another target: its vocab_size is 101, that of .* is 97"),
        ({"tokenizer": "ab" * 32}, "its tokenizer is abababababab, that of .* is [0-9a-f]{12}"),
        ({"kind": "oracle"}, "kind is 'oracle'; it must be one of medusa, hydra"),
        ({"specscope_head": 2}, "specscope_head is 2; this version reads 1"),
        ({"heads": 0}, "heads is 0; it must be a whole number, at least 1"),
        ({"features": [1, -1]}, r"features is \[1, -1\]; supported is \[-1\]"),
        (
            {"heads": 7},
            "missing in a head of kind medusa: 5.0.linear.weight, 5.0.linear.bias, 6.0.lin.* and 1 more",
        ),
        ({"heads": 4}, "unknown to a head of kind medusa: 4.0.linear.bias, 4.0.linear.weight"),
    ],
)
def test_a_head_that_does_not_fit_is_refused_by_name(pair, tmp_path, changes, message):
    path = make_head(tmp_path / "head", "medusa", pair.target_path)
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(config))
    with engine.open(pair, runtime="local-thread", device="cpu", head=path) as cluster:
        with pytest.raises((UsageError, ModelError), match=message):
            cluster.run("medusa", PROMPT, limits=Limits(4))
        assert not any(w._host.forwards.heads for w in cluster.placement.workers), "nothing is half-loaded"
        assert cluster.run("autoregressive", PROMPT, limits=Limits(2)).status == "done"


def test_a_head_of_another_kind_is_refused(pair, tmp_path):
    path = make_head(tmp_path / "head", "hydra", pair.target_path)
    with engine.open(pair, runtime="local-thread", device="cpu", head=path) as cluster:
        with pytest.raises(UsageError, match="is a head of kind hydra; this method needs one of kind medusa"):
            cluster.run("medusa", PROMPT, limits=Limits(4))


def test_a_pair_without_heads_says_how_to_get_one(pair):
    refused(
        replace(pair, heads_path=None),
        "eagle2",
        "no drafting head of kind eagle; name one with --head, or train it",
    )


@pytest.mark.parametrize(
    ("method", "config", "message"),
    [
        ("medusa", {"heads": 6}, "heads is 6; it must be at least 0 and at most 5"),
        ("hydra", {"tree": "oak"}, "there is no tree 'oak'; choose one of eagle, medusa"),
        ("parallelspec_eagle", {"masks": 5}, "masks is 5; it must be at least 0 and at most 4"),
        ("parallelspec_medusa", {"masks": 17}, "masks is 17; it must be at least 1 and at most 16"),
        ("eagle2", {"top": 16, "depth": 8}, "with this top depth is at most 6"),
        ("eagle2", {"total": 65}, "total is 65; it must be at least 1 and at most 64"),
    ],
)
def test_more_than_the_head_was_trained_for_is_refused_with_value_and_range(pair, method, config, message):
    refused(pair, method, message, **config)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ("[[0], [1, 0]]", r"\[1, 0\] has no parent; add \[1\]"),
        ("[[0], [2]]", r"\[2\] has no elder sibling; add \[1\]"),
        ("[[0], [0, 0], [0]]", r"\[0\] is named twice"),
        ("[]", "paths must be a list of nodes"),
        ("[[0], [-1]]", "paths must be a list of nodes"),
        (str([[i] for i in range(65)]), "it has 65 nodes; there must be at least 1 and at most 64"),
        (str([[0] * n for n in range(1, 8)]), "has 7 levels; the head drafts at least 1 and at most 5"),
        ("oops", "cannot be read"),
    ],
)
def test_a_tree_file_that_is_wrong_is_refused_with_the_node(pair, tmp_path, paths, message):
    (tmp_path / "mine.toml").write_text(f"paths = {paths}\n")
    refused(pair, "medusa", message, tree=str(tmp_path / "mine.toml"))


def test_a_tree_of_ones_own_is_drafted(world, tmp_path):
    (tmp_path / "mine.toml").write_text("paths = [[1], [0], [0, 0], [1, 0]]\n")
    trace = world[0].run("hydra", PROMPT, config={"tree": str(tmp_path / "mine.toml")}, limits=Limits(9))
    assert [n.parent for n in drafts(trace)[1]] == [-1, -1, 0, 1]
    assert trace.header.environment["head"].endswith("hydra")


def test_tokens_without_hidden_states_are_refused(pair):
    with engine.open(pair, runtime="virtual", profile="pearl-4xA100", tokens="bernoulli:0.8") as cluster:
        with pytest.raises(
            UsageError, match=r"tokens that are bernoulli:0\.8 have none: leave tokens at pair"
        ):
            cluster.run("medusa", PROMPT, limits=Limits(4))


def test_the_trees_that_come_with_specscope_are_those_of_the_papers():
    for name, counts in (("medusa", [10, 28, 23, 2]), ("eagle", [4, 8, 8, 3, 2])):
        paths = tree(name).paths
        assert [sum(len(p) == n for p in paths) for n in range(1, 1 + tree(name).depth)] == counts


def test_a_layer_that_knows_fewer_positions_than_asked_for_is_refused_before_any_work(pair, tmp_path):
    path = make_head(tmp_path / "head", "eagle", pair.target_path)
    config = json.loads((path / "config.json").read_text())
    config["shape"]["max_position_embeddings"] = 20
    (path / "config.json").write_text(json.dumps(config))
    with engine.open(pair, runtime="local-thread", device="cpu", head=path) as cluster:
        with pytest.raises(UsageError, match=r"are 21 tokens together; the head .* knows at most 20"):
            cluster.run("eagle", PROMPT, limits=Limits(17))
        assert len(cluster.run("eagle", PROMPT, limits=Limits(16)).token_ids()) == 16
