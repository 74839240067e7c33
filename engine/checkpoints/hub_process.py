"""The process that downloads a hub model.

`python -m specscope.engine.checkpoints.hub_process OWNER/NAME` starts it.
It prints one JSON object per line: `hub` with the hub's address, `file`, `done` and `total` during
the transfer, then `ended` or `error`. It does not trust file names, sizes or lengths that the hub
sends.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from specscope.engine.checkpoints.hub import ADVICE, ANSWER
from specscope.engine.checkpoints.progress import megabytes
from specscope.engine.errors import ModelError, one_line

CHUNK = 64 * 2**10
"""Bytes of a file that are read, counted and written at a time."""
SPARE = 2**30
"""Free bytes that a download leaves."""
MEMORY = 2**30
"""Most bytes of memory for the process, so that an endless answer cannot fill the machine's."""
REFRESH = 0.1
"""Least seconds between two lines of progress."""
_WANTED = re.compile(r"[\w-][\w.+-]*\.(json|jinja)|model[\w.-]*\.safetensors|tokenizer\.model|merges\.txt")
"""Weights, configs, tokenizers and templates at the top of a repository; no pickles, no code."""
_INDEX = "model.safetensors.index.json"
_LAST = "config.json"
_COMMIT = re.compile("[0-9a-f]{40}")
_WRITES = {"os.mkdir": (0,), "os.rename": (0, 1), "os.link": (0, 1), "os.symlink": (1,)}
"""Audit event -> indices of its arguments that are created or moved paths."""
Say = Callable[..., None]


def needed(files: Sequence[tuple[str, Any]]) -> dict[str, int]:
    """Return name -> size of the files that a decoder is loaded from; config.json is the last.

    A ModelError if a name leaves the repository, a size is invalid, or the config or the
    safetensors are missing.
    """
    for name, _ in files:
        if not name or {"..", ".", ""} & set(name.split("/")) or "\\" in name or "\0" in name:
            raise ModelError(f"the hub lists a file named {name!r}, which is no name in a repository")
    sizes = {name: size for name, size in files if _WANTED.fullmatch(name)}
    if _INDEX in sizes:
        sizes.pop("model.safetensors", None)
    else:
        sizes = {n: s for n, s in sizes.items() if n == "model.safetensors" or not n.endswith(".safetensors")}
    if _LAST not in sizes:
        raise ModelError("the hub's model has no config.json; choose a language model")
    if not any(name.endswith(".safetensors") for name in sizes):
        pickles = [
            name for name, _ in files if PurePosixPath(name).suffix in (".bin", ".pt", ".pth", ".ckpt")
        ]
        why = f", only {pickles[0]}, which can run code and is not read" if pickles else ""
        raise ModelError(f"the hub's model has no safetensors{why}; choose a model that has")
    for name, size in sizes.items():
        if type(size) is not int or size < 0:
            raise ModelError(f"the hub says that {name} has {size!r} bytes")
    return dict(sorted(sizes.items(), key=lambda item: item[0] == _LAST))


def check_space(sizes: dict[str, int], cache: Path) -> None:
    folder = next(path for path in (cache, *cache.parents) if path.exists())
    total, free = sum(sizes.values()), shutil.disk_usage(folder).free
    if total + SPARE > free:
        raise ModelError(
            f"it has {megabytes(total)}, the disk of {cache} has {megabytes(free)} free, of which "
            f"{megabytes(SPARE)} must stay free: make room, or set HF_HOME to another disk"
        )


class _Bar:
    """Replacement for the library's progress bar: reports bytes and limits their number."""

    def __init__(self, name: str, size: int, report: Callable[[int], None]) -> None:
        self._name, self._size, self._report = name, size, report
        self._done = 0

    def __call__(self, **_: Any) -> _Bar:
        return self

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, n: float | None = 1) -> None:
        """Add n bytes; n is negative if the library starts over."""
        self._done += int(n or 0)
        if self._done > self._size:
            raise ModelError(f"the hub sends more of {self._name} than the {self._size} bytes that it listed")
        self._report(int(n or 0))

    def close(self) -> None:
        """Do nothing."""


