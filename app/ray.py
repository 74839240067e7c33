"""The Ray cluster that the page offers beside this machine (`specscope play --ray`)."""

from __future__ import annotations

from dataclasses import dataclass

RUNTIME = "ray"


@dataclass(frozen=True, slots=True)
class Ray:
    """A Ray cluster for runs of the page."""

    address: str | None = None
    """As for `specscope.open`. None: the first run starts a cluster of this machine alone."""

    @property
    def title(self) -> str:
        return f"Ray cluster, {self.address or 'this machine'}"

    def check(self) -> None:
        """Import Ray and connect once, so that the page offers no cluster that refuses runs."""
        from specscope.engine.cluster.ray_cluster import RayCluster
        from specscope.engine.cluster.ray_connect import import_ray

        if self.address is None:
            import_ray(starts=True)
            return
        cluster = RayCluster(self.address, cpus=1)
        try:
            cluster.nodes()
        finally:
            cluster.close()
