"""The runtime `ray`: a connection to a cluster, and workers on its nodes."""

from __future__ import annotations

from collections.abc import Callable

from engine.cluster.local_devices import devices_of
from engine.cluster.placement import Placement
from engine.cluster.ray_cluster import RayCluster
from engine.cluster.ray_devices import RESOURCES, RayDevices
from engine.environment import processor
from engine.errors import UsageError
from engine.layout import Layout
from engine.pairs.pair import Pair


def ray_placement(
    pair: Pair,
    base: Layout,
    address: str | None,
    *,
    device: str,
    threads: int,
    forward: str,
    dtype: str,
    tp: int,
    drafter_tp: int,
    check: Callable[[int, int, int], None],
) -> Placement:
    """Connect to Ray and load the pair on its nodes; for the arguments see `engine.open`.

    `base` is the layout to load; `check` checks the devices of a node, tp and drafter_tp.
    """
    if device not in RESOURCES:
        raise UsageError(f"there is no device {device!r}; choose auto, cpu or cuda")
    cluster = RayCluster(address, len(devices_of("cpu")))
    try:
        site = RayDevices(pair, cluster, device, threads, forward == "static", dtype, tp, drafter_tp)
        _check_one_node(site, max(tp, drafter_tp), RESOURCES[device])
        check(len(site.largest), tp, drafter_tp)
    except BaseException:
        cluster.close()
        raise
    settings = {"host": processor(), "threads": threads, "forward": forward, "dtype": dtype}
    split = {"tp": tp, "drafter_tp": drafter_tp} if max(tp, drafter_tp) > 1 else {}
    details = settings | split | {"nodes": site.nodes}
    return Placement("ray", site, base, details=details, finish=cluster.close)


def _check_one_node(site: RayDevices, ways: int, resource: str) -> None:
    """Check that a node has the devices of a split model; its all-reduces stay on the node.

    Raises:
        UsageError: None has.
    """
    if ways > (most := len(site.largest)) and ways > 1:
        raise UsageError(
            f"a model is to be split over {ways} devices of one node, and no node of the Ray cluster has more than "
            f"{most} free {resource}: split it less, or free devices"
        )
