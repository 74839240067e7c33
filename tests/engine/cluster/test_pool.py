"""One pool: which devices a layout's workers get, on this machine and on a profile's GPUs."""

import pytest

from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.assignment import labelled_devices
from specscope.engine.cluster.local_devices import local_devices
from specscope.engine.cluster.options import Options
from specscope.engine.cluster.placement import on_one_gpu
from specscope.engine.cluster.profile_devices import profile_devices
from specscope.engine.errors import UsageError
from specscope.engine.layout import Colocated, LayerParallel, Layout, Pipelined, Separate
from specscope.engine.trace.events import Device

PAIR = Pair.find("bundled")
SPANS = (range(3), range(3, 8))
"""A target of 8 layers on two devices."""


def cores(count, tp=1, drafter_tp=1, spans=()):
    devices = tuple(Device(f"cpu:{i}", "", f"CPU core {i}", "cpu") for i in range(count))
    return local_devices(PAIR, Options(tp=tp, drafter_tp=drafter_tp), devices, spans)


def gpus(profile, pair=None):
    return profile_devices(
        PAIR, Options("virtual", profile=profile, profile_pair=pair, tokens="bernoulli:0.5")
    )


TP4, TP8 = gpus("8xA100", "llama-3-8-70-tp4"), gpus("8xA100", "llama-3-8-70-tp8")


def placed(pool, arrangement):
    """Return the devices of each worker as `drafters | targets`; `/drafter` is a second worker."""

    def name(assignment):
        devices = " ".join(device.name.removeprefix("cpu:") for device in assignment.devices)
        return devices.removesuffix("/drafter") + "/drafter" * assignment.name.endswith("/drafter")

    found = pool.assign(Layout(arrangement))
    return " | ".join(", ".join(map(name, found.get(model, ()))) for model in ("drafter", "target"))


@pytest.mark.parametrize(
    ("pool", "arrangement", "expected"),
    [
        (cores(4), Separate(), "0 | 1"),
        (cores(4), Separate(2, 2), "0, 1 | 2, 3"),
        (cores(4), Separate(1, 0), " | 1"),
        (cores(1), Separate(), "0/drafter | 0/target"),
        (cores(1), Separate(1, 0), " | 0/target"),
        (cores(1), Separate(turns=True), "0/target | 0/target"),
        (cores(2), Separate(turns=True), "0 | 1"),
        (cores(3, tp=2), Separate(), "0 | 1 2"),
        (cores(2, tp=2), Separate(), "0/drafter | 0/target 1"),
        (cores(2, tp=2), Separate(turns=True), "0/drafter | 0/target 1"),
        (cores(2, tp=2, drafter_tp=2), Separate(turns=True), "0/drafter 1 | 0/target 1/target"),
        (cores(5, tp=2, drafter_tp=3), Separate(), "0 1 2 | 3 4"),
        (cores(4, spans=SPANS), Separate(), "0 | 1 2"),
        (cores(4), LayerParallel(3), "0 1 2 | 1"),
        (cores(3, tp=2), LayerParallel(2), "1 2 | 1 2"),
        (cores(1), Colocated(), "0/drafter | 0"),
        (cores(4), Pipelined(3), "2, 0 | 0 1 2"),
        (cores(4, spans=SPANS), Pipelined(2), "2, 1 | 1 2"),
        (gpus("8xA100"), Separate(), "gpu0 | gpu1-2"),
        (TP4, Separate(1, 2), "gpu0, gpu1 | gpu2-5"),
        (TP4, Separate(1, 0), " | gpu1-4"),
        (TP4, LayerParallel(2), "gpu0 gpu1 gpu2 gpu3 | gpu0 gpu1 gpu2 gpu3"),
        (TP8, Separate(turns=True), "gpu0-7 | gpu0-7"),
        (TP8, Colocated(), "gpu0-7/drafter | gpu0-7"),
    ],
)
def test_drafters_get_the_first_devices_and_targets_the_next_ones(pool, arrangement, expected):
    assert placed(pool, arrangement) == expected


