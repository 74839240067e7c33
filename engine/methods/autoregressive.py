"""Autoregressive decoding: one target forward for every token, the baseline of all other methods.

It uses the same decoder, KV cache, sampler and runtime as the other methods.
"""

from __future__ import annotations

from dataclasses import dataclass

from specscope.engine.methods.registry import method
from specscope.engine.run.run import Run
from specscope.engine.types import Draft


@dataclass(frozen=True, slots=True)
class Config:
    """No settings."""


@method(title="Autoregressive", source="the baseline", config=Config, uses=("target",), baseline=True)
async def decode(run: Run, cfg: Config) -> None:  # noqa: ARG001 - every method takes its Config
    while not run.done:
        run.commit(await run.target.verify(run.x, Draft.empty()))
