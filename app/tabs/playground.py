"""The Playground tab: one prompt, several methods side by side, live text and timeline."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import gradio as gr

from specscope.app.busy import ProcessorTime, busy_since, read_load
from specscope.app.jobs.runs import Lane, LiveRun, RunRequest
from specscope.app.jobs.service import Service
from specscope.app.jobs.stored import find_traces
from specscope.app.pairs import TOY, opening
from specscope.app.ray import Ray
from specscope.app.render.html import alert, name_of
from specscope.app.render.turn import finished_line, folded_line, kept_line, name_of_request, turn_line
from specscope.app.tabs.chat import FRESH, Chat, Streams, conversation, running, stored
from specscope.app.tabs.form import Composer, Form, offer_script
from specscope.app.tabs.library import Library, absent_note
from specscope.app.tabs.picker import value_of
from specscope.app.tabs.requests import MOST_RUNS, FormError, blame, make_requests, passes_of
from specscope.app.tabs.streaming import Frame, frames
from specscope.app.tabs.wiring import (
    QUIET,
    Update,
    build_demo,
    build_hidden,
    build_viewer,
    plain_html,
    viewed,
)
from specscope.engine.checkpoints.forms import is_form
from specscope.engine.errors import SpecScopeError
from specscope.engine.methods import BASELINE
from specscope.traces.judge.race import alternating


class Playground:
    """The tab's components and their event handlers; without a pair the best one opens."""

    def __init__(self, service: Service, pair: str | None = TOY, ray: Ray | None = None) -> None:
        self.service, self.pair, self.ray = service, pair, ray
        self.streams = Streams("playground")
        self.chat = gr.JSON(Chat().to_json(), visible=False)
        self.noted = gr.JSON(visible=False)
        """The values of the controls that the page has noted: {"values": [...]}."""
        self.kept = build_hidden("kept", "SpecScopeAddress.keep(props, watch);")
        """The conversation as JSON: the page keeps it over a reload, and has the race's address."""
        self.composer = Composer(chosen=pair is not None)
        build_demo()
        self.folded = plain_html(elem_id="folded", js_on_load="SpecScopeApp.fold(element, watch);")
        self.form = Form(pair or opening(), ray)
        with self.form.card:
            self.library = Library(service, self.form.controls["models"], self.composer.notice)
        with gr.Column(elem_id="results", elem_classes="app-plain"):
            self.turn = gr.HTML(turn_line("idle"), elem_id="turn")
            self.talk = gr.HTML(elem_id="conversation")
            with gr.Row(elem_id="panes", elem_classes="specscope"):
                self.panes = [gr.HTML(visible=False, apply_default_css=False) for _ in range(MOST_RUNS)]
            self.viewer = build_viewer("live-viewer")
        self._connect()

    def _connect(self) -> None:
        composer, form, streams = self.composer, self.form, self.streams
        given = [composer.prompt, composer.system, self.chat, composer.follow, *form.made.inputs]
        changed = [
            *(self.chat, self.kept, composer.prompt, composer.follow, *composer.buttons),
            *(self.turn, self.talk, self.viewer, self.folded, *self.panes),
            *(*form.made.inputs, composer.system, composer.notice, composer.alert),
        ]
        runs: dict[str, Any] = {**QUIET, **streams.in_order, "trigger_mode": "once"}
        composer.go.click(streams.handler(self.ask), given, changed, **runs)
        composer.again.click(streams.handler(self.regenerate), given, changed, **runs)
        self.viewer.advised(streams.pointed(self.follow_advice), given, changed, **runs)
        composer.clear.click(streams.handler(self.forget), self.chat, changed, **streams.in_order, **QUIET)
        composer.stop.click(self.stop_runs, self.chat, None, concurrency_limit=None, **QUIET)
        self.changed = changed
        self.given = [*form.remembered.values(), composer.prompt, composer.system, composer.follow]
        """What the page notes, to be as it was after a reload and at an earlier address."""
        changes = [one.change for one in self.given]
        gr.on(changes, None, self.given, None, js=_noting("note"), **QUIET)

    def connect_load(self, page: gr.Blocks) -> None:
        """Bring the parts that change between two visits up to date when the page opens."""
        form, models = self.form, self.form.controls["models"]
        page.load(None, [models, form.controls["methods"]], form.offered, js=offer_script(), **QUIET)
        page.load(None, self.given, None, js=_noting("begin"), **QUIET)
        restore, kept = self.streams.handler(self.opened), "() => SpecScopeAddress.kept()"
        page.load(restore, [self.chat, self.noted], self.changed, js=kept, **self.streams.in_order, **QUIET)
        for shelf in self.library.shelves:
            page.load(shelf.follow, None, shelf.shown, concurrency_limit=None, **QUIET)

    # -- event handlers

    def _opening(self) -> Update:
        """Return the pair to open with if a model has come or gone since the server started."""
        if self.pair is not None:
            return {}
        models, pair = self.form.controls["models"], opening()
        return {self.composer.notice: absent_note()} | ({} if pair == models.value else {models: pair})

    async def opened(self, talk: Any, noted: Any) -> AsyncIterator[Update]:
        """Show what the page showed before it was loaded again."""
        first = self._opening()
        async for update in self.restore(talk, noted):
            yield {**first, **update}
            first = {}

    async def restore(self, talk: Any, noted: Any = None, *, moved: bool = False) -> AsyncIterator[Update]:
        """Show the race of the address, and follow it to its end if it still runs.

        `talk` is the conversation that the page has kept, `noted` what it has noted of the form;
        `moved`: it may show another race now.
        """
        *given, prompt, system, chosen = _noted(noted)
        values, texts = self.form.noted(given), {self.composer.prompt: prompt, self.composer.system: system}
        form = self.form.shown(values) | {box: text for box, text in texts.items() if isinstance(text, str)}
        chat, lanes = running(self.service, Chat.of(talk))
        folded = {self.folded: self._folded(values, chat.race)}
        if lanes:
            yield {**form, **self._begin(chat, lanes), **folded}
            async for update in self._follow(chat, lanes):
                yield update
            return
        chat = Chat.of(talk)
        with suppress(SpecScopeError):  # then the page is as without the race
            chat = chat if chat.answers else stored(self.service, chat)
        if chat.shown or chat.answers:
            yield {**form, **self._ended(chat, chosen), **folded}
        else:
            yield {**form, **self.blank()} if moved else {**form, self.kept: gr.skip()}

    def _folded(self, values: dict[str, Any], turn: str) -> str:
        """Return the line of settings that were noted; a plain one if Run would refuse them."""
        try:
            requests = make_requests(values, [{"role": "user", "content": "-"}], "", self.ray)
            return folded_line(values, requests, passes_of(values), turn)
        except (SpecScopeError, KeyError):
            return kept_line()

    def _ended(self, chat: Chat, chosen: Any) -> Update:
        return {
            **self.blank(),
            self.chat: chat.to_json(),
            self.talk: conversation(chat),
            self.turn: finished_line(chat.turns) if chat.shown else turn_line("idle"),
            self.viewer: viewed(chat.shown),
            self.composer.follow: _follow(chat, chosen),
            **self.composer.shown(running=False),
        }

    async def ask(
        self, prompt: str, system: str, talk: Any, chosen: int | None, *given: Any
    ) -> AsyncIterator[Update]:
        if not (prompt or "").strip():
            yield self._alert(FormError("prompt", "the prompt is empty; type some text"))
            return
        chat = Chat.of(talk).asked(prompt, FRESH if chosen is None else chosen)
        async for update in self._answer(chat, system, self.form.made.values(given)):
            yield update

    async def regenerate(
        self, prompt: str, system: str, talk: Any, chosen: int | None, *given: Any
    ) -> AsyncIterator[Update]:
        """Answer the last message again with the current settings; when sampling, the next seed."""
        del prompt, chosen
        values, chat = self.form.made.values(given), Chat.of(talk)
        if not chat.prompt:
            message = "there is no message to answer again; type one and press Run"
            yield self._alert(FormError("prompt", message))
            return
        if values["temperature"] and isinstance(values["seed"], int | float):
            values["seed"] += 1
        async for update in self._answer(chat, system, values):
            yield {self.form.controls["seed"]: values["seed"], **update}

    async def follow_advice(
        self, event: gr.EventData, prompt: str, system: str, talk: Any, chosen: int | None, *given: Any
    ) -> AsyncIterator[Update]:
        """Answer again with the baseline, the run, and the advised one or the advised drafter."""
        del prompt, chosen
        values, chat = self.form.made.values(given), Chat.of(talk)
        try:
            used = find_traces(self.service, str(event.run))[0].header
        except SpecScopeError as error:
            yield self._alert(error)
            return
        rows = [(BASELINE, {}), (used.method, used.config)]
        if is_form(str(event.drafter)):
            values["drafting"] = str(event.drafter)
        else:
            rows.append((str(event.method), event.config))
        values["methods"] = value_of(values["models"], rows)
        advised = {self.form.controls[name]: values[name] for name in ("methods", "drafting")}
        async for update in self._answer(chat, system, values):
            yield {**advised, **update}

    async def _answer(self, chat: Chat, system: str, values: dict[str, Any]) -> AsyncIterator[Update]:
        try:
            group = uuid.uuid4().hex[:12]
            requests = make_requests(values, chat.messages(system), group, self.ray)
            passes = passes_of(values)
            lanes = self._start(requests, passes)
        except SpecScopeError as error:
            yield self._alert(error)
            return
        chat = chat.started(tuple(run.ticket for lane in lanes for run in lane.runs), group)
        begun: Update = {self.folded: folded_line(values, requests, passes, group)}
        if chat.past:  # else it stays: another method may answer it, too
            begun[self.composer.prompt] = ""
        yield {**self._begin(chat, lanes), **begun}
        async for update in self._follow(chat, lanes):
            yield update

    async def _follow(self, chat: Chat, lanes: Sequence[Lane]) -> AsyncIterator[Update]:
        """Yield the updates of a turn to its end."""
        revision, before = 0, read_load()
        async for frame in frames(lanes):
            revision += frame.draw
            yield self._show(frame, chat, lanes, revision, before)

    def _start(self, requests: Sequence[RunRequest], passes: int) -> list[Lane]:
        lanes: list[list[LiveRun]] = [[] for _ in requests]
        for _, pane in alternating(range(len(requests)), passes):
            lanes[pane].append(self.service.start(requests[pane]))
        return [Lane(runs) for runs in lanes]

    def stop_runs(self, talk: Any) -> None:
        """Cancel the turn's runs; `frames` then shows that they ended."""
        for ticket in Chat.of(talk).runs:
            run = self.service.find(ticket)
            if run is not None:
                run.cancel()

    async def forget(self, talk: Any) -> AsyncIterator[Update]:
        self.stop_runs(talk)
        yield {**self.blank(), self.kept: json.dumps(Chat().to_json())}

    def blank(self) -> Update:
        return {
            self.chat: Chat().to_json(),
            self.turn: turn_line("idle"),
            self.folded: "",
            self.talk: "",
            self.viewer: viewed(()),
            **self.composer.shown(running=False),
            self.composer.follow: gr.update(choices=[], value=None, visible=False),
            self.composer.clear: gr.update(visible=False),
            self.composer.again: gr.update(visible=False),
            **{pane: gr.update(value="", visible=False) for pane in self.panes},
            **self._alert(),
        }

    # -- updates

    def _begin(self, chat: Chat, lanes: Sequence[Lane]) -> Update:
        return {
            **self._keep(chat),
            self.talk: conversation(chat),
            self.turn: turn_line("queued", lanes),
            self.viewer: viewed((), live=True),
            **self.composer.shown(running=True),
            **{pane: gr.update(value="", visible=i < len(lanes)) for i, pane in enumerate(self.panes)},
            **self._alert(),
        }

    def _show(
        self, frame: Frame, chat: Chat, lanes: Sequence[Lane], revision: int, before: ProcessorTime
    ) -> Update:
        update: Update = {self.panes[i]: html for i, html in frame.panes.items()}
        warning = _warning(lanes, before) if frame.last else ""
        update[self.turn] = turn_line(frame.state, lanes, warning, chat.turns)
        if frame.draw:
            begun = [lane.name if frame.last else lane.current.run_id for lane in lanes]
            update[self.viewer] = viewed([name for name in begun if name], revision, live=not frame.last)
        return {**update, **self._finish(chat, lanes)} if frame.last else update

    def _finish(self, chat: Chat, lanes: Sequence[Lane]) -> Update:
        traces = [lane.trace() for lane in lanes]
        answers = tuple(
            (name_of(trace.header), trace.text) if trace else (name_of_request(lane.request), "")
            for lane, trace in zip(lanes, traces, strict=True)
        )
        shown = tuple(lane.name for lane in lanes if lane.name)
        chat = chat.answered(answers, shown)
        requests = [lane.request for lane in lanes]
        faults = (blame(requests, run) for lane in lanes for run in lane.runs)
        fault = next(filter(None, faults), "")
        # A refused message returns to the box, to be corrected.
        message = {self.composer.prompt: chat.prompt} if fault and chat.past else {}
        shown = {self.composer.follow: _follow(chat), **self.composer.shown(running=False)}
        return self._keep(chat) | message | shown | self._alert(fault)

    def _keep(self, chat: Chat) -> Update:
        return {self.chat: chat.to_json(), self.kept: json.dumps(chat.to_json())}

    def _alert(self, error: Exception | str = "") -> Update:
        """Show an error where one pressed Run; without one clear the message before."""
        return {self.composer.alert: alert(error)}


def _follow(chat: Chat, chosen: Any = None) -> dict[str, Any]:
    """Return the choice of what the next message continues; `chosen` is what was chosen before."""
    choices = chat.offered
    value = chosen if chosen in [pane for _, pane in choices] else chat.usual
    return gr.update(choices=choices, value=value, visible=len(choices) > 1)


def _noting(function: str) -> str:
    return f"(...values) => {{ SpecScopeAddress.{function}(values); return []; }}"


def _noted(value: Any) -> list[Any]:
    """Return the values that a page has noted: settings, prompt, system prompt, chosen answer."""
    given = value.get("values") if isinstance(value, dict) else None
    return given if isinstance(given, list) and len(given) > 3 else [None] * 3


def _warning(lanes: Sequence[Lane], before: ProcessorTime) -> str:
    """Return the warning of a busy machine for a comparison that it measured; else empty."""
    elsewhere = any(r.profile or r.address or r.server for r in (lane.request for lane in lanes))
    decoded = any((trace := lane.trace()) is not None and trace.commits for lane in lanes)
    return busy_since(before) if decoded and not elsewhere else ""
