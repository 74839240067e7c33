"""The outputs of a recording: its rounds as rows, one output per sequence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from specscope.engine.errors import UsageError, shown
from specscope.engine.trace.events import Decision, Piece, Row
from specscope.engine.trace.given import MOST, choice, is_text, whole
from specscope.engine.trace.ranges import MOST_TOKENS
from specscope.engine.trace.rounds import (
    MODES,
    Judging,
    Place,
    checked,
    commits_of,
    decisions_of,
    extras_of,
    ids_of,
    round_of,
)
from specscope.engine.trace.work import OpenSpan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specscope.engine.trace.texts import TokenTexts
    from specscope.engine.trace.work import Claims

AHEAD = ("pre-verify", "post-verify")
"""Modes in which a token may be judged that was drafted during the verification."""
REASONS = ("", "eos", "stop", "length")
Spans: TypeAlias = "OpenSpan | int | Sequence[OpenSpan | int] | None"


class Given(NamedTuple):
    """The arguments of `Recorder.round`."""

    drafted: Any
    accepted: Any
    emitted: Any
    parents: Any
    q: Any
    p: Any
    top_q: Any
    top_p: Any
    texts: Sequence[str] | None
    mode: str
    draft: Spans
    verify: OpenSpan | int | None
    reason: str


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

    def round(self, sequence: int, time: int, given: Given) -> list[Row]:
        """Return the rows of a round."""
        output = self._outputs[sequence]
        at, work = self._place(sequence, given.verify, time)
        name = str(at)
        if time < output.time:
            raise UsageError(
                f"{name} is {output.time - time} ns before the last one of the sequence; give rounds in their order"
            )
        what = checked(name, given.drafted, given.accepted, given.emitted, given.parents)
        extras = extras_of(name, len(what.drafted), given.p, given.q, given.top_p, given.top_q)
        _check_choices(at, given.mode, given.reason)
        if not what.emitted and not given.reason:
            raise UsageError(
                f"{at} emitted no token; give emitted=, the accepted tokens and then the target's own"
            )
        if not what.drafted and at.verify < 0 and not output.steps:
            at = at._replace(step=0)  # the prompt's forward made the token
        elif what.drafted and not at.step:
            at = at._replace(step=self.step + 1)  # the prompt's forward judged a draft
        spans = self._spans(at, what.levels, given.draft, work, given.mode)
        added = self._added(at, what.emitted, given.texts)
        known = dict(zip(what.emitted, given.texts or (), strict=False))
        rows: list[Row] = [*self._pieces((*what.drafted, *what.emitted, *extras.ids), known)]
        rows += decisions_of(at, what, extras, self._rule, spans) if at.step else []
        rows += commits_of(at, what, added)
        if at.step:
            mode = given.mode or ("verify" if what.drafted else "plain")
            rows.append(round_of(at, what, mode))
        self._advance(at, what, added, given.reason)
        return rows

    def discard(self, sequence: int, time: int, drafted: Any, ahead: int, q: Any, draft: Spans) -> list[Row]:
        """Return the rows of drafted tokens that no round judges; see `Recorder.discard`."""
        if (far := whole("ahead", ahead, -MOST)) < 0:
            raise UsageError(
                f"discarded tokens begin {-far} before the output's end; give ahead= of 0 or more"
            )
        length = self._outputs[sequence].length
        at = Place(self.step, sequence, length + far, time, -1)
        ids = ids_of(f"drafted tokens discarded after {at}", drafted)
        whole("ahead", far, 0, MOST_TOKENS - length - len(ids))
        spans = self._spans(at, range(len(ids)), draft, None, "")
        extras = extras_of(str(at), len(ids), None, q, None, None)
        rows: list[Row] = [*self._pieces(ids, {})]
        for i, token in enumerate(ids):
            where = (max(1, at.step), sequence, -1, -1, at.start + i, token)
            chance = extras.q[i] if extras.q else None
            rows.append(Decision(*where, None, chance, None, "", "discarded", spans[i], -1))
        return rows

    def _place(
        self, sequence: int, verify: OpenSpan | int | None, time: int
    ) -> tuple[Place, OpenSpan | None]:
        """Return the place of the next round, and its verification if this process recorded it.

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
            return Place(self.step + 1, int(sequence), output.length, time, verify), None
        work = verify or self._claims.scoring(sequence)
        step = work.step if work and work.step not in output.steps else self.step + 1
        return Place(step, int(sequence), output.length, time, work.id if work else -1), work

    def _spans(
        self, at: Place, levels: Sequence[int], draft: Spans, work: OpenSpan | None, mode: str
    ) -> list[int]:
        """Return the id of the span that drafted each token; -1 for an unknown one."""
        if draft is None:
            ahead = mode in AHEAD
            early = work is not None and work.start >= 0 and not ahead
            before = work.start if early and work else at.time
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

    def _advance(self, at: Place, what: Judging, added: list[str], reason: str) -> None:
        output = self._outputs[at.sequence]
        output.length += len(what.emitted)
        output.text += added
        output.time, output.reason, output.ended = at.time, reason, bool(reason) or what.cut
        if at.step:
            output.steps.add(at.step)
        self.step = max(self.step, at.step)
        if what.own:
            self._claims.restart(at.sequence, at.time)


def _check_spans(where: str, name: str, spans: Sequence[object]) -> None:
    for span in spans:
        if not isinstance(span, OpenSpan) and not (type(span) is int and -1 <= span <= MOST):
            raise UsageError(f"{name}= of {where} has {shown(span)}; give what span() returns, or its id")


def _check_choices(at: Place, mode: str, reason: str) -> None:
    for name, value, choices in (("mode", mode, ("", *MODES)), ("reason", reason, REASONS)):
        choice(f"{name} of {at}", value, choices)
