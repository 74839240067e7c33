"""Bytes of shapes by hand, cards and shapes in profiles, properties of the computed roofline."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specscope.engine.checkpoints.sizes import Split, stored_size
from specscope.engine.cluster.capacity import spread
from specscope.engine.errors import UsageError
from specscope.engine.simulate.profile import Profile
from specscope.engine.simulate.records import record
from specscope.engine.simulate.roofline import WEIGHT_BITS, Hardware, PublishedModel
from specscope.engine.simulate.shapes import data, model_shape, with_card, with_shape

BILLIONS = {
    "llama-2-7b": 6.738, "llama-2-13b": 13.016, "llama-2-70b": 68.977, "llama-3.1-8b": 8.030,
    "llama-3.1-70b": 70.554, "llama-3.2-1b": 1.236, "llama-3.2-3b": 3.213, "qwen2.5-1.5b": 1.544,
    "qwen2.5-3b": 3.086, "qwen2.5-72b": 72.706, "qwen3-0.6b": 0.596, "qwen3-1.7b": 1.721, "qwen3-4b": 4.022,
    "qwen3-8b": 8.191, "qwen3-14b": 14.768, "qwen3-32b": 32.762, "qwen3-30b-a3b": 30.532,
    "mixtral-8x7b": 46.703, "deepseek-r1-distill-qwen-1.5b": 1.777, "deepseek-r1-distill-qwen-7b": 7.616,
    "deepseek-r1-distill-qwen-14b": 14.770, "deepseek-r1-distill-qwen-32b": 32.764,
    "deepseek-r1-distill-llama-8b": 8.030, "deepseek-r1-distill-llama-70b": 70.554,
    "gpt-oss-20b": 20.91, "gpt-oss-120b": 116.8,
}  # fmt: skip
"""Parameters that the models' pages at the hub print."""


def model(shape: str, dtype: str = "bfloat16", gpus: int = 1, split: str = "tensor") -> PublishedModel:
    return PublishedModel(**with_shape({"shape": shape}, ""), dtype=dtype, gpus=gpus, speed=1.0, split=split)


def card(name: str = "H100", engine: str = "graphs", **own: float) -> Hardware:
    return record(Hardware, with_card({"card": name, "engine": engine, **own}), "hardware.")


def test_shapes_have_the_published_parameters():
    assert BILLIONS.keys() == data("shapes").keys()
    for name, billions in BILLIONS.items():
        (size,) = spread(model(name), 1)
        assert size.weights / 2e9 == pytest.approx(billions, rel=5e-4), name


