"""The conversation that the methods continue, and its race after a reload. The page stores it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import gradio as gr

from specscope.app.jobs.long import long_runs
from specscope.app.jobs.runs import Lane, lanes_of
from specscope.app.jobs.service import Service
from specscope.app.jobs.stored import MAX_COMPARED, find_traces
from specscope.app.render.html import name_of, text
from specscope.traces.export.report import LONG, beginning
from specscope.traces.judge.race import grouped

if TYPE_CHECKING:
    from specscope.engine.cluster.prompts import Prompt


FRESH = -1
"""In place of a pane: the message continues no answer."""


class Past(NamedTuple):
    """A message and the answer that the conversation continues."""

    user: str
    answer: str
    who: str
    """The method that wrote the answer, with its settings."""
    shown: tuple[str, ...] = ()
    """Names of the turn's runs in the viewer."""


@dataclass(frozen=True, slots=True)
class Chat:
    """Past turns, and the current one with all its answers."""

    past: tuple[Past, ...] = ()
    prompt: str = ""
    """The message being answered; empty before the first."""
    runs: tuple[str, ...] = ()
    """Tickets of its runs."""
    answers: tuple[tuple[str, str], ...] = ()
    """(method with its settings, text) per pane; empty until all runs have ended."""
    shown: tuple[str, ...] = ()
    """Names of the current turn's runs in the viewer; empty until all runs have ended."""
    race: str = ""
    """Id of the current turn's comparison, which is its address; empty before the first."""

    @classmethod
    def of(cls, value: Mapping[str, Any] | None) -> Chat:
        """Parse a value of `to_json`; return an empty conversation for any other value."""
        try:
            rows = dict(value or {})
            past = tuple(_past(*turn) for turn in rows.get("past", ()))
            answers = tuple((str(who), str(text)) for who, text in rows.get("answers", ()))
            runs, shown = (tuple(map(str, rows.get(name, ()))) for name in ("runs", "shown"))
            return cls(past, str(rows.get("prompt", "")), runs, answers, shown, str(rows.get("race", "")))
        except (TypeError, ValueError):
            return cls()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "past": [list(turn) for turn in self.past]}

    def messages(self, system: str | None) -> list[dict[str, str]]:
        """Return the prompt of every method: system prompt, past turns, current message."""
        rows = [("system", system)] if system and system.strip() else []
        for turn in self.past:
            rows += [("user", turn.user), ("assistant", turn.answer)]
        rows.append(("user", self.prompt))
        return [{"role": role, "content": content} for role, content in rows]

    def asked(self, prompt: str, chosen: int = FRESH) -> Chat:
        """Return a new conversation, or this one: a message to the answer of pane `chosen`.

        A turn without an answer (failed, or stopped before its first token) is dropped.
        """
        return Chat((*self.past, *self._settled(chosen)) if chosen != FRESH else (), prompt)

    def _settled(self, chosen: int) -> tuple[Past, ...]:
        if not 0 <= chosen < len(self.answers):
            return ()
        who, answer = self.answers[chosen]
        return (Past(self.prompt, answer, who, self.shown),) if answer.strip() else ()

    @property
    def offered(self) -> list[tuple[str, int]]:
        """What the next message can do: start fresh, or continue an answer."""
        panes = [(who, i) for i, (who, answer) in enumerate(self.answers) if answer.strip()]
        panes = panes or [(turn.who, 0) for turn in self.past[-1:]]  # a failed turn is dropped
        return [("starts fresh", FRESH), *((f"continues {who}", i) for who, i in panes)]

    @property
    def usual(self) -> int:
        """What it does unless the user chooses: a conversation goes on with the same method."""
        if not self.past:
            return FRESH
        method = self.past[-1].who.partition(" · ")[0]
        panes = self.offered[1:]
        return next((i for name, i in panes if name.partition(" · ")[0].endswith(method)), panes[0][1])

    @property
    def turns(self) -> tuple[tuple[str, ...], ...]:
        """The names of the runs of every turn that has any, the current one last."""
        return tuple(filter(None, (*(turn.shown for turn in self.past), self.shown)))

    def started(self, runs: tuple[str, ...], race: str = "") -> Chat:
        return replace(self, runs=runs, answers=(), shown=(), race=race)

    def answered(self, answers: tuple[tuple[str, str], ...], shown: tuple[str, ...] = ()) -> Chat:
        return replace(self, answers=answers, shown=shown)


def _past(user: object, answer: object, who: object, shown: Iterable[object] = ()) -> Past:
    return Past(str(user), str(answer), str(who), tuple(map(str, shown)))


def conversation(chat: Chat) -> str:
    if not chat.prompt:
        return ""
    past = "".join(
        f'<div class="app-said app-user"><b>You</b>{_folded(turn.user, "p", "app-earlier")}</div>'
        f'<div class="app-said"><b>{text(turn.who)}</b><p>{text(turn.answer)}</p></div>'
        for turn in chat.past
    )
    if past:
        turns = f"{len(chat.past)} earlier turn{'s' if len(chat.past) > 1 else ''}"
        past = f"<details class='app-past'><summary>{turns} in the context</summary>{past}</details>"
    return past + _folded(chat.prompt, "h2")


