"""Progress of a download or a conversion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """State of the download or conversion of one model."""

    model: str
    """Hub id, short name or file name of the model."""
    file: str = ""
    """Name of the current file; empty until the hub has listed the files."""
    done: int = 0
    """Bytes received or written."""
    total: int = 0
    """Bytes to receive or write; 0 until the hub has listed the files."""
    work: str = "Downloading"
    """Name of the work, for people."""

    @property
    def percent(self) -> int:
        """Share of the bytes that are done, rounded down."""
        return 100 * self.done // self.total if self.total else 0

    def __str__(self) -> str:
        if not self.file:
            return f"Asking the hub for {self.model}."
        return f"{self.work} {self.file} of {self.model}: {megabytes(self.done)} of {megabytes(self.total)}."


Report = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Do nothing: the `Report` of a caller that shows no progress."""
    del progress


def megabytes(size: int) -> str:
    """Return a number of bytes in MB or GB, for people."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
