"""Settings that all trainings share, checked."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UsageError, shown
from engine.methods.registry import setting
from engine.types import check_range


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a model of the Llama family with tied embeddings; written `8x320x5x864`."""

    layers: int
    hidden: int
    heads: int
    feed_forward: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_range(field.name, getattr(self, field.name), 1, 65536)
        if self.hidden % (2 * self.heads):
            raise UsageError(
                f"hidden is {self.hidden}; it must be a multiple of twice the {self.heads} heads (rotary positions "
                "turn pairs)"
            )

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read `layers x hidden x heads x feed_forward`.

        Raises:
            UsageError: The text has another form.
        """
        parts = text.lower().split("x")
        if len(parts) != 4 or not all(part.strip().isdigit() for part in parts):
            raise UsageError(
                f"shape is {text!r}; write layers x hidden x heads x feed-forward, such as 8x320x5x864"
            )
        return cls(*(int(part) for part in parts))

    def parameters(self, vocabulary: int) -> int:
        """Return the number of parameters of a model of this shape and vocabulary."""
        layer = 4 * self.hidden**2 + 3 * self.hidden * self.feed_forward + 2 * self.hidden
        return vocabulary * self.hidden + self.layers * layer + self.hidden

    def __str__(self) -> str:
        return f"{self.layers}x{self.hidden}x{self.heads}x{self.feed_forward}"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings that all trainings share."""

    data: Path
    """Folder of NAME.txt.xz files."""
    out: Path
    """Folder for the trained models, logs and checkpoints."""

    batch: int = setting(32, "Sequences in one step.", low=1, high=65536)
    accumulate: int = setting(
        1, "Parts of a batch that are computed one after the other; saves memory.", low=1, high=65536
    )
    sequence: int = setting(256, "Tokens in one sequence.", low=2, high=131072)
    optimizer: str = setting(
        "muon",
        "Optimiser of the matrices; embeddings and norms always use AdamW.",
        choices=("muon", "adamw"),
    )
    learning_rate: float = setting(3e-3, "Learning rate after the warm-up.", low=1e-8, high=1)
    beta2: float = setting(0.95, "Second beta of AdamW.", low=0.5, high=0.99999)
    weight_decay: float = setting(0.1, "Decoupled weight decay of the matrices.", low=0, high=1)
    warmup: int = setting(100, "Steps of linear warm-up.", low=0, high=1_000_000)
    decay: float = setting(0.5, "Share of the steps in which the learning rate falls to zero.", low=0, high=1)
    token_loss: float = setting(
        0.0,
        "Weight of the cross-entropy to the text in the drafter's loss; the rest is KL to the target.",
        low=0,
        high=1,
    )
    held_out: float = setting(0.01, "Share of documents kept for validation.", low=0, high=0.5)
    weights: str = setting("", "Repetitions of sources, such as `books=0,math=2`, over the defaults.")
    checkpoint_every: int = setting(100, "Steps between checkpoints.", low=1, high=1_000_000)
    seed: int = setting(0, "Fixes weights and order of documents.", low=0, high=2**31 - 1)
    device: str = setting("auto", "Where to train.", choices=("auto", "cpu", "cuda"))
    precision: str = setting(
        "auto",
        "Precision of forwards; auto is bf16 on CUDA and on CPUs with AMX, else fp32. "
        "Trained weights and their optimisers are always fp32.",
        choices=("auto", "fp32", "bf16"),
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field, getattr(self, field.name))
        if self.batch % self.accumulate:
            raise UsageError(f"accumulate is {self.accumulate}; it must divide the batch of {self.batch}")

    def fixed(self) -> dict[str, Any]:
        """Return, as JSON values, the settings that must not change when a training is resumed."""
        free = ("data", "out", "device", "checkpoint_every", "text")
        names = [f.name for f in dataclasses.fields(self) if f.name not in free]
        values = {name: getattr(self, name) for name in names}
        return {
            name: v.name if isinstance(v, Path) else str(v) if isinstance(v, Shape) else v
            for name, v in values.items()
        }


def _check(field: dataclasses.Field[Any], value: Any) -> None:
    low, high = field.metadata.get("low"), field.metadata.get("high")
    choices = field.metadata.get("choices", ())
    if choices and value not in choices:
        raise UsageError(f"{field.name} is {shown(value)}; choose one of {', '.join(choices)}")
    if low is None:
        return
    if isinstance(field.default, int) and not isinstance(value, int):
        raise UsageError(f"{field.name} is {shown(value)}; it must be a whole number")
    check_range(field.name, value, low, high)
