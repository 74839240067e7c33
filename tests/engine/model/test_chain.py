"""A chain drafts what a loop of forwards and draws drafts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.draws import Draws, Key, pick, pick_rows, propose_token
from engine.model.chain import Chains
from engine.model.clock import Clock
from engine.model.slots import Rows
from engine.pairs.load import load
from engine.types import Sampling
from tests.engine.model.test_static import text
from tests.engine.model.tiny import CONFIGS, VOCAB, reference, save

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


def drafted(decoder, sampling, draws, chains):
    """Return the same, drafted as chains."""
    cache, logits = filled(decoder)
    numbers = [
        [draws[slot].value(Key(LENGTHS[slot] + step, "draft")) for step in range(count)]
        for slot, count in COUNTS.items()
        if not sampling.greedy
    ]
    slots, counts = list(COUNTS), list(COUNTS.values())
    found = chains.draft(cache, slots, counts, logits, numbers, sampling, Clock())
    return found, cache


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", CONFIGS)
def test_chains_equal_a_loop(family, way, tmp_path):
    save(reference(family), tmp_path)
    decoder, sampling = load(tmp_path), WAYS[way]
    draws = {slot: Draws(7, slot) for slot in LENGTHS}
    tokens, qs, expected = drafted_in_a_loop(decoder, sampling, draws)
    chains = Chains(decoder)
    for _ in range(2):  # the second time in a chain that has held other rows
        found, cache = drafted(decoder, sampling, draws, chains)
        for b, (slot, count) in enumerate(COUNTS.items()):
            ids = found.ids[b, :count]
            assert ids.tolist() == tokens[b]
            chosen = qs[b].gather(1, ids[:, None])[:, 0].double()
            torch.testing.assert_close(found.probabilities[b, :count], chosen, atol=1e-5, rtol=1e-4)
            best = qs[b].topk(5)
            torch.testing.assert_close(found.top[b, :count], best.values.double(), atol=1e-5, rtol=1e-4)
            if found.q is not None:
                torch.testing.assert_close(found.q[:count, b], qs[b], atol=1e-5, rtol=1e-4)
            rows = slice(LENGTHS[slot] + count - 1)
            kv, eager_kv = (c.tensor[:, slot, :, rows] for c in (cache, expected))
            torch.testing.assert_close(kv, eager_kv, atol=1e-5, rtol=1e-5)
        assert (found.q is None) == sampling.greedy


def test_the_facts_of_every_forward(tmp_path):
    save(reference("llama"), tmp_path)
    decoder = load(tmp_path)
    found, _ = drafted(decoder, Sampling(), {}, Chains(decoder))
    marks = [mark for times in found.times for mark in times]
    assert len(found.times) == max(COUNTS.values()) - 1
    assert marks == sorted(marks)
    assert found.cells == 4 * 41  # four slots with all rows of the cache, the spare one included


def test_chains_are_used_again_whatever_the_seed(tmp_path):
    save(reference("llama"), tmp_path)
    decoder = load(tmp_path)
    chains, (cache, logits) = Chains(decoder), filled(decoder)
    for seed in (1, 2):
        numbers = [[0.5] * 3] * 3
        chains.draft(cache, [0, 1, 3], [3] * 3, logits, numbers, Sampling(1.0, seed=seed), Clock())
    assert chains.count(cache) == 1


@pytest.mark.parametrize(
    ("lengths", "counts", "expected"),
    [
        ((9, 30), (5, 11), True),
        ((9, 30), (5, 12), False),  # a row more than the slot has
        ((9, 30), (1, 1), False),  # nothing between two forwards
    ],
)
def test_a_chain_needs_room_and_two_tokens(lengths, counts, expected, tmp_path):
    save(reference("llama"), tmp_path)
    decoder = load(tmp_path)
    assert Chains(decoder).fits(decoder.new_cache(2, 40), lengths, counts, VOCAB) is expected


def test_tokens_are_picked_as_on_the_host():
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand((200, 50), generator=generator) * (torch.rand((200, 50), generator=generator) > 0.6)
    weights[:, 17] += 1e-3
    u = torch.rand(200, dtype=torch.float64, generator=generator)
    u[0], u[1] = 0.0, 1 - 2**-53
    expected = [pick(float(x), row) for x, row in zip(u, weights, strict=True)]
    assert pick_rows(u, weights).tolist() == expected
