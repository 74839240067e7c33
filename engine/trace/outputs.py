"""The outputs of a recording: its rounds as rows, one output per sequence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, cast, get_args

from specscope.engine.errors import UsageError, shown
from specscope.engine.trace.events import Commit, Mode, Piece, Row
from specscope.engine.trace.given import choice, is_text, whole
from specscope.engine.trace.ranges import MOST_TOKENS, MOST_WHOLE
from specscope.engine.trace.rounds import Judging, Place, ids_of, probabilities
from specscope.engine.trace.rows import Committed, discarded, rows_of
from specscope.engine.trace.work import OpenSpan
from specscope.engine.types import DraftToken, levels_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specscope.engine.trace.texts import TokenTexts
    from specscope.engine.trace.work import Claims

AHEAD = ("pre-verify", "post-verify")
"""Modes in which a token may be judged that was drafted during the verification."""
MODES = ("", *get_args(get_args(Mode)[1]))
REASONS = ("", "eos", "stop", "length")
Spans: TypeAlias = "OpenSpan | int | Sequence[OpenSpan | int] | None"


class _Output:
    """One sequence: the number of its tokens, its text, and its end."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.time = 0
        """Of the last round."""
        self.steps: set[int] = set()
        self.text: list[str] = []
        self.reason = ""
        self.ended = False


