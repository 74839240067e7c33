"""DSI: drafters never wait; a pool of target servers verifies their drafts in parallel.

Source: Distributed Speculative Inference (ICLR 2025), algorithm 1 with lookahead (section 3.1).

Lossless. Each drafter extends its line, a chain of drafted tokens after x, token by token. A free
server verifies a line's undecided tokens whenever the line has `lookahead` more of them, or no
other verification covers the next position. Verifications are judged in order of position. A line
with a wrong token is stopped, with the verifications of it; its drafter joins the longest line that
agrees with x (lines 8 to 10 of the algorithm). A turn ends when every line is rejected; that
verification already produced the next token.
"""

from __future__ import annotations

from asyncio import Task
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from specscope.engine.errors import UsageError
from specscope.engine.layout import Layout, Separate
from specscope.engine.methods.common import planned
from specscope.engine.methods.registry import Situation, method, setting
from specscope.engine.run.drafters import DraftModel
from specscope.engine.run.run import Run
from specscope.engine.run.scores import Scores
from specscope.engine.run.targets import TargetModel
from specscope.engine.types import MOST_DRAFTERS, Draft, DraftToken, Prefix, Verdict

MOST_LOOKAHEAD = 64


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of DSI."""

    lookahead: int = planned(
        "Tokens drafted for each verification; 0 is the smallest number for which the servers suffice.",
        high=MOST_LOOKAHEAD,
        role="lookahead",
    )
    sp: int = planned(
        "Speculation parallelism: target servers; 0 uses as many as the lookahead needs, if the cluster has them.",
        high=64,
        role="devices",
    )
    drafters: int = setting(
        1,
        "Drafters that race: the first ones of the pair, each on its own device.",
        low=1,
        high=MOST_DRAFTERS,
    )
    acceptance: str = setting(
        "match",
        "match: accept a draft if the target draws the same token (lines 8 and 9). rejection: sample drafts, use p/q.",
        choices=("match", "rejection"),
    )
    drafts: str = setting(
        "greedy",
        "How drafters pick tokens for match when the temperature is above 0; for rejection they sample.",
        choices=("greedy", "sampled"),
    )


# The plan: how many servers for which lookahead.


def servers(lookahead: int, c: float) -> int:
    """Return the servers that verify a drafter's blocks without a queue: ceil(c / lookahead).

    Section 3.1 has this formula, with <= printed for >=. One more server is needed if a block takes
    longer to draft than to verify, because partial blocks are then verified in between.
    """
    return ceil(c / lookahead - 1e-9) + (lookahead > c)


def plan(cfg: Config, situation: Situation) -> Config:
    """Choose the smallest feasible lookahead, and no more servers than each drafter needs."""
    if cfg.drafters > 1:
        _check_drafters(cfg, situation)
    free = max(1, situation.servers[cfg.drafters])
    if cfg.sp > free:
        drafters = "a drafter" if cfg.drafters == 1 else f"{cfg.drafters} drafters"
        raise UsageError(
            f"sp is {cfg.sp}; beside {drafters} there is room for 1 to {free} target server(s): ask for fewer, or for 0",
            "sp",
        )
    c = situation.c()
    lookahead = _planned_lookahead(cfg.lookahead, cfg.sp or free, free, c)
    needed = cfg.drafters * servers(lookahead, c)
    return replace(cfg, lookahead=lookahead, sp=cfg.sp or min(free, needed))


def _planned_lookahead(lookahead: int, sp: int, free: int, c: float) -> int:
    """Return the lookahead asked for, or the smallest that `sp` servers verify without a queue.

    If no lookahead avoids a queue, 0 becomes the smallest one that keeps up with the drafter.
    """
    least = max(1, ceil(c / sp - 1e-9))
    if not lookahead:
        return next((k for k in range(1, MOST_LOOKAHEAD + 1) if servers(k, c) <= sp), least)
    if lookahead < least:
        needed = servers(lookahead, c)
        raise UsageError(
            f"lookahead is {lookahead}; with {sp} target server(s) and a drafter {c:.1f} times as fast as the "
            f"target it must be at least {least}" + (f" (or sp at least {needed})" if needed <= free else ""),
            "lookahead",
        )
    return lookahead


def _check_drafters(cfg: Config, situation: Situation) -> None:
    if cfg.acceptance != "match":
        raise UsageError(
            f"acceptance is {cfg.acceptance}; with {cfg.drafters} drafters it must be match: they have no common q",
            "acceptance",
        )
    most = max((n for n in range(1, situation.drafters + 1) if situation.servers[n] >= 1), default=1)
    if cfg.drafters > most:
        raise UsageError(
            f"drafters is {cfg.drafters}; it must be at most {most}: the pair has {situation.drafters}, each needs a "
            "device of its own beside a target server's; name more with --drafter, or use a virtual profile",
            "drafters",
        )


# Algorithm 1.


@method(
    title="DSI",
    source="DSI (ICLR 2025), algorithm 1",
    config=Config,
    plan=plan,
    layout=lambda cfg: Layout(Separate(max(1, cfg.sp), cfg.drafters)),
)
async def decode(run: Run, cfg: Config) -> None:
    pool = list(run.targets)
    sampled = cfg.acceptance == "rejection" or cfg.drafts == "sampled"
    while not run.done:
        await Turn(run, pool, cfg.lookahead, match=cfg.acceptance == "match", sampled=sampled).play()


@dataclass(eq=False, slots=True)
class _Line:
    """A drafter and its line's undecided tokens: its own, or the tokens of the line it joined."""

    drafter: DraftModel
    draft: Draft = field(default_factory=Draft.empty)
    full: bool = False
    """Whether the output has no place for more tokens."""
    job: Task[Any] | None = None


