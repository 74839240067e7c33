"""Models of the hub: in its local cache, or downloaded with progress, time limits and cancellation.

The download runs in a process (`engine/checkpoints/hub_process.py`), because a process can be ended
at any moment, and a library call that waits for a network cannot.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from specscope.engine.checkpoints.progress import Progress, Report, ignore, megabytes
from specscope.engine.environment import command, variables
from specscope.engine.errors import ModelError, RunCancelled, one_line
from specscope.engine.files import parse_json, read_bytes

ANSWER = 10.0
"""Most seconds until the hub's list of a model's files is complete."""
STALL = 30.0
"""Most seconds without `engine.checkpoints.hub_process.CHUNK` new bytes or the end of a file."""
GRACE = 3.0
"""Seconds in which a stopped download may remove its incomplete file."""
ADVICE = "check the network, or give a directory"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
MOST_INDEX = 64 * 2**20
_INDEX = "model.safetensors.index.json"
_WEIGHTS = "model.safetensors"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


def is_hub_id(model: str | os.PathLike[str]) -> bool:
    """Return whether a model is named by a hub id: `owner/name`, and no path on this machine."""
    return isinstance(model, str) and _HUB_ID.fullmatch(model) is not None and not os.path.exists(model)


def cached(model: str, *, config_only: bool = False) -> Path | None:
    """Return the directory of a hub model in the local cache; None if files are missing.

    `config_only`: no file but config.json is needed.
    """
    from huggingface_hub import try_to_load_from_cache

    try:
        config = try_to_load_from_cache(model, "config.json")
    except ValueError as error:
        raise ModelError(f"{model} is no hub id: {one_line(error)}; give owner/name") from None
    folder = Path(config).parent if isinstance(config, str) else None
    if folder is None or config_only:
        return folder
    complete = has_tokenizer(folder) and all((folder / name).is_file() for name in _weight_files(folder))
    return folder if complete else None


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _TOKENIZERS)


def _weight_files(folder: Path) -> list[str]:
    try:
        names = parse_json(read_bytes(folder / _INDEX, MOST_INDEX))["weight_map"].values()
        return sorted({Path(name).name for name in names})
    except (ValueError, KeyError, TypeError, AttributeError):  # loading the model reports the defect
        return [_WEIGHTS]


def download(model: str, progress: Report | None = None, cancel: threading.Event | None = None) -> Path:
    """Download a hub model to the local cache and return its directory.

    The first report comes before the hub has answered. Setting `cancel` raises RunCancelled; a
    ModelError if the hub has no such model, cannot be reached, or a time limit has passed.
    """
    from huggingface_hub.constants import HF_HUB_OFFLINE

    try:
        if HF_HUB_OFFLINE:
            raise ModelError("HF_HUB_OFFLINE is set; unset it, or give a directory")
        with _process(model) as lines:
            _follow(model, lines, progress or ignore, cancel or threading.Event())
        if (folder := cached(model)) is None:
            raise ModelError("the files that the hub sent are no complete model; give a directory")
    except ModelError as error:
        raise ModelError(f"{model} is not a directory here and cannot be downloaded: {error}") from None
    return folder


def _follow(model: str, lines: SimpleQueue[bytes | None], report: Report, cancel: threading.Event) -> None:
    state = Progress(model)
    report(state)
    hub, most, deadline = "", -1, float("inf")  # the clock starts when the process has started
    while not cancel.is_set():
        try:
            line = lines.get(timeout=0.05)
        except Empty:
            line = b"{}"
        message: dict[str, Any] = json.loads(line) if line else {"error": f"the download broke off; {ADVICE}"}
        if "error" in message:
            raise ModelError(one_line(message["error"]))
        if "ended" in message:
            report(replace(state, done=state.total))
            return
        if "hub" in message:
            hub, deadline = message.pop("hub"), time.monotonic() + ANSWER
        previous, state = state, replace(state, **message)
        report(state)
        # bytes sent again are no progress
        if message and (state.done > most or state.file != previous.file):
            most, deadline = max(most, state.done), time.monotonic() + STALL
        if time.monotonic() > deadline:
            raise ModelError(_timeout(hub, state))
    raise RunCancelled(f"the download of {model} was stopped")


def _timeout(hub: str, state: Progress) -> str:
    if not state.file:
        return f"the hub ({hub}) did not answer in {ANSWER:g} s; {ADVICE}"
    done = f"{megabytes(state.done)} of {megabytes(state.total)}"
    return f"{state.file} made no progress for {STALL:g} s, at {done}; {ADVICE}"


@contextlib.contextmanager
def _process(model: str) -> Generator[SimpleQueue[bytes | None]]:
    limits = {"HF_HUB_ETAG_TIMEOUT": f"{ANSWER:.0f}", "HF_HUB_DOWNLOAD_TIMEOUT": f"{STALL:.0f}"}
    # Plain HTTP removes incomplete files, counts every byte and obeys a signal.
    options = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    process = subprocess.Popen(
        command("specscope.engine.checkpoints.hub_process", model),
        env={**options, **variables(**limits)},
        stdin=subprocess.PIPE,  # closes when this process ends, which ends the download
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches this process, which then ends the other one
    )
    lines = SimpleQueue[bytes | None]()
    reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        yield lines
    finally:
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _read(stream: Any, lines: SimpleQueue[bytes | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)
