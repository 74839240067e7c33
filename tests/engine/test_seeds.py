"""The text of a run is a function of its seed."""

from __future__ import annotations

import asyncio

import pytest

from specscope.engine.sampling.draws import Draws
from specscope.engine.types import Sampling
from tests.engine.toy import Method, Table, ToyRun
from tests.engine.toy_methods import method, top_tree

ONE = Sampling(1.0)


def text(decode: Method, seed: int, sampling: Sampling) -> tuple[int, ...]:
    """Return the text of a run of 40 tokens."""
    run = ToyRun(Table(61, 8), Table(62, 8), Draws(seed, 0), sampling, 40)

    async def finished() -> None:
        await decode(run)

    asyncio.run(finished())
    return run.text


@pytest.mark.parametrize("sampling", [Sampling(0.3), Sampling(1.0), Sampling(2.0, top_k=5, top_p=0.9)])
@pytest.mark.parametrize("seed", [0, 1])
def test_methods_of_rule_2_give_the_text_of_autoregressive_decoding(seed, sampling):
    plain = text(method("autoregressive"), seed, sampling)
    drafted = [method("speculative", gamma=g, drafts="greedy") for g in (1, 2, 5)]
    copied = [
        method("llma", match=m, copy=k, reference=text) for m, k, text in ((1, 7, ""), (2, 3, "0123456701"))
    ]
    copied += [method("prompt_lookup", ngram=n, which=which) for n, which in ((1, "first"), (3, "latest"))]
    ahead = [
        method("lookahead", level=n, window=w, guesses=g) for n, w, g in ((2, 8, 2), (3, 4, 4), (4, 3, 7))
    ]
    ahead += [
        method("ouroboros", gamma=g, level=n, window=5, phrases=k) for g, n, k in ((1, 2, 0), (4, 3, 3))
    ]
    trees = [method("tree", width=w, depth=d, drafts="greedy") for w, d in ((1, 4), (4, 3), (8, 2))]
    for decode in [*drafted, *copied, *ahead, *trees, top_tree(3), top_tree(2, 2, 2)]:
        assert text(decode, seed, sampling) == plain


def test_another_seed_gives_another_text():
    assert text(method("autoregressive"), 0, ONE) != text(method("autoregressive"), 1, ONE)


def test_the_text_of_sampled_drafts_is_a_function_of_the_seed():
    for decode in (
        method("speculative", gamma=3), method("pearl", gamma=3), method("tree", width=3, depth=3)
    ):  # fmt: skip
        assert text(decode, 5, ONE) == text(decode, 5, ONE)
