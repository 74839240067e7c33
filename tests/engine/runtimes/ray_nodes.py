"""Runs and deaths on nodes of Ray, for tests."""

import os
import secrets
import time
from contextlib import contextmanager

import psutil

import specscope

SMALL = {"num_cpus": 1, "object_store_memory": 80 << 20}


@contextmanager
def two_nodes():
    """Start a cluster of two nodes on this machine, with a new token in the environment."""
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # 15 by default: a loaded machine's other tests would starve them
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**SMALL, "include_dashboard": False})
    try:
        cluster.add_node(**SMALL)
        yield cluster
    finally:
        cluster.shutdown()


class Opened:
    """`specscope.open`, with the processes of the workers of each cluster that it opened."""

    def __init__(self):
        self.pids: list[list[int]] = []

    def __call__(self, **place):
        cluster = specscope.open(**place)
        self.pids.append([worker.pid for worker in cluster.placement.workers])
        return cluster


def await_spans(run):
    """Wait until a run of the page has spans."""
    deadline = time.monotonic() + 60
    while sum(event.tag == "span" for event in run.since(0)[0]) < 6:
        assert not run.wait(0.02), run.error
        assert time.monotonic() < deadline


def assert_ended(pids):
    """Assert that processes end in 10 s."""
    gone = [process for process in processes(pids) if process.wait(10) is None]
    assert not any(map(psutil.pid_exists, pids)), gone


def kill_node(node):
    """Kill a node's processes, as a loss of power would."""
    (raylet,) = (psutil.Process(info.process.pid) for info in node.all_processes["raylet"])
    for process in [raylet, *raylet.children(recursive=True)]:
        process.kill()


def processes(pids):
    return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
