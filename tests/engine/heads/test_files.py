"""Heads in both forms are read as written; an error names a file that is no head."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specscope.engine.checkpoints.catalog import PAIRS
from specscope.engine.checkpoints.config import read_object
from specscope.engine.checkpoints.loader import load
from specscope.engine.errors import ModelError, UsageError
from specscope.engine.heads.config import HeadConfig, layer_shape
from specscope.engine.heads.files import check_head, check_target, read_head, tokenizer_digest, write_head
from specscope.engine.heads.find import load_head
from specscope.engine.heads.kinds import KINDS
from specscope.engine.heads.modules import offsets
from specscope.engine.model.weights import PACKED_FROM, Linear
from tests.engine.heads.forms import CONFIG, HEADS, SHAPE, D, V, drawn, eagle, hydra, medusa_1, store
from tests.engine.heads.random_heads import make_head
from tests.engine.model import tiny


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_head_is_read_again(kind: str, tmp_path: Path) -> None:
    config = HeadConfig(
        kind, D, V, heads=2, masks=3 if kind[0] == "p" else 0, shape=SHAPE, tokenizer="a" * 64
    )
    if kind == "dflash":
        config = replace(config, features=(1, -1), block=4, windows=(0, 7), causal=True, mask_token=5)
    if kind == "eagle3":
        config = replace(config, features=(1, 0, 2), draft_vocab=V - 1, own_embedding=True, qkv_bias=True)
    tensors = drawn(KINDS[config.kind].tensors(config))
    tensors |= {"d2t": torch.ones(V - 1, dtype=torch.int64)} if kind == "eagle3" else {}
    write_head(tmp_path, config, tensors)
    head = read_head(tmp_path)
    assert head.config == config
    assert head.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(head.tensors[name], tensor if name == "d2t" else tensor.bfloat16().float())
    assert not list(tmp_path.glob("*.part"))


Change = Callable[[dict[str, Tensor], dict[str, Any]], object]
BASES = {
    "eagle": (eagle(), CONFIG),
    "speculators": (eagle("fusion_fc", "transformer"), {"transformer_layer_config": CONFIG}),
    "medusa": (medusa_1(), {}),
    "without LM heads": ({name: shape for name, shape in medusa_1().items() if ".linear." in name}, {}),
    "hydra": (hydra((1,)), {}),
}


def without(name: str) -> Change:
    return lambda tensors, _: tensors.pop(name)


def adding(name: str, *size: int, dtype: torch.dtype = torch.float32) -> Change:
    return lambda tensors, _: tensors.update({name: torch.zeros(size, dtype=dtype)})


def setting(**fields: Any) -> Change:
    return lambda _, config: config.update(fields)


FIRST, HEAD_LAYER = "layers.0", "prefix_embeding_layer.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        ("eagle", without("fc.weight"), "is no known drafting head: its tensors are fc.bias"),
        ("eagle", without(f"{FIRST}.mlp.up_proj.weight"), f"missing in .* eagle: {FIRST}.mlp.up_proj.weight$"),
        ("eagle", adding(f"{FIRST}.self_attn.q_proj.bias", D), "missing in .*k_proj.bias, .*v_proj.bias$"),
        ("eagle", adding(f"{FIRST}.self_attn.o_proj.bias", D), "unknown to .* eagle: .*self_attn.o_proj.bias$"),
        ("eagle", adding("layers.1.mlp.up_proj.weight", D), "weight: an EAGLE head has one decoder layer"),
        ("eagle", adding("fc.bias", D, dtype=torch.int8), "type I8, but there is no fc.bias.scale "),
        ("eagle", setting(hidden_act="gelu"), "hidden_act 'gelu' is not supported; supported is silu"),
        ("eagle", setting(layer_types=1), "layer_types is 1; it must be a list$"),
        ("eagle", lambda _, config: config.clear(), "lacks hidden_size, intermediate_size, num_attention_he"),
        ("medusa", without("1.0.linear.bias"), "tensors missing in a head of kind medusa: 1.0.linear.bias$"),
        ("medusa", adding("0.1.weight"), "0.1.weight is a single number; no tensor of a head is one$"),
        ("medusa", adding(f"{10**9}.0.linear.weight", D, D), "heads is 1000000001; .* at most 64$"),
        ("without LM heads", setting(vocab_size="many"), "vocab_size is 'many'; it must be a whole number"),
        ("hydra", without("hydra_mlp.0.1.linear.weight"), "lacks hydra_mlp.0.1.linear.weight"),
        ("hydra", adding(HEAD_LAYER, 2), r"is a Hydra\+\+ head \(prefix_embeding_layer\..*\), which cannot be"),
    ],
)  # fmt: skip
def test_a_broken_published_file_is_refused_by_name(
    base: str, change: Change, message: str, tmp_path
) -> None:
    shapes, config = BASES[base]
    tensors, config = drawn(shapes), dict(config)
    change(tensors, config)
    with pytest.raises(ModelError, match=message) as error:
        read_head(store(tmp_path / "head", tensors, config))
    assert "\n" not in str(error.value)


def test_a_directory_without_a_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is no directory; give the one that holds"):
        read_head(tmp_path / "medusa_lm_head.pt")
    with pytest.raises(ModelError, match=r"holds no \*\.safetensors$"):
        read_head(tmp_path)
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"never read")
    with pytest.raises(ModelError, match=r"medusa_lm_head\.pt: pickled weights can run code .*save_file"):
        read_head(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no")
    with pytest.raises(ModelError, match=r"model\.safetensors is not a complete safetensors file"):
        read_head(tmp_path)
    for text in ("[", "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelError, match=r"config\.json is not valid JSON"):
            read_head(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"specscope_head": 2}, r"specscope_head is 2; this version reads 1$"),
        ({"kind": "medusas"}, r"kind is 'medusas'; it must be one of dflash, eagle, eagle3"),
        ({"hidden_size": 8}, r"hidden_size is 16 in shape, 8 above it; they must be the same"),
        ({"shape": SHAPE | {"rope_parameters": 4}}, r"shape: rope_parameters is 4; it must be an object"),
        ({"shape": SHAPE | {"num_attention_heads": 0}}, r"shape: num_attention_heads is 0; it must be"),
        ({"shape": SHAPE | {"hidden_act": "gelu"}}, r"hidden_act 'gelu' is not supported; supported is silu"),
        ({"masks": "3"}, r"masks is '3'; it must be a whole number, at least 0"),
        ({"embedding_scale": 0}, r"embedding_scale is 0; it must be a number above 0"),
        ({"features": None}, r"is no head's config \("),
        ({"tokenizer": 7}, r"tokenizer is 7; it must be a SHA-256"),
        ({"qkv_bias": "false"}, r"qkv_bias is 'false'; it must be true or false"),
        ({"kind": "medusa", "heads": 10**12}, r"heads is 1000000000000; it must be .* 1 and at most 64"),
        ({"shape": SHAPE | {"rms_norm_eps": float("nan")}}, r"shape: rms_norm_eps is nan; it must be a number"),
        ({"masks": 4}, r"mask\.embedding has shape \[3, 16\]; .*has \[4, 16\]"),
    ],
)  # fmt: skip
def test_a_broken_config_of_specscopes_form_is_refused_by_name(change, message: str, tmp_path: Path) -> None:
    config = HeadConfig("parallelspec_eagle", D, V, masks=3, shape=SHAPE)
    write_head(tmp_path, config, drawn(KINDS[config.kind].tensors(config)))
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | change))
    with pytest.raises(ModelError, match=message) as error:
        read_head(tmp_path)
    assert "\n" not in str(error.value)


def test_a_head_for_another_target_is_refused() -> None:
    target = PAIRS / "bundled" / "target"
    config = HeadConfig("medusa", 320, 4096, heads=1, tokenizer=tokenizer_digest(target))
    check_target(Path("head"), config, target)
    check_target(Path("head"), replace(config, vocab_size=0, tokenizer=None), target)
    for changed, words in (
        ({"hidden_size": 64}, "hidden_size is 64, that of .* is 320;"),
        ({"vocab_size": 100}, "vocab_size is 100, that of .* is 4096;"),
        ({"tokenizer": "f" * 64}, "tokenizer is ffffffffffff, that of .* is [0-9a-f]{12};"),
    ):
        with pytest.raises(UsageError, match=f"^head is a head for another target: its {words}"):
            check_target(Path("head"), replace(config, **changed), target)


def tokenizer(folder: Path, text: str) -> Path:
    (folder / "tokenizer.json").write_text(text)
    return folder


def test_the_digest_of_a_tokenizer_depends_on_its_tokens_only(tmp_path: Path) -> None:
    path = PAIRS / "bundled" / "target"
    content = json.loads((path / "tokenizer.json").read_text())
    otherwise = content | {"truncation": None, "version": "2.0", "added_tokens": []}
    assert tokenizer_digest(tokenizer(tmp_path, json.dumps(otherwise, indent=3))) == tokenizer_digest(path)
    vocabulary = content["model"]["vocab"]
    (one, i), (two, j) = list(vocabulary.items())[500:502]
    vocabulary |= {one: j, two: i}
    assert tokenizer_digest(tokenizer(tmp_path, json.dumps(content))) != tokenizer_digest(path)
    written = ({"a": 0, "b": 1}, [["a", -1.0], ["b", -2.5]])  # a vocabulary may be a list
    texts = [json.dumps({"model": {"vocab": vocabulary}}) for vocabulary in written]
    assert len({tokenizer_digest(tokenizer(tmp_path, text)) for text in texts}) == 1


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    models = ("3", '{"vocab": 7}', '{"vocab": {"a": "x"}}', '{"vocab": [[]]}')
    nameless = '{"model": {"vocab": {}}, "added_tokens": [{"id": 3}]}'
    for text in ("", "[]", "{}", nameless, *(f'{{"model": {model}}}' for model in models)):
        with pytest.raises(ModelError, match=r"tokenizer\.json has no vocabulary: .") as error:
            tokenizer_digest(tokenizer(tmp_path, text))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["eagle", "parallelspec_eagle", "parallelspec_medusa"])
def test_the_shape_of_a_layer_is_the_same_without_transformers(kind, monkeypatch) -> None:
    config = read_object(PAIRS / "bundled" / "heads" / kind / "config.json")
    fields = config["shape"] | {"vocab_size": config["vocab_size"]}
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers", None)  # its import would fail
        plain = layer_shape(fields)
    monkeypatch.setattr("specscope.engine.heads.config.is_complete", lambda _: False)
    assert layer_shape(fields) == plain


# Published heads are read: the config, and each tensor by its name in SpecScope.


Shapes = dict[str, tuple[int, ...]]
EMBEDDING: Shapes = {"embed_tokens.weight": (V, D)}
WHOLE_MODEL: Shapes = {
    "model.embed_tokens.weight": (V, D),
    "lm_head.weight": (V, D),
    "model.norm.weight": (D,),
}
MEDUSA = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "owner/target"}
SPECULATORS = {
    "speculators_model_type": "eagle",
    "transformer_layer_config": CONFIG,
    "speculators_config": {"algorithm": "eagle", "verifier": {"name_or_path": "owner/target"}},
}
QKV_BIASES: Shapes = {f"layers.0.self_attn.{x}_proj.bias": (D if x == "q" else D // 2,) for x in "qkv"}
CASES: dict[str, tuple[Shapes, Shapes, dict[str, Any], dict[str, Any]]] = {
    # form: tensors, those that are not read, config.json, fields of the config
    "Medusa-1": (medusa_1(), {}, MEDUSA, {"heads": 3, "layers": 1, "vocab_size": V, "target": "owner/target"}),
    "Medusa-2": (
        {f"medusa_head.{name}": shape for name, shape in medusa_1().items()},
        WHOLE_MODEL,
        MEDUSA,
        {"kind": "medusa", "heads": 3, "layers": 1, "vocab_size": V, "own_lm_head": True},
    ),
    "Medusa of two layers": (medusa_1(2, 2), {}, {}, {"kind": "medusa", "heads": 2, "layers": 2}),
    "Medusa without LM heads": (BASES["without LM heads"][0], {}, {"vocab_size": V}, {"own_lm_head": False, "heads": 3, "vocab_size": V}),
    **{
        f"Hydra {numbers}": (
            hydra(numbers),
            {"input_embed_fn.weight": (V, D)},
            {"hydra_num_heads": 3},
            {"kind": "hydra", "heads": 3, "layers": len(numbers), "own_lm_head": True, "biased": True},
        )
        for numbers in ((1,), (0,), (1, 3))
    },
    "EAGLE": (eagle(bias=False), EMBEDDING, CONFIG, {"kind": "eagle", "biased": False, "target": ""}),
    "EAGLE with biases": (eagle() | QKV_BIASES, {}, CONFIG, {"biased": True, "qkv_bias": True}),
    "speculators": (
        eagle("fusion_fc", "transformer", bias=False),
        EMBEDDING | {"lm_head.weight": (V, D)},
        SPECULATORS,
        {"kind": "eagle", "biased": False, "qkv_bias": False, "target": "owner/target"},
    ),
}  # fmt: skip
RENAMED = {
    r"^medusa_head\.": "",
    r"^(hydra_mlp\.\d+)\.0\.": r"\1.1.",
    "^fusion_fc": "fc",
    "^transformer": "layers.0",
}
"""Published names of tensors, as in SpecScope."""


@pytest.mark.parametrize("form", CASES)
def test_a_published_form_is_read(form: str, tmp_path: Path) -> None:
    shapes, unread, config, expected = CASES[form]
    tensors = drawn(shapes)
    head = read_head(store(tmp_path / "head", tensors | drawn(unread), config, "medusa_lm_head"))
    assert {name: getattr(head.config, name) for name in expected} == expected
    for pattern, ours in RENAMED.items():
        tensors = {re.sub(pattern, ours, name): tensor for name, tensor in tensors.items()}
    assert head.tensors.keys() == tensors.keys()
    assert all(torch.equal(head.tensors[name], tensor) for name, tensor in tensors.items())
    if head.config.kind == "eagle":
        assert KINDS["eagle"].levels(head.config) == 0
        assert head.config.shape["rope_parameters"]["rope_theta"] == 5000
        assert head.config.shape["head_dim"] == D // HEADS


# Heads of a shortened vocabulary.


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "eagle3"])
def test_a_head_multiplies_with_its_share_of_the_lm_head(kind, target, tmp_path):
    folders = [make_head(tmp_path / str(n), kind, target, draft_vocab=n) for n in (0, 40)]
    for levels, forward in ((1, 0), (2, 1)):
        whole, short = (KINDS[kind].work(check_head(path), levels, forward) for path in folders)
        assert short == whole._replace(heads=40 / tiny.VOCAB)
        assert whole.heads == 1
    assert load_head(str(folders[0]), load(target)).columns.token(90) == 90


@pytest.mark.parametrize("size", [8, 600])
def test_the_rows_of_a_matrix_are_those_of_its_weight(size):
    weight = torch.randn(size, 512)
    matrix, ids = Linear(weight, keep=True), torch.tensor([7, 2, size - 1])
    assert (not Linear(weight).transposed.numel()) == (weight.nbytes >= PACKED_FROM), (
        "the larger one is packed"
    )
    assert torch.equal(matrix.rows(ids), weight[ids])


def shortened(folder: Path, ids: list[int] | None, **changes: object) -> Path:
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
        check_head(shortened(tmp_path / "head", ids, **changes))
    assert "\n" not in str(error.value)