@dataclass(eq=False, slots=True)
class _Verification:
    """Scores of one target forward over x and a line: row i decides position start + i."""

    scores: Scores
    start: int
    """len(x) when it started."""
    ids: tuple[int, ...]
    """The line's tokens: those from position `start` on."""
    job: Task[Any] | None = None

    def covers(self, position: int) -> bool:
        return position <= self.start + len(self.ids)

    def ids_from(self, position: int) -> tuple[int, ...]:
        return self.ids[position - self.start :]


@dataclass(eq=False, frozen=True, slots=True)
class _Judging:
    """A judgement under way: of candidates for `position` and later ones, by a verification."""

    position: int
    verification: _Verification
    draft: Draft
    bonus: bool


class Turn:
    """Decoding up to a token that no line has: all were wrong, or had no token there yet.

    Args:
        run: The run.
        pool: The target servers, the one that was used longest ago first; reordered in place.
        lookahead: Tokens drafted for each verification.
        match: Accept a draft if the target draws the same token; else by p / q.
        sampled: Whether drafts are drawn from q.
    """

    def __init__(
        self, run: Run, pool: list[TargetModel], lookahead: int, *, match: bool, sampled: bool
    ) -> None:
        self.run, self.pool, self.lookahead = run, pool, lookahead
        self.match, self.sampled = match, sampled
        self.race = run.race()
        self.start = len(run.x)
        self.lines = [_Line(drafter) for drafter in run.drafters]
        self.running: list[_Verification] = []
        self.finished: list[_Verification] = []
        self.judging: _Judging | None = None

    async def play(self) -> None:
        async with self.race:
            for line in self.lines:
                self.start_draft(line)
            self.start_verifications()
            async for results in self.race:
                for source, result in results:
                    if source in self.running:
                        self.running.remove(source)
                        self.finished.append(source)
                    elif source is self.judging:
                        if self.commit(source, result):
                            return
                    elif source not in self.lines:
                        continue  # stopped by a verdict that was ready at the same moment
                    elif result:
                        source.draft += self.guessed(result) if self.match else result
                        self.start_draft(source)
                    else:
                        source.full = True
                self.start_judging()
                if self.judging is None:  # a verdict may contradict the line to verify
                    self.start_verifications()

    def start_draft(self, line: _Line) -> None:
        line.job = self.race.start(_next_draft(line, self.run.x + line.draft, self.sampled))

    @staticmethod
    def guessed(draft: Draft) -> Draft:
        """Return a draft without its q: the rule is `match` however its tokens were picked."""
        return Draft(tuple(replace(token, q=None) for token in draft.tokens))

    # Verifications: which line next, on which server.

    def start_verifications(self) -> None:
        while (line := self.line_to_verify()) and (server := self.take_server()):
            scores = server.score(self.run.x, line.draft)
            verification = _Verification(scores, len(self.run.x), line.draft.ids)
            verification.job = self.race.start(_next_scores(verification))
            self.running.append(verification)

    def line_to_verify(self) -> _Line | None:
        """Return a line that needs a verification.

        If none covers the next position, this is the longest line of any length. Otherwise it is
        the first line with due tokens that no verification has scored.
        """
        if not self.covering:
            return max(self.lines, key=lambda line: len(line.draft))
        return next((line for line in self.lines if self.verified(line) < self.due(line)), None)

    def due(self, line: _Line) -> int:
        """Return how many of the turn's tokens need verification: whole blocks, at last all."""
        drafted = len(self.run.x) - self.start + len(line.draft)
        return drafted if line.full else drafted // self.lookahead * self.lookahead

    def verified(self, line: _Line) -> int:
        """Return how many of the turn's tokens on a line are being verified, on any line."""
        position = len(self.run.x)
        shared = (_common(v.ids_from(position), line.draft.ids) for v in self.covering)
        return position - self.start + max(shared, default=0)

    @property
    def covering(self) -> list[_Verification]:
        """The verifications that cover the next position; the others no longer matter."""
        return [v for v in (*self.running, *self.finished) if v.covers(len(self.run.x))]

    def take_server(self) -> TargetModel | None:
        """Return a free server, or a preempted one if the next position needs one now."""
        server = next((server for server in self.pool if not server.busy), None)
        if server is None and not self.covering:
            server = self.pool[0]
        if server is not None:
            self.pool.remove(server)
            self.pool.append(server)
        return server

    # Results: accepted tokens; lines and verifications to stop.

    def start_judging(self) -> None:
        """Judge the next positions, if a verification covers them; drafting goes on meanwhile."""
        position = len(self.run.x)
        verification = next((v for v in self.finished if v.covers(position)), None)
        if verification is None or self.judging:
            return
        draft, leaves = self.candidates(verification.ids_from(position))
        bonus = self.match and not leaves
        if draft or bonus:  # else a sampled draft is under way: the text must not depend on which is faster
            self.judging = _Judging(position, verification, draft, bonus)
            self.race.start(_next_verdict(self.judging))

    def commit(self, judging: _Judging, verdict: Verdict) -> bool:
        self.judging = None
        self.run.commit(verdict)
        if self.run.done or verdict.own is not None:
            return True
        self.stop_contradicted(verdict.accepted, judging.position)
        return False

    def candidates(self, scored: tuple[int, ...]) -> tuple[Draft, bool]:
        """Gather the tokens of all lines that a verification of `scored` tokens decides.

        The scored tokens, from the next position on, are a chain, then the lines' other tokens are
        leaves beside it and after it; also return whether leaves exist. Of equal tokens the first
        line's counts (line 9).
        """
        drafts = [(line.draft.tokens, _common(line.draft.ids, scored)) for line in self.lines]
        chain, leaves = list[DraftToken](), list[DraftToken]()
        for depth in range(len(scored) + 1):
            tokens = dict[int, DraftToken]()
            for draft, common in drafts:
                if len(draft) > depth <= common:
                    tokens.setdefault(draft[depth].id, draft[depth])
            chain += [tokens.pop(token) for token in scored[depth : depth + 1]]
            leaves += tokens.values()
        leases = tuple(lease for line in self.lines for lease in line.draft.lease)
        return Draft((*chain, *leaves), leases), bool(leaves)

    def stop_contradicted(self, accepted: tuple[int, ...], position: int) -> None:
        """Stop all verifications and drafts that the accepted tokens contradict (line 8).

        At least one line agrees with them. The drafters of others join the longest that does (line
        10). `position` is that of the first accepted token.
        """
        for verification in (*self.running, *self.finished):
            ids = verification.ids_from(position)
            if _common(ids, accepted) < min(len(ids), len(accepted)):
                self.race.stop(verification.job)
                (self.running if verification in self.running else self.finished).remove(verification)
        agreeing = [line for line in self.lines if line.draft.ids[: len(accepted)] == accepted]
        for line in agreeing:
            line.draft = line.draft[len(accepted) :]
        longest = max(agreeing, key=lambda line: len(line.draft))
        for number, line in enumerate(self.lines):
            if line not in agreeing:
                self.race.stop(line.job)
                self.lines[number] = _Line(line.drafter, longest.draft)
                self.start_draft(self.lines[number])


async def _next_draft(line: _Line, prefix: Prefix, sampled: bool) -> tuple[_Line, Draft]:
    return line, await line.drafter.propose(prefix, 1, sampled=sampled)


async def _next_scores(verification: _Verification) -> tuple[_Verification, Scores]:
    return verification, await verification.scores


async def _next_verdict(judging: _Judging) -> tuple[_Judging, Verdict]:
    verification, skip = judging.verification, judging.position - judging.verification.start
    return judging, await verification.scores.judge(judging.draft, bonus=judging.bonus, skip=skip)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
