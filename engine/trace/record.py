"""Record another program's draft-and-verify loop as a trace. Standard library only.

    with specscope.record("mine.jsonl", method="mine", devices={"a": "drafter", "b": "target"}) as
    rec:
        rec.prompt("Hello", ids=[1, 2])
        with rec.span("draft", rows=1): ...
        with rec.span("verify", rows=3): ...
        rec.round(drafted=[7, 8], accepted=1, emitted=[7, 9])

Each call writes its rows at once, to a file opened for appending: a killed program loses no row,
and several processes may append to one file (`join=True`). Times are of `time.perf_counter_ns`,
which on Linux is one clock for all processes of a machine. docs/instrument.md describes all calls.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from specscope.engine.environment import machine
from specscope.engine.errors import UsageError, named_arguments, shown
from specscope.engine.trace.appended import KeptLines, Lines
from specscope.engine.trace.events import Device, Header
from specscope.engine.trace.given import LAST, choice, file_path, flag, text, whole
from specscope.engine.trace.header import check_readable
from specscope.engine.trace.recorder import RECORDED, Recorder
from specscope.engine.trace.stream import Stream
from specscope.engine.trace.texts import TokenTexts
from specscope.engine.trace.work import NO_TRACK, OpenSpan, devices_of

RUNTIME = "own code"
BOTH = ("drafter+target",)
RULES = ("", "ratio", "match", "typical")
SAMPLING = ("temperature", "top_k", "top_p", "seed")
PACKAGES = ("torch", "transformers", "vllm", "sglang", "jax")


@named_arguments
def record(
    path: str | os.PathLike[str] | Lines | KeptLines | None,
    method: str = "own loop",
    *,
    devices: Mapping[str, str] | Iterable[str] | None = BOTH,
    target: str = "",
    drafter: str = "",
    decode: Callable[[list[int]], str] | None = None,
    sampling: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    rule: str | None = "",
    lossless: bool = True,
    runtime: str = RUNTIME,
    clocks: Mapping[str, Mapping[str, Any]] | None = None,
    events: Callable[[], Any] | Mapping[str, Callable[[], Any]] | None = None,
    join: bool = False,
    enabled: bool = True,
) -> Recorder:
    """Open a file to record a run in; an older file of this name is replaced.

    Args:
        path: The file. None records nothing; `Lines` and `KeptLines` are written to as they are.
        method: The method's name for people.
        devices: Name -> role: `drafter`, `target` or `drafter+target`; or the roles alone, which
            are then the names. By default one device has both.
        target: The target's name or folder.
        drafter: The drafter's.
        decode: Token ids -> text, as a tokenizer has it.
        sampling: temperature, top_k, top_p, seed.
        config: The method's settings, as they are to be shown.
        rule: The rule of acceptance: `ratio`, `match`, `typical`; at temperature 0 all are `match`.
            Empty if it is another one.
        lossless: Whether the output has the target's distribution.
        runtime: The program whose loop it is, for the badge of the figures.
        clocks: Of a device on another machine `node`, `offset_ns` and `uncertainty_ns`, see
            docs/traces.md; the offset is subtracted from the times of its spans.
        events: What makes a CUDA event, `lambda: torch.cuda.Event(enable_timing=True)`: then it
            times the spans of all devices whose names begin with `cuda` or `gpu`. Or name -> what
            makes it, for each device.
        join: Add the spans of a further process to the file of a running recording.
        enabled: False records nothing.

    Raises:
        UsageError: An argument is wrong, or the file cannot be written.
    """
    if path is None or not flag("enabled", enabled):
        return cast("Recorder", Off())
    file = path if isinstance(path, Lines | KeptLines) else file_path(path)
    if flag("join", join) and isinstance(file, Path):
        lines = Lines(file, replace=False)
        try:
            header = lines.header()
            return Recorder(lines, header, streams=_streams(header.devices, events))
        except BaseException:
            lines.close()
            raise
    rule = choice("rule", "" if rule is None else rule, RULES)
    if not isinstance(cast("object", lossless), bool):
        raise UsageError(f"lossless is {shown(lossless)}; give True or False")
    if decode is not None and not callable(decode):
        raise UsageError(f"decode is {shown(decode)}; give what makes a text of a list of ids")
    places = devices_of(BOTH if devices is None else devices)
    header = Header(
        run_id=uuid.uuid4().hex[:12],
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
        method=RECORDED,
        title=text("method", method),
        config=_settings("config", config),
        prompts=(),
        prompt_ids=(),
        sampling=_sampling(sampling),
        limits={},
        runtime=text("runtime", runtime),
        profile="",
        devices=places,
        target_path=text("target", target),
        drafter_path=text("drafter", drafter),
        environment=environment() | _clocks(clocks, places),
        lossless=lossless and rule != "typical",
    )
    check_readable(header)
    streams = _streams(places, events)
    if header.sampling.get("temperature") == 0:
        rule = rule or "match"
    lines = Lines(file, replace=True) if isinstance(file, Path) else file
    return Recorder(lines, header, TokenTexts(decode), rule, streams)


def _settings(name: str, settings: Any) -> dict[str, Any]:
    if not isinstance(settings, Mapping | None):
        raise UsageError(f"{name} is {shown(settings)}; give name -> value")
    return dict(settings or {})


def _sampling(sampling: Any) -> dict[str, Any]:
    given = _settings("sampling", sampling)
    for name in SAMPLING:
        value = given.get(name)
        if not isinstance(value, int | float | None):
            raise UsageError(f"{name} in sampling is {shown(value)}; give a number")
    return given


def _clocks(clocks: Any, devices: Sequence[Device]) -> dict[str, Any]:
    given = _settings("clocks", clocks)
    for name, clock in given.items():
        choice("a device in clocks", name, tuple(device.name for device in devices))
        if not isinstance(clock, Mapping):
            raise UsageError(
                f"the clock of {name} is {shown(clock)}; give node, offset_ns and uncertainty_ns"
            )
        for key in ("offset_ns", "uncertainty_ns"):
            given[name][key] = whole(f"{key} of {name} in clocks", clock.get(key, 0), -LAST, LAST)
    return {"clocks": given} if given else {}


def _streams(devices: Sequence[Device], events: Any) -> dict[str, Stream]:
    if events is None:
        return {}
    found = dict[str, Stream]()
    for name in (device.name for device in devices if device.kind == "cuda"):
        make: Any = events.get(name) if isinstance(events, Mapping) else events
        if not callable(make):
            raise UsageError(f"events of {name} is {shown(make)}; give what makes a CUDA event")
        found[name] = Stream(make)
    return found


def environment() -> dict[str, Any]:
    """Return the machine, torch's threads, and the versions of the imported packages."""
    facts, torch = machine(), sys.modules.get("torch")
    if torch is not None:
        facts["threads"] = torch.get_num_threads()
        if torch.cuda.is_initialized():
            facts["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in PACKAGES}
    return facts | {name: str(version) for name, version in versions.items() if version}


class Off:
    """A recording that is switched off: all calls do nothing."""

    def __init__(self) -> None:
        self._work = OpenSpan(lambda *_: None, -1, NO_TRACK, 0, 0, -1, -1)

    def span(self, *_: object, **__: object) -> OpenSpan:
        return self._work

    add = span

    def prompt(self, *_: object, **__: object) -> int:
        return 0

    def start(self, *_: object, **__: object) -> None:
        """Do nothing."""

    end = drop = round = discard = close = start

    def __enter__(self) -> Off:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""
