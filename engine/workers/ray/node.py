"""A node of a Ray cluster, as its workers know it."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from engine.workers.ray.clock import Clock

CONNECT_S = 2.0
"""Seconds for a connection to a node."""
SETTINGS = 4
"""Type of the frame by which a server of HTTP/2, such as Ray's head, begins (RFC 9113)."""
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, SETTINGS, 0, 0, 0, 0, 0))
"""What a client of HTTP/2 sends first: the preface and settings without entries."""


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


def speaks_grpc(host: str, port: int) -> bool:
    """Return whether the server at a port, which takes connections, begins as gRPC does.

    Ray itself tries for over a minute to talk to another service.
    """
    try:
        with socket.create_connection((host, port), timeout=CONNECT_S) as connection:
            connection.sendall(HELLO)
            return connection.recv(4, socket.MSG_WAITALL)[3:] == bytes((SETTINGS,))
    except OSError:
        return False
