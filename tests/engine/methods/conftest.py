"""Clusters that several test modules share."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from functools import cache

import pytest

import specscope

RUNTIMES = {
    "local-thread": {"runtime": "local-thread"},
    "local-process": {"runtime": "local-process"},
    "virtual": {"runtime": "virtual", "profile": "pearl-4xA100"},
}


@pytest.fixture(scope="package")
def bundled() -> Generator[Callable[[str], specscope.Cluster]]:
    """Runtime -> a cluster of the bundled pair, opened at first use and shared by this folder."""
    with ExitStack() as opened:

        @cache
        def cluster(runtime: str) -> specscope.Cluster:
            return opened.enter_context(specscope.open(device="cpu", **RUNTIMES[runtime]))

        yield cluster


@pytest.fixture(scope="module", params=RUNTIMES)
def cluster(request, bundled):
    return bundled(request.param)


@pytest.fixture(scope="module")
def threads(bundled):
    return bundled("local-thread")
