"""Rounds of a host's models that need no host between their forwards, and the books of their rows.

`specscope.engine.model.rounds` runs them. While one is read here, the next may run already: the
method asks for it later, or never, if the output has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from specscope.engine.layout import Packing
from specscope.engine.model.cache import Cache
from specscope.engine.model.rounds import DeviceRound, DeviceRounds, RoundFacts, RoundKind, RoundStart
from specscope.engine.model.slots import Rows
from specscope.engine.types import Prefix
from specscope.engine.worker.jobs import Propose, Score, Stamp

if TYPE_CHECKING:
    from specscope.engine.model.decoder import Decoder
    from specscope.engine.sampling.draws import Draws
    from specscope.engine.worker.forwards import Forwards


AHEAD = {"cuda"}
"""Kinds of devices on which a round may begin before it is asked for."""


class AskedRound(NamedTuple):
    """The rounds that a job asks for."""

    target: str
    drafter: str
    """Empty for plain decoding."""
    sequence: int
    gamma: int
    drawn: bool
    """Whether the tokens are drawn from q, at any temperature but 0."""

    @classmethod
    def of(cls, job: Propose | Score) -> AskedRound | None:
        """Return what a job asks for; None if it needs a host between the forwards."""
        if len(job.prefixes) != 1:
            return None
        sequence = job.prefixes[0].sequence
        if isinstance(job, Propose):
            special = job.stop_below or job.fuzzy > 1 or job.group or job.damping or job.masked_tail
            if not job.then or not job.chain or special or not job.levels[0]:
                return None
            return cls(job.then, job.model, sequence, job.levels[0], job.sampled)
        special = job.best or job.greedy or job.stage or job.chunks or job.drafts[0][0]
        if special or len(job.judges) != 1 or job.judges[0].skip or job.judges[0].typical:
            return None
        return cls(job.model, "", sequence, 0, False)

    @property
    def models(self) -> tuple[str, ...]:
        """The target, and the drafter if there is one."""
        return tuple(filter(None, (self.target, self.drafter)))


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

    def drafting(self, number: int) -> Stamp:
        """Return the stamp of one of the drafter's forwards."""
        assert self.facts.drafted is not None, "it has drafted"
        (start, end), cells = self.facts.drafted.times[number], self.facts.drafted.cells[number]
        length, cached = len(self.prefix), self.cached[0]
        rows, context = (1, length + number - 1) if number else (length - cached, cached)
        return Stamp("draft", start, end, rows, context, cells=cells)

    def verification(self) -> list[Stamp]:
        """Return the stamps of the verification and of the judgement."""
        (start, end), judged, cells = self.facts.verified, self.facts.judged, self.facts.cells
        rows, context = self.asked.gamma + len(self.prefix) - self.cached[1], self.cached[1]
        verify = Stamp("verify", start, end, rows, context, cells=cells)
        return [verify, Stamp("sample", end, judged, self.asked.gamma, 0)]


