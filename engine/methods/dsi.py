"""DSI: a drafter that never waits, and a pool of target servers that verify its blocks side by side.

Source: Distributed Speculative Inference (ICLR 2025), algorithm 1 with lookahead (section 3.1). Lossless.
A turn lasts until the drafter is found wrong. In it the drafter drafts on, token after token; whenever it has drafted
another `lookahead` tokens, or nothing that runs covers the next position, a free server scores all that is drafted and
not yet decided. Results are judged in order, whoever brings them. A wrong draft ends the turn: drafter and later servers
are preempted, the one that found it has already decided the next token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import UsageError
from engine.methods.registry import Situation, method, setting
from engine.types import Draft, Layout

if TYPE_CHECKING:
    from engine.runtime.models import Model, Scores
    from engine.runtime.race import Race
    from engine.runtime.run import Run


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

    Raises:
        UsageError: There is no room for the servers asked for, or the lookahead asked for needs more than there are.
    """
    room = max(1, there.servers(1))
    if cfg.sp > room:
        raise UsageError(
            f"sp is {cfg.sp}; beside a drafter there is room for 1 to {room} target server(s): ask for fewer, or for 0"
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
    return replace(cfg, lookahead=lookahead, sp=cfg.sp or min(room, servers(lookahead, there.c)))


@method(
    title="DSI",
    source="DSI (ICLR 2025), algorithm 1",
    config=Config,
    plan=plan,
    layout=lambda cfg: Layout(targets=max(1, cfg.sp), drafters=1),
)
async def decode(run: Run, cfg: Config) -> None:
    """Play turns until the run is done."""
    pool = list(run.targets)
    while not run.done:
        await _Turn(run, cfg, pool).play()


class _Task(NamedTuple):
    """A verification: the scores of rows first to last, where row i decides the i-th token of the turn."""

    scores: Scores
    first: int
    last: int


class _Turn:
    """From a known prefix to the first token that was drafted wrong, or not drafted in time."""

    def __init__(self, run: Run, cfg: Config, pool: list[Model]) -> None:
        self.run, self.cfg, self.pool = run, cfg, pool
        self.drafted = Draft.empty()
        self.start = run.x
        self.decided = 0
        self.sent = 0
        """Drafted tokens that some server has."""
        self.over = False
        """Whether the output has no room for more drafts."""
        self.running: list[_Task] = []
        self.ready: list[_Task] = []

    async def play(self) -> None:
        """Draft, verify and commit until the turn ends; what still runs then is preempted."""
        async with self.run.race() as race:
            self.draft(race)
            self.dispatch(race)
            async for results in race:
                for result in results:
                    if isinstance(result, _Task):
                        self.running.remove(result)
                        self.ready.append(result)
                    elif result:
                        self.drafted += result
                        self.draft(race)
                    else:
                        self.over = True
                if await self.judge():
                    return
                self.dispatch(race)

    def draft(self, race: Race) -> None:
        """Let the drafter draft the next token."""
        sampled = self.cfg.acceptance == "rejection"
        race.start(self.run.drafter.propose(self.start + self.drafted, 1, sampled=sampled))

    def dispatch(self, race: Race) -> None:
        """Send what is not decided to free servers: at every block's end, and at once when nothing covers the next position."""
        blocks = len(self.drafted) // self.cfg.lookahead * self.cfg.lookahead
        while not self.covered or self.sent < (len(self.drafted) if self.over else blocks):
            server = self.server()
            if server is None:
                return
            scores = server.score(self.run.x, self.drafted[self.decided :])
            task = _Task(scores, self.decided, len(self.drafted))
            self.sent = len(self.drafted)
            self.running.append(task)
            race.start(_finished(task))

    @property
    def covered(self) -> bool:
        """Whether the next position is being verified, or waits for its draft to be compared."""
        return any(task.first <= self.decided <= task.last for task in (*self.running, *self.ready))

    def server(self) -> Model | None:
        """Return a free server; where the next position needs one and none is free, the one that was preempted first."""
        free = next((server for server in self.pool if not server.busy), None)
        if free is None and not self.covered:
            free = self.pool[0]
        if free is not None:
            self.pool.remove(free)
            self.pool.append(free)
        return free

    async def judge(self) -> bool:
        """Commit all that can be decided now, in order; return whether that ends the turn."""
        while task := next((t for t in self.ready if t.first <= self.decided <= t.last), None):
            known = self.drafted[self.decided : task.last + 1]
            own = self.cfg.acceptance == "match" and len(self.drafted) <= task.last
            if not known and not own:
                return False  # a sampled draft is awaited: the text must not depend on who is faster
            verdict = await task.scores.judge(known, bonus=own, skip=self.decided - task.first)
            self.run.commit(verdict)
            self.decided += len(known)
            if own or self.run.done or not verdict.all_accepted:
                return True
            self.ready = [t for t in self.ready if t.last >= self.decided]
        return False


async def _finished(task: _Task) -> _Task:
    await task.scores
    return task
