"""Settings of the trainings and of the cards, checked."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specscope.engine.errors import UsageError
from specscope.engine.methods.registry import setting, settings_of
from specscope.engine.types import check_choice, check_range


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
        """Read `layers x hidden x heads x feed_forward`; a UsageError for another form."""
        parts = text.lower().split("x")
        if len(parts) != 4 or not all(part.strip().isdigit() for part in parts):
            raise UsageError(
                f"shape is {text!r}; write layers x hidden x heads x feed-forward, such as 8x320x5x864"
            )
        return cls(*(int(part) for part in parts))

    def parameters(self, vocabulary: int) -> int:
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
        for one in settings_of(type(self)):
            one.parse(getattr(self, one.name))
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


HEAD_DEFAULTS: dict[str, dict[str, Any]] = {
    "medusa": {"size": 5},
    "hydra": {"size": 4},
    "eagle": {"size": 5, "regression": 10.0},
    "parallelspec_medusa": {"size": 4, "anchors": 1.0},
    "parallelspec_eagle": {"size": 4, "anchors": 1.0, "regression": 10.0, "fade": 1.0},
    "dflash": {"size": 5, "anchors": 0.3},
    "mtp": {"size": 5, "regression": 10.0},
}
"""Trainable kinds of drafting heads, and the defaults in which each differs from `HeadOptions`."""
_TABLE_3 = {"batch": 32, "optimizer": "adamw", "weight_decay": 0.0, "anchors": 1.0, "token_loss": 1.0}
_MEDUSA = _TABLE_3 | {"learning_rate": 5e-4, "beta2": 0.999, "epochs": 20}
_EAGLE = _TABLE_3 | {"learning_rate": 5e-5, "beta2": 0.95, "epochs": 40, "fade": 1.0}
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "quick": {},
    "paper": {
        "medusa": _MEDUSA,
        "hydra": _MEDUSA,
        "parallelspec_medusa": _MEDUSA,
        "eagle": _EAGLE,
        "parallelspec_eagle": _EAGLE,
    },
}
"""Named settings, by recipe and kind: where each differs from `HEAD_DEFAULTS`.

