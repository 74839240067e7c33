"""Heads draft for several sequences as for each one alone, and as in their training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specscope.engine.checkpoints.config import read_config
from specscope.engine.checkpoints.loader import load
from specscope.engine.drafting.tree import Dynamic, Static, Wide
from specscope.engine.errors import UsageError
from specscope.engine.heads.files import read_head, write_head
from specscope.engine.heads.kinds import KINDS
from specscope.engine.heads.packed import Texts
from specscope.engine.model.clock import StreamClock
from specscope.engine.model.fused import FusedDrafts
from specscope.engine.model.shape import ModelShape
from specscope.engine.training.heads.card import read_by
from specscope.engine.training.heads.features import features_of
from specscope.engine.training.heads.train import build_head, head_config, read_frozen
from specscope.engine.training.settings import HEAD_DEFAULTS, HeadOptions
from specscope.engine.types import Prefix, Sampling
from specscope.engine.worker.host import Host
from specscope.engine.worker.jobs import Prefill, Propose, Stamp
from tests.engine.heads.drafted_tree import FRONTIERS, level_rows, new_host, path_to, state_after
from tests.engine.heads.random_heads import make_head
from tests.engine.model import tiny
from tests.engine.model.test_clock import FakeStream

PREFIXES = [Prefix(i, np.arange(3 + 7 * i, 3 + 7 * i + n)) for i, n in enumerate((9, 1, 4, 13))]
"""The target has forwarded nothing of the prompt of one token: no head can draft after it."""
DRAFTING = [0, 2, 3]
LEVELS = 3


def cached_host(target: Path, head: Path) -> Host:
    host = new_host(target, head, PREFIXES)
    prompts = tuple(Prefix(p.sequence, p.tokens[: p.sequence + 1]) for p in PREFIXES)
    host.handle(Prefill("head", prompts))  # different numbers of rows are left to catch up
    return host


@pytest.mark.parametrize("kind", KINDS)
def test_a_level_is_one_forward_over_all_sequences_each_with_its_own_number(
    kind: str, target, tmp_path
) -> None:
    head = make_head(tmp_path / "head", kind, target)
    shape = Static(((0,), (1,), (0, 0), (0, 1), (0, 0, 0)))
    alone = [_drafted(cached_host(target, head), shape, [i], [LEVELS]) for i in DRAFTING]
    trees, stamps = _drafted(cached_host(target, head), shape, DRAFTING, [LEVELS] * 3)
    assert list(trees) == [tree for (tree,), _ in alone]
    assert [(s.batch, s.rows, s.context) for s in stamps] == [
        (3, sum(s.rows for s in level), sum(s.context for s in level))
        for level in zip(*(one for _, one in alone), strict=True)
    ]
    first = _drafted(cached_host(target, head), shape, [0], [1])[0][0]
    trees, stamps = _drafted(cached_host(target, head), shape, [0, 1, 2, 3], [1, 3, 0, 3])
    assert list(trees) == [first, (), (), alone[2][0][0]]
    assert stamps[-1].batch == (1 if len(stamps) > 1 else 2), "the last level has one sequence"


def _drafted(host: Host, shape: Static, numbers: list[int], levels: list[int]) -> tuple[tuple, list[Stamp]]:
    prefixes = tuple(PREFIXES[i] for i in numbers)
    reply = host.handle(Propose("head", prefixes, shape, tuple(levels), False, ((),) * len(prefixes)))
    rounded = tuple(
        tuple((node.id, node.parent, node.level, round(node.probability, 4), node.forward) for node in tree)
        for tree in reply.value
    )
    return rounded, list(reply.stamps)


# With static forwards, a head's tree is drafted at once; it equals the tree of a loop.


TREE = Static(((0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 0, 0), (0, 0, 1), (2, 0, 0)))
CHAIN = Static(((0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)))
DYNAMIC = [Dynamic(top, 4, 200) for top in (2, 3, 6)]
"""All nodes are kept, the improbable ones of the last level, too."""
WAYS = {
    "greedy": Sampling(),
    "warm": Sampling(1.0, seed=3),
    "top-k": Sampling(1.3, top_k=2, seed=4),
    "top-p": Sampling(1.1, top_p=0.3, seed=5),
}
ROWS = 12
"""Q buffer rows per prefix."""


class Drafter:
    def __init__(self, target: Path, head: Path, sampling: Sampling, *, static: bool, capacity: int = 64):
        self.host = new_host(target, head, PREFIXES, sampling, static=static, capacity=capacity)
        self.q = np.zeros((ROWS * len(PREFIXES), tiny.VOCAB), dtype=np.float32)
        self.host.q_buffers = {"worker": self.q}

    def grow(self, shape, levels=(4, 4, 4, 4), sampled=False):
        rows = tuple(tuple(range(ROWS * i, ROWS * i + ROWS)) if sampled else () for i in range(len(levels)))
        prefixes = tuple(PREFIXES[: len(levels)])
        return self.host.handle(Propose("head", prefixes, shape, tuple(levels), sampled, rows))


@pytest.fixture
def grown(monkeypatch):
    calls, draft = [], FusedDrafts.draft
    monkeypatch.setattr(FusedDrafts, "draft", lambda *args, **kw: calls.append(1) or draft(*args, **kw))
    return calls


def assert_equal(ours, theirs):
    for tree, expected in zip(ours.value, theirs.value, strict=True):
        assert [node[:4] for node in tree] == [node[:4] for node in expected]
        assert [node.forward for node in tree] == [node.forward for node in expected]
        for node, other in zip(tree, expected, strict=True):
            assert node.probability == pytest.approx(other.probability, rel=1e-4)
            assert dict(node.top) == pytest.approx(dict(other.top), rel=1e-3, abs=1e-6)
    facts = [[(s.kind, s.rows, s.context, s.batch, s.work) for s in r.stamps] for r in (ours, theirs)]
    assert facts[0] == facts[1]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_tree_at_once_equals_that_of_a_loop(kind, way, target, tmp_path, grown):
    head, sampling = make_head(tmp_path / "head", kind, target), WAYS[way]
    static, eager = (Drafter(target, head, sampling, static=s) for s in (True, False))
    shapes = [TREE, CHAIN, *DYNAMIC, TREE] if sampling.greedy else [TREE, CHAIN, TREE]
    for shape in shapes:  # the last time in buffers that have held other rows
        assert_equal(*(d.grow(shape, sampled=not sampling.greedy) for d in (static, eager)))
        assert static.q == pytest.approx(eager.q, abs=1e-6)
    assert len(grown) == len(shapes)


def test_a_job_waits_for_its_device_once(target, tmp_path):
    drafter = Drafter(target, make_head(tmp_path / "head", "eagle", target), Sampling(), static=True)
    stream = FakeStream()
    drafter.host.forwards.clock = StreamClock(stream.event)
    before = stream.waits
    stamps = drafter.grow(TREE).stamps
    assert stream.waits == before + 1
    times = [time for stamp in stamps for time in (stamp.start, stamp.end)]
    assert min(times) > 0
    assert times == sorted(times)


def test_each_sequence_has_its_own_number_of_levels_and_other_drafts_are_a_loop(target, tmp_path, grown):
    head = make_head(tmp_path / "head", "eagle", target)
    static, eager = (Drafter(target, head, Sampling(), static=s) for s in (True, False))
    for levels in ((1, 3, 0, 4), (2, 0, 2, 1)):
        assert_equal(*(d.grow(TREE, levels) for d in (static, eager)))
    assert len(grown) == 2, "at once"
    assert_equal(*(d.grow(Wide(2, 3), (3, 3)) for d in (static, eager)))
    assert len(grown) == 3, "the children of a level's nodes may depend on all of them"
    for levels in ((1, 1), (0, 0)):
        assert_equal(*(d.grow(TREE, levels) for d in (static, eager)))
    with pytest.raises(UsageError, match="its capacity is 14"):
        Drafter(target, head, Sampling(), static=True, capacity=14).grow(CHAIN)
    parallel = make_head(tmp_path / "parallel", "parallelspec_eagle", target)
    Drafter(target, parallel, Sampling(), static=True).grow(Static(((0,), (0, 0))), (2,))
    assert len(grown) == 3


# Training and inference agree: a head has equal logits in both.


SIZE, SCALE = 3, 4.0
TEXT = (5, 9, 23, 4, 17, 60, 33, 2, 71, 12, 8)
"""The draft begins after its last token."""


@pytest.fixture(scope="module", params=["llama3-rope", "yarn-rope", "qwen3"])
def any_target(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pair") / "target"
    tiny.save(tiny.reference(request.param, seed=2), path)
    return path


def trained(kind: str, target: Path, out: Path) -> Any:
    """Write a head as a training does, and return it; its numbers are bf16, as in the file."""
    shape = ModelShape.of(read_config(target), target)
    options = HeadOptions(kind=kind, out=out, target=target, data=target, size=SIZE)
    config = head_config(options, shape, SCALE)
    head = build_head(config, seed=1)
    torch.manual_seed(3)
    with torch.no_grad():
        for name, p in head.named_parameters():
            p.copy_((("norm" in name) + 0.15 * torch.randn_like(p)).bfloat16())
    out.mkdir()
    write_head(out, config, KINDS[kind].rescale(head.state_dict(), SCALE))
    return head


@pytest.mark.parametrize("kind", HEAD_DEFAULTS)
@torch.no_grad()
def test_drafting_has_the_logits_of_the_training(kind, any_target, tmp_path):
    head = trained(kind, any_target, tmp_path / "head")
    frozen = read_frozen(any_target, ModelShape.of(read_config(any_target), any_target), torch.device("cpu"))
    frozen = frozen._replace(scale=1.0 if KINDS[kind].scaled else SCALE)
    ids = np.array([*TEXT, *[1] * (SIZE + 2)])
    decoder = load(any_target)
    (features,) = features_of(decoder, [ids])
    tokens, anchors = torch.from_numpy(ids), np.array([len(TEXT) - 1])
    texts = Texts(tokens, frozen.embed(tokens), features, np.array([0, len(ids)]), anchors)
    texts = read_by(head.config, texts, decoder)
    prefix = Prefix(0, np.array(TEXT))
    drafted = level_rows(new_host(any_target, tmp_path / "head", [prefix]), prefix, LEVELS)
    for at, rows in zip(FRONTIERS, drafted, strict=True):
        expected = [state_after(head, texts, frozen, path_to(node)) @ frozen.lm_head.T for node in at]
        assert len(rows) in (1, len(at))
        for i, logits in enumerate(expected):
            torch.testing.assert_close(rows[i if len(rows) > 1 else 0], logits, atol=1e-4, rtol=1e-4)
    assert max(float(logits.std()) for logits in expected) > 0.1, "the logits differ"


def test_the_scale_of_embeddings_is_in_the_config_if_it_cannot_be_in_the_weights(target, tmp_path):
    for kind in HEAD_DEFAULTS:
        trained(kind, target, tmp_path / kind)
        scale = read_head(tmp_path / kind, target).config.embedding_scale
        assert scale == (SCALE if KINDS[kind].scaled else 1.0), kind
