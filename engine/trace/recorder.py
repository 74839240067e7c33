"""An open recording of another program's loop: its spans, its rounds, its end."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from operator import index
from threading import RLock
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, get_args

from specscope.engine.errors import UsageError, one_line, shown
from specscope.engine.trace.appended import Numbers, Process
from specscope.engine.trace.events import Event, Footer, Header, SpanOutcome, Status
from specscope.engine.trace.given import LAST, choice, is_text, whole
from specscope.engine.trace.given import text as words
from specscope.engine.trace.header import check_readable
from specscope.engine.trace.jsonl import to_json
from specscope.engine.trace.load import MachineLoad, Member
from specscope.engine.trace.outputs import Outputs, Spans
from specscope.engine.trace.pending import Pending
from specscope.engine.trace.ranges import MOST_WHOLE
from specscope.engine.trace.rounds import checked, ids_of
from specscope.engine.trace.work import Claims, Devices, OpenSpan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specscope.engine.trace.appended import KeptLines, Lines
    from specscope.engine.trace.stream import Stream
    from specscope.engine.trace.texts import TokenTexts

RECORDED = "recorded"
"""The method of a recorded run, and the entry of its environment with the start of its clock."""
LAYERS = "layers"
"""The setting with the number of layers that each draft one token. No draft can be longer."""
OUTCOMES = get_args(get_args(SpanOutcome)[1])
STATUSES = tuple(status for status in get_args(Status) if status != "running")
"""How a recording may end."""
MOST_AHEAD_NS = 10**9


class Recorder:
    """An open recording; a context manager. Safe to use from several threads.

    All methods raise UsageError for a value that cannot be, and if the file cannot be written. An
    unknown argument is Python's TypeError, which names it: a check would slow each span down.
    """

    def __init__(
        self,
        lines: Lines | KeptLines,
        header: Header,
        texts: TokenTexts | None = None,
        rule: str = "",
        streams: Mapping[str, Stream] | None = None,
        *,
        measured: bool = True,
    ) -> None:
        """Begin a recording; without `texts`, join the one that this header is of.

        With `measured`, it tells the load by programs that are none of this process's.
        """
        self._lines, self._header = lines, header
        self._texts, self._rule = texts, rule
        self._claims, self._lock = Claims(), RLock()
        self._numbers = Numbers(lines.place, joined=texts is None)
        self._process = Process.token
        self._prompts = list(zip(header.prompts, header.prompt_ids, strict=True))
        self._devices: Devices | None = None
        """None before the header is written."""
        self._outputs: Outputs | None = None
        self._begin = 0
        """The `perf_counter_ns` of the run's start."""
        self._time = 0
        """The end of the last work."""
        self._pending = Pending(streams or {})
        self._closed = False
        self._load: MachineLoad | Member | None = None
        if texts is None:
            self._pending.align()
            self._run(header)
            self._load = Member(self._begin, header.environment[RECORDED].get("pid"))
        elif measured:
            self._load = MachineLoad()

    def prompt(self, text: str = "", ids: Any = ()) -> int:
        """Name the prompt of the next sequence, before the first span; return its number."""
        with self._lock:
            if self._devices or self._texts is None:
                raise UsageError(
                    f"prompt {len(self._prompts) + 1} was given after the first span; give all prompts before, "
                    "or record each request in a file of its own"
                )
            if not is_text(text):
                raise UsageError(
                    f"the text of a prompt is {shown(text)}; give a text of whole characters, and token ids as ids="
                )
            tokens = ids_of("ids of a prompt", ids)
            self._prompts.append((text or self._texts.all(tokens), tuple(tokens)))
            return len(self._prompts) - 1

    def start(self, time: int | None = None) -> None:
        """Write the header; `time` is then 0. The first span does so, too."""
        with self._lock:
            if self._devices:
                return
            if self._process is not Process.token:
                raise UsageError("the recording has not started; call start() before the fork")
            given = None if time is None else whole("the time of a start", time, 0, LAST)
            errors = self._pending.align()
            begin = perf_counter_ns() if given is None else given
            if begin - perf_counter_ns() > MOST_AHEAD_NS:
                raise UsageError(
                    f"the start is {begin}, in the future; give a time of time.perf_counter_ns()"
                )
            self._prompts = self._prompts or [("", ())]
            texts, ids = zip(*self._prompts, strict=True)
            facts = {**self._header.environment, RECORDED: {"start_ns": begin, "pid": os.getpid()}}
            if errors:
                facts["clocks"] = errors | facts.get("clocks", {})
            header = replace(self._header, prompts=texts, prompt_ids=ids, environment=facts)
            check_readable(header)
            if self._texts is not None:
                self._outputs = Outputs(self._prompts, self._texts, self._rule, self._claims)
            self._run(header)
            if isinstance(self._load, MachineLoad):
                self._load.start(begin)
            self._emit(header)

    def _fork(self) -> None:
        """Go on in a forked child: it joins the recording, and ends no span of its parent."""
        if self._devices is None:
            raise UsageError("the recording has not started; call start() before the fork")
        self._process, self._lock = Process.token, RLock()
        self._texts = self._outputs = self._load = None
        self._pending.forget()
        self._lines = self._lines.joined(self._header.run_id)
        self._numbers = Numbers(self._lines.place, joined=True)

    def _run(self, header: Header) -> None:
        clocks, begin = header.environment.get("clocks", {}), header.environment[RECORDED]["start_ns"]
        bases = {d.name: begin + clocks.get(d.name, {}).get("offset_ns", 0) for d in header.devices}
        self._begin, self._devices = begin, Devices(header.devices, bases, self._pending.streams)

    def span(
        self,
        kind: str,
        device: str | None = None,
        *,
        rows: int = -1,
        context: int = -1,
        sequence: int = 0,
        model: str | None = None,
    ) -> OpenSpan:
        """Begin a span; use it in `with`, or end it by `end`.

        Args:
            kind: `draft`, `verify`, `prefill`, or another kind of docs/traces.md.
            device: By default the only one with the role that the kind needs.
            rows: Rows fed to the forward; -1 if unknown.
            context: Rows cached before it; -1 if unknown.
            sequence: -1 for work on several.
            model: `drafter` or `target`, where neither kind nor device says it.
        """
        work = self._work(kind, device, model, sequence, rows, context)
        if work.track.stream is not None:
            work.marks = work.track.stream.begin()
        self._pending.open.add(work)
        work.start = perf_counter_ns() - work.track.base
        return work

    def end(self, work: OpenSpan, outcome: str = "done") -> None:
        """End a span; its outcome is `done` or `cancelled`."""
        now = perf_counter_ns()
        if self._process is not Process.token:
            self._fork()
        if not self._pending.ends(work):
            raise UsageError(
                f"{shown(work)} has ended or was dropped, or is not of this recording and process; end each span once"
            )
        work.end = now - work.track.base
        work.outcome = outcome
        if work.track.stream is None or work.marks is None:
            self._ended(work)
        else:
            self._pending.add(work, work.track.stream.finish(work.marks))
            with self._lock:
                self._read_events()

    def drop(self, work: OpenSpan) -> None:
        """Forget a span that has begun, such as a search that found nothing; no row is written."""
        if self._pending.ends(work):
            work.id = -1  # a round that names it has no such span

    def add(
        self,
        kind: str,
        start: int,
        end: int,
        device: str | None = None,
        *,
        rows: int = -1,
        context: int = -1,
        sequence: int = 0,
        model: str | None = None,
        outcome: str = "done",
    ) -> OpenSpan:
        """Record a `span` with times of `time.perf_counter_ns`, on its device's machine."""
        begun = whole("the start of a span", start, -1, LAST)
        ended = whole("the end of a span", end, -1, LAST)
        if self._devices is None:
            self.start(begun)
        work = self._work(kind, device, model, sequence, rows, context)
        work.start, work.end = begun - work.track.base, ended - work.track.base
        work.outcome = outcome
        self._check_past(f"a {kind} on {work.track.device} ends", work.end)
        self._ended(work)
        return work

    def _work(
        self, kind: str, device: str | None, model: str | None, sequence: int, rows: int, context: int
    ) -> OpenSpan:
        if self._process is not Process.token:
            self._fork()
        if self._devices is None:
            self.start()
        assert self._devices is not None, "the recording has started"
        track, step = self._devices.track(kind, device, model), self._outputs.step if self._outputs else 0
        if type(sequence) is not int or not -1 <= sequence < len(self._prompts):
            sequence = self._sequence(sequence, -1)
        if step or kind != "prefill":
            step += 1
        work = OpenSpan(self.end, self._numbers.next(), track, step, sequence, rows, context)
        if track.scores:
            self._claims.began(work)
        return work

    def _ended(self, work: OpenSpan) -> None:
        assert self._devices is not None, "the span has begun"
        try:
            line = work.line
            fits = -1 <= work.rows <= MOST_WHOLE and -1 <= work.context <= MOST_WHOLE
        except (ValueError, TypeError):
            fits, line = False, b""
        if not fits:
            numbers = (work.start, work.end, work.rows, work.context)
            raise UsageError(
                f"start, end, rows and context of a {work.track.kind} are {shown(numbers)}; give whole numbers, "
                "times in nanoseconds, -1 for unknown rows"
            )
        choice("the outcome of a span", work.outcome, OUTCOMES)
        self._devices.ended(work)
        if work.track.drafts:
            self._claims.ended(work, len(self._prompts))
        if work.end > self._time:
            self._time = work.end
        self._lines.write(line)
        if isinstance(self._load, Member) and work.end > self._load.due:
            self._tell()

    def _tell(self) -> None:
        """Record the load of the machine, if it is known."""
        if self._load is not None and (row := self._load.row()) is not None:
            self._emit(row)

    def _sequence(self, sequence: Any, low: int) -> int:
        last = len(self._prompts) - 1
        try:
            number = index(sequence)
        except TypeError:
            number = low - 1
        if not low <= number <= last:
            raise UsageError(
                f"sequence {shown(sequence)} has no prompt; give 0 to {last}, or call prompt() "
                "once for each sequence before the first span"
            )
        return number

    def _check_past(self, what: str, time: int) -> None:
        """Raise UsageError for a time in the future: of another clock, such as `time.time_ns`."""
        if (ahead := time + self._begin - perf_counter_ns()) > MOST_AHEAD_NS:
            raise UsageError(f"{what} {ahead / 1e9:.0f} s from now; give times of time.perf_counter_ns()")

    def _read_events(self, *, wait: bool = False) -> None:
        """Record the spans whose events have passed, or all of them."""
        for work in self._pending.passed(wait=wait):
            self._ended(work)

    def round(
        self,
        drafted: Any = (),
        accepted: Any = 0,
        emitted: Any = (),
        *,
        parents: Any = None,
        sequence: int = 0,
        q: Any = None,
        p: Any = None,
        top_q: Any = None,
        top_p: Any = None,
        texts: Sequence[str] | None = None,
        mode: str | None = None,
        draft: Spans = None,
        verify: OpenSpan | int | None = None,
        time: int | None = None,
        reason: str | None = None,
    ) -> None:
        """Record a verification and what it added to the output.

        Args:
            drafted: Ids of the drafted tokens, in an order in which parents come before children.
            accepted: How many are accepted; of a tree also their indices, from the root on.
            emitted: Ids that the output grew by: the accepted ones, then the target's own if any.
            parents: Of a tree, the index of the token before each drafted one; -1 for the text.
            sequence: The number of the sequence.
            q: The drafter's probability of each drafted token.
            p: The target's; it may end with that of the target's own token.
            top_q: For each drafted token, the drafter's most probable ones as (id, probability).
            top_p: The target's, as `p`.
            texts: The text that each emitted token adds; without it, `decode` is asked.
            mode: `plain`, `verify`, `pre-verify` or `post-verify`, see docs/traces.md; by default
                `verify`, `plain` without a draft.
            draft: The span of all tokens, or one for each; by default the sequence's last ones.
            verify: The verification's span; by default the sequence's last one.
            time: When the tokens were known, of `time.perf_counter_ns`; by default now.
            reason: Why the output ended with this round: `eos`, `stop` or `length`.
        """
        now = perf_counter_ns() if time is None else whole("the time of a round", time, 0, LAST)
        with self._lock:
            outputs, sequence = self._rounds(sequence, now)
            at = now - self._begin
            if at < 0:
                raise UsageError(
                    f"a round is {-at} ns before the recording's start; give a time of time.perf_counter_ns()"
                )
            self._check_past("a round is", at)
            place = outputs.place(sequence, at, verify)
            judging = checked(str(place), drafted, accepted, emitted, parents, p, q, top_p, top_q)
            mode, reason = ("" if name is None else name for name in (mode, reason))
            self._emit(*outputs.round(place, judging, texts, draft, mode, reason))
            self._time = max(self._time, at)

    def discard(
        self,
        drafted: Any,
        *,
        sequence: int = 0,
        ahead: int = 0,
        q: Any = None,
        draft: Spans = None,
    ) -> None:
        """Record drafted tokens that are thrown away unjudged, such as those after a rejection.

        Args:
            drafted: Ids of a chain.
            sequence: The number of the sequence.
            ahead: How many tokens after the output the chain begins.
            q: As of `round`.
            draft: As of `round`.
        """
        with self._lock:
            now = perf_counter_ns()
            outputs, sequence = self._rounds(sequence, now)
            self._emit(*outputs.discard(sequence, now - self._begin, drafted, ahead, q, draft))

    def close(self, status: Status = "done", error: str = "") -> None:
        """End the recording; without it, a reader shows the run as incomplete.

        It ends as failed, with UsageError, if a span is open at its end.
        """
        choice("the status of a recording", status, STATUSES)
        why = words("the error of a recording", error)
        if self._process is not Process.token:  # a forked child that recorded nothing
            self._lines.close()
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            left = self._pending.left() if status == "done" else ""
            try:
                self._read_events(wait=True)
                if self._texts is not None:
                    self.start()
                self._tell()
                if self._outputs is not None:
                    ended: Status = "failed" if left else status
                    told = (self._outputs.reasons, self._outputs.texts)
                    self._emit(Footer(ended, *told, self._time, why or left))
            finally:
                self._lines.close()
            if left:
                raise UsageError(left)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self.close()
        else:
            with suppress(Exception):  # the block's own error is the one to see
                self.close(*ended_by(error))

    def _rounds(self, sequence: Any, now: int) -> tuple[Outputs, int]:
        """Return what records the rounds of this process, and the number of a sequence."""
        if self._process is not Process.token:
            self._fork()
        if self._texts is None:
            raise UsageError(
                "a process that joined a recording, or was forked in it, records spans only; send its drafts to "
                "the one that opened it"
            )
        self.start(now)
        number = self._sequence(sequence, 0)
        self._read_events()
        assert self._outputs is not None, "the recording has started"
        return self._outputs, number

    def _emit(self, *events: Event) -> None:
        self._lines.write("".join(f"{to_json(event)}\n" for event in events).encode())


def ended_by(error: BaseException) -> tuple[Status, str]:
    """Return the footer's status and error text for a recording that ends with an error."""
    if isinstance(error, KeyboardInterrupt):
        return "cancelled", ""
    return "failed", one_line(f"{type(error).__name__}: {error}")