`paper`: ParallelSpec's Table 3 (its Medusa column for Medusa and Hydra, too), masks after every
token, and the printed losses: cross-entropy to the text (equations 2 and 3), for EAGLE with smooth
L1 to the features (equation 4). The paper names no warm-up and no schedule."""


PROMPTS = Path(__file__).parents[2] / "assets" / "prompts" / "card.json"
TARGET, DRAFTER = Shape(8, 320, 5, 864), Shape(4, 192, 6, 512)
"""Shapes of the bundled pair."""


@dataclass(frozen=True, slots=True)
class PairOptions(Recipe):
    """Settings of `train_pair`; the defaults trained the bundled pair on two CPU cores."""

    steps: int = setting(2560, "Training steps of the target.", low=1, high=10_000_000)
    drafter_steps: int = setting(1460, "Training steps of the drafter.", low=1, high=10_000_000)
    long_steps: int = setting(
        0,
        "Further steps of each model at the full context; worth it on CUDA.",
        low=0,
        high=10_000_000,
    )
    context: int = setting(2304, "Context of the models: max_position_embeddings.", low=2, high=131072)
    vocabulary: int = setting(
        4096, "Most tokens of the tokenizer, special ones included.", low=270, high=65536
    )
    target: Shape = TARGET
    drafter: Shape = DRAFTER
    max_parameters: int = setting(12_000_000, "Most parameters of either model.", low=1)

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)
        if self.sequence > self.context:
            raise UsageError(f"sequence is {self.sequence}; it must be at most the context of {self.context}")
        for role in ("target", "drafter"):
            count = getattr(self, role).parameters(self.vocabulary)
            if count > self.max_parameters:
                raise UsageError(
                    f"{role} {getattr(self, role)} has {count} parameters; at most {self.max_parameters} are allowed: "
                    "make it smaller or raise max_parameters"
                )


@dataclass(frozen=True, slots=True)
class DistilOptions(Recipe):
    """Settings of `distil_drafter`; with the defaults, one CPU core needs half an hour."""

    pair: Path = Path()
    """With `target` and `drafter` in it."""
    text: Path | None = None
    """File of text that the same target wrote in an earlier training; None: write it now."""

    batch: int = setting(8, "Sequences in one step.", low=1, high=65536)
    sequence: int = setting(512, "Tokens in one sequence.", low=2, high=131072)
    learning_rate: float = setting(1.5e-3, "Learning rate after the warm-up.", low=1e-8, high=1)
    warmup: int = setting(20, "Steps of linear warm-up.", low=0, high=1_000_000)
    decay: float = setting(0.9, "Share of the steps in which the learning rate falls to zero.", low=0, high=1)
    steps: int = setting(430, "Training steps of the drafter.", low=1, high=10_000_000)
    feed_forward: int = setting(
        0, "Units that each feed-forward layer of the drafter keeps; 0 keeps all.", low=0, high=65536
    )
    written: int = setting(450_000, "Tokens that the target writes, to train on.", low=1, high=1_000_000_000)
    answer: int = setting(320, "Most tokens of one answer of the target.", low=1, high=131072)
    share: float = setting(
        0.75, "Share of sequences from the target's text; the rest is corpus.", low=0, high=1
    )


@dataclass(frozen=True, slots=True)
class HeadOptions(Recipe):
    """Settings of `train_head`; with the defaults, one CPU core needs a quarter of an hour."""

    kind: str = "medusa"
    target: Path = Path()
    target_name: str = ""
    """Name of the target in the outputs; empty: the directory's name."""
    text: Path | None = None
    """File of text that the same target wrote in an earlier training; None: write it now."""
    start: Path | None = None
    """Directory of a head whose tensors are copied; None: all are random."""
    start_partial: bool = False
    """Whether tensors of `start` without a place in this head are left out."""
    recipe: str = "quick"
    """One of `RECIPES`."""

    size: int = setting(
        4,
        "Heads (Medusa, Hydra), masks K (ParallelSpec, from 0), places of a block (DFlash), or measured drafts "
        "(EAGLE, MTP).",
        low=0,
        high=64,
    )
    batch: int = setting(16, "Texts in one step.", low=1, high=65536)
    sequence: int = setting(512, "Most tokens of a text that are used.", low=3, high=131072)
    anchors: float = setting(0.5, "Share of the tokens after which a draft is learned.", low=0.001, high=1)
    learning_rate: float = setting(1e-3, "Learning rate after the warm-up.", low=1e-8, high=1)
    weight_decay: float = setting(0.0, "Decoupled weight decay of the matrices.", low=0, high=1)
    warmup: int = setting(20, "Steps of linear warm-up.", low=0, high=1_000_000)
    decay: float = setting(0.9, "Share of the steps in which the learning rate falls to zero.", low=0, high=1)
    steps: int = setting(700, "Training steps.", low=1, high=10_000_000)
    epochs: int = setting(0, "Epochs over the text, instead of steps; 0 for none.", low=0, high=10_000)
    vocabulary: int = setting(
        0, "Most frequent tokens of the answers, which the head drafts; 0 for all.", low=0, high=1 << 20
    )
    lm_heads: str = setting(
        "target",
        "LM heads that read the head's states: the target's, or one of its own for each Medusa head, "
        "which is learned, too.",
        choices=("target", "own"),
    )
    storage: str = setting(
        "bf16", "Type of the matrices in the file; int8 has a scale per row.", choices=("bf16", "int8")
    )
    fade: float = setting(
        0.8, "Weight of place k of a draft, from 0: fade to the power of k.", low=0.001, high=1
    )
    regression: float = setting(0.0, "Weight of smooth L1 between states and the target's features.", low=0)
    written: int = setting(700_000, "Tokens that the target writes, to train on.", low=1, high=1_000_000_000)
    answer: int = setting(320, "Most tokens of one answer of the target.", low=1, high=131072)

    def __post_init__(self) -> None:
        from specscope.engine.heads.kinds import KINDS  # imports torch, which most commands do not need

        Recipe.__post_init__(self)
        check_choice(f"kind is {self.kind!r}", self.kind, HEAD_DEFAULTS)
        check_range("size", self.size, 0 if KINDS[self.kind].sized_by == "masks" else 1, 64)

    @classmethod
    def of(cls, kind: str, recipe: str = "quick", **given: Any) -> HeadOptions:
        """Return a kind's own defaults, changed by the recipe's settings, then by those given."""
        check_choice(f"recipe is {recipe!r}", recipe, RECIPES)
        settings = HEAD_DEFAULTS.get(kind, {}) | RECIPES[recipe].get(kind, {})
        if "steps" in given:
            settings["epochs"] = 0
        return cls(kind=kind, recipe=recipe, **settings | given)


@dataclass(frozen=True, slots=True)
class CardSettings:
    """Settings of a pair's card and of its heads' card."""

    data: Path | None = None
    """Corpus whose held-out documents are measured; None: no losses and no chats."""
    prompts: tuple[Path, ...] = ()
    fixed: Path = PROMPTS
    count: int = 80
    chats: int = 10
    """Held-out chats from each source."""
    new_tokens: int = 64
    """Tokens of each measured answer; at most half of the window."""
    tokens: int = 4000
    """Tokens of each source that the loss is measured on."""
    window: int = 256
    """Most tokens of a measured text: the length of a training sequence."""

    def __post_init__(self) -> None:
        for name in ("count", "chats", "new_tokens", "tokens"):
            check_range(name, getattr(self, name), 1)
        check_range("window", self.window, 2)
