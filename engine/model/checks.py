"""Checks of a forward's arguments, before a row is added to the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from engine.model.slots import Rows


def check_forward(
    name: str, rows: Rows, want: np.ndarray, hidden: tuple[int, ...], *, ids: range, layers: int
) -> None:
    """Check a forward's arguments; see `LanguageModel.forward`.

    Raises:
        UsageError: A token id, a row or a layer does not exist.
    """
    tokens, wanted = rows.tokens.tolist(), want.tolist()
    if tokens and not ids.start <= min(tokens) <= max(tokens) < ids.stop:
        unknown = next(token for token in tokens if token not in ids)
        raise UsageError(f"token id {unknown} is not in the {name}'s vocabulary of {ids.stop}")
    if wanted and not 0 <= min(wanted) <= max(wanted) < len(tokens):
        invalid = next(row for row in wanted if not 0 <= row < len(tokens))
        raise UsageError(f"wanted row {invalid} is not one of the rows 0 to {len(tokens) - 1}")
    if not all(-1 <= i <= layers for i in hidden):
        raise UsageError(f"hidden layers are {hidden}; they must be -1 to {layers}")
