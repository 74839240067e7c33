"""Memory of virtual clusters: published ones hold their models, what does not fit is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specscope
from specscope.app.named import able
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.capacity import Need, head_bytes, kept, spread
from specscope.engine.cluster.options import Options
from specscope.engine.cluster.pool import Pool
from specscope.engine.cluster.profile_devices import profile_devices
from specscope.engine.errors import OutOfMemory
from specscope.engine.heads.find import Heads
from specscope.engine.layout import Colocated, LayerParallel, Layout, Pipelined, Separate
from specscope.engine.simulate.profile import Profile, profiles
from tests.engine.simulate.test_shapes import written

GIB = 2**30
ALL = [(name, pair) for name in profiles() for pair in Profile.load(name).pairs]


def pool(profile: Profile | str, pair: str | None = None) -> Pool:
    options = Options(runtime="virtual", profile=profile, profile_pair=pair, tokens="bernoulli:0.7")
    return profile_devices(Pair.find("bundled"), options)


@pytest.mark.parametrize(("name", "pair"), ALL)
def test_a_published_cluster_holds_its_models(name: str, pair: str):
    """With 2,048 tokens; EasySpec's drafter beside its target at TP = 8, as the paper ran it."""
    cluster, need = (
        pool(name, pair),
        Need(24 if name == "A100-OPT" else 1, 1024 if name == "A100-OPT" else 2048),
    )
    memory = cluster.latency.hardware.memory_gib
    assert (memory is None) == (name == "ratios"), "only the cluster that nobody has is without a memory"
    layouts = [cluster.base]
    if name == "8xA100" and cluster.latency.drafter:
        layouts += [Layout(Separate(targets=cluster.servers(1)))] if cluster.servers(1) else []
        layouts += [Layout(LayerParallel(4))] if pair.endswith(("tp4", "tp8")) else []
    if name.startswith("pearl"):
        layouts += [Layout(Pipelined(3))]
    for layout in layouts:
        cluster.check_run(layout, need)
        cards = kept(cluster.latency, cluster.assign(layout), need)
        assert cards.keys() <= set(cluster.latency.hardware and {d.name for d in cluster.devices})
        if memory:
            assert max(sum(part.total for part in parts) for parts in cards.values()) <= memory * GIB


def profile(tmp_path: Path, *changes: tuple[str, str]) -> Profile:
    return Profile.read(written(tmp_path, *changes))


BF16 = ('dtype = "fp8"', 'dtype = "bfloat16"')


def test_a_target_that_no_card_holds_is_refused_with_the_sums_and_what_fits(tmp_path: Path):
    with pytest.raises(OutOfMemory) as caught:
        specscope.open("bundled", profile=profile(tmp_path, BF16), tokens="bernoulli:0.7")
    text = str(caught.value)
    assert (
        "gpu1 would hold Llama 3.1 70B in bfloat16 (weights 141.1 GB + keys and values 0.3 MB + logits 4.1 MB)"
        in text
    )
    assert "141.1 GB in all; NVIDIA H100 SXM5 80GB has 85.9 GB" in text
    assert text.endswith("what fits: Llama 3.1 70B in fp8, or Llama 3.1 70B on 2 GPUs")
    assert "\n" not in text
    with specscope.open(
        "bundled", profile=profile(tmp_path), tokens="bernoulli:0.7"
    ) as cluster:  # fp8: 72.8 GB
        trace = cluster.run("speculative", "Hi", max_new_tokens=4)
    assert trace.header.environment["times"].startswith(
        "computed from the data sheet of NVIDIA H100 SXM5 80GB"
    )
    assert "note" not in trace.header.environment


def test_a_refusal_is_one_line_whatever_the_titles_are(tmp_path: Path):
    odd = profile(tmp_path, BF16, ('shape = "llama-3.1-70b"', 'shape = "llama-3.1-70b"\ntitle = "a\\nb"'))
    with pytest.raises(OutOfMemory, match=r"^gpu1 would hold 'a\\nb' in bfloat16 .* or 'a\\nb' on 2 GPUs$"):
        pool(odd).assign(pool("8xA100").base)


