"""EasySpec: several devices compute attention layers of the drafter at once, a little inexactly.

Source: EasySpec (Wu et al. 2025), sections 3.1 and 3.2, algorithm 2.

Lossless. The loop is speculative decoding's; the drafter is fuzzy. The attention layers of a
group all read the hidden state before the group, so each can run on its own device. Every draft
begins with an exact forward over the accepted tokens and the target's own: it replaces fuzzy KV
rows (bonus calibration) and gives the first level. q is the fuzzy distribution that a token was
sampled from.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial

from specscope.engine.drafting.planner import best_wide
from specscope.engine.drafting.static import MOST_NODES
from specscope.engine.drafting.tree import Wide
from specscope.engine.errors import UsageError
from specscope.engine.layout import LayerParallel, Layout, Separate
from specscope.engine.methods.common import GAMMA, LONGEST, check_nodes, draft_length, planned, tree_drafts
from specscope.engine.methods.registry import Situation, method, setting
from specscope.engine.run.run import Run
from specscope.engine.types import check_range


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of EasySpec."""

    gamma: int = draft_length("levels")
    size: int = setting(
        4,
        "Layer-parallel size: attention layers that read the same hidden state; 1 is ordinary drafting.",
        low=1,
        high=5,
    )
    devices: int = planned(
        "Devices that share the attention layers of a group; 0 uses all devices, up to the size.",
        high=5,
    )
    calibrate: bool = setting(
        True, "Bonus calibration: begin each draft with an exact forward; off keeps fuzzy KV rows."
    )
    width: int = setting(
        1,
        "Largest number of nodes per level of the draft tree; 1 is a chain. Width times gamma is at most 64.",
        low=1,
        high=16,
    )
    drafts: str = tree_drafts()

    def __post_init__(self) -> None:
        check_nodes(self.width, self.gamma, "gamma")


def plan(cfg: Config, situation: Situation) -> Config:
    """Use all devices for 0, up to the layer-parallel size."""
    if 0 < situation.depth < cfg.size:
        raise UsageError(
            f"size is {cfg.size}; with a drafter of {situation.depth} layers it must be at least 1 and at most "
            f"{situation.depth}",
            "size",
        )
    most = min(cfg.size, situation.devices)
    check_range("devices", cfg.devices, 0, most)
    cfg = replace(cfg, devices=cfg.devices or most)
    if cfg.gamma:
        return cfg
    longest = MOST_NODES // cfg.width
    probe = {**asdict(cfg), "gamma": min(LONGEST, longest)}
    chosen = situation.planned(probe, partial(best_wide, width=cfg.width))
    return replace(cfg, gamma=min(GAMMA, longest) if chosen is None else chosen.levels)


@method(
    title="EasySpec",
    source="EasySpec (2025), algorithm 2",
    config=Config,
    plan=plan,
    layout=lambda cfg: Layout(LayerParallel(cfg.devices) if cfg.devices > 1 else Separate(turns=True)),
)
async def decode(run: Run, cfg: Config) -> None:
    shape, sampled = Wide(cfg.width, cfg.gamma), cfg.drafts == "sampled"
    while not run.done:
        draft = await run.drafter.grow(run.x, shape, sampled=sampled, fuzzy=cfg.size, calibrate=cfg.calibrate)
        run.commit(await run.target.verify(run.x, draft))
