"""Suffix trees: which tokens followed the last ones before, and how often.

Source: SuffixDecoding (Oliaro et al. 2025, arXiv:2411.04975, section 3). A tree of depth D holds
the substrings of its texts, up to D tokens long, with the number of their occurrences. The tree is
compressed: the label of a node has several tokens where all occurrences go on alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from specscope.engine.errors import named_calls


class Budget(NamedTuple):
    """How long a draft may be."""

    factor: float
    """Alpha: tokens of a draft for each token of its match."""
    offset: float
    """Beta: tokens more."""
    most: int
    least: float
    """A draft ends before a token whose estimated probability of being reached is smaller."""

    def after(self, match: int) -> int:
        return max(0, min(self.most, int(self.factor * match + self.offset + 1e-6)))


class SuffixDraft(NamedTuple):
    """A draft from a tree; empty, with score 0, if nothing follows a match."""

    tokens: tuple[int, ...] = ()
    score: float = 0.0
    """Sum of the tokens' estimated probabilities: the tokens that it is expected to bring."""
    match: int = 0
    """The number of last tokens that the tree holds right before the draft."""
    occurrences: int = 0
    """Those of the match in the tree; in a sequence's own tree its end is one of them."""
    text: int = -1
    """Number of the text with the latest occurrence of match and draft."""
    start: int = -1
    """Index of the draft's first token in that text."""


class _Node:
    """A substring: the label after the parent's; `text` and `end` are its latest occurrence."""

    __slots__ = ("children", "count", "end", "length", "text")

    def __init__(self, count: float, text: int, end: int, length: int) -> None:
        self.count, self.text, self.end, self.length = count, text, end, length
        self.children: dict[int, _Node] = {}

    @property
    def rank(self) -> tuple[float, int, int]:
        return self.count, self.text, self.end - self.length


class SuffixTree:
    """Counts of the substrings of some texts; `extend` takes D steps for each token.

    `depth` is D >= 2. Every suffix of a text ends at the end of a node's label.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._root = _Node(inf, -1, 0, 0)  # its count is no sum, so that no label grows into it
        self._texts: dict[int, list[int]] = {}
        self._growing = -1
        self._ends: list[_Node] = []
        """The nodes of the growing text's last D, ..., 2, 1 tokens, or of fewer."""

    def extend(self, number: int, tokens: Iterable[int]) -> None:
        """Append tokens to the text extended last, or begin a text with a higher number."""
        if number != self._growing:
            self._growing, self._ends, self._texts[number] = number, [], []
        text = self._texts[number]
        for token in tokens:
            text.append(int(token))
            longest_first = [*self._ends[1 - self._depth :], self._root]
            self._ends = [self._step(node, text[-1], len(text)) for node in longest_first]

    def _step(self, node: _Node, token: int, end: int) -> _Node:
        """Lengthen the suffix that ends at a node by a token; return its new node."""
        child = node.children.get(token)
        if child is None and node.count == 1:
            return self._lengthen(node, end)  # it occurs here only
        if child is None:
            node.children[token] = child = _Node(1, self._growing, end, 1)
            return child
        if child.count == node.count - 1:  # its other occurrences went on with this token, too
            node.children = child.children if child.length == 1 else {self._cut(child): child}
            return self._lengthen(node, end)
        if child.length > 1:
            first = _Node(child.count, self._growing, end, 1)
            first.children = {self._cut(child): child}
            node.children[token] = child = first
        child.count += 1
        child.text, child.end = self._growing, end
        return child

    def _lengthen(self, node: _Node, end: int) -> _Node:
        node.length += 1
        node.text, node.end = self._growing, end
        return node

    def _cut(self, node: _Node) -> int:
        """Take the first token off a label; return the second one."""
        node.length -= 1
        return self._texts[node.text][node.end - node.length]

    def remove(self, number: int) -> None:
        """Remove the oldest text: the one with the lowest number, not the growing one."""
        text = self._texts[number]
        for start in range(len(text)):
            node, i, end = self._root, start, min(start + self._depth, len(text))
            while i < end:
                child = node.children[text[i]]
                child.count -= 1
                if not child.count:
                    del node.children[text[i]]
                    break
                node, i = child, i + child.length
        del self._texts[number]

    def draft(self, tokens: Sequence[int], budget: Budget) -> SuffixDraft:
        """Return the draft after the end of `tokens` with the largest score.

        Each match length has one draft; of equal scores the longer match wins.
        """
        best = SuffixDraft()
        for match in range(1, min(self._depth - 1, len(tokens)) + 1):
            place = self._find(tokens[-match:])
            if place is None:
                break
            found = self._follow(*place, match, budget)
            if found.tokens and found.score >= best.score:
                best = found
        return best

    def _find(self, tokens: Sequence[int]) -> tuple[_Node, int] | None:
        """Return the node whose label ends the tokens, and the tokens of the label after them."""
        node, i = self._root, 0
        while i < len(tokens):
            child = node.children.get(tokens[i])
            if child is None:
                return None
            label = self._texts[child.text][child.end - child.length : child.end][: len(tokens) - i]
            if label != tokens[i : i + len(label)]:
                return None
            node, i = child, i + child.length
        return node, i - len(tokens)

    def _follow(self, node: _Node, left: int, match: int, budget: Budget) -> SuffixDraft:
        """Draft the most frequent tokens; among equally frequent ones those seen last.

        The product of count(child) / count(node) along a path is count(last) / count(first).
        """
        count, most = int(node.count), budget.after(match)
        tokens, weight = list[int](), 0
        while len(tokens) < most:
            if not left:
                child = max(node.children.values(), key=lambda c: c.rank, default=None)
                if child is None or child.count / count < budget.least:
                    break
                node, left = child, child.length
            part = self._texts[node.text][node.end - left : node.end][: most - len(tokens)]
            tokens += part
            weight += int(node.count) * len(part)
            left -= len(part)
        return SuffixDraft(
            tuple(tokens), weight / count, match, count, node.text, node.end - left - len(tokens)
        )


@named_calls
class Finished:
    """Outputs of finished sequences, for later sequences to draft from; the oldest are dropped.

    A caller that hands one object to several runs, one after the other, lets later runs draft from
    the outputs of earlier ones.
    """

    def __init__(self, texts: Iterable[Sequence[int]] = ()) -> None:
        self.texts: dict[int, tuple[int, ...]] = {}
        """By number, the oldest first."""
        self._tree: tuple[int, SuffixTree] = 0, SuffixTree(2)
        self._number = 0
        for text in texts:
            self._append(text)

    def tree(self, depth: int, most: int) -> SuffixTree:
        """Return the tree of the latest texts, of at most `most` tokens together."""
        if self._tree[0] != depth:
            self._tree = depth, SuffixTree(depth)
            for number, text in self.texts.items():
                self._tree[1].extend(number, text)
        self._drop(most)
        return self._tree[1]

    def add(self, text: Sequence[int], most: int) -> None:
        if 0 < len(text) <= most:
            self._append(text)
            self._drop(most)

    def _append(self, text: Sequence[int]) -> None:
        self.texts[self._number] = tuple(map(int, text))
        self._tree[1].extend(self._number, self.texts[self._number])
        self._number += 1

    def _drop(self, most: int) -> None:
        while sum(map(len, self.texts.values())) > most:
            oldest = next(iter(self.texts))
            self._tree[1].remove(oldest)
            del self.texts[oldest]
