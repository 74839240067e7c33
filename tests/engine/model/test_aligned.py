"""Padding changes what is computed, never what comes out: padded forwards against those of each slot alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.model import load
from engine.model.aligned import Aligned, attend
from engine.model.slots import PAD, Rows
from engine.types import Prefix
from engine.workers.packing import Alignment, padded
from tests.engine.model import tiny

FAMILIES = ("llama3-rope", "mistral-window", "qwen3")
LENGTHS = (9, 3, 14, 1)
NEW = (4, 1, 2, 5)


@pytest.fixture(scope="module", params=FAMILIES)
def decoder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    tiny.save(tiny.reference(request.param, seed=3), path)
    return load.load(path)


def rows_of(slot: int, count: int, start: int) -> Rows:
    return Rows.chain(slot, (np.arange(count) * 7 + slot + start) % (tiny.VOCAB - 2) + 1, start)


def alone(decoder) -> list[torch.Tensor]:
    found = []
    for slot, (length, new) in enumerate(zip(LENGTHS, NEW, strict=True)):
        cache = decoder.new_cache(len(LENGTHS), 64)
        decoder.forward(cache, rows_of(slot, length, 0), np.empty(0, dtype=np.int64))
        found.append(decoder.forward(cache, rows_of(slot, new, length), np.arange(new)).logits)
    return found


def together(decoder, inputs: bool, kv: bool):
    """Prefill and one forward over all slots; the padding of inputs and KV caches is switched."""
    cache = decoder.new_cache(len(LENGTHS), 24)  # so small that padding makes it grow
    cache.tensor.fill_(1e4)  # what padding reads must not matter, as long as it is a number
    prefill = [rows_of(slot, length, 0) for slot, length in enumerate(LENGTHS)]
    decoder.forward(cache, Rows.join(prefill), np.empty(0, dtype=np.int64))
    most = max(NEW) if inputs else 0
    parts = [padded(rows_of(s, n, LENGTHS[s]), max(n, most)) for s, n in enumerate(NEW)]
    starts = np.cumsum([0, *map(len, parts)])
    cache.align(30 if kv else 0, max(map(len, parts)))
    want = np.concatenate([np.arange(n) + start for n, start in zip(NEW, starts, strict=False)])
    out = decoder.forward(cache, Rows.join(parts), want)
    reads = [30 + len(p) if kv else length + len(p) for p, length in zip(parts, LENGTHS, strict=True)]
    return out, sum(len(p) * r for p, r in zip(parts, reads, strict=True)), cache


@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize("kv", [False, True])
def test_padding_changes_no_logit_and_costs_its_cells(decoder, inputs, kv):
    out, cells, _ = together(decoder, inputs, kv)
    torch.testing.assert_close(out.logits, torch.cat(alone(decoder)), rtol=1e-4, atol=1e-4)
    if decoder.layers[0].window is None:
        assert out.cells == cells


def test_only_aligned_slots_are_computed_together(decoder):
    for inputs, kv, calls in ((True, True, 1), (True, False, 4), (False, True, 4), (False, False, 4)):
        _, _, cache = together(decoder, inputs, kv)
        counts = [max(NEW) if inputs else n for n in NEW]
        ends = np.cumsum([0, *counts])
        segments = [(slot, int(ends[slot]), int(ends[slot + 1])) for slot in range(len(NEW))]
        parts = list(attend(cache, cache.buffers(sum(counts)), segments))
        assert len(parts) == calls
        assert isinstance(parts[0], Aligned) == (calls == 1)


def test_padding_rows_hang_where_the_last_row_does():
    rows = padded(Rows.chain(1, [5, 6, 7], 4), 5)
    assert rows.parents.tolist() == [3, 4, 5, 5, 5]
    assert rows.flags.tolist() == [0, 0, 0, PAD, PAD]
    assert set(rows.slots.tolist()) == {1}
    same = Rows.chain(0, [5], 0)
    assert padded(same, 1) is same


def test_who_gets_less_is_padded_by_what_is_missing():
    def at(*lengths: int | None) -> list[Prefix]:
        return [Prefix(i, np.zeros(n, dtype=np.int64)) for i, n in enumerate(lengths) if n is not None]

    alignment = Alignment()
    alignment.record(at(10, 4))
    assert alignment.length({0: 9, 1: 3}) == 9  # the prompts' own difference
    alignment.record(at(14, 5))
    alignment.record(at(14, 5))  # told again in the same round: by the drafter, then by the target
    assert alignment.length({1: 4}) == 4 + 3
    alignment.record(at(16, 11))
    assert alignment.length({0: 15}) == 15 + 4
    assert alignment.length({0: 15, 1: 10}) == 15 + 4
    alignment.record(at(None, 12, 40))  # a new sequence has missed nothing
    assert alignment.length({1: 11, 2: 39}) == 39
    alignment.remove(1)
    assert alignment.length({1: 11}) == 11
