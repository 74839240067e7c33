"""Heads, settings and trees that do not fit are refused before anything is loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.drafting.static import tree
from specscope.engine.errors import ModelError, UsageError
from specscope.engine.types import Limits
from tests.engine.heads.random_heads import make_head
from tests.engine.methods.head_runs import PROMPT, drafts, open_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with open_world("llama", tmp_path_factory.mktemp("heads")) as opened:
        yield opened


@pytest.fixture
def pair(world):
    return world[0].pair


def refused(pair: Pair, method: str, message: str, head: Path | None = None, **config: object) -> None:
    """Check that a run is refused before its head is loaded, and that the cluster still works."""
    with specscope.open(pair, runtime="local-thread", device="cpu", head=head) as cluster:
        with pytest.raises((UsageError, ModelError), match=message):
            cluster.run(method, PROMPT, config=config, limits=Limits(4))
        assert not any(w._host.forwards.heads for w in cluster.placement.workers), "no head is loaded"
        assert cluster.run("autoregressive", PROMPT, limits=Limits(2)).status == "done"


def test_a_head_of_another_kind_is_refused(pair, tmp_path):
    path = make_head(tmp_path / "head", "hydra", pair.target_path)
    refused(pair, "medusa", "is a head of kind hydra; this method needs one of kind medusa", head=path)


def test_a_pair_without_heads_is_refused_with_what_to_do(pair):
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
    ],
)
def test_settings_beyond_the_head_are_refused_with_value_and_range(pair, method, config, message):
    refused(pair, method, message, **config)


def test_a_tree_deeper_than_the_head_is_refused(pair, tmp_path):
    (tmp_path / "mine.toml").write_text(f"paths = {[[0] * n for n in range(1, 8)]}\n")
    message = "has 7 levels; the head drafts at least 1 and at most 5"
    refused(pair, "medusa", message, tree=str(tmp_path / "mine.toml"))


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


def test_tokens_without_hidden_states_are_refused(pair):
    with specscope.open(pair, runtime="virtual", profile="pearl-4xA100", tokens="bernoulli:0.8") as cluster:
        with pytest.raises(
            UsageError, match=r"tokens that are bernoulli:0\.8 have none: leave tokens at pair"
        ):
            cluster.run("medusa", PROMPT, limits=Limits(4))


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
