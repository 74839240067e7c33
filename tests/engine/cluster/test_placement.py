"""Placement: the devices of a layout, and their order in a run's header."""

from engine.cluster.local_devices import LocalDevices
from engine.cluster.placement import Placement
from engine.layout import Layout, Separate
from engine.pairs.pair import Pair
from engine.trace.events import Device
from tests.engine.workers.harness import scripted_cluster


class _Cores(LocalDevices):
    """Twelve cores, with models that take no time to load."""

    def start_worker(self, assignment):
        with scripted_cluster(lambda path: 5, lambda path: 5) as cluster:
            return cluster.placement.site.start_worker(assignment)

    def loader(self, model, assignment):
        with scripted_cluster(lambda path: 5, lambda path: 5) as cluster:
            return cluster.placement.site.loader(model, assignment)


def test_a_pool_is_listed_with_the_drafter_first_and_then_as_people_count():
    cores = tuple(Device(f"cpu:{i}", "", f"CPU core {i}", "cpu") for i in range(12))
    site = _Cores(Pair.find("bundled"), "local-process", cores, 1)
    place = Placement("local-process", site, Layout())
    workers = place.workers_for(Layout(Separate(targets=11)))
    assert [(d.name, d.role) for d in workers.devices] == [
        ("cpu:0", "drafter"),
        *((f"cpu:{i}", "target") for i in range(1, 12)),
    ]
