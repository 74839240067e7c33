"""The acceptance rules: a lossless method emits no token that they did not decide.

Rule 1, `ratio`: the draft was sampled from q. Accept x with probability min(1, p(x)/q(x)). After a
rejection continue with p = norm(max(0, p - q)) and the next sibling, drawn without replacement;
after the last sibling draw from p (Leviathan et al. 2023, algorithm 1; Chen et al. 2023; siblings:
SpecInfer 2024, with q renormalised).

Rule 2, `match`: the draft is a function of the prefix. Draw x from p; accept the child with that
token, else emit x. At temperature 0 every draft is judged by rule 2, and x is the argmax.

`typical`, LOSSY, only on request: accept a drafted token if p(token) is above a bound, without a
draw. The longest accepted path wins, then the likeliest, then the first (Medusa, Cai et al. 2024,
section 2.3.1).

The same logits processors (`specscope.engine.sampling.draws`) make p and q from logits. Pure
functions; all random numbers are from a `Draws`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isnan, nan
from typing import NamedTuple, cast

from torch import Tensor

from specscope.engine.sampling.draws import Draws, Key
from specscope.engine.sampling.rows import TargetRows, check_rows
from specscope.engine.types import (
    Draft,
    DraftToken,
    Judged,
    Judgement,
    Origin,
    Outcome,
    Rule,
    Sampling,
    Typical,
    levels_of,
)


def judge(
    logits: Tensor | TargetRows,
    draft: Draft,
    q_row: Callable[[DraftToken], Tensor | None],
    *,
    position: int,
    sampling: Sampling,
    draws: Draws,
    bonus: bool = True,
    typical: Typical | None = None,
) -> Judgement:
    """Decide which drafted tokens are accepted, and draw the token after them.

    Args:
        logits: The target's rows, (R, V): row 0 follows the prefix, row i + 1 follows draft node i.
            Without `bonus` the rows of leaves may be missing; surplus rows are ignored. Or the
            rows as `specscope.engine.sampling.rows.read` reads them.
        draft: A chain or a tree. The children of a node are either all drawn from one q row without
            replacement, in the order of their indices, or all functions of the prefix.
        q_row: Token -> the q row that it was drawn from, (V,); called for tokens with such a row.
        position: The position that row 0 decides.
        sampling: The logits processors of p; at temperature 0 ties go to the lowest token id.
        draws: The random numbers.
        bonus: Whether the target draws a token after a fully accepted path.
        typical: Judge by typical acceptance, which is lossy; no difference at temperature 0.

    Returns:
        The judgement. In `judged`, p and q are the numbers that the rule compared; from the second
        sibling on, under rule 1, the residual ones.

    Raises:
        ValueError: The draft has another form, or rows are missing.
        ModelError: The logits are not finite.
    """
    children = _children(draft)
    needed = check_rows(len(logits), draft, bonus)
    rows = TargetRows(logits[:needed], sampling) if isinstance(logits, Tensor) else logits
    walk = _Walk(rows, draft.tokens, q_row, draws, typical)
    judged, path, node = list[Judged](), list[int](), -1
    while children[node + 1] or bonus:
        judged += walk.decide(node, children[node + 1], position + len(path))
        node = judged[-1].node
        if node < 0:
            break
        path.append(node)
    own = judged[-1] if judged and node < 0 else None
    return Judgement(
        accepted=tuple(draft.tokens[i].id for i in path),
        own=None if own is None else own.token,
        origin=None if own is None else cast("Origin", own.outcome),
        judged=walk.with_target_rows(judged) + walk.discarded(draft, {j.node for j in judged}, position),
        nodes=tuple(path),
    )


class _Walk:
    """One pass down a draft, with the target's rows."""

    def __init__(
        self,
        rows: TargetRows,
        tokens: tuple[DraftToken, ...],
        q_row: Callable[[DraftToken], Tensor | None],
        draws: Draws,
        typical: Typical | None,
    ) -> None:
        self._rows, self._tokens, self._q_row, self._draws = rows, tokens, q_row, draws
        self._chosen = None if typical is None or not rows.sampled else _choose(rows, tokens, typical)

    def decide(self, parent: int, children: list[int], position: int) -> list[Judged]:
        """Decide between the children of a node and the target's own token; the last one counts.

        In the result p may be nan and `top_p` is empty: see `with_target_rows`.
        """
        if children and self._chosen is not None:
            return self._typical(self._chosen, parent, children, position)
        if children and self._rows.sampled and self._tokens[children[0]].q is not None:
            return self._ratio(parent, children, position)
        return self._match(parent, children, position)

    def _match(self, parent: int, children: list[int], position: int) -> list[Judged]:
        """Rule 2; without children the target's own draw."""
        x, u = self._own(parent, position)

        def judged(node: int, outcome: Outcome) -> Judged:
            t = self._tokens[node]
            return Judged(node, parent, position, t.id, nan, t.probability, u, "match", outcome)

        rejected = [judged(node, "rejected") for node in children if self._tokens[node].id != x]
        if len(rejected) < len(children):
            node = next(node for node in children if self._tokens[node].id == x)
            return [*rejected, judged(node, "accepted")]
        if children:
            return [*rejected, Judged(-1, parent, position, x, nan, nan, u, "match", "corrected")]
        origin: Origin = "bonus" if self._tokens else "plain"
        return [Judged(-1, parent, position, x, nan, nan, u, "target", origin)]

    def _own(self, parent: int, position: int) -> tuple[int, float]:
        key = Key(position, "target")
        x = self._rows.own(parent + 1, self._draws, key)
        return x, self._draws.value(key) if self._rows.sampled else nan

    def _typical(self, chosen: _Chosen, parent: int, children: list[int], position: int) -> list[Judged]:
        """Typical acceptance along the chosen path; at its end the target's own draw."""

        def judged(node: int, outcome: Outcome) -> Judged:
            t = self._tokens[node]
            return Judged(node, parent, position, t.id, nan, t.probability, nan, "typical", outcome)

        others = [n for n in children if n not in chosen.path]
        decisions = [judged(n, "discarded" if n in chosen.enough else "rejected") for n in others]
        if len(others) < len(children):
            return [*decisions, judged(next(n for n in children if n in chosen.path), "accepted")]
        x, u = self._own(parent, position)
        return [*decisions, Judged(-1, parent, position, x, nan, nan, u, "typical", "corrected")]

    def _ratio(self, parent: int, children: list[int], position: int) -> list[Judged]:
        """Rule 1 over siblings that were drawn from one q without replacement."""
        p = self._rows.distribution(parent + 1)
        full_q = q = self._q_of(children[0])
        decisions = list[Judged]()
        for sibling, node in enumerate(children):
            x = self._tokens[node].id
            p_x, q_x = p.of(x), float(q[x])
            if not q_x > 0:
                raise ValueError(
                    f"token {x} has q = {q_x:g} at position {position}; it cannot have been drawn from it"
                )
            key = Key(position, "accept", sibling)
            accepted = self._draws.below(key, p_x / q_x)
            outcome: Outcome = "accepted" if accepted else "rejected"
            u = self._draws.value(key)
            decisions.append(Judged(node, parent, position, x, p_x, q_x, u, "ratio", outcome))
            if accepted:
                return decisions
            p, q = p.residual(q), _without(q, x)
        key = Key(position, "residual")
        x, u = p.draw(self._draws, key), self._draws.value(key)
        q_x = float(full_q[x])
        return [*decisions, Judged(-1, parent, position, x, nan, q_x, u, "ratio", "corrected")]

    def _q_of(self, node: int) -> Tensor:
        q, size = self._q_row(self._tokens[node]), self._rows.size
        if q is None or len(q) != size:
            state = "missing" if q is None else f"of length {len(q)}"
            raise ValueError(
                f"the q row of draft node {node} is {state}; the target's rows have length {size}"
            )
        return q

    def with_target_rows(self, judged: list[Judged]) -> tuple[Judged, ...]:
        if not judged:
            return ()
        rows = list(dict.fromkeys(j.parent + 1 for j in judged))
        p_of_tokens, tops = self._rows.described(rows, [(j.parent + 1, j.token) for j in judged])
        index = {row: i for i, row in enumerate(rows)}
        return tuple(
            j._replace(p=p_x if isnan(j.p) else j.p, top_p=tops[index[j.parent + 1]])
            for j, p_x in zip(judged, p_of_tokens, strict=True)
        )

    def discarded(self, draft: Draft, decided: set[int], position: int) -> tuple[Judged, ...]:
        judged = list[Judged]()
        for node, (t, level) in enumerate(zip(draft.tokens, levels_of(draft.parents), strict=True)):
            if node not in decided:
                rule: Rule = "typical" if self._chosen else "match" if t.q is None else "ratio"
                where = (node, t.parent, position + level)
                judged.append(Judged(*where, t.id, nan, t.probability, nan, rule, "discarded"))
        return tuple(judged)


