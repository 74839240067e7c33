"""Prefill in a worker: stopped between layers, in parts, memory only for rows in use."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specscope.engine.checkpoints.loader import load
from specscope.engine.layout import Packing
from specscope.engine.model.cache import zeros
from specscope.engine.types import Prefix, Sampling
from specscope.engine.worker import host as host_module
from specscope.engine.worker.host import Host
from specscope.engine.worker.jobs import Begin, Load, Prefill
from tests.engine.model.tiny import CONTEXT, VOCAB, reference, save

LAYERS = 3
TEXT = np.random.default_rng(0).integers(0, VOCAB, CONTEXT - 8)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    path = tmp_path_factory.mktemp("target")
    save(reference("llama"), path)
    return path


@pytest.fixture
def host(target):
    made = Host("worker")
    made.handle(Load("target", lambda: load(target)))
    made.handle(Begin(Sampling(), 2, CONTEXT, VOCAB, Packing()))
    return made


def prefill(host, *lengths, stopped=lambda: False):
    """Prefill texts of these lengths; return the stamps' rows and the lengths of the slots."""
    prefixes = tuple(Prefix(i, TEXT[:length]) for i, length in enumerate(lengths))
    reply = host.handle(Prefill("target", prefixes), stopped)
    cache = host.forwards.cache("target")
    cached = [cache.length(host.forwards.slot(i)) for i in range(len(lengths))]
    return [stamp.rows for stamp in reply.stamps], cached


@pytest.mark.parametrize("layers", range(LAYERS))
def test_a_stopped_prefill_ends_before_its_next_layer_and_caches_nothing(host, layers):
    checks = iter([False] * layers + [True])
    rows, cached = prefill(host, 40, stopped=lambda: next(checks))
    assert (rows, cached) == ([39], [0])
    assert next(checks, None) is None, "no layer after the stop"


def test_a_prefill_after_a_stopped_one_has_the_same_keys_and_values(host, target):
    prefill(host, 40, stopped=lambda: True)
    prefill(host, 40)
    other = Host("other")
    other.handle(Load("target", lambda: load(target)))
    other.handle(Begin(Sampling(), 2, CONTEXT, VOCAB, Packing()))
    prefill(other, 40)
    one, two = (h.forwards.cache("target").tensor[:, h.forwards.slot(0)] for h in (host, other))
    assert torch.equal(one, two)


def test_a_long_prefill_runs_in_parts(host, monkeypatch):
    prefill(host, 40)
    whole = host.forwards.cache("target").tensor[:, host.forwards.slot(0), :, :39].clone()
    host.handle(Begin(Sampling(), 2, CONTEXT, VOCAB, Packing()))
    monkeypatch.setattr(host_module, "PREFILL_ROWS", 16)
    rows, cached = prefill(host, 40, 20)
    assert rows == [16 + 16, 16 + 3, 7]
    assert cached == [39, 19]
    parts = host.forwards.cache("target").tensor[:, host.forwards.slot(0), :, :39]
    assert torch.allclose(parts, whole, atol=1e-5)


def test_a_prefill_forwards_only_rows_that_are_not_cached(host, monkeypatch):
    monkeypatch.setattr(host_module, "PREFILL_ROWS", 16)
    assert prefill(host, 25, 8) == ([16 + 7, 8], [24, 7])
    assert prefill(host, 30, 8) == ([5], [29, 7])
    assert prefill(host, 55, 20) == ([16 + 12, 9], [54, 19])
    assert prefill(host, 55, 20) == ([], [54, 19])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_empty_cache_takes_no_memory(dtype):
    before, size = resident(), (1 << 30) // dtype.itemsize
    tensor = zeros((2, size // 2), dtype, torch.device("cpu"))
    assert (tensor.shape, tensor.dtype) == ((2, size // 2), dtype)
    assert not tensor[:, :1000].any()
    assert resident() - before < 100 << 20
    tensor[1, : 1 << 20] = 1
    assert tensor[1, : 1 << 20].all()


def resident():
    """Return this process's resident bytes."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))
