"""The workers that a method needs, and how their forwards pack several sequences."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Packing:
    """How a forward packs several sequences (EMS-SD, section 3); the vanilla method pads both."""

    unpad_inputs: bool = True
    """Feed true rows only; otherwise pad each sequence's new rows to the largest number of rows."""
    unpad_kv: bool = True
    """End each sequence's KV rows with its tokens; otherwise pad all sequences to one length."""


@dataclass(frozen=True, slots=True)
class Separate:
    """Target servers and drafters on separate devices."""

    targets: int = 1
    drafters: int = 1
    """Drafters, the first ones of the pair; 0 for methods that draft without a model."""
    turns: bool = False
    """Whether drafter and target never run at once: they share devices if there are too few."""


@dataclass(frozen=True, slots=True)
class Colocated:
    """A drafter and a target that run at the same time on one device."""


@dataclass(frozen=True, slots=True)
class LayerParallel:
    """A drafter whose attention layers several devices share, in turns with the target."""

    ranks: int
    """Devices of the drafter, at least 2; the target runs on one of them."""


@dataclass(frozen=True, slots=True)
class Pipelined:
    """A target whose layers are split over devices, and a drafter on the last and the first."""

    stages: int
    """Devices of the target, at least 2."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The workers that a method needs; a pool assigns devices to them."""

    arrangement: Separate | Colocated | LayerParallel | Pipelined = Separate()
    batch: int = 1
    """Sequences decoded at once."""
    packing: Packing = Packing()
    slack: int = 96
    """KV rows per sequence for one forward's tree, in addition to prompt and output."""
    lockstep: bool = False
    """Whether sequences can go in lockstep although drafter and target run at once: each draft runs
    beside one forward of the target at most, and both are awaited before the judgement."""
    limited: bool = True
    """Whether a server can limit a draft's levels: `propose` or `grow` makes all of it."""
    head: str = ""
    """Kind of the drafting head on the target's devices; empty for none."""
    at_once: bool = False
    """Whether one forward of the head drafts all levels."""

    @property
    def needs_drafter(self) -> bool:
        return not isinstance(self.arrangement, Separate) or self.arrangement.drafters > 0
