"""Models of the hub: find them in the local cache, or download them with a time limit, progress and cancel.

`engine/pairs/download.py` talks to the hub in a process of its own. No library call that waits for a network can be
interrupted from another thread, a process can be ended at any moment. The network is used for a named hub id only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from engine.errors import ModelError, RunCancelled, one_line
from engine.files import parse_json, read_bytes

ANSWER = 10.0
"""Seconds in which the hub must have listed a model's files, however slowly it sends the list."""
STALL = 30.0
"""Seconds in which at least `engine.pairs.download.CHUNK` bytes of a file, or its end, must arrive."""
GRACE = 3.0
"""Seconds in which a download that is stopped removes its incomplete file."""
ADVICE = "check the network, or give a directory"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
MOST_INDEX = 64 * 2**20
"""Bytes of an index of shards."""
_INDEX = "model.safetensors.index.json"
_WEIGHTS = "model.safetensors"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the download of one model is."""

    model: str
    """Its hub id."""
    file: str = ""
    """Name of the file that arrives now; empty until the hub has listed the files."""
    done: int = 0
    """Bytes that have arrived."""
    total: int = 0
    """Bytes that are missing from the cache; 0 until the hub has listed the files."""
    work: str = "Downloading"
    """What is done with the file, for people."""

    @property
    def percent(self) -> int:
        """Share of the bytes that have arrived, rounded down."""
        return 100 * self.done // self.total if self.total else 0

    def __str__(self) -> str:
        if not self.file:
            return f"Asking the hub for {self.model}."
        return f"{self.work} {self.file} of {self.model}: {megabytes(self.done)} of {megabytes(self.total)}."


Report = Callable[[Progress], None]


def megabytes(size: int) -> str:
    """Return a number of bytes as people read it."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def is_hub_id(model: str | os.PathLike[str]) -> bool:
    """Return whether a model is named by a hub id: `owner/name`, which is no path on this machine."""
    return isinstance(model, str) and _HUB_ID.fullmatch(model) is not None and not os.path.exists(model)


def resolve(model: str | Path, progress: Report | None = None, cancel: threading.Event | None = None) -> Path:
    """Return the directory of a model; a hub id is looked up in the local cache first, then downloaded.

    Args:
        model: Directory or hub id.
        progress: Takes the state of a download, first when the hub is asked.
        cancel: Set it to stop a download.

    Raises:
        ModelError: There is no such directory, or the hub has no such model or cannot be reached.
        RunCancelled: `cancel` was set.
    """
    return _local(model) or _download(str(model), progress or (lambda _: None), cancel or threading.Event())


def resolve_local(model: str | Path) -> Path:
    """Return the directory of a model; a hub id is looked up in the local cache only.

    Raises:
        ModelError: There is no such directory, or the cache does not hold the model.
    """
    found = _local(model)
    if found is None:
        raise ModelError(f"{model} is no longer in the cache of hub models; run again to download it")
    return found


def cached(model: str) -> Path | None:
    """Return where the local cache holds a hub model; None when its config, weights or tokenizer are missing.

    Raises:
        ModelError: The hub allows no such id.
    """
    from huggingface_hub import try_to_load_from_cache

    try:
        config = try_to_load_from_cache(model, "config.json")
    except ValueError as error:
        raise ModelError(f"{model} is no hub id: {one_line(error)}; give owner/name") from None
    folder = Path(config).parent if isinstance(config, str) else None
    if folder is None or not any((folder / name).is_file() for name in _TOKENIZERS):
        return None
    return folder if all((folder / name).is_file() for name in _weights(folder)) else None


def _weights(folder: Path) -> list[str]:
    """Return the names of the weight files that a model's directory must hold."""
    try:
        names = parse_json(read_bytes(folder / _INDEX, MOST_INDEX))["weight_map"].values()
        return sorted({Path(name).name for name in names})
    except (ValueError, KeyError, TypeError, AttributeError):  # the loader says what is wrong with it
        return [_WEIGHTS]


def _local(model: str | Path) -> Path | None:
    """Return the directory of a model that is on this machine; None for a hub model that is not."""
    path = Path(os.path.expanduser(model))
    if os.path.isdir(path):  # unlike Path.is_dir, False for a name that is too long
        return path
    if os.path.exists(path):
        raise ModelError(f"{path} is a file; give the directory that holds config.json and *.safetensors")
    if not is_hub_id(model):
        raise ModelError(
            f"{path}: there is no such directory; give a model directory or a hub id like owner/name"
        )
    return cached(str(model))


def _download(model: str, progress: Report, cancel: threading.Event) -> Path:
    from huggingface_hub.constants import HF_HUB_OFFLINE

    try:
        if HF_HUB_OFFLINE:
            raise ModelError("HF_HUB_OFFLINE is set; unset it, or give a directory")
        with _child(model) as lines:
            _follow(model, lines, progress, cancel)
        if (found := cached(model)) is None:
            raise ModelError("the files that the hub sent are no complete model; give a directory")
    except ModelError as error:
        raise ModelError(f"{model} is not a directory here and cannot be downloaded: {error}") from None
    return found


def _follow(model: str, lines: SimpleQueue[bytes | None], progress: Report, cancel: threading.Event) -> None:
    """Pass a download's progress on until it ends.

    Raises:
        ModelError: It failed, or took longer than its limits.
        RunCancelled: `cancel` was set.
    """
    now = Progress(model)
    progress(now)
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
            progress(replace(now, done=now.total))
            return
        if "hub" in message:
            hub, deadline = message.pop("hub"), time.monotonic() + ANSWER
        if message:
            before, now = now, replace(now, **message)
            progress(now)
            if now.done > most or now.file != before.file:  # bytes sent a second time are no progress
                most, deadline = max(most, now.done), time.monotonic() + STALL
        if time.monotonic() > deadline:
            raise ModelError(_late(hub, now))
    raise RunCancelled(f"the download of {model} was stopped")


def _late(hub: str, now: Progress) -> str:
    if not now.file:
        return f"the hub ({hub}) did not answer in {ANSWER:g} s; {ADVICE}"
    return f"{now.file} made no progress for {STALL:g} s, at {megabytes(now.done)} of {megabytes(now.total)}; {ADVICE}"


@contextlib.contextmanager
def _child(model: str) -> Generator[SimpleQueue[bytes | None]]:
    """Yield what a download's process prints, line by line, then None; end the process in any case."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    limits = {"HF_HUB_ETAG_TIMEOUT": f"{ANSWER:.0f}", "HF_HUB_DOWNLOAD_TIMEOUT": f"{STALL:.0f}"}
    # Plain HTTP removes what it could not complete, counts every byte and obeys a signal.
    usual = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.pairs.download", model],
        env={**usual, **os.environ, **limits, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE,  # closes when this process ends; the download then ends, too
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