class Outputs:
    """The rows of rounds. `claims` knows the spans."""

    def __init__(
        self, prompts: Sequence[tuple[str, tuple[int, ...]]], texts: TokenTexts, rule: str, claims: Claims
    ) -> None:
        self.step = 0
        """The number of the last round."""
        self._outputs = [_Output(len(ids)) for _, ids in prompts]
        self._texts, self._rule, self._claims = texts, rule, claims
        self._named: set[int] = set()
        for number, (_, ids) in enumerate(prompts):
            texts.begin(number, ids)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple("".join(output.text) for output in self._outputs)

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(output.reason for output in self._outputs)

    def place(self, sequence: int, time: int, verify: OpenSpan | int | None) -> Place:
        """Return the place of the next round.

        Rounds of one verification, of several sequences, share its step.
        """
        output = self._outputs[sequence]
        if output.ended:
            raise UsageError(
                f"sequence {sequence} has ended at token {output.length}, and no round may follow: its last round had a "
                "reason, fewer tokens than it accepts, or a rejection and no own token"
            )
        _check_spans(f"sequence {sequence}", "verify", [] if verify is None else [verify])
        if isinstance(verify, int):
            at = Place(self.step + 1, sequence, output.length, time, verify)
        else:
            work = verify or self._claims.scoring(sequence)
            step = work.step if work and work.step not in output.steps else self.step + 1
            at = Place(step, sequence, output.length, time, work.id if work else -1, work)
        if time < output.time:
            raise UsageError(
                f"{at} is {output.time - time} ns before the last one of the sequence; give rounds in their order"
            )
        return at

    def round(
        self, at: Place, judging: Judging, texts: Any, draft: Spans, mode: str, reason: str
    ) -> list[Row]:
        """Return the rows of a round; its arguments are those of `Recorder.round`."""
        choice(f"mode of {at}", mode, MODES)
        choice(f"reason of {at}", reason, REASONS)
        if not judging.emitted and not reason:
            raise UsageError(
                f"{at} emitted no token; give emitted=, the accepted tokens and then the target's own"
            )
        if not judging.drafted and at.verify < 0 and not self._outputs[at.sequence].steps:
            at = at._replace(step=0)  # the prompt's forward made the token
        elif judging.drafted and not at.step:
            at = at._replace(step=self.step + 1)  # the prompt's forward judged a draft
        levels = levels_of(judging.parents)
        spans = self._spans(at, levels, draft, mode)
        added = self._added(at, judging.emitted, texts)
        mode = mode or ("verify" if judging.drafted else "plain")
        verdict = judging.verdict(at, levels, spans, mode, self._rule)
        positions = range(at.start, at.start + len(added))
        tokens = zip(positions, judging.emitted, verdict.origins, added, strict=False)
        known: dict[int, str] = dict(zip(judging.emitted, texts or (), strict=False))
        rows: list[Row] = [*self._pieces(judging.ids, known)]
        made = rows_of(at.step, verdict, [Committed(*token) for token in tokens], at.time)
        rows += (row for row in made if at.step or isinstance(row, Commit))
        self._advance(at, judging, added, reason)
        return rows

    def discard(self, sequence: int, time: int, drafted: Any, ahead: int, q: Any, draft: Spans) -> list[Row]:
        """Return the rows of drafted tokens that no round judges; see `Recorder.discard`."""
        if (far := whole("ahead", ahead, -MOST_WHOLE)) < 0:
            raise UsageError(
                f"discarded tokens begin {-far} before the output's end; give ahead= of 0 or more"
            )
        length = self._outputs[sequence].length
        at = Place(self.step, sequence, length + far, time, -1)
        ids = ids_of(f"drafted tokens discarded after {at}", drafted)
        whole("ahead", far, 0, MOST_TOKENS - length - len(ids))
        spans = self._spans(at, range(len(ids)), draft, "")
        chances = probabilities(f"q of {at}", q, len(ids), len(ids))
        rows: list[Row] = [*self._pieces(ids, {})]
        for i, (token, chance, span) in enumerate(zip(ids, chances, spans, strict=True)):
            lost = DraftToken(token, probability=chance, span=span)
            rows.append(discarded(max(1, at.step), sequence, at.start + i, lost))
        return rows

    def _spans(self, at: Place, levels: Sequence[int], draft: Spans, mode: str) -> list[int]:
        """Return the id of the span that drafted each token; -1 for an unknown one."""
        if draft is None:
            ahead = mode in AHEAD
            early = at.work is not None and at.work.start >= 0 and not ahead
            before = at.work.start if early and at.work else at.time
            return self._claims.drafting(at.sequence, levels, before, ahead=ahead)
        several = isinstance(draft, Iterable) and not isinstance(draft, str) and getattr(draft, "ndim", 1)
        given: list[Any] = [*cast("Iterable[Any]", draft)] if several else [draft]
        _check_spans(str(at), "draft", given)
        ids = [one.id if isinstance(one, OpenSpan) else one for one in given]
        if len(ids) not in (1, len(levels)):
            raise UsageError(
                f"{at} has {len(ids)} spans in draft= for {len(levels)} drafted tokens; give one for all, or one for each"
            )
        self._claims.forget(at.sequence, ids)
        return ids * len(levels) if len(ids) == 1 else ids

    def _added(self, at: Place, tokens: Sequence[int], texts: Any) -> list[str]:
        if texts is None:
            return [self._texts.added(at.sequence, token) for token in tokens]
        if not isinstance(texts, list | tuple) or not all(map(is_text, cast("Sequence[object]", texts))):
            raise UsageError(
                f"texts of {at} is {shown(texts)}; give a text of whole characters for each emitted token"
            )
        if len(texts) != len(tokens):
            raise UsageError(
                f"{at} has {len(texts)} texts of {len(tokens)} emitted tokens; give one for each"
            )
        return [*texts]

    def _pieces(self, ids: Iterable[int], given: dict[int, str]) -> Iterator[Piece]:
        """Yield the texts of tokens that have no piece yet, where they are known."""
        for token in ids:
            if (
                token >= 0
                and token not in self._named
                and (text := given.get(token) or self._texts.piece(token))
            ):
                self._named.add(token)
                yield Piece(token, text)

    def _advance(self, at: Place, judging: Judging, added: list[str], reason: str) -> None:
        output = self._outputs[at.sequence]
        output.length += len(judging.emitted)
        output.text += added
        output.time, output.reason, output.ended = at.time, reason, bool(reason) or judging.cut
        if at.step:
            output.steps.add(at.step)
        self.step = max(self.step, at.step)
        if judging.own:
            self._claims.restart(at.sequence, at.time)


def _check_spans(where: str, name: str, spans: Sequence[object]) -> None:
    for span in spans:
        if not isinstance(span, OpenSpan) and not (type(span) is int and -1 <= span <= MOST_WHOLE):
            raise UsageError(f"{name}= of {where} has {shown(span)}; give what span() returns, or its id")
