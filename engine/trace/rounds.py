"""One round of another program as rows, with a check of everything that must hold in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import index
from typing import Any, NamedTuple, cast

from specscope.engine.errors import UsageError, shown
from specscope.engine.trace.events import Commit, Decision, Round, Top
from specscope.engine.trace.given import MOST_TOKEN, whole

MODES = ("plain", "verify", "pre-verify", "post-verify")


class Place(NamedTuple):
    """Where and when a round is: its number, its sequence, the position of its first token."""

    step: int
    sequence: int
    start: int
    time: int
    verify: int
    """Id of the target's span; -1 for none."""

    def __str__(self) -> str:
        return f"round {self.step} of sequence {self.sequence}"


class Judging(NamedTuple):
    """The tokens of one round, checked.

    UsageError by `checked` if the output is not the accepted tokens and one of the target's own, or
    the tree is none.
    """

    drafted: list[int]
    parents: list[int]
    path: list[int]
    """Indices of the accepted tokens, in order."""
    emitted: list[int]

    @property
    def levels(self) -> list[int]:
        """The level of each drafted token, from 0."""
        levels: list[int] = []
        for parent in self.parents:
            levels.append(0 if parent < 0 else levels[parent] + 1)
        return levels

    @property
    def own(self) -> bool:
        """Whether the last token of the output is the target's own."""
        return len(self.emitted) > len(self.path)

    @property
    def tested(self) -> list[int]:
        """The drafted tokens after the accepted ones; the target's own token rejects them."""
        last = self.path[-1] if self.path else -1
        return [i for i, parent in enumerate(self.parents) if parent == last]

    @property
    def origin(self) -> str:
        """Why the target drew its own token."""
        return "plain" if not self.drafted else "corrected" if self.tested else "bonus"

    def outcome(self, node: int) -> str:
        """Return whether a drafted token is accepted, rejected or discarded.

        The children of an accepted token are tested in order, until one is accepted.
        """
        if node in self.path:
            return "accepted"
        chosen = next((i for i in self.path if self.parents[i] == self.parents[node]), -1)
        return "rejected" if node < chosen or (self.own and node in self.tested) else "discarded"

    @property
    def cut(self) -> bool:
        """Whether the output ended within the round."""
        return not self.own and (len(self.emitted) < len(self.path) or bool(self.tested) or not self.drafted)


def checked(name: str, drafted: Any, accepted: Any, emitted: Any, parents: Any) -> Judging:
    """Return the tokens of a round.

    Args:
        name: The round, for messages.
        drafted: Token ids.
        accepted: The number of accepted tokens, or of a tree their indices from the root on.
        emitted: Token ids of the output.
        parents: Index of the token before each drafted one, -1 for the last token of the text; None
            for a chain.
    """
    tokens, output = ids_of(f"drafted of {name}", drafted), ids_of(f"emitted of {name}", emitted)
    tree = list(range(-1, len(tokens) - 1)) if parents is None else _parents(name, parents, len(tokens))
    path = _path(name, tokens, tree, accepted, output)
    if len(output) > len(path) + 1:
        raise UsageError(
            f"{name} emitted {len(output)} tokens and accepted {len(path)}; the output of a round is the "
            "accepted tokens and at most one of the target's own"
        )
    for place, (node, token) in enumerate(zip(path, output, strict=False)):
        if tokens[node] != token:
            raise UsageError(
                f"{name} emitted token {token} at place {place}, but accepted {tokens[node]} there; the "
                "accepted tokens begin the output"
            )
    return Judging(tokens, tree, path, output)


def ids_of(name: str, values: Any) -> list[int]:
    """Return token ids as a list: of any sequence, array or tensor of one dimension.

    A set has no order, and True and False are a mask.
    """
    rows: Any = values.tolist() if hasattr(values, "tolist") else values
    ids: list[int] | None = None
    with suppress(TypeError):
        rows = [*rows]
        if bool not in map(type, rows) and not isinstance(values, set | frozenset | dict):
            ids = [index(value) for value in rows]
    if ids is None:
        raise UsageError(f"{name} is {shown(values)}; give a flat list of whole numbers")
    for i, token in enumerate(ids):
        if not -1 <= token <= MOST_TOKEN:
            raise UsageError(
                f"{name} has {token} at place {i}; a token id is 0 to {MOST_TOKEN}, -1 if unknown"
            )
    return ids


def _parents(name: str, values: Any, size: int) -> list[int]:
    parents = ids_of(f"parents of {name}", values)
    if len(parents) != size:
        raise UsageError(f"{name} has {len(parents)} parents of {size} drafted tokens; give one for each")
    for i, parent in enumerate(parents):
        if parent >= i:
            raise UsageError(
                f"the parent of drafted token {i} of {name} is {parent}; parents come before children: give -1{f' to {i - 1}' if i else ', the text'}"
            )
    return parents


def _path(name: str, tokens: list[int], parents: list[int], accepted: Any, output: list[int]) -> list[int]:
    """Return the indices of the accepted tokens; their number is followed along the output."""
    if isinstance(accepted, Iterable) and getattr(accepted, "ndim", 1):
        path = ids_of(f"accepted of {name}", accepted)
        for before, node in zip([-1, *path], path, strict=False):
            if not 0 <= node < len(tokens) or parents[node] != before:
                raise UsageError(
                    f"accepted of {name} has {node} after {before}, which is not its parent; give the number "
                    "of accepted tokens, or their indices from the root on"
                )
        return path
    try:
        number = index(cast("Any", accepted))
    except TypeError:
        raise UsageError(f"accepted of {name} is {shown(accepted)}; give a whole number") from None
    if not 0 <= number <= len(tokens):
        raise UsageError(f"{name} accepted {number} of {len(tokens)} drafted tokens; give 0 to {len(tokens)}")
    if parents == list(range(-1, len(tokens) - 1)):
        return list(range(number))
    path = [-1]
    for place in range(number):
        token = output[place] if place < len(output) else None
        fits = (i for i, p in enumerate(parents) if p == path[-1] and tokens[i] == token)
        node = next(fits, None)
        if node is None:
            raise UsageError(
                f"{name} accepted {number} tokens, but no path of its tree has the output's token {token} at "
                f"place {place}; give the indices of the accepted tokens"
            )
        path.append(node)
    return path[1:]


