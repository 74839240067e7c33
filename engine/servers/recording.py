"""The steps of a server's answers as the rows of a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from specscope.engine.errors import UsageError
from specscope.engine.servers.steps import Answered, ServerStep
from specscope.engine.trace.appended import KeptLines
from specscope.engine.trace.events import Event, Header, Status
from specscope.engine.trace.jsonl import from_json
from specscope.engine.trace.ranges import NO_TOKEN
from specscope.engine.trace.recorder import Recorder
from specscope.engine.trace.texts import TokenTexts
from specscope.engine.trace.trace import Trace

Listener = Callable[[Event], None]
MOST_TOKENS = 2_000_000
"""Tokens and drafts of all answers of a run."""


def trace_of(
    header: Header, answers: Sequence[Answered], rule: str, status: Status = "done", error: str = ""
) -> Trace:
    """Return the trace of answers whose steps are all known.

    `rule` is the rule of acceptance. Each answer has a device and a sequence of its own.
    """
    heard = Heard()
    ids = tuple(answer.told.prompt for answer in answers)
    rows = StepRows(heard, replace(header, prompt_ids=ids), answers, rule)
    order = [(step.time, n, i) for n, answer in enumerate(answers) for i, step in enumerate(answer.steps)]
    for _, n, i in sorted(order):
        ended = i == len(answers[n].steps) - 1 and status == "done"
        rows.add(n, answers[n].steps[i], answers[n].told.reason if ended else "")
    rows.close(status, error)
    return heard.trace()


class StepRows:
    """Writes steps as spans and rounds; the span before the first token is a `prefill`."""

    def __init__(self, lines: KeptLines, header: Header, answers: Sequence[Answered], rule: str) -> None:
        begun = [answer.begun for answer in answers]
        self._recorder = Recorder(lines, header, TokenTexts(None), rule, measured=False)
        self._recorder.start(min(begun))
        self._devices = [device.name for device in header.devices]
        self._size = 0
        self._answers, self._last, self._first = answers, begun, set(range(len(answers)))
        temperature, exact = header.sampling.get("temperature"), header.sampling.get("top_p") == 1
        self._unscaled = temperature in (0, 1) and exact and not header.sampling.get("top_k")
        """Whether probabilities before temperature, top-k and top-p are p."""
        self._scaled = bool(temperature)
        """Whether those after them are: at temperature 0 they are 1."""

    def add(self, number: int, step: ServerStep, reason: str = "") -> None:
        """Add a step of an answer; while its draft length is unknown, the longest one is shown."""
        first, end = number in self._first, max(step.time, self._last[number])
        self._first.discard(number)
        work = self._recorder.add(
            "prefill" if first else "step",
            self._last[number],
            end,
            self._devices[number],
            sequence=number,
            model="target",
        )
        self._last[number] = end
        ids, accepted = [token.id for token in step.tokens], step.accepted
        self._size += len(ids) + (step.drafted or 0)
        if self._size > MOST_TOKENS:
            raise UsageError(
                f"an answer has more than {MOST_TOKENS} tokens and drafts, the most that are read"
            )
        longest = self._answers[number].told.longest or 0
        drafted = max(accepted, longest) if step.drafted is None else step.drafted
        guess = [*ids[:accepted], *[NO_TOKEN] * (drafted - min(accepted, len(ids)))]
        known = self._scaled if self._answers[number].told.drawn else self._unscaled
        p = [*[token.p for token in step.tokens], *[None] * (drafted + 1)][: drafted + 1]
        self._recorder.round(
            guess,
            accepted,
            ids,
            sequence=number,
            p=p if known else None,
            texts=[token.text for token in step.tokens],
            verify=None if first else work,
            time=end,
            reason=reason,
        )

    def close(self, status: Status, error: str) -> None:
        self._recorder.close(status, error)


class Heard(KeptLines):
    """Lines of a recording, which a listener hears as rows."""

    def __init__(self, listener: Listener | None = None) -> None:
        super().__init__()
        self._listener = listener

    def write(self, lines: bytes) -> None:
        super().write(lines)
        if self._listener is not None:
            for line in filter(None, lines.split(b"\n")):
                self._listener(from_json(line.decode()))

    def trace(self) -> Trace:
        return Trace.of(from_json(line.decode()) for line in bytes(self.content).split(b"\n") if line)
