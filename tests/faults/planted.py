"""The faults, as the TOML files of this folder list them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Fault(NamedTuple):
    """A slip that a programmer could make, as an exchange of text in one file."""

    name: str
    breaks: str
    """What the product then does wrong: one sentence."""
    file: str
    old: str
    """Occurs exactly once in the file."""
    new: str
    tests: list[str]
    """Files, folders or node ids that should see it, as pytest takes them; the quickest first."""
    was_missed: bool = False
    """Whether no test found it when the list was first run; one was written then."""

    def places(self, root: Path = ROOT) -> int:
        """Return how often the old text occurs in the file of a tree."""
        return (root / self.file).read_text().count(self.old)

    def plant(self, root: Path) -> None:
        """Put the new text in the place of the old one."""
        path = root / self.file
        path.write_text(path.read_text().replace(self.old, self.new))


def faults() -> list[Fault]:
    """Read all faults, in the order of their files; a name is the key of its table."""
    return [
        Fault(name, **values)
        for path in sorted(Path(__file__).parent.glob("*.toml"))
        for name, values in tomllib.loads(path.read_text()).items()
    ]
