"""The interface of a language model: rows in, logits out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from specscope.engine.model.fuzzy import Fuzzy
    from specscope.engine.model.slots import Rows, Slots
    from specscope.engine.model.stage import StageIO


def never() -> bool:
    """Return False: nobody stopped the forward."""
    return False


class Output(NamedTuple):
    """The result of a forward of T rows."""

    logits: Tensor
    """(W, V) float32, one line per wanted row, in the order of `want`."""
    hidden: dict[int, Tensor]
    """Layer -> state (T, D): 0 the embeddings, i after i layers, -1 the final normed state."""
    cells: int = 0
    """Query-key cells that attention computed in one layer and one head, masked ones included."""
    experts: tuple[int, int] | None = None
    """Of a mixture: experts that the forward read in all layers, and those that are there."""
    communicated: int = 0
    """Nanoseconds of communication between the ranks of a model that is split by tensors."""


class LanguageModel(Protocol):
    """The part of a model that workers use."""

    @property
    def name(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def context(self) -> int: ...

    @property
    def depth(self) -> int:
        """Number of layers; 0 for a model without layers."""
        ...

    def new_cache(self, slots: int, capacity: int) -> Slots:
        """Return an empty cache for `slots` sequences of `capacity` rows each."""
        ...

    def forward(
        self,
        cache: Any,
        rows: Rows,
        want: np.ndarray,
        hidden: tuple[int, ...] = (),
        fuzzy: Fuzzy | None = None,
        stage_io: StageIO | None = None,
        stopped: Callable[[], bool] = never,
    ) -> Output:
        """Run the rows and add them to the cache.

        Args:
            cache: A cache made by `new_cache`.
            rows: The T new rows.
            want: Indices (W,), 0 to T - 1, of the rows whose logits are returned, in that order.
            hidden: Layers whose states are returned; see `Output.hidden`.
            fuzzy: Groups of layers that read one hidden state; default: an exact forward.
            stage_io: For a stage of a split model, its incoming and outgoing hidden states. All
                stages but the last return logits of shape (W, 0).
            stopped: Whether to stop; a decoder checks it before each layer.

        Raises:
            UsageError: A slot would exceed its capacity, or a row the model's context.
            RunCancelled: `stopped` returned true; no row was added.
        """
        ...
