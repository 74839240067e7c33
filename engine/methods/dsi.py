"""DSI: drafters that never wait, and a pool of target servers that verify their blocks side by side.

Source: Distributed Speculative Inference (ICLR 2025), algorithm 1 with lookahead (section 3.1). Lossless.
Each drafter drafts a line of its own, token after token. Whenever a line has another `lookahead` tokens, or nothing that
runs covers the next position, a free server scores all of the line that is not yet decided. Results are judged in order,
whoever brings them. A line with a wrong draft is stopped, with the servers that score what comes after it; its drafter
joins the longest line that stands. A turn lasts until none stands; who found that has already decided the next token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING, Any

from engine.errors import UsageError
from engine.methods.registry import Situation, method, setting
from engine.types import MOST_DRAFTERS, Draft, DraftToken, Layout, Prefix, Separate, Verdict

if TYPE_CHECKING:
    from asyncio import Task

    from engine.run.models import Model
    from engine.run.run import Run
    from engine.run.scores import Scores


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of DSI."""

    lookahead: int = setting(
        0,
        "Tokens drafted for each verification task; 0 is the smallest for which the servers suffice.",
        low=1,
        high=64,
        auto="planned",
    )
    sp: int = setting(
        0,
        "Speculation parallelism: target servers; 0 is as many as the lookahead needs, of those there is room for.",
        low=1,
        high=64,
        auto="planned",
    )
    drafters: int = setting(
        1,
        "Drafters that race, the first ones of the pair, each on a device of its own.",
        low=1,
        high=MOST_DRAFTERS,
    )
    acceptance: str = setting(
        "match",
        "match: a draft stands if it is the token the target draws itself (lines 8 and 9). rejection: drafts are sampled.",
        choices=("match", "rejection"),
    )


def servers(lookahead: int, c: float) -> int:
    """Return how many target servers verify a drafter of speed c without a queue (section 3.1, which prints <= for >=).

    One more is needed where a block takes longer to draft than to verify: partial blocks are then verified in between.
    """
    return ceil(c / lookahead - 1e-9) + (lookahead > c)


def plan(cfg: Config, there: Situation) -> Config:
    """Choose the smallest feasible lookahead for the servers there are, and no more servers than it needs.

    Every drafter needs as many: what two of them say is verified apart from where they differ.

    Raises:
        UsageError: There are fewer drafters than asked for, or no common rule for them; there is no room for them or for
            the servers asked for, or the lookahead asked for needs more servers than there are.
    """
    if cfg.drafters > 1:
        _check_drafters(cfg, there)
    room = max(1, there.servers(cfg.drafters))
    if cfg.sp > room:
        beside = "a drafter" if cfg.drafters == 1 else f"{cfg.drafters} drafters"
        raise UsageError(
            f"sp is {cfg.sp}; beside {beside} there is room for 1 to {room} target server(s): ask for fewer, or for 0"
        )
    most = cfg.sp or room
    least = max(1, ceil(there.c / most - 1e-9))
    if not cfg.lookahead:
        lookahead = next((k for k in range(1, 65) if servers(k, there.c) <= most), least)
    elif cfg.lookahead < least:
        needed = servers(cfg.lookahead, there.c)
        raise UsageError(
            f"lookahead is {cfg.lookahead}; with {most} target server(s) and a drafter {there.c:.1f} times as fast as the "
            f"target it must be at least {least}" + (f" (or sp at least {needed})" if needed <= room else "")
        )
    else:
        lookahead = cfg.lookahead
    needed = cfg.drafters * servers(lookahead, there.c)
    return replace(cfg, lookahead=lookahead, sp=cfg.sp or min(room, needed))


def _check_drafters(cfg: Config, there: Situation) -> None:
    if cfg.acceptance != "match":
        raise UsageError(
            f"acceptance is {cfg.acceptance}; with {cfg.drafters} drafters it must be match: they have no common q"
        )
    most = max((n for n in range(1, there.drafters + 1) if there.servers(n) >= 1), default=1)
    if cfg.drafters > most:
        raise UsageError(
            f"drafters is {cfg.drafters}; it must be at most {most}: the pair has {there.drafters}, each needs a device "
            "of its own beside a target server's; name more with --drafter, or use a virtual profile"
        )


@method(
    title="DSI",
    source="DSI (ICLR 2025), algorithm 1",
    config=Config,
    plan=plan,
    layout=lambda cfg: Layout(Separate(max(1, cfg.sp), cfg.drafters)),
)
async def decode(run: Run, cfg: Config) -> None:
    """Play turns until the run is done."""
    pool = list(run.targets)
    while not run.done:
        await _Turn(run, cfg, pool).play()


@dataclass(eq=False, slots=True)
class _Line:
    """What one drafter follows: drafted tokens after the text, its own and those of a line it joined."""

    drafter: Model
    drafted: Draft = field(default_factory=Draft.empty)
    over: bool = False
    """Whether the output has no room for more drafts."""
    work: Task[Any] | None = None
    """What it does now, in the race."""


@dataclass(eq=False, slots=True)
class _Task:
    """A verification: scores, of which row i decides position start + i, given that the text has the ids before it."""

    scores: Scores
    start: int
    ids: tuple[int, ...]
    work: Task[Any] | None = None

    def covers(self, position: int) -> bool:
        """Whether some row decides it."""
        return position <= self.start + len(self.ids)

    def after(self, position: int) -> tuple[int, ...]:
        """Return the scored ids from there on."""
        return self.ids[position - self.start :]