def test_a_run_whose_cache_does_not_fit_is_refused(tmp_path: Path):
    small = profile(tmp_path, ('card = "H100"', 'card = "H100"\nmemory_gib = 67.75'))
    with specscope.open("bundled", profile=small, tokens="bernoulli:0.7") as cluster:
        cluster.run("speculative", "Hi", max_new_tokens=4)
        with pytest.raises(
            OutOfMemory, match=r"for 1 × 5\d\d tokens, drafts included.*what fits: 1 × \d+ tokens"
        ) as caught:
            cluster.run("speculative", "Hi", max_new_tokens=480)
    tokens = int(str(caught.value).rpartition("1 × ")[2].split()[0])
    place = pool(small)
    place.check_run(place.base, Need(1, tokens))
    with pytest.raises(OutOfMemory):
        place.check_run(place.base, Need(1, tokens + 1))
    with pytest.raises(
        OutOfMemory, match=rf"for 2 × {tokens} tokens.*what fits: 2 × 1\d\d tokens, or .* in int4"
    ):
        place.check_run(place.base, Need(2, tokens))


def test_models_that_share_cards_are_summed(tmp_path: Path):
    """Both on one card; a drafter's attention in parts; a target's head; a stage and a drafter."""
    cluster = pool(profile(tmp_path))
    both = Layout(Colocated())
    with pytest.raises(
        OutOfMemory, match=r"gpu1 would hold Llama 3.1 70B in fp8 .* and Llama 3.1 8B in bfloat16"
    ):
        cluster.assign(both)
    eight = pool("8xA100", "llama-3-8-70-tp8")
    parts = kept(eight.latency, eight.assign(Layout(LayerParallel(4))), Need())
    assert [len(parts[f"gpu{i}"]) for i in range(8)] == [2] * 4 + [1] * 4
    (whole,), part = spread(eight.latency.drafter, 1), parts["gpu0"][-1]
    assert whole.weights - part.weights == 24 * 2 * 2 * 4096 * (4096 + 1024)  # 24 of 32 layers' attention
    two = pool("8xA100", "llama-3-8-70-tp2")  # 70.6 + 16.1 GB do not fit one card, in halves they do
    shared = kept(two.latency, two.assign(both), Need())
    assert {card: len(models) for card, models in shared.items()} == {"gpu1": 2, "gpu2": 2}
    with pytest.raises(OutOfMemory, match=r"Qwen2 72B .* on 4 GPUs"):
        pool("8xA100", "qwen2-7-72-tp2").assign(Layout(LayerParallel(4)))
    four = pool("pearl-4xA100")
    stages = kept(four.latency, four.assign(Layout(Pipelined(4))), Need())
    assert [len(stages[f"gpu{i}"]) for i in range(4)] == [2, 1, 1, 2]
    head = Heads(Pair.find("bundled"), ()).find("medusa").config
    target = eight.latency.target
    squares = head.heads * head.layers * (target.dim**2 + target.dim)
    assert head_bytes(target, head) >= 2 * squares
    (beside,) = kept(eight.latency, eight.assign(Layout(Separate(drafters=0))), Need(head=head))["gpu0"]
    (alone,) = kept(eight.latency, eight.assign(Layout(Separate(drafters=0))), Need())["gpu0"]
    assert beside.total - alone.total == beside.head == head_bytes(target, head)
    with specscope.open("bundled", profile="8xA100", profile_pair="qwen2-7-72-tp2") as cluster:
        keys, left_out = able(["speculative", "easyspec"], cluster)
    assert keys == ["speculative"]
    assert left_out["easyspec"].startswith("gpu0 would hold Qwen2 72B")


def test_a_profile_without_memory_says_that_nothing_is_checked():
    with specscope.open("bundled", profile="ratios", tokens="bernoulli:0.7") as cluster:
        assert (
            "does not say how much memory no real card has (hardware.memory_gib), so nothing checks"
            in cluster.note
        )
    with specscope.open("bundled", profile="8xA100", tokens="bernoulli:0.7") as cluster:
        assert cluster.note == ""


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(ALL), st.integers(1, 64), st.integers(1, 20_000), st.floats(0.01, 1), st.floats(1, 9))
def test_more_memory_never_makes_a_fitting_model_not_fit(place, sequences, tokens, memory, factor):
    name, pair = place
    cluster, need = POOLS.setdefault(place, pool(name, pair)), Need(sequences, tokens)

    def fits(gib: float, wanted: Need) -> bool:
        hardware = replace(cluster.latency.hardware, memory_gib=gib)
        try:
            replace(cluster, latency=replace(cluster.latency, hardware=hardware)).check_run(
                cluster.base, wanted
            )
        except OutOfMemory:
            return False
        return True

    if fits(memory * 80, need):
        assert fits(memory * 80 * factor, need)
        assert fits(memory * 80, replace(need, tokens=1))
        assert fits(memory * 80, replace(need, sequences=1))


POOLS: dict[tuple[str, str], Pool] = {}
