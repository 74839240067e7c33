"""Static steps give the eager forward's logits, states and cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specscope.engine.checkpoints.loader import load
from specscope.engine.model.slots import PAD, Rows
from specscope.engine.model.static import ROWS, StaticSteps
from tests.engine.model.tiny import CONFIGS, VOCAB, reference, save
from tests.engine.model.together import on_ranks

torch.set_num_threads(1)
HIDDEN = (0, 2, -1)


def text(n, seed=0):
    return np.random.default_rng(seed).integers(0, VOCAB, n)


def batch(*parts):
    """Return rows of several slots; a part is (slot, parents, seed)."""
    return Rows.join([Rows.of(slot, text(len(parents), seed), parents) for slot, parents, seed in parts])


def forwards():
    """Yield (rows, wanted, slots to cut, length to cut to) of forwards of four slots."""
    yield Rows.chain(0, text(9), 0), [], (), 0
    yield Rows.chain(3, text(5, 1), 0), [4], (), 0
    yield Rows.chain(0, text(1, 2), 9), [0], (), 0  # one row
    yield Rows.chain(0, text(6, 3), 10), [5, 0], (0,), 12  # a chain, then a rejection
    tree = Rows.of(0, text(7, 4), [11, 12, 12, 13, 13, 11, -1])
    yield tree, range(7), (), 0
    yield Rows.of(0, text(3, 5), [14, 17, 18]), range(3), (0,), 12  # the tree's next level
    yield batch((0, [11, 12], 6), (1, [-1, 0, 1], 7), (3, [4], 8)), range(6), (), 0  # slot 2 is empty
    flags = [0, 0, PAD, PAD]
    yield Rows.of(1, text(4, 9), [2, 3, 4, 4], flags), [0, 1], (), 0
    yield Rows.chain(2, text(40, 10), 0), [39], (), 0


def run(decoder, cache):
    """Return the logits of each forward, and the states of its rows; nothing reads padding's."""
    outputs = []
    for rows, wanted, cut, length in forwards():
        logits, states, *_ = decoder.forward(cache, rows, np.array(wanted, dtype=np.int64), HIDDEN)
        outputs.append([logits, *(states[layer][rows.flags == 0] for layer in HIDDEN)])
        for slot in cut:
            cache.truncate(slot, length)
    return outputs


def check_static_steps(decoder, tolerance):
    """Check that static forwards give the eager ones' logits, states, keys and values."""
    eager_cache, cache = decoder.new_cache(4, 50), decoder.new_cache(4, 50)
    expected = run(decoder, eager_cache)
    decoder.steps = StaticSteps(decoder)
    for _ in range(2):  # the second time in steps that have held other rows
        outputs = run(decoder, cache)
        torch.testing.assert_close(outputs, expected, atol=tolerance, rtol=tolerance)
        for slot in range(4):
            held = np.flatnonzero(cache.flags[slot, : cache.length(slot)] == 0)
            assert cache.length(slot) == eager_cache.length(slot)
            kv, eager_kv = (c.tensor[:, slot, :, held] for c in (cache, eager_cache))
            torch.testing.assert_close(kv, eager_kv, atol=tolerance, rtol=tolerance)
            cache.reset(slot)
    assert 0 < decoder.steps.count(cache) <= len(outputs)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_static_step_equals_the_eager_forward(family, tmp_path):
    save(reference(family), tmp_path)
    check_static_steps(load(tmp_path), tolerance=1e-5)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_static_step_of_a_split_model_equals_the_eager_forward(family, tmp_path):
    """Three ranks: heads, columns and vocabulary are padded."""
    save(reference(family), tmp_path)
    on_ranks(3, lambda ranks: check_static_steps(load(tmp_path, ranks=ranks), tolerance=1e-5))


def test_steps_are_used_again_and_results_stay(tmp_path):
    save(reference("llama"), tmp_path)
    decoder = load(tmp_path)
    decoder.steps = StaticSteps(decoder)
    cache = decoder.new_cache(1, 50)
    first = decoder.forward(cache, Rows.chain(0, text(3), 0), np.arange(3))
    kept = first.logits.clone()
    decoder.forward(cache, Rows.chain(0, text(4, 1), 3), np.arange(4))
    assert torch.equal(first.logits, kept)
    assert decoder.steps.count(cache) == 1


def test_a_long_prefill_is_eager_and_a_grown_cache_gets_new_steps(tmp_path):
    save(reference("llama"), tmp_path)
    decoder = load(tmp_path)
    decoder.steps = StaticSteps(decoder)
    cache = decoder.new_cache(2, 64)
    assert len(text(64)) == ROWS[-1]
    decoder.forward(cache, Rows.chain(0, text(60), 0), np.arange(60))
    assert decoder.steps.count(cache) == 1
    cache.pad(80, 8)
    decoder.forward(cache, Rows.chain(1, text(8), 0), np.arange(8))
    assert decoder.steps.count(cache) == 1
    rows = Rows.chain(0, text(65), 0)
    assert decoder.steps.run(cache, rows, np.arange(65), np.arange(1), ()) is None