def fetch(model: str, say: Say) -> None:
    """Download the missing files of a model; config.json and the reference to the commit last."""
    info = HfApi().model_info(model, files_metadata=True, timeout=ANSWER)
    commit = str(info.sha)
    if not _COMMIT.fullmatch(commit):
        raise ModelError(f"the hub names {commit!r} as the model's commit")
    sizes = needed([(file.rfilename, file.size) for file in info.siblings or []])
    missing = {n: s for n, s in sizes.items() if not try_to_load_from_cache(model, n, revision=commit)}
    check_space(missing, Path(constants.HF_HUB_CACHE))
    done, reported = 0, 0.0

    def count(n: int) -> None:
        nonlocal done, reported
        done += n
        if time.monotonic() - reported >= REFRESH:
            reported = time.monotonic()
            say(file=name, done=done)

    for name, size in sizes.items():
        say(file=name, done=done, total=sum(missing.values()))
        # Downloading config.json by branch writes the reference that marks the model as complete.
        revision = "main" if name == _LAST else commit
        bar: Any = _Bar(name, size, count)
        path = hf_hub_download(model, name, revision=revision, tqdm_class=bar, etag_timeout=ANSWER)
        if Path(path).parent.name != commit:
            raise ModelError("the model changed on the hub during the download; try again")


def confine(*folders: str) -> None:
    """Let this process write below these folders only: file names come from the hub's headers."""
    roots = tuple(os.path.realpath(folder) for folder in folders)

    def check(path: Any) -> None:
        if isinstance(path, int) or path == os.devnull:
            return
        whole = os.path.abspath(os.fsdecode(path))
        real = os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))
        if not any(
            real == root or real.startswith(root + os.sep) or root.startswith(real + os.sep) for root in roots
        ):
            raise ModelError(f"the hub's answer asks for writing {whole}, outside the cache of models")

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            check(args[0])
        for index in _WRITES.get(event, ()):
            check(args[index])
        if event == "os.symlink":
            check(os.path.join(os.path.dirname(os.fsdecode(args[1])), os.fsdecode(args[0])))

    sys.addaudithook(hook)


def reason(error: BaseException) -> str:
    """Return the cause of a failed download and a remedy, in one line."""
    if isinstance(error, ModelError):
        return str(error)
    hub = f"the hub ({constants.ENDPOINT})"
    cause = (error.__cause__ or error) if isinstance(error, LocalEntryNotFoundError) else error
    if isinstance(cause, GatedRepoError):
        return f"{hub} asks for an agreement first; accept it there, then set HF_TOKEN"
    status = cause.response.status_code if isinstance(cause, HfHubHTTPError) else 0
    if isinstance(cause, RepositoryNotFoundError) or status == 401:
        return f"{hub} has no such model, or only for a login; check the name, or set HF_TOKEN"
    if status:
        return f"{hub} answered {status}; {ADVICE}"
    if isinstance(cause, MemoryError):
        return f"{hub} sends more than fits in {megabytes(MEMORY)}; {ADVICE}"
    if isinstance(cause, OSError) and cause.strerror:
        return f"{cause.strerror}: {cause.filename or constants.HF_HUB_CACHE}; set HF_HOME to another folder"
    return f"{hub}: {one_line(f'{type(cause).__name__}: {cause}')[:200]}; {ADVICE}"


def _stop(*_: object) -> None:
    raise SystemExit(1)  # the library then removes the incomplete file


def _watch() -> None:
    """End this process with its parent, whose end closes standard input."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(3)
    os._exit(1)


def main() -> None:
    def say(**facts: Any) -> None:
        os.write(1, json.dumps(facts).encode() + b"\n")

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=_watch, daemon=True).start()
    with contextlib.suppress(ValueError, OSError):  # the machine's limit may be lower
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    constants.DOWNLOAD_CHUNK_SIZE = CHUNK  # default 10 MiB: minutes without progress on a slow line
    confine(constants.HF_HOME, constants.HF_HUB_CACHE)
    say(hub=constants.ENDPOINT)
    try:
        fetch(sys.argv[1], say)
    except Exception as error:  # noqa: BLE001 - the library's network stack, and so its errors, differ by version
        say(error=reason(error))
    else:
        say(ended=True)


if __name__ == "__main__":
    main()
