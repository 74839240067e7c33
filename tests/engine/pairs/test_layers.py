"""Drafters made of a target's layers: they load as ordinary decoders, or are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelError, PairError, UsageError
from engine.model.slots import Rows
from engine.pairs.layers import WEIGHTS, read_tensors, target_digest
from engine.pairs.load import load
from engine.pairs.pair import Pair
from engine.pairs.sizes import Split, model_size
from tests.engine.methods.pairs import save_with_tokenizer
from tests.engine.model import tiny
from tests.engine.model.together import on_ranks
from tests.engine.pairs.layer_drafters import make_drafter

FAMILIES = ("llama-gqa-tied-bias", "qwen2-window", "qwen3", "mistral-window")


def bf16(model):
    """Return a model whose norms survive the drafter's bf16."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(parameter.bfloat16())
    return model


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """Family -> directory of a tiny target."""
    folder = tmp_path_factory.mktemp("targets")
    for family in FAMILIES:
        save_with_tokenizer(bf16(tiny.reference(family)), folder / family)
    return {family: folder / family for family in FAMILIES}


@pytest.fixture
def target(targets):
    return targets["qwen3"]


def logits(decoder):
    ids = np.arange(12)
    return decoder.forward(decoder.new_cache(1, 12), Rows.chain(0, ids, 0), ids).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_all_layers_without_deltas_give_the_targets_logits(targets, family, tmp_path):
    path = make_drafter(tmp_path / "drafter", targets[family])
    assert torch.equal(logits(load(path, target=targets[family])), logits(load(targets[family])))


@pytest.mark.parametrize("family", FAMILIES)
def test_deltas_norms_and_map_give_the_logits_of_transformers_with_these_weights(targets, family, tmp_path):
    """The reference computes W + B A, the kept layers and the map by itself."""
    path = make_drafter(tmp_path / "drafter", targets[family], noise=0.1, layers=(0, 2), mapped=True)
    model, stored = bf16(tiny.reference(family)), read_tensors(path)
    model.model.layers = torch.nn.ModuleList([model.model.layers[i] for i in (0, 2)])
    model.config.num_hidden_layers = 2
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = [model.config.layer_types[i] for i in (0, 2)]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            matrix = name.removesuffix(".weight")
            if name in stored:
                parameter.copy_(stored[name])
            elif f"{matrix}.a" in stored:
                parameter += stored[f"{matrix}.b"] @ stored[f"{matrix}.a"]
        model.model.norm.register_forward_pre_hook(lambda _, args: args[0] @ stored["map"].T)
        expected = model(torch.arange(12)[None], use_cache=False).logits[0]
    torch.testing.assert_close(logits(load(path, target=targets[family])), expected, atol=2e-4, rtol=1e-4)


def test_a_shortened_vocabulary_keeps_its_logits_and_excludes_the_others(target, tmp_path):
    path = make_drafter(tmp_path / "drafter", target, vocabulary=20)
    mine, full = logits(load(path, target=target)), logits(load(target))
    ids = read_tensors(path)["ids"]
    torch.testing.assert_close(mine[:, ids], full[:, ids])
    assert int(mine.isfinite().sum()) == 12 * 20
    assert (mine[mine.isinf()] < 0).all()


