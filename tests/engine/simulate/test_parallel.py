"""Several GPUs: tensor parallelism, layer-parallel drafting, KV cache moves; papers' tables."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from statistics import median

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from specscope.engine.errors import UsageError
from specscope.engine.model.fuzzy import layer_groups
from specscope.engine.simulate.latency import Latency
from specscope.engine.simulate.profile import FOLDER, Profile, parse
from specscope.engine.simulate.roofline import ATTENTION_LAUNCHES, Hardware, PublishedModel
from specscope.traces.papers import ems
from specscope.traces.papers.easyspec import PAPER

TOY = Hardware("toy", bandwidth_gb_s=1, peak_tflops=1, link_gb_s=1, source="test", collective_us=50)
# 4 layers: attention 2 * 128^2 + 2 * 128 * 128 = 65,536 weights, MLP 3 * 128 * 256 = 98,304;
# LM head 128,000.
SHAPE = PublishedModel("toy", 4, 128, 256, 1, 1000, "float32", 1, 200, "test")


def toy(**changes: object) -> Latency:
    shape = replace(SHAPE, **changes)  # pyright: ignore[reportArgumentType]
    return Latency("toy", shape, shape, TOY, 1, 1, 100)


def easyspec(pair: str = "llama-3-8-70-tp8") -> Latency:
    return Profile.load("8xA100").latency(pair)


def test_a_tensor_parallel_model_by_hand():
    """783,360 weights of 4 bytes: 3,133.44 us of streaming on one GPU, half of it on two."""
    latency = toy(gpus=2, split="tensor")
    assert SHAPE.weights == 783_360
    # Per row, KV: 2 * 4 * 128 * 4 bytes = 4.096 us, half on each GPU;
    # 8 all-reduces of 2 * 1/2 * 512 bytes = 4.096 us.
    assert latency.target.roofline_us(TOY, 1, 0) == pytest.approx(3133.44 / 2 + 4.096 / 2 + 4.096)
    assert latency("target", 1, 0) == 5000
    assert latency("target", 11, 89) == round(5000 + 99 * 2.048 + 10 * 4.096)
    # 4,000 rows: 2 * 783,360 * 4,000 + 4 * 4 * 128 * 4,000 * 2,000.5 = 22,654.976e6
    # operations, half on each GPU.
    least = 5000 - 3133.44 / 2
    assert latency("target", 4000, 0) == round(least + 22_654.976 / 2 + 3999 * (2.048 + 4.096))


def test_layers_on_two_gpus_run_one_after_the_other():
    layers, tensor = toy(gpus=2), toy(gpus=2, split="tensor")
    assert layers.target.roofline_us(TOY, 1, 0) == pytest.approx(3133.44 + 4.096 + 0.512)
    assert tensor.target.roofline_us(TOY, 4000, 0) < layers.target.roofline_us(TOY, 4000, 0)


def test_layer_groups_agree_with_table_6():
    """The paper leaves groups in the middle out."""
    for name, table in PAPER.numbers["Table 6"].items():
        printed = [[first, last] for first, last in zip(table["columns"], table["last"], strict=True)]
        groups = layer_groups(printed[-1][-1] + 1, int(name.split()[-1]))
        ends = [[g[0], g[-1]] for g in groups]
        assert [group for group in ends if group in printed] == printed
    assert [(g[0], g[-1]) for g in layer_groups(28, 4)[-3:]] == [(20, 23), (24, 26), (27, 27)]


def test_layer_parallel_by_hand():
    """4 layers: 0, 1-2, 3. One attention layer's time is saved, one gather is paid."""
    latency = toy()
    launch = (5000 - 3133.44 - 4.096) / 4
    assert latency.drafter
    assert latency.drafter.launch_us(TOY) == pytest.approx(launch)
    # One attention layer, 10 rows after 90: launches, 65,536 * 4 bytes, a fourth of 100 KV rows.
    attention = ATTENTION_LAUNCHES * launch + 262.144 + 100 * 1.024
    assert latency.drafter.attention_us(TOY, 10, 90) == pytest.approx(attention)
    layer = launch + 163_840 * 4 / 1e3 + 100 * 1.024
    assert latency.drafter.layer_us(TOY, 10, 90) == pytest.approx(layer)
    whole = 5000 + 99 * 4.096
    assert latency("drafter", 10, 90) == round(whole)
    # the gather: 10 rows of 512 bytes from the other device, and the wait of one collective
    assert latency.parallel("drafter", 10, 90, 2) == round(whole - attention + 50 + 5.12)