@pytest.mark.parametrize(
    ("pool", "arrangement", "message"),
    [
        (cores(2), Separate(2), "2 target server(s) and 1 drafter(s) need 3 devices; this machine has 2 (CPU core 0 to CPU core 1): ask for fewer, or use a virtual profile"),
        (cores(4, tp=2), Separate(2), "2 target server(s) and 1 drafter(s) need 5 devices; this machine has 4"),
        (cores(3, spans=SPANS), Separate(2), "2 target server(s) and 1 drafter(s) need 5 devices"),
        (TP8, Separate(), "1 target server(s) of 8 GPU(s) and 1 drafter(s) of 1 need 9 GPUs; the profile 8xA100 has 8"),
        (cores(2), LayerParallel(3), "3 devices are to share the drafter's layers; this machine has 2"),
        (TP8, LayerParallel(9), "9 GPUs are to share the drafter's layers and the target takes 8; the profile 8xA100 has 8"),
        (cores(2), Pipelined(3), "the target is to be split over 3 devices; there are 2: ask for fewer stages"),
        (cores(3, spans=SPANS), Pipelined(3), "stages is 3; memory has split the target over 2 devices: leave stages at 0"),
        (cores(3, spans=SPANS), Colocated(), "the target is split by layers over 2 devices, and a co-located placement has one"),
        *((cores(3, tp=2), a, "tp and drafter_tp do not go together with a co-located or pipelined placement: leave them at 1") for a in (Colocated(), Pipelined(2))),
    ],
)  # fmt: skip
def test_a_layout_for_which_there_are_too_few_devices_is_refused(pool, arrangement, message):
    with pytest.raises(UsageError) as caught:
        pool.assign(Layout(arrangement))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("pool", "loaded", "asked", "expected"),
    [
        (cores(4), 8, 0, 2),
        (cores(4), 8, 4, 4),
        (cores(4), 3, 4, "stages is 4; it must be at least 2 and at most 3: there are 4 devices, and the target has 3 layers"),
        (cores(2), 0, 1, "stages is 1; it must be at least 2 and at most 2: there are 2 devices"),
        (cores(1), 8, 0, "a pipeline takes at least 2 devices and 2 layers; there are 1 devices, and the target has 8 layers: choose another placement"),
        (cores(4, spans=SPANS), 8, 0, 2),
        (gpus("pearl-4xA100"), 0, 0, 3),
        (gpus("pearl-4xA100"), 3, 0, 3),
        (gpus("pearl-4xA100"), 0, 5, "stages is 5; it must be at least 2 and at most 4: there are 4 devices, and the target has 80 layers"),
        (TP8, 8, 0, "the pair llama-3-8-70-tp8 of the profile 8xA100 has times of a target under tensor parallelism; a pipeline needs one split by layers"),
        (gpus("A100-OPT"), 8, 0, "the pair opt-125m-6.7b of the profile A100-OPT does not say step.move_ms, which moving a KV cache takes: choose another profile"),
    ],
)  # fmt: skip
def test_a_target_has_two_stages_or_its_gpus_by_default_and_no_more_than_devices_and_layers(
    pool, loaded, asked, expected
):
    if isinstance(expected, int):
        assert pool.stages(asked, loaded) == expected
        return
    with pytest.raises(UsageError) as caught:
        pool.stages(asked, loaded)
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(
    ("pool", "servers", "ranks"),
    [
        (cores(4), [4, 3, 2], 4),
        (cores(4, tp=2, drafter_tp=3), [2, 0, 0], 1),
        (cores(5, tp=2), [2, 2, 1], 2),
        (cores(4, spans=SPANS), [2, 1, 1], 2),
        (TP4, [2, 1, 1], 8),
        (gpus("A100-OPT"), [2, 1, 0], 1),
    ],
)
def test_servers_and_ranks_are_what_the_widths_leave(pool, servers, ranks):
    assert [pool.servers(drafters) for drafters in range(3)] == servers
    assert pool.ranks == ranks


def test_devices_are_listed_with_the_drafter_first_and_then_as_people_count():
    listed = labelled_devices(cores(12).assign(Layout(Separate(11))), ["drafter"])
    targets = [(f"cpu:{i}", "target") for i in range(1, 12)]
    assert [(device.name, device.role) for device in listed] == [("cpu:0", "drafter"), *targets]


@pytest.mark.parametrize(
    ("names", "kind", "expected"),
    [
        (("cuda:0", "cuda:0/2"), "cuda", True),
        (("cuda:0", "cuda:1"), "cuda", False),
        (("cpu:0", "cpu:0/2"), "cpu", False),
    ],
)
def test_places_on_one_gpu(names, kind, expected):
    assert on_one_gpu([Device(name, "", name, kind) for name in names]) is expected