class Known(NamedTuple):
    """What is known of one token."""

    p: float | None
    q: float | None
    top_p: Top
    top_q: Top


class Extras(NamedTuple):
    """What is known of each drafted token in order, and then of the target's own; may be empty."""

    p: Sequence[float | None]
    q: Sequence[float | None]
    top_p: Sequence[Top]
    top_q: Sequence[Top]

    @property
    def ids(self) -> list[int]:
        """The ids of the most probable tokens."""
        return [token for top in (*self.top_p, *self.top_q) for token, _ in top]

    def of(self, place: int) -> Known:
        """Return what is known of one token; the target's own is at the last place."""
        p, q = _item(self.p, place, None), _item(self.q, place, None)
        return Known(p, q, _item(self.top_p, place, ()), _item(self.top_q, place, ()))


def extras_of(name: str, size: int, p: Any, q: Any, top_p: Any, top_q: Any) -> Extras:
    """Return probabilities and most probable tokens of a round with `size` drafted tokens."""
    return Extras(
        _probabilities(f"p of {name}", p, size, size + 1),
        _probabilities(f"q of {name}", q, size, size),
        _tops(f"top_p of {name}", top_p, size, size + 1),
        _tops(f"top_q of {name}", top_q, size, size),
    )


def _probabilities(name: str, values: Any, least: int, most: int) -> list[float | None]:
    rows: list[Any] = _rows(name, values, least, most)
    return [None if value is None else _probability(name, value) for value in rows]


def _tops(name: str, values: Any, least: int, most: int) -> list[Top]:
    rows: list[Any] = _rows(name, values, least, most)
    try:
        tops = [[(token, value) for token, value in top] for top in rows]
    except (TypeError, ValueError):
        raise UsageError(f"{name} is {shown(values)}; give pairs (id, probability) for each token") from None
    what = f"a token of {name}"
    return [
        tuple((whole(what, token, high=MOST_TOKEN), _probability(name, value) or 0.0) for token, value in top)
        for top in tops
    ]


def _rows(name: str, values: Any, least: int, most: int) -> list[Any]:
    """Return one value for each drafted token, and perhaps one for the target's own."""
    if values is None:
        return []
    try:
        rows = list(cast("Iterable[Any]", values.tolist() if hasattr(values, "tolist") else values))
    except TypeError:
        raise UsageError(f"{name} is {shown(values)}; give a list") from None
    if not least <= len(rows) <= most:
        more = "" if least == most else ", and perhaps one for the target's own"
        raise UsageError(f"{name} has {len(rows)} values; give one for each of {least} drafted tokens{more}")
    return rows


def _probability(name: str, value: Any) -> float | None:
    """Return a probability, None for not-a-number; a rounding error above 1 is cut."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{name} has {shown(value)}; a probability is 0 to 1") from None
    if math.isnan(number):
        return None
    if not 0 <= number <= 1 + 1e-3:
        raise UsageError(f"{name} has {number:g}; a probability is 0 to 1")
    return min(1.0, number)


def decisions_of(
    at: Place, judging: Judging, extras: Extras, rule: str, spans: Sequence[int]
) -> list[Decision]:
    """Return the decision on each drafted token, then the one on the target's own token.

    `spans` are the ids of the spans that drafted the tokens; `rule` is empty if unknown.
    """
    size, last = len(judging.drafted), judging.path[-1] if judging.path else -1
    levels, rows = judging.levels, list[Decision]()
    for node, (token, parent) in enumerate(zip(judging.drafted, judging.parents, strict=True)):
        outcome, known = judging.outcome(node), extras.of(node)
        tested = (rule, outcome, spans[node], at.verify)
        if outcome == "discarded":
            tested = ("", outcome, spans[node], -1)
        where = (at.step, at.sequence, node, parent, at.start + levels[node], token)
        rows.append(Decision(*where, known.p, known.q, None, *tested, known.top_p, known.top_q))
    if judging.own:
        known, position = extras.of(size), at.start + len(judging.path)
        where = (at.step, at.sequence, -1, last, position, judging.emitted[-1])
        own = (rule if judging.tested else rule and "target", judging.origin, -1, at.verify)
        rows.append(Decision(*where, known.p, None, None, *own, known.top_p))
    return rows


def _item(values: Sequence[Any], place: int, absent: Any) -> Any:
    return values[place] if place < len(values) else absent


def commits_of(at: Place, judging: Judging, texts: Sequence[str]) -> list[Commit]:
    """Return the tokens of the output; `texts` are what each adds."""
    origins = ["accepted"] * len(judging.path) + [judging.origin]
    return [
        Commit(at.step, at.sequence, at.start + i, token, origins[i], texts[i], at.time)
        for i, token in enumerate(judging.emitted)
    ]


def round_of(at: Place, judging: Judging, mode: str) -> Round:
    counts = (len(judging.drafted), len(judging.path), len(judging.emitted))
    return Round(at.step, at.sequence, mode, *counts, at.time, at.verify)