def test_size_1_is_the_ordinary_forward():
    for latency in (toy(), easyspec(), Profile.load("pearl-3xA100").latency()):
        for rows, context in ((1, 0), (5, 300), (400, 0)):
            assert latency.parallel("drafter", rows, context, 1) == latency("drafter", rows, context)


def test_the_share_of_attention_launches_is_counted():
    """Operators of a transformers Llama layer for one token, plus residual additions."""
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=50
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    cache, counts = DynamicCache(), dict[str, _Count]()
    layer = model.model.layers[1]
    parts = {"norm": layer.input_layernorm, "attention": layer.self_attn, "mlp": layer.mlp}
    with torch.no_grad():
        model(torch.arange(4)[None], None, None, cache, use_cache=True)
        for name, part in parts.items():
            count = _Count()
            part.register_forward_pre_hook(lambda *_, count=count: count.__enter__() and None)
            part.register_forward_hook(lambda *_, count=count: count.__exit__(None, None, None))
            counts[name] = count
        model(torch.tensor([[1]]), None, None, cache, use_cache=True)
    attention, mlp = (counts["norm"].n + counts[name].n + 1 for name in ("attention", "mlp"))
    assert attention / (attention + mlp) == pytest.approx(ATTENTION_LAUNCHES, abs=0.05)


class _Count(TorchDispatchMode):
    n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += not func.is_view and "unsafe_view" not in func.name()
        return func(*args, **(kwargs or {}))


def test_the_cost_of_a_collective_follows_from_table_1():
    """Added time of a tensor-parallel drafter and saved streaming, over two all-reduces a layer."""
    costs: list[float] = []
    for pair, alone, speeds in (
        ("llama-3-8-70-tp8", 36.76, {2: 33.90, 4: 32.31, 8: 32.39}),
        ("qwen2-7-72-tp8", 37.16, {2: 36.46, 4: 37.12}),
    ):
        latency = easyspec(pair)
        assert latency.drafter
        single, hardware = replace(latency.drafter, speed=alone), latency.hardware
        for gpus, speed in speeds.items():
            split = replace(single, gpus=gpus)
            saved = single.roofline_us(hardware, 1, 0) - split.roofline_us(hardware, 1, 0)
            costs.append((1e6 / speed - 1e6 / single.speed + saved) / (2 * single.layers))
    assert [round(us) for us in costs] == [93, 145, 158, 71, 93]
    assert easyspec().hardware.collective_us == round(median(costs))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("fuzzy_ms", 30.0, r"fuzzy_ms is 30; attention would have -\d+ % of a layer's launches"),
        ("fuzzy_ms", 5.0, r"fuzzy_ms is 5; attention would have 1\d\d % of a layer's launches"),
        ("verify_ms", 70.0, r"verify_ms is 70; one row takes 75.59, so it must be at least that"),
    ],
)
def test_impossible_fitted_times_are_refused(key: str, value: float, message: str):
    text = (FOLDER / "8xA100.toml").read_text(encoding="utf-8")
    start = text.index('[pairs."llama-3-8-70-tp8"]')
    wrong = text[:start] + re.sub(rf"(?m)^{key} = .*$", f"{key} = {value}", text[start:], count=1)
    with pytest.raises(UsageError, match="pairs.llama-3-8-70-tp8." + message):
        parse("8xA100", wrong)


def test_the_cost_of_moving_rows_agrees_with_table_16():
    """PEARL, Llama 3.1 8B: 1.3 to 1.6 ms for 128 to 1,024 rows; 0.13 GB take 0.43 ms."""
    latency = Profile.load("pearl-4xA100").latency("llama-3.1-8-70")
    times = [latency.move_us("drafter", rows) for rows in (128, 256, 512, 1024)]
    assert times == [1316, 1372, 1484, 1707]
    assert times == pytest.approx([1300, 1400, 1500, 1600], rel=0.07)
    assert latency.move_us("drafter", 1024) - 1260 == pytest.approx(430, rel=0.05)


def pearl() -> Latency:
    return Profile.load("pearl-3xA100").latency()


