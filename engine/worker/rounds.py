"""Rounds of a host's models that need no host between their forwards, and the books of their rows.

`specscope.engine.worker.device_rounds` runs them. While one is read here, the next may run already:
the method asks for it later, or never, if the output has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from specscope.engine.heads.drafting import AllLevels
from specscope.engine.layout import Packing
from specscope.engine.model.fused import MOST_NUMBERS
from specscope.engine.model.slots import Rows
from specscope.engine.model.static import graph_pool
from specscope.engine.sampling.forms import form_of
from specscope.engine.sampling.verdict import NumberLines
from specscope.engine.types import Prefix
from specscope.engine.worker.device_rounds import (
    DeviceRound,
    DeviceRounds,
    Drafter,
    RoundFacts,
    RoundKind,
    RoundStart,
)
from specscope.engine.worker.jobs import Propose, Score, Stamp

if TYPE_CHECKING:
    from specscope.engine.drafting.tree import LevelPlan
    from specscope.engine.heads.drafting import Head
    from specscope.engine.model.cache import Cache
    from specscope.engine.model.decoder import Decoder
    from specscope.engine.model.static import GraphPool
    from specscope.engine.sampling.draws import Draws
    from specscope.engine.sampling.forms import DraftForm
    from specscope.engine.types import Sampling
    from specscope.engine.worker.forwards import Forwards


AHEAD = {"cuda"}
"""Kinds of devices on which a round may begin before it is asked for."""


class AskedRound(NamedTuple):
    """The rounds that a job asks for."""

    target: str
    drafter: str
    """Empty for plain decoding."""
    sequence: int
    plans: tuple[LevelPlan, ...]
    """The levels of a draft."""
    kept: int
    """Nodes that are verified; 0 for all."""
    drawn: bool
    """Whether the tokens are drawn from q; never at temperature 0."""
    chain: bool
    tail: int
    """Last tokens of the prefix that a drafting head does not read."""

    @classmethod
    def of(cls, job: Propose | Score, sampling: Sampling) -> AskedRound | None:
        """Return what a job asks for; None if it needs a host between the forwards."""
        if len(job.prefixes) != 1:
            return None
        sequence = job.prefixes[0].sequence
        if isinstance(job, Propose):
            special = job.stop_below or job.fuzzy > 1 or job.group or job.damping
            if not job.then or special or not job.levels[0]:
                return None
            if not (plans := job.shape.plans(job.levels[0])):
                return None
            how = (job.sampled and not sampling.greedy, job.chain, job.masked_tail)
            return cls(job.then, job.model, sequence, plans, job.shape.total, *how)
        special = job.best or job.greedy or job.stage or job.chunks or job.drafts[0][0]
        if special or len(job.judges) != 1 or job.judges[0].skip or job.judges[0].typical:
            return None
        return cls(job.model, "", sequence, (), 0, False, False, 0)

    @property
    def form(self) -> DraftForm:
        return form_of(self.plans, self.kept)


class _Begun(NamedTuple):
    """A round that runs."""

    asked: AskedRound
    round: DeviceRound
    prefix: np.ndarray
    """The tokens that it starts from, once the round before has been read."""

    def starts(self, asked: AskedRound, prefix: Prefix) -> bool:
        return self.asked == asked and np.array_equal(self.prefix, prefix.tokens)


class Found(NamedTuple):
    """A round that is over."""

    asked: AskedRound
    prefix: Prefix
    facts: RoundFacts
    cached: tuple[int, int]
    """Rows of the prefix that the drafter and the target had cached."""
    head: Head | None
    """The head that drafted, if one did."""

    @property
    def forwards(self) -> int:
        """Forwards of the drafter."""
        return len(self.facts.drafted.times) if self.facts.drafted else 0

    def drafting(self, number: int, rows: int, before: int) -> Stamp:
        """Return the stamp of one of the drafter's forwards.

        `rows` of it are nodes, and forwards of the same draft had `before` of them.
        """
        assert self.facts.drafted is not None, "it has drafted"
        (start, end), cells = self.facts.drafted.times[number], self.facts.drafted.cells[number]
        head, levels, read = self.head, len(self.asked.plans), len(self.prefix)
        work, masks = None, 0
        if head is not None and head.layer is None:
            assert head.from_state is not None, "it reads a state"
            work = head.from_state.work(levels if isinstance(head.from_state, AllLevels) else number)
            return Stamp("draft", start, end, max(rows, 1), 0, cells=cells, work=work)
        if head is not None and head.layer is not None:
            read -= 1 + self.asked.tail
            work = head.layer.guessed if number else head.layer.exact
            masks = 0 if head.keeps else levels - 1 + self.asked.tail
        if number:
            return Stamp("draft", start, end, rows, read + before, cells=cells, work=work)
        known = self.cached[0]
        return Stamp("draft", start, end, read - known + masks, known, cells=cells, work=work)

    def verification(self, drafted: int) -> list[Stamp]:
        """Return the stamps of the verification and of the judgement of so many tokens."""
        (start, end), judged, cells = self.facts.verified, self.facts.judged, self.facts.cells
        rows, context = drafted + len(self.prefix) - self.cached[1], self.cached[1]
        verify = Stamp("verify", start, end, rows, context, cells=cells)
        return [verify, Stamp("sample", end, judged, drafted, 0)]


class Rounds:
    """The rounds of a host's models.

    Args:
        forwards: Its models and their slots.
        draws: Returns the random numbers of a sequence.
    """

    def __init__(self, forwards: Forwards, draws: Callable[[int], Draws]) -> None:
        self._forwards, self._draws_of = forwards, draws
        self._devices: dict[tuple[str, str, NumberLines], DeviceRounds] = {}
        self._draws: dict[int, Draws] = {}
        self._pool: GraphPool | None = None
        self._begun: _Begun | None = None
        self._ended = list[Stamp]()
        """Of rounds that were not asked for."""

    @property
    def begun(self) -> bool:
        """Whether a round runs that was not asked for yet."""
        return self._begun is not None

    def begin(self) -> None:
        """Forget the last run."""
        self.abandon()
        self._draws.clear()

    def forget(self) -> None:
        """Forget all rounds, whose caches are gone."""
        self._begun = None
        self._devices.clear()

    def abandon(self) -> list[Stamp]:
        """End a round that was not asked for; return the stamps of all such rounds."""
        self.end()
        stamps, self._ended = self._ended, []
        return stamps

    def end(self) -> None:
        """Wait for a round that was not asked for, and keep its stamps."""
        begun, self._begun = self._begun, None
        if begun is not None:
            stamps = self._unasked(begun)
            time_of = self._forwards.clock.read()
            self._ended += [stamp.read(time_of) for stamp in stamps]

    def _unasked(self, begun: _Begun) -> list[Stamp]:
        prefix, asked = Prefix(begun.asked.sequence, begun.prefix), begun.asked
        facts = begun.round.read(self._forwards.clock)
        found = Found(asked, prefix, facts, self._cached(asked, prefix), self._head(asked))
        rows = [0, *(plan.onward_count for plan in asked.plans)]
        drafts = [found.drafting(i, rows[i], sum(rows[:i])) for i in range(found.forwards)]
        return [*drafts, *found.verification(asked.form.nodes)]

    def run(self, job: Propose | Score) -> Found | None:
        """Return the round that a job asks for; None if it needs a host, or the models differ.

        The caller passes it to `record` when it is judged.
        """
        asked, begun = AskedRound.of(job, self._forwards.run.sampling), self._begun
        if asked is None or begun is None or not begun.starts(asked, job.prefixes[0]):
            self.end()
            begun = None
        if asked is None or not self._able(asked) or not (asked.drafter or begun or job.ahead):
            return None
        prefix = job.prefixes[0]
        cached = self._cached(asked, prefix)
        length = len(prefix)
        if begun is None:
            if not (self._has_room(asked, length) and self._can_start(asked, cached, length)):
                return None
            start = RoundStart(prefix.tokens.tolist(), self._missing(asked, cached, length))
            running = self._launch(asked, length, start)
        else:
            running = begun.round
        after, self._begun = length + len(asked.plans) + 1, None
        runs_ahead = job.ahead and self._decoder(asked.target).device.type in AHEAD
        if runs_ahead and self._has_room(asked, after):
            self._begun = _Begun(asked, self._launch(asked, after, None), prefix.tokens)
        return Found(asked, prefix, running.read(self._forwards.clock), cached, self._head(asked))

    def record(self, found: Found, accepted: tuple[int, ...], emitted: tuple[int, ...]) -> None:
        """Add the rows of a round's prefix and accepted tokens to the books of its caches."""
        asked, text = found.asked, (*found.prefix.tokens.tolist(), *accepted)
        self._append(asked.target, asked.sequence, text, found.cached[1])
        if found.head is not None and found.head.layer is not None:
            self._append(
                asked.drafter, asked.sequence, text[1 : len(found.prefix) - asked.tail], found.cached[0]
            )
        elif found.head is None and asked.drafter:
            whole = len(found.prefix) + len(asked.plans) - 1  # the last drafted token is not forwarded
            self._append(asked.drafter, asked.sequence, text[:whole], found.cached[0])
        if self._begun is not None:
            self._begun = self._begun._replace(prefix=(found.prefix + emitted).tokens)

    def _append(self, name: str, sequence: int, text: Sequence[int], cached: int) -> None:
        slot, cache = self._forwards.slot(sequence), self._forwards.cache(name)
        cache.keep(slot, np.arange(cached))
        cache.append(Rows.chain(slot, text[cached:], cached))

    def _able(self, asked: AskedRound) -> bool:
        forwards, head = self._forwards, self._head(asked)
        if asked.target not in forwards.fused or forwards.run.packing != Packing():
            return False
        if head is None:
            if any(plan.onward_count < plan.nodes for plan in asked.plans[:-1]):
                return False  # rows of the drafter's cache are then not those of the target's
            return asked.drafter in ("", *forwards.fused) and not forwards.keeps(asked.target)
        return head.layer is None or (head.layer.decoder.steps is not None and not head.further)

    def _head(self, asked: AskedRound) -> Head | None:
        return self._forwards.heads.get(asked.drafter)

    def _own(self, asked: AskedRound) -> Cache | None:
        """Return the drafter's cache, if it has one."""
        head = self._head(asked)
        if not asked.drafter or (head is not None and head.layer is None):
            return None
        return cast("Cache", self._forwards.cache(asked.drafter))

    def _cached(self, asked: AskedRound, prefix: Prefix) -> tuple[int, int]:
        """Return how many rows of the prefix the drafter and the target have; drop their others."""
        slot, counts = self._forwards.slot(prefix.sequence), list[int]()
        read = prefix.tokens if self._head(asked) is None else prefix.tokens[1 : len(prefix) - asked.tail]
        for cache, tokens in ((self._own(asked), read), (self._forwards.cache(asked.target), prefix.tokens)):
            path = np.arange(0) if cache is None else cache.match(slot, tokens, max(len(tokens) - 1, 0))
            if cache is not None:
                cache.keep(slot, path)
            counts.append(len(path))
        return counts[0], counts[1]

    def _missing(self, asked: AskedRound, cached: tuple[int, int], length: int) -> int:
        """Return how many tokens that the drafter reads have no row in its cache."""
        if self._own(asked) is None:
            return 1
        return length - cached[0] - (0 if self._head(asked) is None else 1 + asked.tail)

    def _has_room(self, asked: AskedRound, length: int) -> bool:
        """Return whether a round after so many tokens finds room for its rows and numbers."""
        own, target = self._own(asked), self._forwards.cache(asked.target)
        levels, nodes = len(asked.plans), asked.form.nodes
        forwarded = sum(plan.onward_count for plan in asked.plans[:-1])
        drafted = max(forwarded, levels + asked.tail, nodes if self._head(asked) is None else 0)
        needs = [(target, nodes)] if own is None else [(target, nodes), (own, drafted)]
        room = all(length + rows <= c.capacity and length + levels <= c.context for c, rows in needs)
        numbers = sum(len(plan.counts) for plan in asked.plans) * self._forwards.run.vocab_size
        return room and numbers <= MOST_NUMBERS

    def _can_start(self, asked: AskedRound, cached: tuple[int, int], length: int) -> bool:
        """Return whether the caches have the rows that a round of so many tokens starts from."""
        head = self._head(asked)
        known = length - cached[1] == 1 and (head is None or length - asked.tail >= 2)
        most = 2 if head is None else len(asked.plans) + 1
        return known and 1 <= self._missing(asked, cached, length) <= most

    def _launch(self, asked: AskedRound, bound: int, start: RoundStart | None) -> DeviceRound:
        forwards, sampling, head = self._forwards, self._forwards.run.sampling, self._head(asked)
        key = asked.target, asked.drafter, NumberLines.of(asked.form, drawn=asked.drawn)
        if key not in self._devices:
            layer = asked.drafter and (head is None or head.layer is not None)
            decoder = self._decoder(asked.drafter) if layer else None
            drafter, target = Drafter(decoder, head) if asked.drafter else None, self._decoder(asked.target)
            self._pool = self._pool or graph_pool(target.device)
            self._devices[key] = DeviceRounds(target, drafter, key[2], self._pool)
        features, columns = forwards.keeps(asked.target), forwards.run.vocab_size
        if head is not None and head.columns.tokens is not None:
            columns = len(head.columns.tokens)
        elif head is None and asked.drafter:
            columns = min(columns, self._decoder(asked.drafter).vocab_size)
        slot = forwards.slot(asked.sequence)
        how = (features, columns, sampling, asked.drawn, asked.chain)
        kind = RoundKind(slot, asked.plans, asked.kept, asked.tail, *how)
        if asked.sequence not in self._draws:
            self._draws[asked.sequence] = self._draws_of(asked.sequence)
        caches = cast("Cache", forwards.cache(asked.target)), self._own(asked)
        draws = self._draws[asked.sequence]
        return self._devices[key].launch(kind, caches, draws, bound, start, forwards.clock)

    def _decoder(self, name: str) -> Decoder:
        return cast("Decoder", self._forwards.models[name])
