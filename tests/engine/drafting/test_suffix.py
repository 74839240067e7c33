"""Suffix trees: counts and drafts equal those of a plain search through all texts."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specscope.engine.drafting.suffix import Budget, Finished, Found, SuffixTree

Texts = dict[int, list[int]]
WIDE = Budget(factor=1.0, offset=0.0, most=32, least=0.1)


def places(texts: Texts, part: list[int]) -> list[tuple[int, int]]:
    """Return (text, index after it) of every occurrence, the latest last."""
    return [
        (number, start + len(part))
        for number, text in texts.items()
        for start in range(len(text) - len(part) + 1)
        if text[start : start + len(part)] == part
    ]


def search(texts: Texts, depth: int, context: list[int], budget: Budget) -> Found:
    """Return the draft that the paper's section 3 describes, by counting from scratch."""
    best = Found()
    for match in range(1, min(depth - 1, len(context)) + 1):
        end = context[-match:]
        most = max(0, min(budget.most, int(budget.factor * match + budget.offset + 1e-6), depth - match))
        tokens, probability, score = list[int](), Fraction(1), Fraction(0)
        while len(tokens) < most:
            here = places(texts, end + tokens)
            follows = [(texts[n][at], n, at) for n, at in here if at < len(texts[n])]
            if not follows:
                break
            counts = {t: sum(token == t for token, _, _ in follows) for t, _, _ in follows}
            latest = {token: place for token, *place in follows}
            token = max(counts, key=lambda t: (counts[t], latest[t]))
            probability *= Fraction(counts[token], len(here))
            if float(probability) < budget.least:
                break
            tokens.append(token)
            score += probability
        if tokens and score >= best.score:
            text, after = places(texts, end + tokens)[-1]
            best = Found(tuple(tokens), score, match, len(places(texts, end)), text, after - len(tokens))
    return best


def assert_equal(found: Found, expected: Found) -> None:
    assert found._replace(score=0.0) == expected._replace(score=0.0)
    assert found.score == pytest.approx(expected.score)


token_lists = st.lists(st.integers(0, 2), max_size=24)
depths = st.integers(2, 9)
budgets = st.builds(
    Budget,
    factor=st.sampled_from([0.5, 1.0, 3.0]),
    offset=st.sampled_from([-1.0, 0.0, 2.0]),
    most=st.integers(0, 8),
    least=st.sampled_from([0.0, 0.13, 0.27, 0.6]),
)


@given(token_lists, depths, budgets, st.lists(st.integers(1, 5)))
def test_a_growing_text_is_counted_like_a_plain_search(text, depth, budget, parts):
    tree, known = SuffixTree(depth), 0
    for size in [*parts, len(text)]:
        tree.extend(0, text[known : known + size])
        known = min(known + size, len(text))
        assert_equal(tree.draft(text[:known], budget), search({0: text[:known]}, depth, text[:known], budget))


@given(st.lists(token_lists, max_size=6), token_lists, depths, budgets, st.integers(0, 6))
def test_finished_texts_are_counted_like_a_plain_search_also_after_the_oldest_are_removed(
    added, context, depth, budget, removed
):
    tree, texts = SuffixTree(depth), Texts()
    for number, text in enumerate(added):
        tree.extend(number, text)
        texts[number] = text
        if number < removed and number:
            tree.remove(number - 1)
            del texts[number - 1]
        assert_equal(tree.draft(context, budget), search(texts, depth, context, budget))


@given(st.lists(token_lists, max_size=8), token_lists, depths, st.integers(0, 40))
def test_the_memory_holds_the_latest_texts_of_at_most_so_many_tokens(added, context, depth, most):
    memory = Finished()
    for text in added:
        memory.add(text, most)
    kept = list(memory.texts.values())
    assert sum(map(len, kept)) <= most
    fitting = [tuple(text) for text in added if 0 < len(text) <= most]
    assert kept == fitting[len(fitting) - len(kept) :]
    if len(kept) < len(fitting):
        assert sum(map(len, kept)) + len(fitting[-len(kept) - 1]) > most
    found = memory.tree(depth, most).draft(context, WIDE)
    assert_equal(found, search({n: list(t) for n, t in memory.texts.items()}, depth, context, WIDE))


def test_a_repeated_text_needs_few_nodes():
    """2 nodes for each token at most, whatever the depth: labels have several tokens."""
    tree, text = SuffixTree(64), [i * 7 % 50 for i in range(400)]
    for number in range(3):
        tree.extend(number, text)
    nodes, stack = 0, [tree._root]
    while stack:
        nodes, stack = nodes + 1, [*stack[:-1], *stack[-1].children.values()]
    assert nodes <= 2 * 3 * len(text)
