"""Chains without a host between their forwards are those of a loop (trees: `test_growths`)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specscope.engine.checkpoints.loader import load
from specscope.engine.drafting.tree import Wide
from specscope.engine.model.clock import Clock
from specscope.engine.model.fused import FusedDrafts, Given
from specscope.engine.model.slots import Rows
from specscope.engine.sampling.draws import Draws, Key, pick, pick_rows
from specscope.engine.types import Sampling
from tests.engine.model.test_static import text
from tests.engine.model.tiny import CONFIGS, VOCAB, reference, save
from tests.engine.toy_draws import propose_token

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
    for (slot, length), row in zip(LENGTHS.items(), logits, strict=True):
        ids, q_rows, out = [], [], row
        for step in range(COUNTS[slot]):
            if step:
                out = decoder.forward(
                    cache, Rows.chain(slot, ids[-1:], length + step - 1), np.arange(1)
                ).logits[0]
            position = length + step
            token, q = propose_token(
                out, position=position, sampling=sampling, draws=draws[slot], sampled=True
            )
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
    given, count = Given(list(COUNTS), logits, numbers), max(COUNTS.values())
    found = fused.draft(cache, Wide(1, count).plans(count), given, sampling, Clock(), argmax=True)
    return found, cache


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", CONFIGS)
def test_chains_equal_a_loop(family, way, tmp_path):
    save(reference(family), tmp_path)
    decoder, sampling = load(tmp_path), WAYS[way]
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


def test_the_facts_of_every_forward(tmp_path):
    save(reference("llama"), tmp_path)
    decoder = load(tmp_path)
    found, _ = drafted(decoder, Sampling(), {}, FusedDrafts(decoder))
    marks = [mark for times in found.times for mark in times]
    assert len(found.times) == max(COUNTS.values()) - 1
    assert marks == sorted(marks)
    assert set(found.cells) == {4 * 41}  # four slots with all rows of the cache, the spare one included


def test_graphs_are_used_again_whatever_the_seed(tmp_path):
    save(reference("llama"), tmp_path)
    decoder = load(tmp_path)
    fused, (cache, logits) = FusedDrafts(decoder), filled(decoder)
    for seed in (1, 2):
        given = Given([0, 1, 3], logits, [[[0.5]] * 3] * 3)
        fused.draft(cache, Wide(1, 3).plans(3), given, Sampling(1.0, seed=seed), Clock())
    assert fused.count(cache) == 1


@pytest.mark.parametrize(
    ("count", "expected"),
    [(11, True), (12, False), (1, False)],
    ids=["it fits", "a row more than a slot has", "nothing between two forwards"],
)
def test_a_draft_needs_room_and_two_levels(count, expected, tmp_path):
    save(reference("llama"), tmp_path)
    decoder, plans = load(tmp_path), Wide(1, count).plans(count)
    assert FusedDrafts(decoder).fits(decoder.new_cache(2, 40), (9, 30), plans, VOCAB) is expected


def test_tokens_are_picked_as_on_the_host():
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand((200, 50), generator=generator) * (torch.rand((200, 50), generator=generator) > 0.6)
    weights[:, 17] += 1e-3
    u = torch.rand(200, dtype=torch.float64, generator=generator)
    u[0], u[1] = 0.0, 1 - 2**-53
    expected = [pick(float(x), row) for x, row in zip(u, weights, strict=True)]
    assert pick_rows(u, weights).tolist() == expected
