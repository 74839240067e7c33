"""Training and inference agree: a head and its trainable module have equal logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from specscope.engine.checkpoints.config import read_config
from specscope.engine.checkpoints.loader import load
from specscope.engine.heads.files import read_head, write_head
from specscope.engine.heads.trainable import Texts, TrainableHead
from specscope.engine.model.shape import ModelShape
from specscope.engine.training.heads.features import features_of
from specscope.engine.training.heads.train import build_head, head_config, read_frozen
from specscope.engine.training.settings import HEAD_DEFAULTS, HeadOptions
from specscope.engine.types import Prefix
from tests.engine.heads.drafted_tree import FRONTIERS, level_rows, new_host, path_to, state_after
from tests.engine.model import tiny

SIZE, SCALE, LEVELS = 3, 4.0, 3
TEXT = (5, 9, 23, 4, 17, 60, 33, 2, 71, 12, 8)
"""The draft begins after its last token."""


@pytest.fixture(scope="module", params=["llama3-rope", "yarn-rope", "qwen3"])
def target(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pair") / "target"
    tiny.save(tiny.reference(request.param, seed=2), path)
    return path


def trained(kind: str, target: Path, out: Path) -> TrainableHead:
    """Write a head as a training does, and return it; its numbers are bf16, as in the file."""
    shape = ModelShape.of(read_config(target), target)
    head = build_head(kind, shape, SIZE, seed=1, scale=SCALE)
    torch.manual_seed(3)
    with torch.no_grad():
        for name, p in head.module.named_parameters():
            p.copy_((("norm" in name) + 0.15 * torch.randn_like(p)).bfloat16())
    options = HeadOptions(kind=kind, out=out, target=target, data=target, size=SIZE)
    out.mkdir()
    write_head(out, head_config(options, shape, SCALE), head.tensors())
    return head


@pytest.mark.parametrize("kind", HEAD_DEFAULTS)
@torch.no_grad()
def test_drafting_has_the_logits_of_the_training(kind, target, tmp_path):
    head = trained(kind, target, tmp_path / "head")
    frozen = read_frozen(target, ModelShape.of(read_config(target), target), torch.device("cpu"))
    ids = np.array([*TEXT, *[1] * (SIZE + 2)])
    (features,) = features_of(load(target), [ids])
    tokens, anchors = torch.from_numpy(ids), np.array([len(TEXT) - 1])
    texts = Texts(tokens, frozen.embedding[tokens], features, np.array([0, len(ids)]), anchors)
    prefix = Prefix(0, np.array(TEXT))
    drafted = level_rows(new_host(target, tmp_path / "head", [prefix]), prefix, LEVELS)
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
        assert scale == (SCALE if kind == "parallelspec_medusa" else 1.0), kind
