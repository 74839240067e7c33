"""A folder to which programs write recordings, a file for each run: stored when complete."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from specscope.engine.errors import SpecScopeError, UsageError
from specscope.traces.following.follow import Tail

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace
    from specscope.traces.database.store import Store

ENDING = ".jsonl"
MOST_OPEN = 64
"""Most files without a footer that stay open."""

_Mark = tuple[int, int, int]


class Ended(NamedTuple):
    """A file that needs no further look."""

    name: str
    trace: Trace | None
    """None if it cannot be read or stored."""
    problem: str


class Folder:
    """The recordings of a folder: regular files `*.jsonl` directly in it, no links."""

    unfinished = False

    def __init__(self, path: Path, store: Store | None, *, from_end: bool = False) -> None:
        self._path, self._store = path, store
        self._tails = dict[str, Tail]()
        """Files without a footer, the one read longest ago first."""
        self._seen = self._files() if from_end else dict[str, _Mark]()
        """Inode, size and time of each file when it was read."""
        self._stored = self._known = self._bad = 0
        self._open = set[str]()

    @property
    def note(self) -> str:
        counts = (self._stored, "stored"), (self._known, "stored before"), (self._bad, "not read")
        parts = [f"{number} {word}" for number, word in counts if number]
        return f"{', '.join([*parts, f'{len(self._open)} without an end'])}."

    def step(self, *, last: bool = False) -> list[Ended] | None:  # noqa: ARG002 - as Counting's
        """Read what was written, and store what is complete; None if nothing was written.

        UsageError if the folder cannot be read.
        """
        files = self._files()
        self._open &= files.keys()
        fresh = [name for name, mark in files.items() if self._seen.get(name) != mark][:MOST_OPEN]
        self._seen |= {name: files[name] for name in fresh}
        ended = [one for name in fresh if (one := self._look(name))]
        return ended if fresh else None

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()
        self._tails.clear()

    def _files(self) -> dict[str, _Mark]:
        """Return the files by name, the ones written last at the end."""
        found = dict[str, _Mark]()
        try:
            with os.scandir(self._path) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if entry.name.endswith(ENDING) and stat.S_ISREG(status.st_mode):
                            found[entry.name] = status.st_ino, status.st_size, status.st_mtime_ns
        except OSError as error:
            raise UsageError(f"cannot read the folder {self._path}: {error.strerror}") from None
        return dict(sorted(found.items(), key=lambda one: one[1][2]))

    def _look(self, name: str) -> Ended | None:
        """Read a file on; return what became of it, None if more may come."""
        tail = self._tails.pop(name, None) or Tail(self._path / name, links=False)
        self._open.discard(name)
        try:
            while (tail.read() or tail.behind) and tail.footer is None and not self._is_known(tail):
                pass
            if tail.footer is None and not self._is_known(tail):
                self._keep(name, tail)
                return None
            trace = None if self._is_known(tail) else tail.trace()
            if trace is not None and self._store is not None:
                self._store.insert_missing(trace)
        except SpecScopeError as error:
            self._leave(name, tail)
            self._bad += 1
            return Ended(name, None, str(error))
        self._leave(name, tail)
        self._stored += trace is not None
        self._known += trace is None
        return Ended(name, trace, "") if trace is not None else None

    def _leave(self, name: str, tail: Tail) -> None:
        """Close a file; what was written between the folder's listing and its end was read."""
        self._seen[name] = tail.mark or self._seen[name]
        tail.close()

    def _is_known(self, tail: Tail) -> bool:
        """Return whether the run of a file is stored already."""
        if self._store is None or tail.header is None:
            return False
        return self._store.has(tail.header.run_id)

    def _keep(self, name: str, tail: Tail) -> None:
        """Leave a file open; of too many, the one read longest ago is closed, to be read anew."""
        self._open.add(name)
        self._tails[name] = tail
        if len(self._tails) > MOST_OPEN:
            first = next(iter(self._tails))
            self._tails.pop(first).close()