@pytest.mark.parametrize("ways", [2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_of_a_drafter_have_the_logits_of_the_whole_one(targets, family, ways, tmp_path):
    fields = {"noise": 0.05, "layers": (0, 2), "vocabulary": 40, "mapped": True}
    folder = make_drafter(tmp_path / "drafter", targets[family], **fields)
    expected = logits(load(folder, target=targets[family]))
    for rows in on_ranks(ways, lambda ranks: logits(load(folder, target=targets[family], ranks=ranks))):
        torch.testing.assert_close(rows, expected, atol=1e-5, rtol=1e-5)
    split = [Split(rank=rank, ways=ways) for rank in range(ways)]
    whole, *parts = (
        model_size(folder, targets[family], torch.bfloat16, on_cpu=True, split=part)
        for part in (Split(), *split)
    )
    assert all(part.weights < whole.weights for part in parts)
    assert sum(part.per_token for part in parts) >= whole.per_token


def test_a_pair_uses_the_targets_tokenizer_and_context(target, tmp_path):
    drafters = [make_drafter(tmp_path / str(n), target, layers=tuple(range(n))) for n in (1, 2)]
    pair = Pair.of(target, *drafters)
    assert (pair.drafter_path, pair.further) == (drafters[0], (drafters[1],))
    assert (pair.vocab_size, pair.context) == (tiny.VOCAB, tiny.CONTEXT)


def test_the_digest_is_the_same_in_any_float_type_and_in_shards(target, tmp_path):
    model = bf16(tiny.reference("qwen3"))
    tiny.save(model.bfloat16(), tmp_path / "shards", max_shard_size="10KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert target_digest(tmp_path / "shards") == target_digest(target)


def test_a_drafter_of_another_target_is_refused(target, tmp_path):
    other = tmp_path / "other"
    save_with_tokenizer(tiny.reference("qwen3", seed=1), other)  # the same names and shapes
    path = make_drafter(tmp_path / "drafter", other)
    for attempt in (lambda: Pair.of(target, path), lambda: load(path, target=target)):
        with pytest.raises(
            PairError, match=r"is a drafter made of layers of another target \(other\)"
        ) as error:
            attempt()
        assert "\n" not in str(error.value)


def test_it_is_not_a_model_by_itself(target, tmp_path):
    path = make_drafter(tmp_path / "drafter", target)
    for attempt in (lambda: load(path), lambda: Pair.of(path)):
        with pytest.raises(
            ModelError, match="made of another model's layers, not a model; give it as the drafter"
        ):
            attempt()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": [0, 3]}, r"there is no layer 3, the target's are 0 to 2"),
        ({"layers": [-1]}, r"there is no layer -1"),
        ({"layers": [1, 1]}, r"layers is 1,1; each layer may be named once"),
        ({"layers": [1, 0]}, r"layers is 1,0; write the numbers in ascending order"),
        ({"layers": []}, r"layers is empty; name at least one"),
        ({"layers": [0.5]}, r"layers is \[0.5\]; it must hold whole numbers"),
        ({"layers": None}, r"layers is None; it must be of type list"),
        ({"rank": 0}, r"rank is 0; it must be at least 1 and at most 24"),
        ({"rank": 25}, r"rank is 25; it must be at least 1 and at most 24"),
        ({"rank": 3}, r"has shape \[2, 32\]; config.json asks for \[3, 32\]"),
        ({"vocabulary": 98}, r"vocabulary is 98; it must be at least 0 and at most 97"),
        ({"vocabulary": 0}, r"the weights hold ids, unknown to config.json"),
        ({"mapped": True}, r"the weights lack map, which config.json asks for"),
        ({"mapped": 1}, r"mapped is 1; it must be of type bool"),
        ({"specscope_drafter": 2}, r"specscope_drafter is 2; this version reads 1"),
        ({"target": 5}, r"target is 5; it must be of type str"),
    ],
)
def test_a_broken_config_is_refused(target, tmp_path, change, message):
    path = make_drafter(tmp_path / "drafter", target, vocabulary=9)
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises((ModelError, UsageError), match=message) as error:
        Pair.of(target, path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([3, 2, 5], "ids must be ascending, from 0 to 96"),
        ([2, 2, 5], "ids must be ascending"),
        ([-1, 2, 5], "ids must be ascending"),
        ([1, 2, 97], "ids must be ascending"),
        ([1.0, 2.0, 5.0], "ids is of type F32; supported are I64, I32"),
    ],
)
def test_broken_ids_are_refused(target, tmp_path, ids, message):
    path = make_drafter(tmp_path / "drafter", target, vocabulary=3)
    tensors = load_file(path / WEIGHTS)
    save_file(tensors | {"ids": torch.tensor(ids)}, path / WEIGHTS)
    with pytest.raises(ModelError, match=message):
        Pair.of(target, path)