def test_bytes_by_hand():
    # Llama 3.1 8B. Layer: 2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336 = 218,103,808; two norms.
    # Embeddings and head: 2 * 128,256 * 4096; a last norm.
    matrices, rest = 32 * 218_103_808, 2 * 128_256 * 4096 + 65 * 4096
    assert spread(model("llama-3.1-8b"), 1) == ((2 * (matrices + rest), 2 * 32 * 8 * 128 * 2),)
    assert spread(model("llama-3.1-8b", "fp8"), 1) == ((matrices + 2 * rest, 131_072),)
    assert spread(model("llama-3.1-8b", "int4"), 1) == ((matrices * 17 // 32 + 2 * rest, 131_072),)
    # Mixtral 8x7B. Layer: 2 * 4096 * (4096 + 1024), a router of 4096 * 8, 8 * 3 * 4096 * 14336.
    layer = 41_943_040 + 32_768 + 8 * 176_160_768
    whole = 32 * layer + 2 * 32_000 * 4096 + 65 * 4096
    assert spread(model("mixtral-8x7b"), 1) == ((2 * whole, 131_072),)


def test_parts_by_hand():
    """Each of two ranks has half of all matrices and embeddings, and all norms; stages layers."""
    rank = 2 * (32 * 218_103_808 // 2 + 128_256 * 4096 + 65 * 4096)
    assert spread(model("llama-3.1-8b", gpus=2), 2) == ((rank, 65_536),) * 2
    first, last = spread(model("llama-3.1-8b", split="layers"), 2)
    (whole,) = spread(model("llama-3.1-8b"), 1)
    assert first.weights + last.weights == whole.weights + 2 * 4096  # the last norm is counted in both
    assert (first.per_token, last.per_token) == (65_536, 65_536)


def test_an_experts_forward_reads_the_expected_number_of_distinct_experts():
    mixtral = model("mixtral-8x7b")
    assert [round(mixtral.experts_read(rows), 3) for rows in (1, 2, 4)] == [2.0, 3.5, 5.469]  # 8 (1 - 0.75^n)
    # one row: attention, router and 2 experts of each layer, and the head, on 3,350 GB/s
    read = 2 * (32 * (41_943_040 + 32_768 + 2 * 176_160_768) + 32_000 * 4096)
    assert mixtral.roofline_us(card(), 1, 0) == pytest.approx((read + 131_072) / 3350e3, rel=1e-9)


def test_a_forward_of_data_sheets_by_hand():
    """Llama 3.1 70B on two H100 in fp8: streaming, products, launches, host, 160 all-reduces."""
    found = model("llama-3.1-70b", "fp8", 2).computed_us(card())
    layer = 2 * 8192 * (8192 + 1024) + 3 * 8192 * 28672
    streaming = (80 * layer + 2 * 128_256 * 8192 + 327_680) / 2 / 3350e3
    waits = 160 * (6.6 + 2 * 0.6 + 2 * 1 / 2 * 8192 * 2 / 450e3)
    products = (
        2 * 80 * layer / 1979e6 + (2 * 128_256 * 8192 + 4 * 80 * 8192) / 989e6
    ) / 2  # a row has one key
    assert found == pytest.approx(streaming + products + 80 * 66 + 300 + waits, rel=1e-9)


def test_products_of_fp8_have_the_cards_own_peak_and_int4_is_unpacked():
    """4,096 rows of Llama 3.1 8B: matrices at 1,979, attention and the head at 989 TFLOPS."""
    head, attended = 2 * 128_256 * 4096 * 4096, 4 * 32 * 4096 * 4096 * (4096 + 1) / 2
    layers, cache = 2 * 32 * 218_103_808 * 4096, 4096 * 131_072 / 3350e3
    for dtype, peak in (("fp8", 1979e6), ("int8", 1979e6), ("int4", 989e6), ("bfloat16", 989e6)):
        found = model("llama-3.1-8b", dtype).roofline_us(card(), 4096, 0)
        assert found == pytest.approx(layers / peak + (head + attended) / 989e6 + cache, rel=1e-9)
    assert model("llama-3.1-8b", "fp8").roofline_us(card("A100-80G"), 4096, 0) == pytest.approx(
        (layers + head + attended) / 312e6 + 4096 * 131_072 / 2039e3, rel=1e-9
    )


SIZES = st.sampled_from([64, 128, 192, 1024, 2880, 4096, 8192])


@st.composite
def models(draw: st.DrawFn) -> PublishedModel:
    experts = draw(st.sampled_from([0, 0, 8, 128]))
    sizes: dict[str, Any] = {"layers": draw(st.integers(1, 96)), "dim": draw(SIZES), "ffn": draw(SIZES)}
    sizes |= {"kv_heads": draw(st.sampled_from([1, 2, 8, 32])), "vocab": draw(st.integers(1, 200_000))}
    sizes |= {"experts": experts, "experts_per_token": draw(st.integers(1, max(1, experts)))}
    sizes |= {"expert_ffn": draw(SIZES) if experts else 0, "tied": draw(st.booleans())}
    kinds = {
        "dtype": draw(st.sampled_from([*WEIGHT_BITS])),
        "split": draw(st.sampled_from(["layers", "tensor"])),
    }
    return PublishedModel(
        "drawn", source="drawn", gpus=draw(st.sampled_from([1, 2, 3, 8])), speed=1.0, **sizes, **kinds
    )


CARDS = st.builds(card, st.sampled_from([*data("gpus")["cards"]]), st.sampled_from(["graphs", "eager"]))


def computed(shape: PublishedModel, hardware: Hardware, rows: int, context: int, batch: int) -> float:
    plain = replace(shape, speed=1e6 / shape.computed_us(hardware), computed=True)
    return plain.forward_us(hardware, rows * batch, context * batch, batch)


@settings(max_examples=150, deadline=None)
@given(models(), CARDS, st.integers(1, 300), st.integers(0, 100_000), st.integers(1, 64), st.floats(1, 100))
def test_more_hardware_never_makes_a_forward_slower_nor_more_work_faster(
    m, hardware, rows, context, batch, factor
):
    least = computed(m, hardware, rows, context, batch) * (1 - 1e-9)
    for name in ("link_gb_s", "bandwidth_gb_s", "memory_gib"):
        better = replace(hardware, **{name: getattr(hardware, name) * factor})
        assert computed(m, better, rows, context, batch) * (1 - 1e-9) <= least / (1 - 1e-9)
    for more in ((rows + 1, context, batch), (rows, context + 1, batch), (rows, context, batch + 1)):
        assert computed(m, hardware, *more) >= least
    assert computed(replace(m, dtype="bfloat16"), hardware, 1, 0, 1) >= computed(
        replace(m, dtype="int4"), hardware, 1, 0, 1
    )


@settings(max_examples=60, deadline=None)
@given(models(), st.sampled_from([1, 2, 4, 8]))
def test_parts_hold_the_whole_model_and_no_part_more_than_it(m, gpus):
    (whole,), parts = spread(replace(m, split="tensor"), 1), spread(m, gpus)
    assert sum(part.weights for part in parts) >= whole.weights - len(parts)
    assert sum(part.per_token for part in parts) >= whole.per_token - len(parts)
    if m.kv_heads % gpus == 0 and not (m.ffn % gpus or m.expert_ffn % gpus or m.vocab % gpus):
        assert all(part.weights <= whole.weights and part.per_token <= whole.per_token for part in parts)


PROFILE = """
name = "mine"
title = "mine"
source = "typed"
default = "pair"
gpus = 2
[hardware]
card = "H100"
[step]
communicate_ms = 0
sample_ms = 0
source = "typed"
[models.big]
shape = "llama-3.1-70b"
dtype = "fp8"
[models.small]
shape = "llama-3.1-8b"
dtype = "bfloat16"
[pairs.pair]
title = "typed"
target = "big"
drafter = "small"
source = "typed"
"""


def written(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    text = PROFILE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_profile_names_a_card_and_shapes_and_its_times_are_computed(tmp_path: Path):
    latency = Profile.read(written(tmp_path)).latency()
    assert latency.target.computed
    assert latency("target", 1, 0) == round(model("llama-3.1-70b", "fp8").computed_us(card()))
    assert latency.hardware == card()
    slow = Profile.read(written(tmp_path, ('card = "H100"', 'card = "H100"\nengine = "eager"'))).latency()
    assert slow("target", 1, 0) - latency("target", 1, 0) == pytest.approx(80 * (643 - 66) - 300, abs=1)
    own = Profile.read(written(tmp_path, ('dtype = "fp8"', 'dtype = "fp8"\nspeed = 10'))).latency()
    assert (own("target", 1, 0), own.target.computed) == (100_000, False)


def test_a_config_is_a_shape(tmp_path: Path):
    config = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096}
    config |= {"intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    config |= {
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    latency = Profile.read(written(tmp_path, ('"llama-3.1-70b"', json.dumps(str(path))))).latency()
    assert spread(latency.target, 1) == spread(model("mixtral-8x7b", "fp8"), 1)
    shape = model_shape(latency.target)
    assert (
        stored_size(shape, 16, 2, Split((0, 2)))
        == spread(replace(latency.target, dtype="bfloat16", split="layers"), 2)[0]
    )
    config |= {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8}
    config |= {"moe_intermediate_size": 768, "mlp_only_layers": [0], "norm_topk_prob": True, "head_dim": 128}
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UsageError, match="some layers have no experts"):
        Profile.read(written(tmp_path, ('"llama-3.1-70b"', json.dumps(str(path)))))
    with pytest.raises(UsageError, match=r"models\.big\.shape is 'missing\.json'; there is no such file"):
        Profile.read(written(tmp_path, ("llama-3.1-70b", "missing.json")))


TYPED = 'layers = 2\ndim = 64\nffn = 64\nkv_heads = 1\nvocab = 9\ntitle = "t"\nsource = "s"'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('card = "H100"', 'card = "H1000"', r"hardware\.card is 'H1000'; choose one of H100, H200, A100-40G"),
        ('card = "H100"', "card = 100", r"hardware\.card is 100; choose one of"),
        ('card = "H100"', 'card = "H100"\nengine = "jet"', r"engine is 'jet'; choose one of graphs, eager"),
        ('card = "H100"', 'card = "H100"\nmemory_gib = 0', r"hardware\.memory_gib is 0; it must be at least 0\.001"),
        ('card = "H100"', 'card = "H100"\nlayer_us = -1', r"hardware\.layer_us is -1; it must be at least 0"),
        ('card = "H100"', 'card = "H100"\nfp8_tflops = "x"', r"fp8_tflops is 'x'; it must be of type float"),
        ('"llama-3.1-70b"', '"llama-4"', r"models\.big\.shape is 'llama-4'; choose one of llama-2-7b, .* or the path"),
        ('"llama-3.1-70b"', "[]", r"models\.big\.shape is \[\]; choose one of"),
        ('dtype = "fp8"', 'dtype = "fp6"', r"models\.big\.dtype is 'fp6'; choose one of bfloat16, .*fp8, int8, int4"),
        ('dtype = "fp8"', 'dtype = "fp8"\nexperts_per_token = 2', r"experts_per_token is 2; it must be at most 1"),
        ('dtype = "fp8"', 'dtype = "fp8"\nexperts = 8', r"models\.big\.expert_ffn is missing; .* 8 experts"),
        ('dtype = "fp8"', 'dtype = "fp8"\nexperts = 4096\nexpert_ffn = 1', r"experts is 4096 in 80 layers; .* 65536"),
        ('dtype = "fp8"', 'dtype = "fp8"\nheads = 0', r"models\.big\.heads is 0; it must be at least 1"),
        ('shape = "llama-3.1-70b"', f"{TYPED}\nheads = 3\nkv_heads = 2", r"cannot be read"),
        ('card = "H100"', 'name = "mine"\nlink_gb_s = 1\nsource = "s"', "no speed of its own, and the hardware no layer_us"),
    ],
)  # fmt: skip
def test_a_wrong_card_or_shape_is_refused(old: str, new: str, message: str, tmp_path: Path):
    with pytest.raises(UsageError, match=message) as caught:
        Profile.read(written(tmp_path, (old, new)))
    assert "\n" not in str(caught.value)
