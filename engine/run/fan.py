"""A fan of branches, drafted while a draft is verified: the speculation cache of a round (SSD)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specscope.engine.run.dispatch import Dispatcher, Submission
from specscope.engine.trace.events import Forked
from specscope.engine.types import Draft, DraftToken, Prefix, Verdict
from specscope.engine.worker.jobs import Branch, Grown
from specscope.engine.worker.shared import Lease


class Fanned:
    """Branches for the likely outcomes of a verification; `DraftModel.fan` makes it.

    Args:
        dispatcher: Records the branches.
        prefix: The tokens before the draft that is verified.
        lanes: Spans of each forward of the drafter.
        token: Makes a drafted token of a node and the ids of its job's spans.
        over: Returns whether the output has ended.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        prefix: Prefix,
        lanes: int,
        token: Callable[[Grown, Sequence[int]], DraftToken],
        over: Callable[[], bool],
    ) -> None:
        self._dispatcher, self._prefix, self._lanes = dispatcher, prefix, lanes
        self._token, self._over = token, over
        self._step = dispatcher.step
        self._drafting: Submission | None = None
        self._leases: Sequence[Lease] = ()

    def start(self, drafting: Submission, leases: Sequence[Lease]) -> None:
        """Take a job's branches, with a lease of q rows for each of them, or none for all."""
        self._drafting, self._leases = self._dispatcher.keep(drafting), leases

    async def take(self, verdict: Verdict) -> Draft | None:
        """Return the branch of the verdict's outcome; None if there is none, or no more output.

        The drafter stops after its present forward, so the branch may be shorter than asked, or
        empty. Whether there is one does not depend on the time. Call it once, after the commit.
        """
        branches = await self._finish()
        outcome = None if self._over() else (len(verdict.accepted), verdict.own)
        taken = next((one for one in branches if (one.place, one.token) == outcome), None)
        emitter, sequence = self._dispatcher.emitter, self._prefix.sequence
        rows = [
            Forked(self._step, sequence, b.place, b.token, b.probability, len(b.chain), b is taken)
            for b in branches
        ]
        emitter.defer(emitter.rows, rows)
        leases, self._leases = self._leases, ()
        if taken is None or self._drafting is None:
            return None
        first = len(self._prefix) + taken.place + 1
        tokens = [(first + node.level, self._token(node, self._drafting.spans)) for node in taken.chain]
        own = tuple(lease for lease in leases if taken.chain and taken.chain[0].row in lease.rows)
        return Draft(tuple(emitter.drafted(sequence, *one) for one in tokens), own)

    async def _finish(self) -> list[Branch]:
        """Return the branches, with the tokens of the forwards that were made."""
        if self._drafting is None:
            return []
        reply = await self._drafting.cut()
        made = len(reply.stamps) // self._lanes
        branches: Sequence[Branch] = reply.value if made else ()
        return [b._replace(chain=tuple(node for node in b.chain if node.forward < made)) for b in branches]
