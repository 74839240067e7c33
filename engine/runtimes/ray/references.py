"""Large data of Ray workers, by reference: rows of q, KV rows and hidden states.

A reply leaves such data in Ray's object store, as a second return value. The run's side keeps the
object reference and passes it with the job that needs the data; Ray moves the data from node to
node. This module needs no Ray: a reference is any object.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from engine.types import DraftToken
from engine.worker.jobs import Import, Job, Judge, JudgeAll, Propose, Reply, Score

Row: TypeAlias = tuple[str, int]
"""A row of q: the slab's name and the row's number."""


class Stored(NamedTuple):
    """In place of bytes that are in the object store; in a message the reference is None."""

    reference: Any = None


@dataclass(frozen=True)
class Packed:
    """A job without its large data; a reference to bytes is the last of its references."""

    job: Any
    rows: tuple[tuple[Row, int, int], ...]
    """(row of q, index of the reference, index in its array)."""


class References:
    """The run's side: the references of all workers of a cluster.

    The reference of an old row goes when the row is leased again.
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
        wanted = {row: self._rows[row] for row in read_rows(job)}
        references = list({id(reference): reference for reference, _ in wanted.values()}.values())
        numbers = {id(reference): i for i, reference in enumerate(references)}
        rows = tuple((row, numbers[id(reference)], index) for row, (reference, index) in wanted.items())
        data = _bytes_of(job)
        if isinstance(data, Stored):
            job, references = _with_bytes(job, Stored()), [*references, data.reference]
        return Packed(job, rows), references


def unpack(packed: Packed, slabs: Mapping[str, np.ndarray], data: Sequence[np.ndarray]) -> Any:
    """Return the job with its large data, on the worker's side.

    Args:
        packed: The job without the data.
        slabs: The worker's slabs, (R, V) float32; the rows of q are written to them.
        data: What the references hold: arrays of rows, (N, V) float32, or bytes as uint8.
    """
    for (slab, row), reference, index in packed.rows:
        slabs[slab][row] = data[reference][index]
    stored = isinstance(_bytes_of(packed.job), Stored)
    return _with_bytes(packed.job, data[-1].tobytes()) if stored else packed.job


def split_reply(job: Job, reply: Reply, slab: np.ndarray | None) -> tuple[Reply, np.ndarray | None]:
    """Return a reply without its large data, and that data.

    Args:
        job: The job that the worker did.
        reply: Its reply.
        slab: The rows of q that the worker writes, (R, V) float32.
    """
    if isinstance(reply.value, bytes) and reply.value:
        return reply._replace(value=Stored()), np.frombuffer(reply.value, dtype=np.uint8)
    rows = written_rows(job)
    return reply, slab[rows] if rows and slab is not None else None


def join_reply(reply: Reply, reference: Any) -> Reply:
    """Return a reply whose bytes, if it has some, are those of a reference."""
    return reply._replace(value=Stored(reference)) if isinstance(reply.value, Stored) else reply


def written_rows(job: Job) -> list[int]:
    """Return the rows of q that a drafting job may write, in order."""
    if not isinstance(job, Propose) or not job.sampled:
        return []
    return [row for rows in job.rows for row in rows]


def read_rows(job: Any) -> Iterator[Row]:
    """Yield each row of q that a job reads, once."""
    judges = (job,) if isinstance(job, Judge) else job.judges if isinstance(job, Score | JudgeAll) else ()
    tokens: Iterator[DraftToken] = (token for judge in judges for token in judge.draft.tokens)
    yield from dict.fromkeys((t.q.slab, t.q.row) for t in tokens if t.q is not None)


def _bytes_of(job: Any) -> Any:
    if isinstance(job, Import):
        return job.data
    stage = getattr(job, "stage", None)
    return None if stage is None else stage.states


def _with_bytes(job: Any, data: Any) -> Any:
    if isinstance(job, Import):
        return replace(job, data=data)
    return replace(job, stage=job.stage._replace(states=data))
