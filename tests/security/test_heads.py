"""Attacks by the files of drafting heads, in SpecScope's own form and published."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from specscope.engine.errors import UsageError
from specscope.engine.heads.files import check_head, read_head
from specscope.engine.heads.kinds import KINDS
from tests.engine.heads.random_heads import make_heads
from tests.engine.model.tiny import reference, save
from tests.security.odd import BOUNDED, SPECIAL, edit, put, refused, returns_or_refuses, spoiled

torch.set_num_threads(1)
WEIGHTS = "model.safetensors"
HYDRA = "hydra_mlp.0.1.linear.weight hydra_mlp.99.1.linear.weight hydra_lm_head.0.weight"
MEDUSA = "0.0.linear.weight 9999999999.0.linear.weight 0.9999999999.linear.weight ٣.0.linear.weight"
OTHERS = (
    "medusa_head.0.0.linear.weight medusa_head.x fc.weight fusion_fc.weight midlayer.x d2t t2d lm_head.weight"
)
ODD = ("1" * 5000 + ".0.linear.weight", "layers.1.x", "x\ny", "\x1b[2J", "prefix_embeding_layer\n", "")
NAMES = (*HYDRA.split(), *MEDUSA.split(), *OTHERS.split(), *ODD)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a tiny target, and the folder of a head of each kind for it."""
    folder = tmp_path_factory.mktemp("made")
    save(reference("llama"), folder / "target")
    return folder / "target", make_heads(folder / "heads", folder / "target")


@pytest.fixture
def head(made, tmp_path):
    """Return a function that copies the head of a kind, to be spoiled."""
    return lambda kind: shutil.copytree(made[1] / kind, tmp_path / kind)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("medusa", {"heads": 10**9}, "heads is 1000000000; it must be a whole number, at least 1 and at most 64"),
        ("hydra", {"layers": -1}, "layers is -1; it must be a whole number, at least 1 and at most 64"),
        ("medusa", {"hidden_size": 10**12}, "hidden_size is 1000000000000; it must be a whole number"),
        ("medusa", {"vocab_size": "97"}, "vocab_size is '97'; it must be a whole number"),
        ("parallelspec_eagle", {"masks": 10**9}, "masks is 1000000000; it must be a whole number"),
        ("eagle3", {"draft_vocab": 10**12}, "draft_vocab is 1000000000000; it must be a whole number"),
        ("eagle3", {"features": [0] * 100_000}, "it must hold at most 64 whole numbers, at least 0"),
        ("eagle3", {"features": [10**9]}, "it must hold at most 64 whole numbers, at least 0 and at most 1024"),
        ("eagle", {"kind": "x\ny" * 1000}, "it must be one of eagle, eagle3, hydra"),
        ("eagle", {"kind": ["eagle"]}, "kind is ['eagle']; it must be one of"),
        ("eagle", {"embedding_scale": float("nan")}, "embedding_scale is nan; it must be a number above 0"),
        ("eagle", {"shape": "x" * 10_000}, "it must hold the fields of a Llama config"),
        ("eagle", {"specscope_head": {"x": "y" * 10_000}}, "this version reads 1"),
        ("eagle", {"features": 5}, "is no head's config"),
    ],
)  # fmt: skip
def test_an_invalid_size_or_type_is_refused_with_its_range(made, head, kind, change, message):
    path = head(kind)
    edit(path / "config.json", **change)
    assert message in refused(lambda: read_head(path, made[0]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("head_dim", -64),
        ("head_dim", 7),
        ("num_attention_heads", 10**9),
        ("num_key_value_heads", 3),
        ("intermediate_size", 10**12),
        ("rms_norm_eps", -1.0),
        ("max_position_embeddings", 10**12),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4, "factor": "x"}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": float("inf")}),
        ("rope_parameters", {"rope_type": "default"}),
        ("num_labels", 10**9),
    ],
)
def test_an_absurd_size_of_the_layer_is_refused_or_ignored(made, head, name, value):
    path = head("eagle")
    shape = json.loads((path / "config.json").read_text())["shape"] | {name: value}
    edit(path / "config.json", shape=shape)
    returns_or_refuses(lambda: read_head(path, made[0]))


@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
@pytest.mark.parametrize("kind", [kind for kind in SPECIAL if kind != "nothing"])
def test_anything_else_in_place_of_a_file_is_refused(made, head, name, kind):
    path = head("medusa")
    put(path / name, kind)
    refused(lambda: read_head(path, made[0]))


def test_more_than_1000_files_are_refused(head):
    path = head("medusa")
    (path / WEIGHTS).unlink()
    for i in range(1001):
        (path / f"{i}.safetensors").touch()
    assert "holds 1001 *.safetensors; there may be at most 1000" in refused(lambda: check_head(path))


def test_tokens_outside_the_vocabulary_are_refused(made, head):
    path = head("eagle3")
    tensors = {name: tensor.clone() for name, tensor in load_file(path / WEIGHTS).items()}
    tensors["d2t"][5] = 2**62
    save_file(tensors, path / WEIGHTS)
    assert "d2t maps draft token 5 to" in refused(lambda: read_head(path, made[0]))


@pytest.mark.parametrize("kind", KINDS)
def test_any_odd_value_in_a_config_is_harmless(made, kind):
    path = made[1] / kind / "config.json"
    content = path.read_text()

    @BOUNDED
    @given(spoiled(json.loads(content)))
    def check(config):
        path.write_text(json.dumps(config))
        returns_or_refuses(lambda: read_head(path.parent, made[0]))

    try:
        check()
    finally:
        path.write_text(content)


@BOUNDED
@given(
    names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True),
    shape=st.sampled_from([(), (0,), (32,), (32, 32), (97, 32), (2, 3, 4)]),
    config=spoiled({"hidden_size": 32, "intermediate_size": 56, "num_attention_heads": 4, "vocab_size": 97}),
)
def test_any_tensor_names_and_shapes_are_a_head_or_refused(made, names, shape, config):
    path = made[1].parent / "published"
    path.mkdir(exist_ok=True)
    save_file({name: torch.zeros(shape) for name in names}, path / WEIGHTS)
    (path / "config.json").write_text(json.dumps(config))
    returns_or_refuses(lambda: read_head(path, made[0]))


def test_correct_heads_load(made):
    for kind in KINDS:
        assert read_head(made[1] / kind, made[0]).config.kind == kind


def test_a_head_for_another_target_is_refused(made, head):
    path = head("medusa")
    edit(path / "config.json", hidden_size=64)
    with pytest.raises(UsageError, match=r"its hidden_size is 64, that of .* is 32"):
        read_head(path, made[0])
