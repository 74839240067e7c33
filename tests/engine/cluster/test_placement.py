"""Seats: which devices a layout takes, and the order in which a run names them."""

from engine.cluster.local_devices import LocalDevices
from engine.cluster.placement import Placement
from engine.pairs.pair import Pair
from engine.trace.events import Device
from engine.types import Layout
from tests.engine.workers.harness import scripted_cluster


class _Cores(LocalDevices):
    """Twelve cores, with models that take no time to load."""

    def start_worker(self, seat):
        with scripted_cluster(lambda path: 5, lambda path: 5) as there:
            return there.placement.site.start_worker(seat)

    def loader(self, model, seat):
        with scripted_cluster(lambda path: 5, lambda path: 5) as there:
            return there.placement.site.loader(model, seat)


def test_a_pool_is_listed_with_the_drafter_first_and_then_as_people_count():
    cores = tuple(Device(f"cpu:{i}", "", f"CPU core {i}", "cpu") for i in range(12))
    site = _Cores(Pair.find("bundled"), "local-process", cores, 1)
    place = Placement("local-process", site, Layout())
    crew = place.crew(Layout(targets=11, drafters=1))
    assert [(d.name, d.role) for d in crew.devices] == [
        ("cpu:0", "drafter"),
        *((f"cpu:{i}", "target") for i in range(1, 12)),
    ]
