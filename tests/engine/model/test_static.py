"""Static steps, and chains without a host between their forwards, equal the eager forwards."""

from itertools import cycle

import numpy as np
import pytest
import torch

from specscope.engine.checkpoints.loader import load
from specscope.engine.drafting.tree import Wide
from specscope.engine.model.clock import Clock
from specscope.engine.model.fused import DraftInputs, FusedDrafts
from specscope.engine.model.slots import PAD, Rows
from specscope.engine.model.static import ROWS, StaticSteps
from specscope.engine.sampling.draws import Draws, Key, pick, pick_rows
from specscope.engine.types import Sampling
from tests.engine.model.tiny import CONFIGS, VOCAB, reference, save
from tests.engine.model.together import on_ranks
from tests.engine.toy_draws import propose_token

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
    yield Rows.of(0, text(7, 4), [11, 12, 12, 13, 13, 11, -1]), range(7), (), 0
    yield Rows.of(0, text(3, 5), [14, 17, 18]), range(3), (0,), 12  # the tree's next level
    yield batch((0, [11, 12], 6), (1, [-1, 0, 1], 7), (3, [4], 8)), range(6), (), 0  # slot 2 is empty
    yield Rows.of(1, text(4, 9), [2, 3, 4, 4], [0, 0, PAD, PAD]), [0, 1], (), 0
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
    """Also of a split model: three ranks pad heads, columns and vocabulary."""
    save(reference(family), tmp_path)
    check_static_steps(load(tmp_path), tolerance=1e-5)
    if family != "olmoe":  # its heads are not split
        on_ranks(3, lambda ranks: check_static_steps(load(tmp_path, ranks=ranks), tolerance=1e-5))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A function that loads a tiny model."""
    folder = tmp_path_factory.mktemp("llama")
    save(reference("llama"), folder)
    return lambda: load(folder)


def test_steps_are_used_again_and_results_stay(llama):
    decoder = llama()
    decoder.steps = StaticSteps(decoder)
    cache = decoder.new_cache(1, 50)
    first = decoder.forward(cache, Rows.chain(0, text(3), 0), np.arange(3))
    kept = first.logits.clone()
    decoder.forward(cache, Rows.chain(0, text(4, 1), 3), np.arange(4))
    assert torch.equal(first.logits, kept)
    assert decoder.steps.count(cache) == 1


def test_a_long_prefill_is_eager_and_a_grown_cache_gets_new_steps(llama):
    decoder = llama()
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


torch.set_num_threads(1)
LENGTHS = {0: 9, 1: 21, 3: 4}
"""Rows of the slots; slot 2 is empty."""
COUNTS = {0: 5, 1: 1, 3: 6}
WAYS = {
    "greedy": Sampling(),
    "warm": Sampling(1.0, seed=3),
    "top-k": Sampling(1.3, top_k=7, seed=4),
    "top-p": Sampling(1.1, top_p=0.6, seed=5),
}


def filled(decoder):
    """Return a cache with rows in three slots, and the logits of their last rows."""
    cache = decoder.new_cache(4, 40)
    parts = [Rows.chain(slot, text(n, slot), 0) for slot, n in LENGTHS.items()]
    last = np.cumsum(list(LENGTHS.values())) - 1
    return cache, decoder.forward(cache, Rows.join(parts), last).logits


def drafted_in_a_loop(decoder, sampling, draws):
    """Return the tokens and q of each slot, and the cache."""
    cache, logits = filled(decoder)
    tokens, qs = [], []
    for (slot, length), out in zip(LENGTHS.items(), logits, strict=True):
        ids, q_rows = [], []
        for position in range(length, length + COUNTS[slot]):
            if ids:
                rows = Rows.chain(slot, ids[-1:], position - 1)
                out = decoder.forward(cache, rows, np.arange(1)).logits[0]
            given = {"position": position, "sampling": sampling, "draws": draws[slot], "sampled": True}
            token, q = propose_token(out, **given)
            ids.append(token)
            q_rows.append(out.softmax(-1) if q is None else q)
        tokens.append(ids)
        qs.append(torch.stack(q_rows))
    return tokens, qs, cache


def drafted(decoder, sampling, draws, fused):
    """Return the same, drafted without a host between the forwards."""
    cache, logits = filled(decoder)
    numbers = [
        [[draws[slot].value(Key(LENGTHS[slot] + step, "draft"))] for step in range(count)]
        for slot, count in COUNTS.items()
        if not sampling.greedy
    ]
    given, count = DraftInputs(list(COUNTS), logits, numbers), max(COUNTS.values())
    found = fused.draft(cache, Wide(1, count).plans(count), given, sampling, Clock(), argmax=True)
    return found, cache


@pytest.mark.parametrize(
    ("family", "way"), sorted({*zip(CONFIGS, cycle(WAYS)), *(("llama", way) for way in WAYS)})
)
def test_chains_equal_a_loop(family, way, tmp_path):
    save(reference(family), tmp_path)
    check_chains(load(tmp_path), WAYS[way])


def check_chains(decoder, sampling):
    """Check that a chain drafted without a host has the tokens, q, keys and values of a loop."""
    draws = {slot: Draws(7, slot) for slot in LENGTHS}
    tokens, qs, expected = drafted_in_a_loop(decoder, sampling, draws)
    fused = FusedDrafts(decoder)
    for _ in range(2):  # the second time in a graph that has held other rows
        found, cache = drafted(decoder, sampling, draws, fused)
        for b, (slot, count) in enumerate(COUNTS.items()):
            levels = found.levels[:count]
            assert [int(level.ids[b]) for level in levels] == tokens[b]
            top = torch.cat([level.top[b] for level in levels])
            torch.testing.assert_close(top, qs[b].topk(5).values.double(), atol=1e-5, rtol=1e-4)
            if not sampling.greedy:
                q = torch.cat([level.q[b] for level in levels])
                torch.testing.assert_close(q, qs[b], atol=1e-5, rtol=1e-4)
            rows = slice(LENGTHS[slot] + count - 1)
            kv, eager_kv = (c.tensor[:, slot, :, rows] for c in (cache, expected))
            torch.testing.assert_close(kv, eager_kv, atol=1e-5, rtol=1e-5)
        assert all((level.q is None) == sampling.greedy for level in found.levels)


def test_graphs_are_used_again_whatever_the_seed_and_every_forward_has_its_facts(llama):
    decoder = llama()
    fused, (cache, logits) = FusedDrafts(decoder), filled(decoder)
    for seed in (1, 2):
        given = DraftInputs([0, 1, 3], logits, [[[0.5]] * 3] * 3)
        fused.draft(cache, Wide(1, 3).plans(3), given, Sampling(1.0, seed=seed), Clock())
    assert fused.count(cache) == 1
    found, _ = drafted(decoder, Sampling(), {}, fused)
    marks = [mark for times in found.times for mark in times]
    assert len(found.times) == max(COUNTS.values()) - 1
    assert marks == sorted(marks)
    assert set(found.cells) == {4 * 41}  # four slots with all rows of the cache, the spare one included


@pytest.mark.parametrize(
    ("count", "expected"),
    [(11, True), (12, False), (1, False)],
    ids=["it fits", "a row more than a slot has", "nothing between two forwards"],
)
def test_a_draft_needs_room_and_two_levels(count, expected, llama):
    decoder, plans = llama(), Wide(1, count).plans(count)
    assert FusedDrafts(decoder).fits(decoder.new_cache(2, 40), (9, 30), plans, VOCAB) is expected


def test_tokens_are_picked_as_on_the_host():
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand((200, 50), generator=generator) * (torch.rand((200, 50), generator=generator) > 0.6)
    weights[:, 17] += 1e-3
    u = torch.rand(200, dtype=torch.float64, generator=generator)
    u[0], u[1] = 0.0, 1 - 2**-53
    expected = [pick(float(x), row) for x, row in zip(u, weights, strict=True)]
    assert pick_rows(u, weights).tolist() == expected
