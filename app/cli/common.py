"""What the commands share: progress on stderr, stores, clusters, recorded runs, and JSON output."""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specscope.app.bars import DownloadBar
from specscope.app.cli.options import MODELS, PLACE, is_measured, values_of
from specscope.engine.errors import StoreMissing, UsageError, shown
from specscope.engine.files import replacing
from specscope.engine.trace.events import Commit, Header

if TYPE_CHECKING:
    from specscope.app.busy import ProcessorTime
    from specscope.engine.trace.trace import Trace
    from specscope.traces.database.store import Store

QUIET_S, PERIOD_S = 0.3, 0.2
"""Seconds until the line appears, and between two of its updates."""
ERASE = "\r\x1b[2K"
WIDEST = 100


class Status:
    """A line with a text, which can be changed, and its seconds; nothing without a terminal."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._begun = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True) if sys.stderr.isatty() else None

    def __enter__(self) -> Status:
        if self._thread is not None:
            self._thread.start()
        return self

    @property
    def shown(self) -> bool:
        return self._thread is not None

    def __exit__(self, *_: object) -> None:
        self.hide()

    def hide(self) -> None:
        """Erase the line for good, before other output."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        shown, wait = False, QUIET_S
        while not self._over.wait(wait):
            seconds = time.monotonic() - self._begun
            sys.stderr.write(f"{ERASE}{self.text[:WIDEST]} · {seconds:.0f} s")
            sys.stderr.flush()
            shown, wait = True, PERIOD_S
        if shown:
            sys.stderr.write(ERASE)
            sys.stderr.flush()


def open_store(args: argparse.Namespace) -> Store:
    with Status("opening the database"):
        from specscope.traces.database.store import Store, default_path

        return Store(args.db if args.db is not None else default_path())


@contextmanager
def open_readonly(args: argparse.Namespace, names: Sequence[str]) -> Generator[Store]:
    """Open the database in which runs with these names are looked up."""
    from specscope.traces.database.store import Store, default_path

    try:
        with Store(args.db if args.db is not None else default_path(), readonly=True) as store:
            yield store
    except StoreMissing as error:
        raise UsageError(f"there is no run {', '.join(map(shown, names[:3]))}: {error}") from None


def load_runs(args: argparse.Namespace, names: Sequence[str], *, compared: bool = False) -> dict[str, Trace]:
    """Return stored runs by id, `compared` with the other runs of their comparisons."""
    with open_readonly(args, names) as store:
        wanted = [other for name in names for other in (store.group(name) if compared else [name])]
        return {name: store.load(name) for name in dict.fromkeys(wanted)}


@contextmanager
def open_cluster(args: argparse.Namespace) -> Generator[Any]:
    """Open the cluster that the options describe; show downloads of its models on stderr."""
    if args.runtime in (None, "local-process") and is_measured(args) and args.device != "cuda":
        from specscope.engine.runtimes.forks import warm_up

        warm_up()  # it imports torch while this process does
    with Status("loading the models") as status, DownloadBar(status.hide) as bar:
        import specscope

        opened = specscope.open(progress=bar.show, **values_of(args, MODELS, PLACE))
    with opened as cluster:
        if cluster.note:
            note(cluster.note)
        yield cluster


def recorded(
    store: Any,
    cluster: Any,
    method: str,
    prompts: list[Any],
    options: dict[str, Any],
    part: str = "",
    *,
    stream: bool = False,
) -> Trace:
    """Run a method on prompts and store its events as they arrive; show the progress on stderr.

    `options` go to `Cluster.run`; `part` names the run among several; `stream` prints the text.
    """
    title = " ".join(filter(None, [method, part]))
    status, tokens = Status(title), count(1)

    def show(text: str) -> None:
        status.text = f"{title}: {next(tokens)} tokens"
        if stream:
            status.hide()
            print(printable(text), end="", flush=True)

    def works(text: str) -> None:
        status.text = f"{text}; Ctrl-C stops it"
        if not status.shown:
            print(f"specscope: {status.text}", file=sys.stderr, flush=True)

    def measuring() -> None:
        from specscope.engine.cluster.probing import BUDGET_S, VERIFY_S

        seconds = f"{BUDGET_S:.0f} to {BUDGET_S + VERIFY_S:.0f} s, once on this machine"
        works(f"measuring {cluster.pair.name} for {title}: {seconds}")

    begun = False
    with store.listening() as record:

        def listen(event: Any) -> None:
            nonlocal begun
            if isinstance(event, Header) and _compiles(event):
                works(
                    f"compiling layers of {cluster.pair.name}: seconds for each number of rows, kept on this disk"
                )
            begun = True
            record(event)
            if isinstance(event, Commit):
                show(event.text)

        try:
            with status:
                return cluster.run(method, *prompts, listener=listen, measuring=measuring, **options)
        finally:
            if stream and begun:
                print()


def _compiles(header: Header) -> bool:
    """Return whether a run begins with compiling its layers."""
    return header.environment.get("forward") == "compiled" and "compiled" not in header.environment


def check_output(path: Path | None, what: str = "", *endings: str) -> None:
    """Refuse a path to which no file can be written, or of another ending, before the work."""
    if path is None:
        return
    if endings and path.suffix not in endings:
        raise UsageError(f"the output {path} is no {what}; name a file that ends in {' or '.join(endings)}")
    if path.is_dir():
        raise UsageError(f"the output {path} is a folder; name a file")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"the folder of the output {path} does not exist; make it first")


def write_output(path: Path, content: str) -> int:
    """Replace a file once the content is complete; return its size in bytes."""
    with replacing(path) as file:
        file.write(content)
    return path.stat().st_size


def note(line: str) -> None:
    print(f"specscope: {printable(line)}", file=sys.stderr, flush=True)


def confirmed(question: str) -> bool:
    """Return whether a person answers yes; False without a terminal."""
    if not sys.stdin.isatty():
        return False
    print(printable(question), "[y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def busy_warning(args: argparse.Namespace, before: ProcessorTime) -> str:
    """Return the warning of a busy machine for measured runs, else nothing; print it on stderr."""
    from specscope.app.busy import busy_since

    elsewhere = args.address is not None  # a cluster's workers are no children of this process
    warning = busy_since(before) if is_measured(args) and not elsewhere else ""
    if warning:
        note(warning)
    return warning


def clean(value: Any) -> Any:
    """Return a copy for JSON, with NaN and infinities as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [clean(v) for v in value]
    return value


_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""Signs that steer a terminal and that JSON leaves as they are."""


def json_text(value: Any, **how: Any) -> str:
    return json.dumps(clean(value), ensure_ascii=False, **how).translate(_CONTROLS)


def print_json(value: Any) -> None:
    sys.stdout.write(json_text(value, indent=2) + "\n")


def printable(text: str) -> str:
    """Return a text of a model or a file without signs that steer a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def answer(args: argparse.Namespace, value: Any, lines: Iterable[str]) -> int:
    """Print a value with --json, else lines of text; return the exit code of success."""
    if args.json:
        print_json(value)
    else:
        for line in lines:
            print(printable(line))
    return 0
