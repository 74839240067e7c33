"""A node of a Ray cluster, as its workers know it."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from engine.workers.ray.clock import Clock

CONNECT_S = 2.0
"""Seconds for a connection to a node."""


@dataclass
class Node:
    """One node. All workers on it share its clock."""

    id: str
    """Ray's id."""
    name: str
    """Its name in labels and messages: `node 2 (10.0.0.7)`; empty if it is the only node."""
    address: str
    """IP address."""
    port: int
    """TCP port of its raylet, the process that starts its workers."""
    own: bool
    """Whether this process runs on it."""
    clock: Clock = field(default_factory=Clock)

    def answers(self) -> bool:
        """Return whether the node's raylet takes connections."""
        return reachable(self.address, self.port)


def reachable(host: str, port: int) -> bool:
    """Return whether a TCP port takes connections."""
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True