def _children(draft: Draft) -> list[list[int]]:
    """Return the children of the prefix (index 0) and of each node i (index i + 1).

    ValueError if a parent is after its child, siblings are equal, or have different q rows.
    """
    children: list[list[int]] = [[] for _ in range(len(draft) + 1)]
    for node, token in enumerate(draft.tokens):
        if not -1 <= token.parent < node:
            raise ValueError(f"draft node {node} has parent {token.parent}; it must be from -1 to {node - 1}")
        children[token.parent + 1].append(node)
    for nodes in children:
        if len(nodes) > 1:
            siblings = [draft.tokens[node] for node in nodes]
            if len({t.q for t in siblings}) > 1:
                raise ValueError(
                    f"draft nodes {nodes} are siblings; draw all of them from one q row, or none of them"
                )
            if len({t.id for t in siblings}) < len(nodes):
                raise ValueError(f"draft nodes {nodes} are siblings; two of them are the same token")
    return children


class _Chosen(NamedTuple):
    """Nodes of a draft that typical acceptance chose."""

    path: frozenset[int]
    enough: frozenset[int]
    """All nodes whose path is probable enough."""


def _choose(p: TargetRows, tokens: tuple[DraftToken, ...], typical: Typical) -> _Chosen:
    """Return the longest path of probable tokens; among equals the likeliest, then the first."""
    if not tokens:
        return _Chosen(frozenset(), frozenset())
    rows = sorted({t.parent + 1 for t in tokens})
    bounds = dict(zip(rows, p.bounds(rows, typical), strict=True))
    drafted = [(t.parent + 1, t.id) for t in tokens]
    paths: dict[int, tuple[int, float]] = {-1: (0, 1.0)}  # length and likelihood of each node's path
    for node, p_x in enumerate(p.probabilities(drafted)):
        parent = tokens[node].parent
        if parent in paths and p_x > bounds[parent + 1]:
            paths[node] = (paths[parent][0] + 1, paths[parent][1] * p_x)
    node, path = max(paths, key=paths.__getitem__), set[int]()
    while node >= 0:
        path.add(node)
        node = tokens[node].parent
    return _Chosen(frozenset(path), frozenset(paths))


def _without(q: Tensor, token: int) -> Tensor:
    rest = q.cpu().double().clone()
    rest[token] = 0
    return rest / rest.sum()
