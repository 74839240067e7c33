"""PEARL: draft and verify at the same time, with a draft length that adapts.

Source: PEARL (ICLR 2025), sections 3.2 and 3.3, algorithm 2. Lossless.
Pre-verify: while the drafter drafts a chunk, the target checks the chunk's first token. Post-verify: while the
target checks a chunk, the drafter goes on as if all of it were accepted. `pending` holds the tokens drafted after
the prefix and not yet verified; empty means pre-verify mode.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.methods.registry import Situation, method, setting
from engine.types import Draft

if TYPE_CHECKING:
    from engine.runtime.run import Run


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of PEARL."""

    gamma: int = setting(
        0,
        "Window size: tokens drafted in one go; 0 is round(c), the paper's best choice.",
        low=1,
        high=32,
        auto="round(c)",
    )
    pre_verify: bool = setting(True, "Check the first token of a chunk while the chunk is drafted.")
    post_verify: bool = setting(True, "Go on drafting while a chunk is verified.")
    placement: str = setting("separate", "Where drafter and target live.", choices=("separate",))


def plan(cfg: Config, there: Situation) -> Config:
    """Take round(c) for a gamma that is left open."""
    return cfg if cfg.gamma else replace(cfg, gamma=min(32, max(1, round(there.c))))


@method(title="PEARL", source="PEARL (ICLR 2025), algorithm 2", config=Config, plan=plan)
async def decode(run: Run, cfg: Config) -> None:
    """Overlap drafting and verification until the run is done; with both strategies off it is `speculative`."""
    pending = Draft.empty()
    while not run.done:
        if not pending and not cfg.pre_verify:
            pending = await run.drafter.propose(run.x, cfg.gamma)
            continue
        if pending and not cfg.post_verify:
            run.commit(await run.target.verify(run.x, pending))
            pending = Draft.empty()
            continue
        scores = run.target.score(run.x, pending)
        ahead = await run.drafter.propose(run.x + pending, cfg.gamma)
        verdict = await scores.judge(pending + ahead[:1], bonus=False)
        run.commit(verdict)
        pending = ahead[1:] if verdict.all_accepted else Draft.empty()
