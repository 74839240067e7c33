"""Heads of a shortened vocabulary: rows of the LM head, sizes for latency, refused files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from specscope.engine.checkpoints.config import read_config
from specscope.engine.checkpoints.loader import load
from specscope.engine.errors import ModelError
from specscope.engine.heads.config import HeadConfig
from specscope.engine.heads.drafting import Columns
from specscope.engine.heads.files import check_head, tokenizer_digest, write_head
from specscope.engine.heads.find import load_head
from specscope.engine.heads.kinds import KINDS
from specscope.engine.heads.modules import offsets, target_ids
from specscope.engine.model.weights import PACKED_FROM, Linear
from specscope.engine.types import Prefix
from tests.engine.heads.forms import D, V, drawn
from tests.engine.heads.random_heads import make_head
from tests.engine.methods.pairs import save_with_tokenizer
from tests.engine.model import tiny


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "target"
    save_with_tokenizer(tiny.reference("llama"), path)
    return path


@pytest.mark.parametrize("kind", ["medusa", "hydra", "eagle", "parallelspec_medusa", "parallelspec_eagle"])
def test_a_head_multiplies_with_its_share_of_the_lm_head(kind, target, tmp_path):
    folders = [make_head(tmp_path / str(n), kind, target, draft_vocab=n) for n in (0, 40)]
    for levels, forward in ((1, 0), (2, 1)):
        whole, short = (KINDS[kind].work(check_head(path), levels, forward) for path in folders)
        assert short == whole._replace(heads=40 / tiny.VOCAB)
        assert whole.heads == 1
    assert load_head(str(folders[0]), load(target)).columns.token(90) == 90


class OneState:
    """Forwards of a head that reads one state of the target."""

    def __init__(self, state: Tensor):
        self.state, self.work = state, None

    def target_states(self, trees):
        return self.state[None]

    def timed(self, trees, rows, work, compute):
        self.work = work
        return compute()


@pytest.mark.parametrize("size", [8, 600])
def test_the_rows_of_a_matrix_are_those_of_its_weight(size):
    weight = torch.randn(size, 512)
    matrix, ids = Linear(weight, keep=True), torch.tensor([7, 2, size - 1])
    assert (not Linear(weight).transposed.numel()) == (weight.nbytes >= PACKED_FROM), (
        "the larger one is packed"
    )
    assert torch.equal(matrix.rows(ids), weight[ids])


def test_own_lm_heads_are_read_in_the_order_of_the_targets_tokens(target, tmp_path):
    model, ids, width = load(target), [9, 2, 40], read_config(target).hidden_size
    sizes = {"hidden_size": width, "vocab_size": tiny.VOCAB, "tokenizer": tokenizer_digest(target)}
    path = store(tmp_path / "head", ids, own_lm_head=True, heads=2, **sizes)
    head, tensors = load_head(str(path), model), load_file(path / "model.safetensors")
    state = torch.randn(width)
    forwards = OneState(state)
    levels = head.draft(forwards)
    for i in range(2):
        ((logits,),) = levels([SimpleNamespace(prefix=Prefix(0, ids), levels=2, depth=i)])
        weight, bias, own = (
            tensors[f"{i}.{x}"].float() for x in ("0.linear.weight", "0.linear.bias", "1.weight")
        )
        expected = own @ (state + functional.silu(weight @ state + bias))
        found = {head.columns.token(c): float(z) for c, z in enumerate(logits)}
        assert found == pytest.approx(dict(zip(ids, expected.tolist(), strict=True)), rel=1e-3, abs=1e-4)
    assert forwards.work.heads == pytest.approx(2 * 3 / tiny.VOCAB), "two products with three rows each"


def test_a_row_of_q_is_zero_for_tokens_without_a_column():
    tokens = torch.tensor([1, 4, 5])
    assert torch.equal(target_ids(offsets(tokens)), tokens)
    q = torch.tensor([0.5, 0.2, 0.3])
    assert Columns(tokens).spread(q, 7).tolist() == pytest.approx([0, 0.5, 0, 0, 0.2, 0.3, 0])
    assert Columns().spread(q, 3) is q


def store(folder: Path, ids: list[int] | None, **changes: object) -> Path:
    """Write a head that drafts some tokens, a Medusa head unless `changes` name another kind."""
    size = 0 if ids is None else len(ids)
    config = replace(HeadConfig("medusa", D, V, heads=1, draft_vocab=size), **changes)
    tensors: dict[str, Tensor] = drawn(KINDS[config.kind].tensors(config))
    tensors.pop("d2t", None)
    if ids is not None:
        tensors["d2t"] = offsets(torch.tensor(ids))
    folder.mkdir()
    write_head(folder, config, tensors)
    return folder


@pytest.mark.parametrize(
    ("ids", "changes", "message"),
    [
        ([3, 2, V], {}, f"d2t maps draft token 2 to {V}; valid are 0 to {V - 1}$"),
        ([3, 2, 3], {}, "d2t maps 2 draft tokens to 3; at most one may$"),
        (list(range(V + 1)), {}, rf"draft_vocab is {V + 1}; it must be .* at least 0 and at most {V}$"),
        ([3, 2], {"draft_vocab": 4}, r"d2t has shape \[2\]; in a head of kind medusa .* it has \[4\]$"),
        (None, {"draft_vocab": 4}, "tensors missing in a head of kind medusa: d2t$"),
        ([3, 2], {"kind": "hydra", "own_lm_head": True}, "draft_vocab is 2; it must be 0 for a Hydra head with an LM head of its own$"),
    ],
)  # fmt: skip
def test_a_broken_vocabulary_is_refused_by_name(ids, changes, message, tmp_path):
    with pytest.raises(ModelError, match=message) as error:
        check_head(store(tmp_path / "head", ids, **changes))
    assert "\n" not in str(error.value)
