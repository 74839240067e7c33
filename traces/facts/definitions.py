"""The figures of a run: their labels and definitions, and the facts that each needs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple


class Figure(NamedTuple):
    """A figure of a run, as `assets/figures.toml` describes it."""

    key: str
    definition: str
    label: str = ""
    """Empty for a figure that is no row of the table."""
    form: str = ""
    """`count`, `share`, `times`, `places`, `levels`, `devices`, or the number of decimals."""
    main: bool = False
    """Whether it is in the short table."""
    of_batches: str = ""
    """The label for a run of several sequences at once; then it is in the short table, too."""
    needs: tuple[str, ...] = ()
    """Facts without which it is unknown; the files of other engines may lack them."""


_FILE: Any = tomllib.loads(
    (Path(__file__).parents[2] / "assets" / "figures.toml").read_text(encoding="utf-8")
)
FACTS: tuple[str, ...] = tuple(_FILE["facts"])
"""The facts that the file of another engine may lack."""
FIGURES = {
    key: Figure(key=key, needs=tuple(entry.pop("needs", ())), **entry)
    for key, entry in _FILE["figures"].items()
}
