"""The pool of n-grams and the look-ahead window, step by step."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specscope.engine.drafting.ngrams import Lookahead, Pool, Window
from specscope.engine.types import NO_TREE, Draft


def test_a_pool_is_most_recent_first_and_drops_the_oldest():
    pool = Pool(2)
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
    window = Window([8, 9, 10, 11, 12, 13, 14], 4, 5)
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
    window, width = Window(np.array(prompt), level, columns), columns + level - 2
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


def test_a_phrase_cut_by_the_end_of_the_output_is_not_rewritten():
    for phrase, own, kept in (((1, 2), (1, 7), (2, 3)), ((1, 2, 3), (1, 7, 8), (7, 8))):
        ahead = Lookahead("drafter", [1], 3, 1, 9)
        ahead.learn([(1, 2, 3)])
        ahead.rewrite([phrase], [own])
        assert ahead.pool.after(1, 9) == [kept]
