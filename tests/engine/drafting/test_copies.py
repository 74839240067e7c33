"""Drafts without a model: copies, suffix trees and n-grams, each against a plain search."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specscope.engine.drafting.copy import LONGER, Copier
from specscope.engine.drafting.ngrams import GuessWindow, Lookahead, NgramPool
from specscope.engine.drafting.suffix import Budget, Finished, SuffixDraft, SuffixTree
from specscope.engine.types import NO_TREE, CopySource, Draft

# The copier.


def array(tokens) -> np.ndarray:
    return np.asarray(tokens, dtype=np.int64)


def naive(text: list[int], documents: list[list[int]], match: int, copy: int, longest=0, latest=True):
    """Search every place of every text, latest (or earliest) first, for the longest match first."""
    texts, way = [*enumerate(documents), (-1, text)], -1 if latest else 1
    for n in range(longest or match + LONGER, match - 1, -1):
        for number, other in texts[::way]:
            for start in range(n, len(other))[::way]:
                if n <= len(text) and other[start - n : start] == text[len(text) - n :]:
                    ids: list[int] = []
                    for i in range(copy):
                        more = other + ids if number == -1 else other
                        ids += more[start + i : start + i + 1]
                    return tuple(ids), CopySource(number, start, n)
    return (), None


texts = st.lists(st.integers(0, 3), max_size=30)


@given(
    texts,
    st.lists(texts, max_size=3),
    st.integers(1, 4),
    st.integers(0, 3),
    st.booleans(),
    st.integers(1, 9),
    st.data(),
)
def test_a_copy_equals_the_result_of_a_plain_search(text, documents, match, more, latest, copy, data):
    options = {"longest": match + more, "latest": latest} if data.draw(st.booleans(), "options") else {}
    copier = Copier([array(d) for d in documents], match, copy, **options)
    for length in sorted(data.draw(st.sets(st.integers(0, len(text))), label="lengths of the calls")):
        assert copier.find(array(text[:length])) == naive(text[:length], documents, match, copy, **options)


def test_a_draft_is_the_copy_cut_to_the_remaining_tokens():
    copier = Copier(match=2, copy=7)
    text = array([1, 2, 3, 4, 5, 6, 1, 2])
    draft = copier.draft(text, 3)
    assert (draft.ids, draft.parents, draft.source) == ((3, 4, 5), (-1, 0, 1), CopySource(-1, 2, 2))
    assert {(t.q, t.span) for t in draft.tokens} == {(None, -1)}, "rule 2, by no forward"
    assert copier.draft(text, 0) == Draft.empty()
    assert Copier().draft(array([1, 2, 3]), 5) == Draft.empty()
    assert draft[:1].source is None, "a part has no source"
    assert (draft + draft).source is None


def test_a_copier_follows_one_sequence():
    copier = Copier()
    copier.find(array([1, 2, 3]))
    for other in ([1, 2], [1, 2, 4, 5]):
        with pytest.raises(ValueError, match="one growing sequence; it knows 3 tokens"):
            copier.find(array(other))


def test_a_call_indexes_only_new_tokens(monkeypatch):
    indexed, index = [], Copier._index

    def counted(self, n, text, known):
        indexed.append(len(text) - known)
        return index(self, n, text, known)

    monkeypatch.setattr(Copier, "_index", counted)
    copier = Copier([list(range(50))])
    text = [i % 9 for i in range(400)]
    for length in range(100, 401, 4):
        copier.find(array(text[:length]))
    assert indexed == [50, 100, *[4] * 75]


# Suffix trees.


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


def search(texts: Texts, depth: int, context: list[int], budget: Budget) -> SuffixDraft:
    """Return the draft that the paper's section 3 describes, by counting from scratch."""
    best = SuffixDraft()
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
            best = SuffixDraft(
                tuple(tokens), score, match, len(places(texts, end)), text, after - len(tokens)
            )
    return best


def assert_equal(found: SuffixDraft, expected: SuffixDraft) -> None:
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


# The pool of n-grams and the look-ahead window.


