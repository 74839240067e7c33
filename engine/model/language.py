"""The interface of a language model: rows in, logits out. `engine.model.decoder` computes them from weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from engine.model.fuzzy import Fuzzy
    from engine.model.slots import Rows, Slots
    from engine.model.stage import Border


class Output(NamedTuple):
    """What a forward returns."""

    logits: Tensor
    """(W, V) float32, one line for each wanted row, in the order asked for."""
    hidden: dict[int, Tensor]
    """(T, D) for each layer asked for: 0 is the embeddings, i the state after layer i, -1 the final normed state."""
    cells: int = 0
    """Query-key cells that attention computed in one layer and one head, masked ones included."""


class LanguageModel(Protocol):
    """What the runtime needs of a model."""

    @property
    def name(self) -> str:
        """What spans call it: target or drafter."""
        ...

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        ...

    @property
    def context(self) -> int:
        """Positions it knows."""
        ...

    @property
    def depth(self) -> int:
        """Number of layers; 0 for what has none."""
        ...

    def new_cache(self, slots: int, capacity: int) -> Slots:
        """Return an empty cache for that many sequences of that many rows."""
        ...

    def forward(
        self,
        cache: Any,
        rows: Rows,
        want: np.ndarray,
        hidden: tuple[int, ...] = (),
        fuzzy: Fuzzy | None = None,
        border: Border | None = None,
    ) -> Output:
        """Run the rows and add them to the cache.

        Args:
            cache: What `new_cache` returned.
            rows: The new rows, T of them.
            want: Row numbers, 0 to T - 1, whose logits are returned, in that order.
            hidden: Layers whose states are returned, see `Output.hidden`.
            fuzzy: Which layers read one hidden state, and who computes which; the ordinary forward when not given.
            border: Of a stage of a split model: the states that come in, and those to hand on. Its logits are (W, 0) where it
                has no head.

        Raises:
            UsageError: A slot would exceed its capacity, or a row the model's context.
        """
        ...
