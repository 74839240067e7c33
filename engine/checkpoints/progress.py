"""Progress of a download or a conversion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """State of the download or conversion of one model."""

    model: str
    file: str = ""
    """Empty until the hub has listed the files."""
    done: int = 0
    total: int = 0
    """0 until the hub has listed the files."""
    work: str = "Downloading"

    @property
    def percent(self) -> int:
        """Rounded down."""
        return 100 * self.done // self.total if self.total else 0

    def __str__(self) -> str:
        if not self.file:
            return f"Asking the hub for {self.model}."
        return f"{self.work} {self.file} of {self.model}: {megabytes(self.done)} of {megabytes(self.total)}."


Report = Callable[[Progress], None]


def ignore(_: object) -> None: ...


def megabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
