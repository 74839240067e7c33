"""Large data of Ray workers: rows of q, KV rows and hidden states stay in Ray's object store.

A reply that has such data leaves it as a second return value on its node. The run's side keeps the
reference, and passes it with the job that needs the data; Ray then moves the data from node to
node. This module needs no Ray: a reference is any object.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from engine.types import DraftToken
from engine.workers.jobs import Import, Job, Judge, JudgeAll, Propose, Reply, Score

Row: TypeAlias = tuple[str, int]
"""A row of q: the slab's name and the row's number."""


class Kept(NamedTuple):
    """A reply's bytes in the object store, on the run's side."""

    reference: Any


class Left(NamedTuple):
    """In place of bytes that a message leaves to one of its references."""

    reference: int
    """Index of the reference among the message's; 0 in a reply, which has one."""


@dataclass(frozen=True)
class Packed:
    """A job with the places of its large data."""

    job: Any
    rows: tuple[tuple[Row, int, int], ...]
    """(row of q, index of the reference, index in its array)."""


class Parcels:
    """The run's side: the reference that holds each row of q. All workers of a cluster share it.

    The references of old rows go when their rows are leased again.
    """

    def __init__(self) -> None:
        self.session = secrets.token_hex(16)
        """A name that nobody can guess; the ranks of a split model find each other by it."""
        self._rows: dict[Row, tuple[Any, int]] = {}

    def put(self, slab: str, job: Job, reference: Any) -> None:
        """Remember the reference to the rows of q that a drafting job wrote."""
        for index, row in enumerate(written_rows(job)):
            self._rows[slab, row] = reference, index

    def pack(self, job: Any) -> tuple[Packed, list[Any]]:
        """Return a job without its large data, and the references to that data."""
        references = list[Any]()
        rows = tuple(self._place(row, references) for row in _read_rows(job))
        if isinstance(job, Import) and isinstance(job.data, Kept):
            job = replace(job, data=_leave(job.data, references))
        stage = getattr(job, "stage", None)
        if stage is not None and isinstance(stage.states, Kept):
            job = replace(job, stage=stage._replace(states=_leave(stage.states, references)))
        return Packed(job, rows), references

    def _place(self, row: Row, references: list[Any]) -> tuple[Row, int, int]:
        reference, index = self._rows[row]
        known = next((i for i, each in enumerate(references) if each is reference), len(references))
        if known == len(references):
            references.append(reference)
        return row, known, index


def unpack(packed: Packed, slabs: Mapping[str, np.ndarray], data: tuple[Any, ...]) -> Any:
    """Return the job with its large data, on the worker's side.

    Args:
        packed: The job without the data.
        slabs: The worker's slabs, (R, V) float32; the rows of q are written to them.
        data: What the references hold: arrays of rows, (N, V) float32, or bytes as uint8.
    """
    for (slab, row), reference, index in packed.rows:
        slabs[slab][row] = data[reference][index]
    job = packed.job
    if isinstance(job, Import) and isinstance(job.data, Left):
        job = replace(job, data=data[job.data.reference].tobytes())
    stage = getattr(job, "stage", None)
    if stage is not None and isinstance(stage.states, Left):
        job = replace(job, stage=stage._replace(states=data[stage.states.reference].tobytes()))
    return job


def split_reply(job: Job, reply: Reply, slab: np.ndarray | None) -> tuple[Reply, np.ndarray | None]:
    """Return a reply without its large data, and that data.

    Args:
        job: The job that the worker did.
        reply: Its reply.
        slab: The rows of q that the worker writes, (R, V) float32.
    """
    if isinstance(reply.value, bytes) and reply.value:
        return reply._replace(value=Left(0)), np.frombuffer(reply.value, dtype=np.uint8)
    rows = written_rows(job)
    return reply, slab[rows] if rows and slab is not None else None


def join_reply(reply: Reply, reference: Any) -> Reply:
    """Return a reply whose bytes, if it has some, are those of a reference."""
    return reply._replace(value=Kept(reference)) if isinstance(reply.value, Left) else reply


def written_rows(job: Job) -> list[int]:
    """Return the rows of q that a drafting job may write, in order."""
    if not isinstance(job, Propose) or not job.sampled:
        return []
    return [row for rows in job.rows for row in rows]


def _read_rows(job: Any) -> Iterator[Row]:
    """Yield each row of q that a job reads, once."""
    judges = (job,) if isinstance(job, Judge) else job.judges if isinstance(job, Score | JudgeAll) else ()
    tokens: Iterator[DraftToken] = (token for judge in judges for token in judge.draft.tokens)
    yield from dict.fromkeys((t.q.slab, t.q.row) for t in tokens if t.q is not None)


def _leave(kept: Kept, references: list[Any]) -> Left:
    references.append(kept.reference)
    return Left(len(references) - 1)