class Rounds:
    """The rounds of a host's models.

    Args:
        forwards: Its models and their slots.
        draws: Returns the random numbers of a sequence.
    """

    def __init__(self, forwards: Forwards, draws: Callable[[int], Draws]) -> None:
        self._forwards, self._draws_of = forwards, draws
        self._devices: dict[tuple[str, str], DeviceRounds] = {}
        self._draws: dict[int, Draws] = {}
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
        prefix = Prefix(begun.asked.sequence, begun.prefix)
        cached = self._cached(begun.asked, prefix)
        found = Found(begun.asked, prefix, begun.round.read(self._forwards.clock), cached)
        return [*map(found.drafting, range(begun.asked.gamma)), *found.verification()]

    def run(self, job: Propose | Score) -> Found | None:
        """Return the round that a job asks for; None if it needs a host, or the models differ.

        The caller passes it to `record` when it is judged.
        """
        asked, begun = AskedRound.of(job), self._begun
        if asked is None or begun is None or not begun.starts(asked, job.prefixes[0]):
            self.end()
            begun = None
        if asked is None or not self._able(asked) or not (asked.drafter or begun or job.ahead):
            return None
        prefix = job.prefixes[0]
        cached = self._cached(asked, prefix)
        if begun is None and not self._fits(asked, cached, len(prefix)):
            return None
        running = begun.round if begun else self._launch(asked, len(prefix), _start(prefix, cached))
        after, self._begun = len(prefix) + asked.gamma + 1, None
        if job.ahead and self._runs_ahead(asked) and self._fits(asked, (after - 1, after - 1), after):
            self._begun = _Begun(asked, self._launch(asked, after, None), prefix.tokens)
        return Found(asked, prefix, running.read(self._forwards.clock), cached)

    def record(self, found: Found, drafted: tuple[int, ...], emitted: tuple[int, ...]) -> None:
        """Add a round's rows to the books of its caches: those that no running round replaces."""
        slot, length = self._forwards.slot(found.prefix.sequence), len(found.prefix)
        for name, cached, ids in (
            (found.asked.target, found.cached[1], drafted),
            (found.asked.drafter, found.cached[0], drafted[:-1]),
        ):
            if not name:
                continue
            cache = self._forwards.cache(name)
            cache.keep(slot, np.arange(cached))
            cache.append(Rows.chain(slot, [*found.prefix.tokens[cached:].tolist(), *ids], cached))
            if self._begun is not None:
                cache.truncate(slot, min(length + len(emitted) - 1, length + len(ids)))
        if self._begun is not None:
            prefix = found.prefix + emitted
            self._begun = self._begun._replace(prefix=prefix.tokens)

    def _runs_ahead(self, asked: AskedRound) -> bool:
        return self._decoder(asked.target).device.type in AHEAD

    def _able(self, asked: AskedRound) -> bool:
        forwards = self._forwards
        return (
            all(name in forwards.fused and name not in forwards.heads for name in asked.models)
            and not any(map(forwards.keeps, asked.models))
            and forwards.run.packing == Packing()
        )

    def _cached(self, asked: AskedRound, prefix: Prefix) -> tuple[int, int]:
        """Return how many rows of the prefix the drafter and the target have; drop their others."""
        slot, counts = self._forwards.slot(prefix.sequence), list[int]()
        for name in (asked.drafter or asked.target, asked.target):
            cache = self._forwards.cache(name)
            path = cache.match(slot, prefix.tokens, len(prefix) - 1)
            cache.keep(slot, path)
            counts.append(len(path))
        return counts[0], counts[1]

    def _fits(self, asked: AskedRound, cached: tuple[int, int], length: int) -> bool:
        caches = [self._forwards.cache(name) for name in asked.models]
        room = min(min(cache.capacity, cache.context) for cache in caches)
        missing = length - cached[0] <= 2 or not asked.drafter
        return missing and length - cached[1] == 1 and length + asked.gamma <= room

    def _launch(self, asked: AskedRound, bound: int, start: RoundStart | None) -> DeviceRound:
        forwards, sampling = self._forwards, self._forwards.run.sampling
        key = asked.target, asked.drafter
        if key not in self._devices:
            models = [self._decoder(name) if name else None for name in key]
            assert models[0] is not None, "every round has a target"
            self._devices[key] = DeviceRounds(models[0], models[1])
        caches = [cache for name in asked.models if isinstance(cache := forwards.cache(name), Cache)]
        columns = min(forwards.run.vocab_size, self._decoder(asked.models[-1]).vocab_size)
        drawn = asked.drawn and not sampling.greedy
        slot = forwards.slot(asked.sequence)
        kind = RoundKind(slot, asked.gamma, (0, 0), columns, sampling, drawn)
        if asked.sequence not in self._draws:
            self._draws[asked.sequence] = self._draws_of(asked.sequence)
        draws = self._draws[asked.sequence]
        return self._devices[key].launch(kind, caches, draws, bound, start, forwards.clock)

    def _decoder(self, name: str) -> Decoder:
        model = self._forwards.models[name]
        assert name in self._forwards.fused, "only decoders have static forwards"
        return model  # pyright: ignore[reportReturnType]


def _start(prefix: Prefix, cached: tuple[int, int]) -> RoundStart:
    before, last = [0, *prefix.tokens[-2:].tolist()][-2:]
    return RoundStart(len(prefix), (before, last), min(2, len(prefix) - cached[0]))
