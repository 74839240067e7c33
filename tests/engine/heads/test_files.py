"""Published heads, made here with their names and shapes, against a reference that knows only their own names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu

from engine.errors import ModelError, UsageError
from engine.heads.files import check_target, read_head, tokenizer_digest, write_head
from engine.heads.form import KINDS, LAYER, HeadConfig
from engine.pairs.pair import PAIRS
from engine.training.heads.layered import Eagle
from engine.training.heads.layout import Packed
from engine.training.heads.side import Hydra, Medusa

D, V, INNER, HEADS, KV = 16, 40, 24, 4, 2
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": D,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "max_position_embeddings": 64,
    "vocab_size": V,
    "hidden_act": "silu",
}
SHAPE = {name: CONFIG.get(name, 4) for name in LAYER} | {
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}
}
LAYER_TENSORS = {
    "self_attn.q_proj.weight": (D, D),
    "self_attn.k_proj.weight": (D // 2, D),
    "self_attn.v_proj.weight": (D // 2, D),
    "self_attn.o_proj.weight": (D, D),
    "mlp.gate_proj.weight": (INNER, D),
    "mlp.up_proj.weight": (INNER, D),
    "mlp.down_proj.weight": (D, INNER),
    "post_attention_layernorm.weight": (D,),
}


def drawn(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) * 0.4 for name, shape in shapes.items()}


def medusa_1(heads: int = 3, layers: int = 1) -> dict[str, tuple[int, ...]]:
    shapes = dict[str, tuple[int, ...]]()
    for i in range(heads):
        for j in range(layers):
            shapes |= {f"{i}.{j}.linear.weight": (D, D), f"{i}.{j}.linear.bias": (D,)}
        shapes[f"{i}.{layers}.weight"] = (V, D)
    return shapes


def hydra(numbers: tuple[int, ...], heads: int = 3) -> dict[str, tuple[int, ...]]:
    shapes = dict[str, tuple[int, ...]]()
    for i in range(heads):
        for part in ("linear", "res_connection"):
            at = f"hydra_mlp.{i}.{numbers[0]}.{part}"
            shapes |= {f"{at}.weight": (D, D * (i + 2)), f"{at}.bias": (D,)}
        for m in numbers[1:]:
            shapes |= {f"hydra_mlp.{i}.{m}.linear.weight": (D, D), f"hydra_mlp.{i}.{m}.linear.bias": (D,)}
        shapes |= {f"hydra_lm_head.{i}.1.weight": (V, D), f"hydra_lm_head.{i}.1.bias": (V,)}
    return shapes


def eagle(fc: str = "fc", layer: str = "layers.0", *, bias: bool = True) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{fc}.weight": (D, 2 * D)} | ({f"{fc}.bias": (D,)} if bias else {})
    return shapes | {f"{layer}.{name}": shape for name, shape in LAYER_TENSORS.items()}


def store(
    folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], name: str = "model"
) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(dict(tensors), folder / f"{name}.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def reference_medusa(t: Mapping[str, Tensor], f: Tensor, prefix: str = "") -> list[Tensor]:
    logits, i = list[Tensor](), 0
    while f"{prefix}{i}.0.linear.weight" in t:
        x, j = f, 0
        while f"{prefix}{i}.{j}.linear.weight" in t:
            x = x + silu(t[f"{prefix}{i}.{j}.linear.weight"] @ x + t[f"{prefix}{i}.{j}.linear.bias"])
            j += 1
        logits.append(t[f"{prefix}{i}.{j}.weight"] @ x)
        i += 1
    return logits


def reference_hydra(t: Mapping[str, Tensor], numbers: tuple[int, ...], i: int, z: Tensor) -> Tensor:
    first = f"hydra_mlp.{i}.{numbers[0]}"
    x = t[f"{first}.res_connection.weight"] @ z + t[f"{first}.res_connection.bias"]
    x = x + silu(t[f"{first}.linear.weight"] @ z + t[f"{first}.linear.bias"])
    for m in numbers[1:]:
        x = x + silu(t[f"hydra_mlp.{i}.{m}.linear.weight"] @ x + t[f"hydra_mlp.{i}.{m}.linear.bias"])
    return t[f"hydra_lm_head.{i}.1.weight"] @ x + t[f"hydra_lm_head.{i}.1.bias"]


def reference_eagle(t: Mapping[str, Tensor], fc: str, layer: str, e: Tensor, f: Tensor) -> Tensor:
    """Rows one by one, in complex numbers; e and f (n, D)."""
    x = torch.cat((e, f), 1) @ t[f"{fc}.weight"].T + t.get(f"{fc}.bias", torch.zeros(D))
    size, n = D // HEADS, len(x)
    turns = torch.outer(torch.arange(n).float(), 5000.0 ** (-torch.arange(size // 2) * 2 / size))

    def rotated(name: str, heads: int) -> Tensor:
        a, b = (x @ t[f"{layer}.self_attn.{name}_proj.weight"].T).view(n, heads, 2, size // 2).unbind(2)
        return torch.complex(a, b) * torch.polar(torch.ones_like(turns), turns)[:, None]

    q, k = rotated("q", HEADS), rotated("k", KV)
    v = (x @ t[f"{layer}.self_attn.v_proj.weight"].T).view(n, KV, size)
    out = torch.zeros(n, HEADS, size)
    for h in range(HEADS):
        for i in range(n):
            scores = (q[i, h] * k[: i + 1, h // 2].conj()).real.sum(-1) / size**0.5
            out[i, h] = scores.softmax(0) @ v[: i + 1, h // 2]
    x = x + out.flatten(1) @ t[f"{layer}.self_attn.o_proj.weight"].T
    y = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * t[f"{layer}.post_attention_layernorm.weight"]
    gate, up, down = (t[f"{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return x + (silu(y @ gate.T) * (y @ up.T)) @ down.T


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
def test_medusa(prefix: str, tmp_path: Path) -> None:
    tensors = {prefix + name: t for name, t in drawn(medusa_1()).items()}
    if prefix:  # Medusa-2 comes with its model
        tensors |= drawn(
            {"model.embed_tokens.weight": (V, D), "lm_head.weight": (V, D), "model.norm.weight": (D,)}
        )
    config = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "owner/target"}
    head = read_head(store(tmp_path / "m", tensors, config, "medusa_lm_head"))
    assert (head.config.kind, head.config.heads, head.config.layers, head.config.vocab_size) == (
        "medusa",
        3,
        1,
        V,
    )
    assert head.config.target == "owner/target"
    f, ours = torch.randn(D), Medusa(D, 3)
    ours.load_state_dict({k: t for k, t in head.tensors.items() if "linear" in k})
    for i, logits in enumerate(reference_medusa(tensors, f, prefix)):
        torch.testing.assert_close(head.tensors[f"{i}.1.weight"] @ ours[i](f), logits)


def test_medusa_of_two_layers_and_without_lm_heads(tmp_path: Path) -> None:
    assert read_head(store(tmp_path / "a", drawn(medusa_1(2, 2)), {})).config.layers == 2
    shapes = {name: shape for name, shape in medusa_1().items() if "linear" in name}
    found = read_head(store(tmp_path / "b", drawn(shapes), {"vocab_size": V})).config
    assert (found.own_lm_head, found.heads, found.vocab_size) == (False, 3, V)


@pytest.mark.parametrize("numbers", [(1,), (0,), (1, 3)])
def test_hydra(numbers: tuple[int, ...], tmp_path: Path) -> None:
    tensors = drawn(hydra(numbers)) | {"input_embed_fn.weight": torch.zeros(V, D)}
    head = read_head(store(tmp_path / "h", tensors, {"hydra_num_heads": 3}))
    assert (head.config.kind, head.config.heads, head.config.layers) == ("hydra", 3, len(numbers))
    ours, names = (
        Hydra(D, 3),
        {k: t for k, t in head.tensors.items() if "_mlp" in k and k.split(".")[2] == "1"},
    )
    ours.load_state_dict(names)
    for i in range(3):
        z = torch.randn((i + 2) * D)
        state = ours._head(i, *z.split(D))
        if len(numbers) > 1:
            block = (head.tensors[f"hydra_mlp.{i}.3.linear.{part}"] for part in ("weight", "bias"))
            weight, bias = block
            state = state + silu(weight @ state + bias)
        logits = (
            head.tensors[f"hydra_lm_head.{i}.1.weight"] @ state + head.tensors[f"hydra_lm_head.{i}.1.bias"]
        )
        torch.testing.assert_close(logits, reference_hydra(tensors, numbers, i, z), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("published", ["eagle", "speculators"])
def test_eagle(published: str, tmp_path: Path) -> None:
    fc, layer = ("fc", "layers.0") if published == "eagle" else ("fusion_fc", "transformer")
    tensors = drawn(eagle(fc, layer, bias=False)) | drawn({"embed_tokens.weight": (V, D)})
    config: dict[str, Any] = CONFIG
    if published == "speculators":
        verifier = {"name_or_path": "owner/target"}
        config = {
            "speculators_model_type": "eagle",
            "transformer_layer_config": CONFIG,
            "speculators_config": {"algorithm": "eagle", "verifier": verifier},
        }
        tensors |= drawn({"lm_head.weight": (V, D)})
    head = read_head(store(tmp_path / "e", tensors, config))
    assert (head.config.kind, head.config.biased, head.config.levels) == ("eagle", False, 0)
    assert head.config.target == ("owner/target" if published == "speculators" else "")
    assert head.config.shape["rope_parameters"]["rope_theta"] == 5000
    assert head.config.shape["head_dim"] == D // HEADS
    ours = Eagle(head.config.layer())
    ours.load_state_dict(head.tensors)
    n, e, f = 7, torch.randn(7, D), torch.randn(7, D)
    zero, seen = torch.zeros(n, dtype=torch.int64), torch.ones(n, n, dtype=torch.bool).tril()
    states = ours(e, f, Packed(zero, zero, torch.arange(n), (seen,)))
    torch.testing.assert_close(states, reference_eagle(tensors, fc, layer, e, f), atol=1e-4, rtol=1e-4)


def test_biases_are_read(tmp_path: Path) -> None:
    biases = {f"layers.0.self_attn.{part}_proj.bias": (D if part == "q" else D // 2,) for part in "qkv"}
    for named in ({}, biases):
        head = read_head(store(tmp_path / str(len(named)), drawn(eagle() | named), CONFIG))
        assert (head.config.biased, head.config.qkv_bias) == (True, bool(named))
        assert head.tensors["fc.bias"].shape == (D,)
        assert all(head.tensors[name].shape == shape for name, shape in named.items())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read_again(kind: str, tmp_path: Path) -> None:
    config = HeadConfig(
        kind, D, V, heads=2, masks=3 if kind[0] == "p" else 0, shape=SHAPE, tokenizer="a" * 64
    )
    if kind == "eagle3":
        config = replace(config, features=(1, 0, 2), draft_vocab=V - 1, own_embedding=True, qkv_bias=True)
    tensors = drawn(config.tensors())
    tensors |= {"d2t": torch.ones(V - 1, dtype=torch.int64)} if kind == "eagle3" else {}
    write_head(tmp_path, config, tensors)
    head = read_head(tmp_path)
    assert head.config == config
    assert head.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(head.tensors[name], tensor if name == "d2t" else tensor.bfloat16().float())
    assert not list(tmp_path.glob("*.part"))


Change = Callable[[dict[str, Tensor]], object]


@pytest.mark.parametrize(
    ("shapes", "config", "change", "message"),
    [
        (
            eagle(),
            CONFIG,
            lambda t: t.pop("fc.weight"),
            "is no drafting head that is known: its tensors are fc.bias",
        ),
        (
            eagle(),
            CONFIG,
            lambda t: t.pop("layers.0.mlp.up_proj.weight"),
            "tensors missing in a head of kind eagle: layers.0.mlp.up_proj.weight$",
        ),
        (
            eagle(),
            CONFIG,
            lambda t: t.update({"layers.0.self_attn.q_proj.bias": torch.zeros(D)}),
            "tensors missing in a head of kind eagle: layers.0.self_attn.k_proj.bias, layers.0.*v_proj.bias$",
        ),
        (
            eagle(),
            CONFIG,
            lambda t: t.update({"layers.0.self_attn.o_proj.bias": torch.zeros(D)}),
            "tensors unknown to a head of kind eagle: layers.0.self_attn.o_proj.bias$",
        ),
        (
            eagle(),
            CONFIG,
            lambda t: t.update({"layers.1.mlp.up_proj.weight": torch.zeros(D)}),
            "has layers.1.mlp.up_proj.weight: an EAGLE head has one decoder layer",
        ),
        (
            eagle(),
            CONFIG,
            lambda t: t.update({"fc.weight": torch.zeros(D, D)}),
            r"fc.weight has shape \[16, 16\]; in a head of kind eagle and these sizes it has \[16, 32\]",
        ),
        (
            eagle(),
            {},
            lambda _: None,
            "lacks hidden_size, intermediate_size, num_attention_heads, vocab_size",
        ),
        (
            medusa_1(),
            {},
            lambda t: t.pop("1.0.linear.bias"),
            "tensors missing in a head of kind medusa: 1.0.linear.bias$",
        ),
        (
            medusa_1(),
            {},
            lambda t: t.update({"9.weight": torch.zeros(2), "rotary": torch.zeros(2)}),
            "tensors unknown to a head of kind medusa: 9.weight, rotary$",
        ),
        (
            hydra((1,)),
            {},
            lambda t: t.pop("hydra_mlp.0.1.linear.weight"),
            "lacks hydra_mlp.0.1.linear.weight",
        ),
        (
            hydra((1,)),
            {},
            lambda t: t.update({"prefix_embeding_layer.layers.0.mlp.up_proj.weight": torch.zeros(2)}),
            r"is a Hydra\+\+ head \(prefix_embeding_layer\.layers\.0.*\), which cannot be run yet",
        ),
        (
            eagle(),
            CONFIG | {"hidden_act": "gelu"},
            lambda _: None,
            "hidden_act 'gelu' is not supported; supported is silu",
        ),
        (
            eagle(),
            CONFIG,
            lambda t: t.update({"fc.bias": torch.zeros(D, dtype=torch.int8)}),
            "fc.bias is of type I8; supported are F64, F32, F16, BF16",
        ),
        (
            eagle("fusion_fc", "transformer"),
            {"transformer_layer_config": CONFIG},
            lambda t: t.update({"embedding_layernorm.weight": torch.ones(D)}),
            "tensors unknown to a head of kind eagle: embedding_layernorm.weight$",
        ),
        (
            medusa_1(),
            {},
            lambda t: t.update({"0.1.weight": torch.tensor(1.0)}),
            "0.1.weight is a single number; no tensor of a head is one$",
        ),
        (
            medusa_1(),
            {},
            lambda t: t.update({f"{10**9}.0.linear.weight": torch.zeros(D, D)}),
            "heads is 1000000001; it must be a whole number, at least 1 and at most 64$",
        ),
        (
            {name: shape for name, shape in medusa_1().items() if ".linear." in name},
            {"vocab_size": "many"},
            lambda _: None,
            "vocab_size is 'many'; it must be a whole number of at least 0$",
        ),
        (
            eagle(),
            {"transformer_layer_config": None},
            lambda _: None,
            "transformer_layer_config is None; it must be an object$",
        ),
        (eagle(), CONFIG | {"layer_types": 1}, lambda _: None, "layer_types is 1; it must be a list$"),
    ],
)
def test_what_is_wrong_is_named(
    shapes: dict[str, tuple[int, ...]], config: dict[str, Any], change: Change, message: str, tmp_path: Path
) -> None:
    tensors = drawn(shapes)
    change(tensors)
    with pytest.raises(ModelError, match=message) as error:
        read_head(store(tmp_path / "head", tensors, config))
    assert "\n" not in str(error.value)


def test_files_that_are_no_heads(tmp_path: Path) -> None:
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
        ({"kind": "medusas"}, r"kind is 'medusas'; it must be one of medusa, hydra"),
        ({"shape": {}}, r"config\.json: shape lacks hidden_size, intermediate_size"),
        ({"shape": 4}, r"shape is 4; it must hold the fields of a Llama config"),
        ({"hidden_size": 8}, r"hidden_size is 16 in shape, 8 above it; they must be the same"),
        ({"shape": SHAPE | {"rope_parameters": 4}}, r"shape: rope_parameters is 4; it must be an object"),
        ({"shape": SHAPE | {"num_attention_heads": 0}}, r"shape: num_attention_heads is 0; it must be"),
        ({"shape": SHAPE | {"hidden_act": "gelu"}}, r"hidden_act 'gelu' is not supported; supported is silu"),
        ({"draft_vocab": -1}, r"draft_vocab is -1; it must be a whole number, at least 0"),
        (
            {"kind": "eagle3", "features": [1, -1]},
            r"features is \[1, -1\]; it must hold at most 64 whole numbers",
        ),
        ({"masks": -1}, r"masks is -1; it must be a whole number, at least 0"),
        ({"masks": "3"}, r"masks is '3'; it must be a whole number, at least 0"),
        ({"embedding_scale": 0}, r"embedding_scale is 0; it must be a number above 0"),
        ({"features": None}, r"is no head's config \("),
        ({"tokenizer": 7}, r"tokenizer is 7; it must be the SHA-256"),
        ({"target": 7}, r"target is 7; it must be the target's name"),
        ({"qkv_bias": "false"}, r"qkv_bias is 'false'; it must be true or false"),
        (
            {"kind": "medusa", "heads": 10**12},
            r"heads is 1000000000000; it must be a whole number, at least 1 and at most 64",
        ),
        (
            {"shape": SHAPE | {"rms_norm_eps": float("nan")}},
            r"shape: rms_norm_eps is nan; it must be a number, at least 0",
        ),
        (
            {"shape": SHAPE | {"max_position_embeddings": 0}},
            r"shape: max_position_embeddings is 0; it must be a whole number",
        ),
        ({"masks": 4}, r"mask\.embedding has shape \[3, 16\]; .*has \[4, 16\]"),
    ],
)
def test_a_broken_config_of_our_own(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = HeadConfig("parallelspec_eagle", D, V, masks=3, shape=SHAPE)
    write_head(tmp_path, config, drawn(config.tensors()))
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | change))
    with pytest.raises(ModelError, match=message) as error:
        read_head(tmp_path)
    assert "\n" not in str(error.value)


def test_heads_of_another_target_are_refused() -> None:
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
