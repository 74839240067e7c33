"""The replies of drafters as drafts, whose tokens are numbered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.types import Draft, DraftToken, Judgement, Prefix, RowRef, Tree

if TYPE_CHECKING:
    from engine.trace.emitter import TraceEmitter
    from engine.workers.replies import Grown
    from engine.workers.slab import Lease


def grown(
    emitter: TraceEmitter,
    slab: str,
    prefix: Prefix,
    nodes: Sequence[Grown],
    lease: Lease | None,
    spans: Sequence[int],
) -> Draft:
    """Return the nodes that a drafter grew after a prefix as a draft.

    Args:
        emitter: Numbers the tokens.
        slab: The name of the slab that holds the rows of q.
        prefix: The tokens before the draft.
        nodes: The drafted nodes.
        lease: Its rows of q; None for a greedy draft.
        spans: The span id of each forward.
    """
    tokens = tuple(
        emitter.drafted(
            prefix.sequence,
            len(prefix) + node.level,
            DraftToken(
                node.id,
                node.parent,
                None if node.row < 0 else RowRef(slab, node.row),
                node.probability,
                node.top,
                spans[node.forward],
            ),
        )
        for node in nodes
    )
    return Draft(tokens, (lease,) if lease else ())


def confirmed(emitter: TraceEmitter, prefix: Prefix, judgement: Judgement, span: int) -> Draft:
    """Return the tokens that a drafter's own greedy decoding confirmed, as a chain.

    Args:
        emitter: Numbers the tokens.
        prefix: The tokens before the draft.
        judgement: The drafter's judgement of guesses.
        span: The span id of its forward.
    """
    kept = [j for j in judgement.judged if j.outcome not in ("rejected", "discarded")]
    return Draft(
        tuple(
            emitter.drafted(prefix.sequence, j.position, DraftToken(j.token, i - 1, None, j.p, j.top_p, span))
            for i, j in enumerate(kept)
        )
    )


def rows_of(draft: Draft, window: Tree) -> Tree:
    """Return (ids, parents) of a draft's rows, then of a look-ahead window's."""
    parents = (parent if parent < 0 else parent + len(draft) for parent in window[1])
    return (*draft.ids, *window[0]), (*draft.parents, *parents)