def opt(pair: str = "") -> Latency:
    return Profile.load("A100-OPT").latency(pair or None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: easyspec().parallel("drafter", 1, 0, 0),
            "layer-parallel size is 0; .* at least 1 and at most 32",
        ),
        (lambda: easyspec().parallel("drafter", 1, 0, 33), "layer-parallel size is 33; .* at most 32"),
        (lambda: easyspec().parallel("judge", 1, 0, 2), "no model 'judge'"),
        (lambda: easyspec().move_us("drafter", 0), "rows is 0"),
        (lambda: easyspec().parallel("target", 1, -1, 2), "context is -1"),
        (lambda: toy().stage("target", 1, 0, 0, 5), "stages is 5; it must be at least 1 and at most 4"),
        (lambda: pearl().parallel("drafter", 1, 0, 4), "does not say hardware.collective_us; choose another"),
        (lambda: opt().move_us("target", 10), "does not say step.move_ms"),
        (lambda: opt("opt-6.7b")("drafter", 1, 0), r"the pair opt-6.7b has no drafter; choose a pair"),
        (lambda: pearl()("target", 0, 0), "rows is 0; it must be at least 1"),
        (lambda: pearl()("target", 1, -1), "context is -1; it must be at least 0"),
        (lambda: pearl()("target", 1, 0, 0), "batch is 0; it must be at least 1"),
        (lambda: pearl()("target", 3, 0, 4), "batch is 4; .* at most 3"),
        (lambda: pearl()("judge", 1, 0), "no model 'judge'; choose target or drafter"),
    ],
)
def test_wrong_arguments_and_times_without_a_source_are_refused(call, message: str):
    with pytest.raises(UsageError, match=message):
        call()


def test_the_profile_of_ems_sd_has_the_points_of_figure_5():
    """Opt-6.7b at batch 16: 16.6 ms for a token a sequence, for five 1.36 times as long."""
    latency = Profile.load("A100-OPT").latency("opt-6.7b")
    assert latency("target", 1, 745) == round(1e6 / 79.44)  # Table 4, greedy decoding
    assert latency("target", 16, 745 * 16, 16) == 16_600
    assert latency("target", 80, 745 * 16, 16) == 22_600


@pytest.mark.parametrize(("key", "speed"), [("2.7b", 128.31), ("6.7b", 79.44), ("13b", 59.51), ("125m", 448)])
def test_the_derived_points_of_ems_sds_profile(key, speed):
    """A row costs Figure 5's (22.6 - 16.6) ms / 64 by weights, a cached row its bytes."""
    profile = Profile.load("A100-OPT")
    model, figure = profile.models[f"opt-{key}"], profile.models["opt-6.7b"]
    assert model.measured
    row = (22_600 - 16_600) / 64 * model.weights / figure.weights / model.gpus
    cached = profile.hardware.stream_us(model.kv_bytes) / model.gpus
    for (rows, context, batch), us in model.measured.times.items():
        expected = 1e6 / speed + (rows * batch - 1) * row + (context * batch - 745) * cached
        if model is figure and batch == 16:
            assert expected / us == pytest.approx(1, abs=0.02)  # Figure 5 itself, and its cached rows
        else:
            assert us == pytest.approx(expected, abs=1e-3)


def test_greedy_steps_of_ems_sd_last_longer_as_ended_samples_are_fed():
    """Table 4's tokens/s count no token of a sample that ended, but its rows take time.

    The remainder is the share of the fed samples that had not ended: 1 at batch 1, 0.80 at 16.
    """
    latency = Profile.load("A100-OPT").latency("opt-6.7b")
    table = ems.PAPER.numbers["Table 4"]["opt-6.7b"]
    published = dict(zip(table["columns"], table["Greedy Decoding"], strict=True))
    share = {b: latency("target", b, 745 * b, b) * tps / b / 1e6 for b, tps in published.items()}
    assert share[1] == pytest.approx(1, abs=0.001)
    assert share[16] == pytest.approx(0.80, abs=0.005)
    assert all(a > b for a, b in pairwise([share[b] for b in (1, 2, 4, 8, 12, 16, 20, 24)]))


