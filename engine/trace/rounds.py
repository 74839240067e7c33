"""One round of another program as a verdict, with a check of everything that must hold in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from math import isnan, nan
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from specscope.engine.errors import UsageError, shown
from specscope.engine.trace.given import whole
from specscope.engine.trace.ranges import MOST_TOKEN
from specscope.engine.types import Draft, DraftToken, Judged, Verdict

if TYPE_CHECKING:
    from specscope.engine.trace.events import Top
    from specscope.engine.trace.work import OpenSpan
    from specscope.engine.types import Origin, Outcome, Rule


class Place(NamedTuple):
    """Where and when a round is: its number, its sequence, the position of its first token."""

    step: int
    sequence: int
    start: int
    time: int
    verify: int
    """Id of the target's span; -1 for none."""
    work: OpenSpan | None = None
    """This span, if this process recorded it."""

    def __str__(self) -> str:
        return f"round {self.step} of sequence {self.sequence}"


class Judging(NamedTuple):
    """The tokens of one round and what is known of them, checked by `checked`."""

    drafted: list[int]
    parents: list[int]
    path: list[int]
    """Indices of the accepted tokens, in order."""
    emitted: list[int]
    p: list[float]
    """Of each drafted token, then of the target's own; not-a-number if unknown, as in `q`."""
    q: list[float]
    top_p: list[Top]
    """As `p`; empty if unknown."""
    top_q: list[Top]

    @property
    def ids(self) -> list[int]:
        tops = (token for top in (*self.top_p, *self.top_q) for token, _ in top)
        return [*self.drafted, *self.emitted, *tops]

    @property
    def own(self) -> bool:
        """Whether the last token of the output is the target's own."""
        return len(self.emitted) > len(self.path)

    @property
    def last(self) -> int:
        """The index of the last accepted token; -1 for none."""
        return self.path[-1] if self.path else -1

    @property
    def tested(self) -> list[int]:
        """The drafted tokens after the accepted ones; the target's own token rejects them."""
        return [i for i, parent in enumerate(self.parents) if parent == self.last]

    @property
    def cut(self) -> bool:
        """Whether the output ended within the round."""
        return not self.own and (len(self.emitted) < len(self.path) or bool(self.tested) or not self.drafted)

    def verdict(
        self, at: Place, levels: Sequence[int], spans: Sequence[int], mode: str, rule: str
    ) -> Verdict:
        """Return the verdict of a round.

        Args:
            at: Its place.
            levels: The level of each drafted token.
            spans: The id of the span that drafted it.
            mode: As of a `Round`.
            rule: The rule of acceptance; empty if it is unknown.
        """
        drafted = zip(self.drafted, self.parents, self.q, self.top_q, spans, strict=True)
        draft = (DraftToken(token, parent, None, q, top, span) for token, parent, q, top, span in drafted)
        judged, own, origin = [*self._tests(at.start, levels, rule)], None, None
        if self.own:
            own, tested = self.emitted[-1], self.tested
            origin: Origin | None = "corrected" if tested else "bonus" if self.drafted else "plain"
            where = (-1, self.last, at.start + len(self.path), own)
            decided = cast("Rule", rule if tested else rule and "target")
            judged.append(Judged(*where, self.p[-1], nan, nan, decided, origin, self.top_p[-1]))
        return Verdict(
            accepted=tuple(self.drafted[node] for node in self.path),
            own=own,
            origin=origin,
            judged=tuple(judged),
            nodes=tuple(self.path),
            sequence=at.sequence,
            draft=Draft(tuple(draft)),
            mode=mode,
            span=at.verify,
        )

    def _tests(self, start: int, levels: Sequence[int], rule: str) -> Iterator[Judged]:
        """Yield the decision on each drafted token.

        The children of an accepted token are tested in order, until one is accepted; the target's
        own token rejects the last ones. All others are discarded.
        """
        chosen = {self.parents[node]: node for node in self.path}
        if self.own:
            chosen[self.last] = len(self.drafted)
        for node, (token, parent, level) in enumerate(zip(self.drafted, self.parents, levels, strict=True)):
            best = chosen.get(parent, -1)
            outcome: Outcome = "accepted" if node == best else "rejected" if node < best else "discarded"
            where = (node, parent, start + level, token)
            decided = cast("Rule", "" if outcome == "discarded" else rule)
            yield Judged(*where, self.p[node], nan, nan, decided, outcome, self.top_p[node])


def checked(
    name: str, drafted: Any, accepted: Any, emitted: Any, parents: Any, p: Any, q: Any, top_p: Any, top_q: Any
) -> Judging:
    """Return a round of `Recorder.round`; `name` is what messages call it.

    UsageError if the output is not the accepted tokens and one of the target's own, the tree is
    none, or a probability is none.
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
    size = len(tokens)
    chances = (probabilities(f"p of {name}", p, size, size + 1), probabilities(f"q of {name}", q, size, size))
    tops = (_tops(f"top_p of {name}", top_p, size, size + 1), _tops(f"top_q of {name}", top_q, size, size))
    return Judging(tokens, tree, path, output, *chances, *tops)


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


def probabilities(name: str, values: Any, least: int, most: int) -> list[float]:
    """Return `least` to `most` probabilities as `most`; not-a-number if unknown."""
    if values is None:
        return [nan] * most
    rows = _rows(name, values, least, most, None)
    return [nan if value is None else _probability(name, value) for value in rows]


def _tops(name: str, values: Any, least: int, most: int) -> list[Top]:
    if values is None:
        return [()] * most
    rows = _rows(name, values, least, most, ())
    try:
        tops = [[(token, value) for token, value in top] for top in rows]
    except (TypeError, ValueError):
        raise UsageError(f"{name} is {shown(values)}; give pairs (id, probability) for each token") from None
    return [tuple(_likely(name, token, value) for token, value in top) for top in tops]


def _likely(name: str, token: Any, value: Any) -> tuple[int, float]:
    number = whole(f"a token of {name}", token, high=MOST_TOKEN)
    chance = _probability(name, value)
    return number, 0.0 if isnan(chance) else chance


def _rows(name: str, values: Any, least: int, most: int, absent: Any) -> list[Any]:
    """Return one value for each drafted token, and perhaps one for the target's own, as `most`."""
    try:
        rows = list(cast("Iterable[Any]", values.tolist() if hasattr(values, "tolist") else values))
    except TypeError:
        raise UsageError(f"{name} is {shown(values)}; give a list") from None
    if not least <= len(rows) <= most:
        more = "" if least == most else ", and perhaps one for the target's own"
        raise UsageError(f"{name} has {len(rows)} values; give one for each of {least} drafted tokens{more}")
    return rows + [absent] * (most - len(rows))


def _probability(name: str, value: Any) -> float:
    """Return a probability, or not-a-number; a rounding error above 1 is cut."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{name} has {shown(value)}; a probability is 0 to 1") from None
    if number < 0 or number > 1 + 1e-3:
        raise UsageError(f"{name} has {number:g}; a probability is 0 to 1")
    return number if number < 1 or isnan(number) else 1.0
