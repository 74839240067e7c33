"""A forward's logits until they are judged, and what a judgement of them becomes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import replace

from specscope.engine.run.dispatch import Submission
from specscope.engine.types import Draft, Judgement, Prefix, Tree, Typical, Verdict
from specscope.engine.worker.jobs import Chunk, Judge


class Scores:
    """Logits after a prefix and each of `rows` drafted tokens; `TargetModel.score` makes them.

    Await them to wait for the forward. The device forgets the logits when this object is deleted,
    or under load when they were judged.
    """

    def __init__(self, judge: Callable[..., Awaitable[Verdict]], prefix: Prefix, rows: int) -> None:
        self.prefix, self.rows, self._judge = prefix, rows, judge
        self.number = -1
        """The worker's number for its logits."""
        self.forward: Submission | None = None
        self.span = -1
        """The span that scored it: the forward's, or that of its prompt's last part."""

    @property
    def sequence(self) -> int:
        return self.prefix.sequence

    def __await__(self) -> Generator[None, None, Scores]:
        assert self.forward is not None, "the forward has started"
        yield from self.forward.wait().__await__()
        return self

    async def judge(self, draft: Draft, *, bonus: bool = True, skip: int = 0, mode: str = "") -> Verdict:
        """Judge a draft with these scores, as soon as the forward is over.

        Args:
            draft: Starts `skip` tokens after the scored prefix; may reach one token beyond the
                scored ones. Without `bonus`, leaves may follow the scored tokens in the draft.
            bonus: Draw a token of the target's own after a fully accepted draft.
            skip: Scored draft tokens that were judged before.
            mode: The round's mode for the trace; default: from the judged and the scored tokens.
        """
        return await self._judge(self, draft, bonus, skip, mode)


def record(parts: Sequence[Scores], modes: Sequence[str]) -> None:
    """Emit the spans of the parts' forwards, once."""
    for part in parts:
        assert part.forward is not None, "the forward is over"
        own = {mode for other, mode in zip(parts, modes, strict=True) if other.forward is part.forward}
        part.forward.kind = "pre-verify" if own - {"plain"} == {"pre-verify"} else "verify"
        part.forward.record()


def chunk_spans(chunks: Sequence[Chunk], spans: Sequence[int], lanes: int) -> dict[int, int]:
    own = spans[-lanes * len(chunks) :: lanes] if chunks else ()
    return {chunk.prefix.sequence: span for chunk, span in zip(chunks, own, strict=True)}


def judge_job(
    scores: int, draft: Draft, bonus: bool = True, skip: int = 0, typical: Typical | None = None
) -> Judge:
    """Return the job, without the draft's fields that only the trace needs."""
    tokens = tuple(replace(token, top=()) for token in draft.tokens)
    return Judge(scores, Draft(tokens), bonus, skip, typical)


def rows_of(draft: Draft, window: Tree) -> Tree:
    """Return (ids, parents) of a draft's rows, then of a look-ahead window's."""
    parents = (parent if parent < 0 else parent + len(draft) for parent in window[1])
    return (*draft.ids, *window[0]), (*draft.parents, *parents)


def mode_of(judged: int, scored: int) -> str:
    if judged == 0:
        return "plain"
    if judged <= scored:
        return "verify"
    return "post-verify" if scored else "pre-verify"


def new_verdict(judgement: Judgement, prefix: Prefix, draft: Draft, mode: str, span: int) -> Verdict:
    facts = vars(judgement)
    return Verdict(**facts, sequence=prefix.sequence, draft=draft, mode=mode, span=span)