def test_a_pool_is_most_recent_first_and_drops_the_oldest():
    pool = NgramPool(2)
    pool.add([(1, 2, 3), (1, 4, 5), (9, 9, 9)])
    assert (pool.after(1, 5), pool.after(1, 1), len(pool)) == ([(4, 5), (2, 3)], [(4, 5)], 3)
    pool.add([(1, 2, 3), (1, 6, 7)])
    assert pool.after(1, 5) == [(6, 7), (2, 3)], "a repeated n-gram is the most recent"
    pool.forget([(1, 6, 7), (1, 0, 0), (5, 5, 5)])
    assert (pool.after(1, 5), pool.after(5, 5), len(pool)) == ([(2, 3)], [], 2)


def paths(tree, last):
    """Return the tokens from the prefix's last one to each row."""
    rows = []
    for token, parent in zip(*tree, strict=True):
        rows.append((*(rows[parent] if parent >= 0 else (last,)), token))
    return rows


def test_the_window_of_the_paper():
    """N = 4, W = 5, as in its figure 2: the model's tokens after the red level complete 4-grams."""
    window = GuessWindow([8, 9, 10, 11, 12, 13, 14], 4, 5)
    window.tree(1, 100)
    assert window.move([18, 19, 20, 21, 22, 23, 24]) == []
    assert window.seen == ((1, 9, 10, 11, 12, 13, 14), (18, 19, 20, 21, 22, 23, 24))
    window.tree(2, 100)
    assert window.levels == [[2, 10, 11, 12, 13, 14], [19, 20, 21, 22, 23, 24]], "one position later"
    assert window.move([29, 30, 31, 32, 33, 34]) == []
    tree = window.tree(0, 100)
    assert window.levels == [[0, 11, 12, 13, 14], [20, 21, 22, 23, 24], [30, 31, 32, 33, 34]]
    rows = paths(tree, 0)
    assert rows[:4] == [(0, 11), (0, 11, 12), (0, 11, 12, 13), (0, 11, 12, 13, 14)]
    assert rows[4:9] == [(0, 20), (0, 11, 21), (0, 11, 12, 22), (0, 11, 12, 13, 23), (0, 11, 12, 13, 14, 24)]
    assert rows[9:11] == [(0, 20, 30), (0, 11, 21, 31)]
    grams = [(0, 20, 30, 40), *((10 + i, 20 + i, 30 + i, 40 + i) for i in range(1, 5))]
    assert window.move([*range(100, 110), 40, 41, 42, 43, 44]) == grams
    window.tree(7, 100)
    assert window.levels == [[7, 21, 22, 23, 24], [30, 31, 32, 33, 34], [40, 41, 42, 43, 44]]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(2, 6), st.integers(1, 9), st.data())
def test_no_row_exceeds_the_remaining_tokens_and_the_window_never_widens(prompt, level, columns, data):
    window, width = GuessWindow(np.array(prompt), level, columns), columns + level - 2
    for _ in range(8):
        remaining = data.draw(st.integers(0, 12))
        depth = len(window.levels) - 1
        tree = window.tree(1, remaining)
        width = max(0, min(width, remaining - depth + 1))
        assert len(tree[0]) == max(0, width * (depth + 1) - 1)
        assert all(len(path) - 1 <= remaining for path in paths(tree, 1))
        grams = window.move([0, *tree[0]])
        assert {len(gram) for gram in grams} <= {level}
        assert len(grams) == (width if depth + 2 == level else 0)
        width -= depth + 2 < level
    if not width:
        assert window.tree(1, 99) == NO_TREE


def test_guesses_share_branches_and_keep_their_last_token():
    ahead = Lookahead("target", [1], 4, 1, 9)
    ahead.learn([(1, 2, 3, 4), (1, 2, 3, 5), (1, 6, 7, 8), (2, 1, 1, 1)])
    draft = ahead.guesses(Draft.empty(), 1, 9, 9)
    assert (draft.ids, draft.parents) == ((6, 7, 8, 2, 3, 5, 4), (-1, 0, 1, -1, 3, 4, 4))
    assert draft.grams == ((1, 6, 7, 8), (1, 2, 3, 5), (1, 2, 3, 4))
    assert ahead.guesses(Draft.empty(), 1, 9, 1).ids == (6, 2)
    assert ahead.guesses(Draft.empty(), 1, 9, 0) == Draft.empty()