class _Turn:
    """From a known prefix to the first token that no line has: drafted wrong by all, or not drafted in time."""

    def __init__(self, run: Run, cfg: Config, pool: list[Model]) -> None:
        self.run, self.cfg, self.pool = run, cfg, pool
        self.race = run.race()
        self.start = len(run.x)
        self.lines = [_Line(drafter) for drafter in run.drafters]
        self.running: list[_Task] = []
        self.ready: list[_Task] = []

    async def play(self) -> None:
        """Draft, verify and commit until the turn ends; what still runs then is preempted."""
        async with self.race:
            for line in self.lines:
                self.draft(line)
            self.dispatch()
            async for results in self.race:
                for who, result in results:
                    if isinstance(who, _Task):
                        self.running.remove(who)
                        self.ready.append(who)
                    elif result:
                        who.drafted += result
                        self.draft(who)
                    else:
                        who.over = True
                if await self.judge():
                    return
                self.dispatch()

    def draft(self, line: _Line) -> None:
        """Let a line's drafter draft its next token."""
        sampled = self.cfg.acceptance == "rejection"
        line.work = self.race.start(_drafted(line, self.run.x + line.drafted, sampled))

    def dispatch(self) -> None:
        """Send lines to free servers: one at once where nothing covers the next position, each at a block's end."""
        while line := self.unserved():
            server = self.server()
            if server is None:
                return
            scores = server.score(self.run.x, line.drafted)
            task = _Task(scores, len(self.run.x), line.drafted.ids)
            self.running.append(task)
            task.work = self.race.start(_finished(task))

    def unserved(self) -> _Line | None:
        """Return a line that needs a server."""
        if not self.live:
            return max(self.lines, key=lambda line: len(line.drafted))
        return next((line for line in self.lines if self.sent(line) < self.due(line)), None)

    def due(self, line: _Line) -> int:
        """Return how many tokens of the turn servers should have: whole blocks, and at the end of the output all."""
        drafted = len(self.run.x) - self.start + len(line.drafted)
        return drafted if line.over else drafted // self.cfg.lookahead * self.cfg.lookahead

    def sent(self, line: _Line) -> int:
        """Return how many they have, be it for another line that says the same."""
        now, ids = len(self.run.x), line.drafted.ids
        return now - self.start + max((_common(task.after(now), ids) for task in self.live), default=0)

    @property
    def live(self) -> list[_Task]:
        """The verifications, under way or not judged yet, that cover the next position: all that still matter."""
        return [task for task in (*self.running, *self.ready) if task.covers(len(self.run.x))]

    def server(self) -> Model | None:
        """Return a free server; where the next position needs one and none is free, the one that was preempted first."""
        free = next((server for server in self.pool if not server.busy), None)
        if free is None and not self.live:
            free = self.pool[0]
        if free is not None:
            self.pool.remove(free)
            self.pool.append(free)
        return free

    async def judge(self) -> bool:
        """Commit all that can be decided now, in order; return whether that ends the turn."""
        while task := next((t for t in self.ready if t.covers(len(self.run.x))), None):
            scored = task.after(now := len(self.run.x))
            draft, leaves = self.candidates(scored)
            own = self.cfg.acceptance == "match" and not leaves
            if not draft and not own:
                return False  # a sampled draft is awaited: the text must not depend on who is faster
            verdict = await task.scores.judge(draft, bonus=own, skip=now - task.start)
            self.run.commit(verdict)
            if self.run.done or verdict.own is not None:
                return True
            self.settle(verdict, now)
        return False

    def candidates(self, scored: tuple[int, ...]) -> tuple[Draft, bool]:
        """Return the tokens of all lines that these scores decide, and whether some are not among the scored ones.

        First the scored tokens, then leaves beside and after them. Of equal ones the first line's counts (line 9).
        """
        paths = [(line.drafted.tokens, _common(line.drafted.ids, scored)) for line in self.lines]
        chain, leaves = list[DraftToken](), list[DraftToken]()
        for depth in range(len(scored) + 1):
            there = dict[int, DraftToken]()
            for tokens, agreed in paths:
                if len(tokens) > depth <= agreed:
                    there.setdefault(tokens[depth].id, tokens[depth])
            chain += [there.pop(token) for token in scored[depth : depth + 1]]
            leaves += there.values()
        lease = tuple(each for line in self.lines for each in line.drafted.lease)
        return Draft((*chain, *leaves), lease), bool(leaves)

    def settle(self, verdict: Verdict, before: int) -> None:
        """Stop what the text now contradicts; drafters of lines that do not stand join the longest that does (line 8)."""
        said = verdict.accepted
        for task in (*self.running, *self.ready):
            if _common(task.after(before), said) < min(len(task.after(before)), len(said)):
                self.race.stop(task.work)
                (self.running if task in self.running else self.ready).remove(task)
        standing = [line for line in self.lines if line.drafted.ids[: len(said)] == said]
        for line in standing:
            line.drafted = line.drafted[len(said) :]
        longest = max(standing, key=lambda line: len(line.drafted))
        for line in self.lines:
            if line not in standing:
                self.race.stop(line.work)
                line.drafted, line.over = longest.drafted, False
                self.draft(line)


async def _drafted(line: _Line, prefix: Prefix, sampled: bool) -> tuple[_Line, Draft]:
    return line, await line.drafter.propose(prefix, 1, sampled=sampled)


async def _finished(task: _Task) -> tuple[_Task, Scores]:
    return task, await task.scores


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many ids two paths begin with in common."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
