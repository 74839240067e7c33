"""Runs on a server that is already running: `specscope.connect(...)` and its `run`.

A server works in one place and tells when tokens arrive. So a run has one device per request, and
its spans are `prefill`, from the request to the first token, and `step`: a whole step whose inside,
drafting and verifying, is unknown. Torch is not needed.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from queue import Empty, Queue
from threading import Event as Flag
from threading import Thread
from time import perf_counter_ns
from typing import Any

from specscope.engine.bounds import check_prompts
from specscope.engine.errors import UsageError, named_arguments, one_line
from specscope.engine.servers.address import KEY, Address, EventStream, ServerError
from specscope.engine.servers.checks import notes, unknown
from specscope.engine.servers.kinds import FoundServer, Prompt, find, prompt_ids
from specscope.engine.servers.recording import Heard, Listener, StepRows, trace_of
from specscope.engine.servers.steps import Answered, Reader, ServerStep
from specscope.engine.trace.events import Device, Header, Status
from specscope.engine.trace.header import SERVER
from specscope.engine.trace.record import environment
from specscope.engine.trace.recorder import RECORDED
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling

MOST_REQUESTS = 64
"""Requests at once; each is a thread and a connection."""
PERIOD_S = 0.1
"""Between two looks at a request to stop."""


@named_arguments
def connect(server: str, *, key: str | None = None, remote: bool = False) -> Server:
    """Return a running server, after asking what it is.

    Args:
        server: Its address, such as `http://127.0.0.1:8080`.
        key: Sent as `Authorization: Bearer`; by default the environment's SPECSCOPE_SERVER_KEY.
        remote: Whether it may be on another machine. Prompts are then sent there.

    Raises:
        UsageError: The address is none, or of another machine without `remote`.
        ServerError: It does not answer, or is of no known kind.
    """
    address = Address.of(server, os.environ.get(KEY, "") if key is None else key)
    why = "your prompts would be sent there. Confirm that with --remote, in Python with remote=True"
    return Server(find(address.confirmed(why, remote=remote)))


_Message = tuple[int, ServerStep | None, str]
"""(request, step, error); without a step the request has ended."""


class Server:
    """A running server; `run` asks it for text and returns the trace."""

    def __init__(self, found: FoundServer) -> None:
        self.found = found

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the server goes on."""

    close = __exit__

    @named_arguments
    def run(
        self,
        *prompts: Prompt,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        probabilities: bool = False,
        group: str = "",
        listener: Listener | None = None,
        cancel: Flag | None = None,
    ) -> Trace:
        """Send prompts at once, each as a request of its own, and return the trace.

        Prompt i has seed + i. With `probabilities`, llama.cpp is asked for p of the tokens that it
        did not verify, which takes it some time: leave that out of a race. The listener gets rows
        as they arrive; what the server tells only at the end is in the returned trace, which
        replaces them. Its status is `failed` if the server ended with an error, and `cancelled`
        after `cancel`.
        """
        drawn, ends, stop = sampling or Sampling(), limits or Limits(), cancel or Flag()
        check_prompts(prompts)
        if not 0 < len(prompts) <= MOST_REQUESTS:
            raise UsageError(f"{len(prompts)} prompts were given; a server gets 1 to {MOST_REQUESTS} at once")
        kind, before = self.found.kind, self.found.counters()
        requests = [
            kind.request(self.found, prompt, replace(drawn, seed=drawn.seed + i), ends)
            for i, prompt in enumerate(prompts)
        ]
        if probabilities:
            requests = [(path, body | kind.chances(drawn)) for path, body in requests]
        readers = [kind.reader(self.found) for _ in prompts]
        header = self._header(prompts, drawn, ends, group)
        rule = "match" if drawn.greedy else kind.rule
        for reader, (_, body) in zip(readers, requests, strict=True):
            reader.told.prompt = prompt_ids(self.found, body.get("prompt"))
        begun = perf_counter_ns()
        answers = [Answered(begun, [], reader.told) for reader in readers]
        rows, error = StepRows(Heard(listener), header, answers, rule), ""
        for number, step, why in self._steps(requests, readers, stop):
            error = error or why
            if step is not None:
                try:
                    rows.add(number, step)
                except UsageError as failure:  # the server sent what no trace holds
                    error = error or str(failure)
                    break
                answers[number].steps.append(step)
        status: Status = "failed" if error else "cancelled" if stop.is_set() else "done"
        final = [a._replace(steps=r.final(a.steps)) for a, r in zip(answers, readers, strict=True)]
        after = self.found.counters() if status == "done" and before is not None else None
        entry = header.environment[SERVER] | {
            "unknown": unknown(final),
            "notes": notes(final, before, after),
        }
        told = replace(header, environment=header.environment | {SERVER: entry})
        return trace_of(told, final, rule, status, error)

    def _steps(
        self, requests: Sequence[tuple[str, dict[str, Any]]], readers: Sequence[Reader], stop: Flag
    ) -> Iterator[_Message]:
        """Yield the steps of all requests as they arrive, and their errors."""
        found = Queue[_Message]()
        streams = [EventStream(self.found.address, *request) for request in requests]

        def read(number: int) -> None:
            error = ""
            try:
                for time, event in streams[number]:
                    for step in readers[number].add(time, event):
                        found.put((number, step, ""))
                for step in readers[number].end():
                    found.put((number, step, ""))
            except Exception as failure:  # noqa: BLE001 - it ends the run, in the other thread
                error = one_line(f"{failure}" if isinstance(failure, ServerError) else repr(failure))
            found.put((number, None, error))

        for number in range(len(streams)):
            Thread(target=read, args=(number,), name=f"request {number}", daemon=True).start()
        running = len(streams)
        try:
            while running:
                with suppress(Empty):
                    number, step, error = found.get(timeout=PERIOD_S)
                    running -= step is None
                    yield number, step, "" if stop.is_set() else error
                    if error:
                        _close(streams)
                if stop.is_set():
                    _close(streams)
        finally:
            _close(streams)

    def _header(self, prompts: Sequence[Prompt], sampling: Sampling, limits: Limits, group: str) -> Header:
        found = self.found
        server = {"kind": found.kind.name, "version": found.version, "address": found.address.url}
        return Header(
            run_id=uuid.uuid4().hex[:12],
            created=datetime.now(UTC).isoformat(timespec="milliseconds"),
            method=RECORDED,
            title=found.title,
            config={},
            prompts=tuple(map(shown_prompt, prompts)),
            prompt_ids=((),) * len(prompts),
            sampling=asdict(sampling),
            limits={"max_new_tokens": limits.max_new_tokens, "stop": list(limits.stop)},
            runtime=found.kind.name,
            profile="",
            devices=tuple(_device(found, i, len(prompts)) for i in range(len(prompts))),
            target_path=found.model,
            drafter_path="",
            environment=(environment() if found.address.local else {}) | {SERVER: server},
            group=group,
        )


def _close(streams: Sequence[EventStream]) -> None:
    for stream in streams:
        stream.close()


def _device(found: FoundServer, number: int, requests: int) -> Device:
    name = f"server:{number}"
    which = f" · request {number + 1}" if requests > 1 else ""
    return Device(name, "drafter+target", f"{found.kind.name}{which}", "server")


def shown_prompt(prompt: Prompt) -> str:
    """Return a prompt as text; of a chat its messages, each with its role."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)