def test_the_derived_speed_of_opt_125m():
    """12 median launches of the one-GPU models, plus streaming; accepted lengths then agree."""
    profile = Profile.load("A100-OPT")
    hardware, models = profile.hardware, profile.models
    launch = median(models[key].launch_us(hardware) for key in ("opt-2.7b", "opt-6.7b"))
    drafter = models["opt-125m"]
    assert launch == pytest.approx(176, abs=0.5)
    assert profile.latency().sample_us == round(launch)
    assert 12 * launch + drafter.roofline_us(hardware, 1, 0) == pytest.approx(1e6 / drafter.speed, rel=0.002)
    # Table 4, batch 1, four drafts: tokens/s times the step's time is the tokens of a step
    tokens = {}
    for size, tps in (("2.7b", 213.08), ("6.7b", 177.69), ("13b", 137.62)):
        latency = profile.latency(f"opt-125m-{size}")
        step = latency("target", 5, 809) + 4 * latency("drafter", 1, 809) + latency.sample_us
        tokens[size] = tps * step / 1e6
    assert tokens == pytest.approx({"2.7b": 3.64, "6.7b": 3.92, "13b": 3.62}, abs=0.01)


def test_devices_compute_several_layers_of_a_group_if_there_are_fewer_devices():
    """6 layers: 0, 1-3, 4, 5.

    Two devices compute 2 and 1 of the three: one is saved, one is sent.
    """
    latency = toy(layers=6)
    assert latency.drafter
    whole = latency.drafter.forward_us(TOY, 10, 90)
    attention = latency.drafter.attention_us(TOY, 10, 90)
    assert latency.parallel("drafter", 10, 90, 4, devices=1) == round(whole)
    assert latency.parallel("drafter", 10, 90, 4, devices=2) == round(whole - attention + 50 + 5.12)
    assert latency.parallel("drafter", 10, 90, 4, devices=3) == round(whole - 2 * attention + 50 + 2 * 5.12)
    assert latency.parallel("drafter", 10, 90, 4) == latency.parallel("drafter", 10, 90, 4, devices=4)


def test_the_parts_of_a_fuzzy_forward_by_hand():
    latency = toy(layers=6)
    assert latency.drafter
    forward = (TOY, 10, 90)
    attention, layer = latency.drafter.attention_us(*forward), latency.drafter.layer_us(*forward)
    one, two = latency.parts("drafter", 10, 90, 4, devices=2)
    at = [layer, layer + attention, layer + 2 * attention, layer + 2 * attention + 50 + 5.12]
    a, b, c, e = (round(1000 * time) for time in at)
    assert [tuple(p) for p in one] == [("attention", 1, a, b), ("attention", 3, b, c), ("exchange", 1, c, e)]
    assert [tuple(p) for p in two] == [("attention", 2, a, b), ("exchange", 1, c, e)]
    mlps, rest = 3 * (layer - attention) + 2 * layer, latency.drafter.forward_us(*forward) - 6 * layer
    assert round(at[3] + mlps + rest) == latency.parallel("drafter", 10, 90, 4, devices=2)


def test_devices_without_a_layer_of_a_group_only_exchange():
    parts = toy().parts("drafter", 1, 0, 2, devices=4)
    found = [[(p.kind, p.layer) for p in device] for device in parts]
    exchange = ("exchange", 1)
    assert found == [[("attention", 1), exchange], [("attention", 2), exchange], [exchange], [exchange]]


# A pipeline: PEARL, appendix G.


def test_stages_share_a_forward_by_their_layers():
    """80 layers in 4 stages: t / 4 each; one row takes the time published on three GPUs.

    A target of one GPU can be split, too: each further row pays its hidden state over the link.
    """
    latency = Profile.load("pearl-4xA100").latency("llama-2-7-70")
    whole = latency("target", 1, 0)
    assert whole == round(1e6 / 9.22)
    four = [latency.stage("target", 1, 0, i, 4) for i in range(4)]
    assert sum(four) == whole
    assert max(four) - min(four) <= 1
    three = [latency.stage("target", 1, 0, i, 3) for i in range(3)]
    assert three == pytest.approx([whole * n / 80 for n in (26, 27, 27)], abs=1)
    assert sum(latency.stage("target", 6, 500, i, 3) for i in range(3)) == latency("target", 6, 500)
    one, rows = (sum(toy().stage("target", *work, i, 2) for i in range(2)) for work in ((1, 0), (11, 89)))
    assert one == 5000
    assert rows == pytest.approx(toy()("target", 11, 89) + 10 * 128 * 4 / 1e3, abs=1)
