"""Random published EAGLE-3 heads equal a reference written from their tensor names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import specscope
from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import ModelError, UsageError
from specscope.engine.heads.files import check_head, read_head
from specscope.engine.heads.find import HeadFile, load_head
from specscope.engine.heads.work import Work
from specscope.engine.types import Limits, Prefix
from specscope.engine.worker.jobs import Prefill
from tests.engine.heads import forms
from tests.engine.heads.drafted_tree import FRONTIERS, level_rows, new_host, path_to
from tests.engine.heads.forms import HEADS, KV, normed, reference_layer, store
from tests.engine.methods.pairs import save_with_tokenizer
from tests.engine.model import tiny

D, V, LAYERS, KNOWN, SIZE, INNER = 32, tiny.VOCAB, 7, 40, 8, 48
LAYER = forms.CONFIG | {"model_type": "llama", "hidden_size": D, "intermediate_size": INNER, "vocab_size": V}
AUX = "eagle_aux_hidden_state_layer_ids"
CONFIG = LAYER | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": KNOWN}
SPECULATORS: dict[str, Any] = {
    "speculators_model_type": "eagle3",
    "transformer_layer_config": LAYER,
    "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "owner/target"}},
    "draft_vocab_size": KNOWN,
    "norm_before_fc": False,
}
TEXT = (5, 9, 23, 4, 17, 60, 33, 2, 71, 12, 8)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    path = tmp_path_factory.mktemp("eagle3") / "target"
    model = tiny.reference("llama3-rope", seed=2, num_hidden_layers=LAYERS)
    save_with_tokenizer(model, path)
    return path, model


def shapes(layer: str, states: int = 3, known: int = KNOWN, *, biased: bool = False):
    """Return tensor name -> shape."""
    rows = {"q": HEADS * SIZE, "k": KV * SIZE, "v": KV * SIZE}
    tensors: dict[str, tuple[int, ...]] = {
        **{f"self_attn.{part}_proj.weight": (n, 2 * D) for part, n in rows.items()},
        "self_attn.o_proj.weight": (D, HEADS * SIZE),
        **{f"mlp.{part}_proj.weight": (INNER, D) for part in ("gate", "up")},
        "mlp.down_proj.weight": (D, INNER),
        **{f"{name}.weight": (D,) for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")},
    }
    if biased:
        tensors |= {f"self_attn.{part}_proj.bias": (n,) for part, n in rows.items()}
    ends = {"fc.weight": (D, states * D), "norm.weight": (D,), "lm_head.weight": (known, D)}
    return {f"{layer}.{name}": shape for name, shape in tensors.items()} | ends


def drawn(named: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in named.items()}
    return {name: t + ("norm" in name) for name, t in tensors.items()}


def with_ids(tensors: dict[str, Tensor], seed: int = 3) -> dict[str, Tensor]:
    """Add d2t and t2d, the maps between both vocabularies."""
    n = len(tensors["lm_head.weight"])
    known = torch.randperm(V, generator=torch.Generator().manual_seed(seed))[:n].sort().values
    marks = torch.zeros(V, dtype=torch.bool)
    marks[known] = True
    return tensors | {"d2t": known - torch.arange(n), "t2d": marks}


def reference(
    t: dict[str, Tensor], at: str, embedding: Tensor, g: Tensor, path: list[int], *, residual_normed: bool
) -> Tensor:
    """Return the logits of all V tokens after the text and a path.

    Written from the paper's section 3.1 and the tensor names. `g`: the target's concatenated
    states, (n, 3 D).
    """

    def output(tokens: list[int], f: Tensor) -> Tensor:
        e = normed(embedding[tokens], t[f"{at}.input_layernorm.weight"])
        h = normed(f, t[f"{at}.hidden_norm.weight"])
        residual = h if residual_normed else f
        return reference_layer(t, at, torch.cat([e, h], 1), residual, HEADS, KV)

    tokens, f = list(TEXT[1:]), g[: len(TEXT) - 1] @ t["fc.weight"].T
    for token in path:
        f = torch.cat([f, output(tokens, f)[-1:]])
        tokens.append(token)
    drafted = t["lm_head.weight"] @ normed(output(tokens, f)[-1], t["norm.weight"])
    if "d2t" not in t:
        return drafted
    logits = torch.full((V,), -torch.inf)
    for i, value in enumerate(drafted):
        logits[i + int(t["d2t"][i])] = value
    return logits


def drafted(target: Path, head: Path) -> list[Tensor]:
    prefix = Prefix(0, np.array(TEXT))
    host = new_host(target, head, [prefix])
    host.handle(Prefill("head", (Prefix(0, np.array(TEXT[:6])),)))
    return level_rows(host, prefix, 3)


CASES = {
    "EAGLE-3": ("midlayer", CONFIG, {}),
    "EAGLE-3 of all tokens": ("midlayer", CONFIG, {"known": V}),
    "EAGLE-3 with biases": ("midlayer", CONFIG | {"attention_bias": True}, {"biased": True}),
    "SpecForge": ("midlayer", CONFIG | {"eagle_config": {AUX: [0, 3, 5], "norm_before_fc": False}}, {}),
    "residual after the norm": ("midlayer", CONFIG | {"norm_before_residual": True}, {}),
    "speculators": ("layers.0", SPECULATORS | {"norm_before_residual": False}, {}),
    "speculators, residual after the norm": ("layers.0", SPECULATORS | {"norm_before_residual": True}, {}),
    "speculators, two states": ("layers.0", SPECULATORS | {AUX: [7, 0]}, {"states": 2}),
}
STATES = {"SpecForge": (1, 4, 6), "speculators, two states": (7, 0)}


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_exact_and_recurrent_rows_have_the_logits_of_the_reference(case, target, tmp_path):
    (path, model), (at, config, options) = target, CASES[case]
    tensors = drawn(shapes(at, **options))
    if options.get("known") != V:
        tensors = with_ids(tensors)
    embedding = model.get_input_embeddings().weight.detach()
    if config.keys() & SPECULATORS.keys():
        embedding = tensors["embed_tokens.weight"] = drawn({"embedding": (V, D)}, seed=8)["embedding"]
    head = store(tmp_path / "head", tensors, config)
    outputs = dict[int, Tensor]()  # output of each layer, without the last norm
    hooks = [
        layer.register_forward_hook(lambda _, __, out, i=i: outputs.update({i: out}))
        for i, layer in enumerate(model.model.layers, 1)
    ]
    outputs[0] = model.get_input_embeddings()(torch.tensor(TEXT))
    model(torch.tensor([TEXT]))
    for hook in hooks:
        hook.remove()
    # Default: the inputs of layers 2, L // 2 and L - 3, counted from 0.
    states = STATES.get(case, (2, LAYERS // 2, LAYERS - 3))
    g = torch.cat([outputs[i].view(len(TEXT), D) for i in states], 1)
    normed = bool(config.get("norm_before_residual"))
    for nodes, rows in zip(FRONTIERS, drafted(path, head), strict=True):
        assert rows.shape == (len(nodes), V)
        for row, node in zip(rows, nodes, strict=True):
            expected = reference(tensors, at, embedding, g, path_to(node), residual_normed=normed)
            # A logit near 0 sums large terms: its error is relative to the row's largest.
            largest = float(expected[expected > -torch.inf].abs().max())
            torch.testing.assert_close(row, expected, atol=1e-4 * largest, rtol=0)
            assert float(row[row > -torch.inf].std()) > 0.3, "the logits differ"


def test_a_published_config_is_read(target, tmp_path):
    native = store(tmp_path / "a", with_ids(drawn(shapes("midlayer"))), CONFIG)
    layer = load_head(str(native), load(target[0])).layer
    # Q, K and V read 2 D instead of D; fc is 3 D x D; the LM head has 40 of 97 tokens
    assert layer.guessed == Work(1, (32 + 16 + 16) / 32, 40 / 97)
    assert layer.exact == Work(1, 2 + 3, 40 / 97)
    assert read_head(native).config.features == (), "the default depends on the target"
    config = check_head(native, target[0])
    file = HeadFile(native, config, native)
    assert (config.kind, file.serves, file.levels, config.features) == ("eagle3", "eagle", 0, (2, 3, 4))
    assert (config.draft_vocab, config.own_embedding, config.norm_before_residual) == (KNOWN, False, False)
    assert read_head(native).tensors["d2t"].dtype == torch.int64
    assert read_head(native, dtype=torch.bfloat16).tensors["d2t"].dtype == torch.int64
    tensors = with_ids(drawn(shapes("layers.0") | {"embed_tokens.weight": (V, D)}))
    spec = read_head(store(tmp_path / "b", tensors, SPECULATORS | {AUX: [1, 2, 3]})).config
    assert (spec.own_embedding, spec.features, spec.target) == (True, (1, 2, 3), "owner/target")


Change = Callable[[dict[str, Tensor]], object]


def adding(name: str, *size: int) -> Change:
    return lambda t: t.update({name: torch.ones(size)})


def with_id(draft: int, offset: int) -> Change:
    return lambda t: t["d2t"][draft].fill_(offset)


def without(name: str) -> Change:
    return lambda t: t.pop(name)


def unchanged(_: dict[str, Tensor]) -> None: ...


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        (with_id(-1, V), {}, "d2t maps draft token 39 to 136; valid are 0 to 96$"),
        (lambda t: t.update(t2d=t["t2d"].roll(1)), {}, "t2d and d2t mark different tokens; the file is broken$"),
        (lambda t: t.update(t2d=t["t2d"].long()), {}, "t2d is of type I64; supported are BOOL$"),
        (without("midlayer.hidden_norm.weight"), {}, "missing in a head of kind eagle3: layers.0.hid"),
        (adding("fc_norm.0.weight", D), {}, r"norms before fc \(fc_norm.0.weight\)"),
        (adding("mask_hidden", 1, 1, 96), {}, r"is a P-EAGLE head \(mask_hidden\)"),
        (unchanged, {"architectures": ["DFlashDraftModel"]}, r"is a drafter of the kind DFlash \(DFlashDraft",),
        (unchanged, {"speculators_model_type": "dflash"}, r"of the kind dflash \(dflash\), which cannot be run"),
        (unchanged, {"model_type": "qwen3_5_mtp"}, r"a drafter of the kind mtp \(qwen3_5_mtp\), which cannot"),
        (adding("layers.1.x", 1), {}, "layers.1.x: an EAGLE head has one decoder l"),
        (unchanged, {"norm_output": True}, "norm_output is true, which cannot be run yet"),
        (unchanged, {"eagle_config": {"norm_before_fc": True}}, "norm_before_fc is true, which cannot"),
        (unchanged, {"target_hidden_size": 64}, "target_hidden_size is 64; it must be .* 32$"),
        (unchanged, {"layer_types": ["sliding_attention"]}, "layer_types holds sliding_attention"),
        (unchanged, {AUX: [1, 8, 2]}, "the state after layer 8; the target has 7 layers$"),
        (unchanged, {AUX: [-1, 1, 2]}, rf"{AUX} is \[-1, 1, 2\]; it must be a list of layers$"),
        (unchanged, {AUX: [1, 2]}, r"fc.weight has shape \[32, 96\]; .* it has \[32, 64\]$"),
        (unchanged, {"vocab_size": 90}, "its vocab_size is 90, that of .* is 97"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_by_name_before_anything_is_loaded(change, config, message, target, tmp_path):
    tensors = with_ids(drawn(shapes("midlayer")))
    change(tensors)
    head = store(tmp_path / "head", tensors, CONFIG | config)
    with specscope.open(Pair.of(target[0]), runtime="local-thread", device="cpu", head=head) as cluster:
        with pytest.raises((ModelError, UsageError), match=message) as error:
            cluster.run("eagle2", list(TEXT), limits=Limits(4))
        assert "\n" not in str(error.value)
        assert not any(w._host.forwards.heads for w in cluster.placement.workers), "no head is loaded"


def test_a_target_of_few_layers_needs_its_layers_listed(tmp_path):
    model = tiny.reference("llama3-rope", seed=2, num_hidden_layers=4)
    save_with_tokenizer(model, tmp_path / "target")
    tensors = with_ids(drawn(shapes("midlayer")))
    default = store(tmp_path / "default", tensors, CONFIG)
    with pytest.raises(ModelError, match=f"there are 4, at least 5 are needed: name others .* as {AUX}$"):
        check_head(default, tmp_path / "target")
    named = store(tmp_path / "named", tensors, CONFIG | {AUX: [1, 2, 4]})
    assert check_head(named, tmp_path / "target").features == (1, 2, 4)