def _folded(prompt: str, tag: str, look: str = "app-prompt") -> str:
    """Return a prompt; a long one shows its beginning, and all of it when it is opened."""
    if len(prompt) <= LONG:
        return f'<{tag} class="{look}">{text(prompt)}</{tag}>'
    return (
        f'<details class="{look} app-long"><summary>{text(beginning(prompt))} <em>{len(prompt):,} characters</em></summary>'
        f"<p>{text(prompt)}</p></details>"
    )


MOST_PAGES = 1000
"""Open pages that are remembered."""
END_S = 5.0
"""Most seconds that a stream waits for the end of the one before: its page may be gone."""


def running(service: Service, chat: Chat) -> tuple[Chat, list[Lane]]:
    """Return a chat with the lanes of its race that the service has in memory; none for another."""
    lanes = lanes_of(service.race(chat.race))
    if lanes and not chat.prompt:  # a race that another page has started
        chat = chat.asked(_message(lanes[0].request.prompt))
    return chat.started(
        tuple(run.ticket for lane in lanes for run in lane.runs), chat.race or _race(lanes)
    ), lanes


def _race(lanes: list[Lane]) -> str:
    return lanes[0].request.group if lanes else ""


def _message(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


def stored(service: Service, chat: Chat) -> Chat:
    """Return a chat with the answers of its race in the database; unchanged if there is none.

    Raises:
        StoreError: The database cannot be read.
    """
    if service.store is None or not chat.race:
        return chat
    rows, _ = service.store.runs(f"race:{chat.race}", limit=200)
    headers = [row.header for row in reversed(rows) if row.header.group == chat.race]
    if not headers:
        return chat
    race, prompt = chat.race, chat.prompt or headers[0].prompts[0]
    names = ["~".join(h.run_id for h in group) for group in grouped(headers)][:MAX_COMPARED]
    answers = ()
    if not long_runs(service.store, [name.split("~")[0] for name in names]):
        traces = find_traces(service, ",".join(names))
        answers = tuple((name_of(trace.header), trace.text) for trace in traces)
    found = chat if chat.prompt else chat.asked(prompt)
    return found.started((), race).answered(answers, tuple(names))


class _Stream:
    """What a page reads: whether a newer stream replaces it, and when it ended."""

    def __init__(self) -> None:
        self.replaced = asyncio.Event()
        self.ended = asyncio.Event()


class Streams:
    """The stream of updates that each page reads: a new one ends the one before.

    Gradio sends a stream's last update once more, at any time after its end. So each stream ends
    with an update that changes nothing, and a new one waits for the end of the one before.

    Args:
        name: Of these streams, on the page.
    """

    def __init__(self, name: str) -> None:
        self.in_order: dict[str, Any] = {"concurrency_id": name, "concurrency_limit": None}
        """Settings of an event whose handler is one of these: Gradio starts events of different
        queues in random order."""
        self._pages: OrderedDict[str, _Stream] = OrderedDict()

    async def only(
        self, request: gr.Request | None, updates: AsyncIterator[dict[Any, Any]]
    ) -> AsyncIterator[dict[Any, Any]]:
        """Yield updates until they end, or until the same page begins to read other ones."""
        before, mine = self._replace((request.session_hash if request else None) or "")
        shown = dict[Any, Any]()
        try:
            if before is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(before.ended.wait(), END_S)
            while (update := await _next(updates, mine.replaced)) is not None:
                shown = update
                yield update
            if shown:
                yield dict.fromkeys(shown, gr.skip())
        finally:
            mine.ended.set()

    def _replace(self, page: str) -> tuple[_Stream | None, _Stream]:
        """Return the page's stream before, which shall end, and its new one."""
        before, mine = self._pages.pop(page, None), _Stream()
        self._pages[page] = mine
        while len(self._pages) > MOST_PAGES:
            self._pages.popitem(last=False)
        if before is not None:
            before.replaced.set()
        return before, mine

    def handler(self, stream: Callable[..., AsyncIterator[dict[Any, Any]]]) -> Any:
        """Return an event handler whose updates are the only ones of its page."""

        async def handle(request: gr.Request, *values: Any) -> AsyncIterator[dict[Any, Any]]:
            async for update in self.only(request, stream(*values)):
                yield update

        handle.__name__ = stream.__name__  # Gradio names the event by it
        return handle

    def pointed(self, stream: Callable[..., AsyncIterator[dict[Any, Any]]]) -> Any:
        """Return such a handler of an event that carries data, the first argument of `stream`."""

        async def handle(
            request: gr.Request, event: gr.EventData, *values: Any
        ) -> AsyncIterator[dict[Any, Any]]:
            async for update in self.only(request, stream(event, *values)):
                yield update

        handle.__name__ = stream.__name__
        return handle


async def _next(updates: AsyncIterator[dict[Any, Any]], replaced: asyncio.Event) -> dict[Any, Any] | None:
    """Return the next update; None if there is none, or once something replaces the stream."""
    following, over = asyncio.ensure_future(anext(updates, None)), asyncio.ensure_future(replaced.wait())
    try:
        await asyncio.wait({following, over}, return_when=asyncio.FIRST_COMPLETED)
        return following.result() if following.done() and not replaced.is_set() else None
    finally:
        over.cancel()
        if not following.done():
            following.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await following
