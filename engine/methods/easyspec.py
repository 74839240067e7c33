"""EasySpec: the drafter runs the attention of several layers at once, on several devices, and drafts a little worse.

Source: EasySpec (Wu et al. 2025), sections 3.1 and 3.2, algorithm 2. Lossless: a rejected draft costs time, never the distribution.
An ordinary loop whose drafter is fuzzy: the attention layers of a group read one hidden state, so each can run on a device
of its own. Every draft begins with an exact forward over the accepted tokens and the target's own: it repairs the KV
cache (bonus calibration) and gives the first level. q is the fuzzy q that a token was drawn from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.drafters.tree import Wide
from engine.errors import UsageError
from engine.methods.registry import Situation, method, setting
from engine.methods.tree import check_nodes
from engine.types import LayerParallel, Layout, Separate, check_range

if TYPE_CHECKING:
    from engine.run.run import Run


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of EasySpec."""

    gamma: int = setting(5, "Draft length: levels drafted before each verification.", low=1, high=32)
    size: int = setting(
        4,
        "Layer-parallel size: attention layers that read one hidden state; 1 is ordinary drafting.",
        low=1,
        high=5,
    )
    devices: int = setting(
        0,
        "Devices that share the attention layers of a group; 0 is as many as there are, up to the size.",
        low=1,
        high=5,
        auto="planned",
    )
    calibrate: bool = setting(
        True, "Bonus calibration: begin each draft with an exact forward; off keeps the fuzzy KV rows."
    )
    width: int = setting(
        1,
        "Nodes per level of the draft tree at most; 1 is a chain. Width times gamma is at most 64.",
        low=1,
        high=16,
    )
    drafts: str = setting(
        "sampled",
        "How the drafter picks tokens when the temperature is above 0: sampled without replacement, or the most probable paths.",
        choices=("sampled", "greedy"),
    )

    def __post_init__(self) -> None:
        check_nodes(self.width, self.gamma, "gamma")


def plan(cfg: Config, there: Situation) -> Config:
    """Take as many devices as there are, up to the layer-parallel size.

    Raises:
        UsageError: The drafter has fewer layers than the size, or there are fewer devices than asked for.
    """
    if 0 < there.depth < cfg.size:
        raise UsageError(
            f"size is {cfg.size}; with a drafter of {there.depth} layers it must be at least 1 and at most {there.depth}"
        )
    check_range("devices", cfg.devices, 0, min(cfg.size, there.devices))
    return replace(cfg, devices=cfg.devices or min(cfg.size, there.devices))


@method(
    title="EasySpec",
    source="EasySpec (2025), algorithm 2",
    config=Config,
    plan=plan,
    layout=lambda cfg: Layout(LayerParallel(cfg.devices) if cfg.devices > 1 else Separate(turns=True)),
)
async def decode(run: Run, cfg: Config) -> None:
    """Draft with parallel layers, verify, commit, until the run is done."""
    sampled = cfg.drafts == "sampled"
    while not run.done:
        draft = await run.drafter.grow(
            run.x, Wide(cfg.width, cfg.gamma), sampled=sampled, fuzzy=cfg.size, calibrate=cfg.calibrate
        )
        run.commit(await run.target.verify(run.x, draft))
