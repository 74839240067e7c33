"""Show the runs of your own decoding loop live, from the trace files that it writes."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specscope.app.cli import common, options
from specscope.engine.errors import UsageError
from specscope.engine.trace.events import Footer, Header, Round

if TYPE_CHECKING:
    from specscope.app.recordings import Recordings
    from specscope.engine.trace.events import Event
    from specscope.traces.follow import Tail, Tally
    from specscope.traces.store import Store

PLACE: options.Options = {
    "--folder": (Path, "FOLDER", "offer its *.jsonl, too (recordings in SpecScope's data folder)"),
    "--port": (int, "N", "port of the page (7860, or the next free one)"),
}
LINES: options.Options = {"--json": (False, "", "no page: print a JSON object per round, until the footers")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "a JSONL trace that is being written; it may not exist yet"
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=what)
    options.add_options(parser, PLACE, options.DATABASE, LINES)


def run(args: argparse.Namespace) -> int:
    from specscope.app.recordings import Recordings

    if not args.files and (args.json or args.folder is None):
        raise UsageError("no file is named; give the trace files to follow, or --folder and no --json")
    for folder in [*(path.absolute().parent for path in args.files), *filter(None, [args.folder])]:
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder; make it first")
    recordings = Recordings(args.files, args.folder)
    return _print(args, recordings) if args.json else _open(args, recordings)


def _open(args: argparse.Namespace, recordings: Recordings) -> int:
    if sys.stderr.isatty():
        common.note("starting the page")  # the imports take seconds
    from specscope.app.routes import follow_address
    from specscope.app.server import AUTH, serve

    query = follow_address([*recordings.files]) if recordings.files else "/?tab=history"
    auth = os.environ.get(AUTH)
    return serve(port=args.port, auth=auth, database=args.db, recordings=recordings, query=query)


def _print(args: argparse.Namespace, recordings: Recordings) -> int:
    """Print the rounds of all files until each has its footer; store their runs."""
    from specscope.app.recordings import unfinished
    from specscope.traces.follow import POLL, Tally

    open_ = [(recordings.tail(name), Tally()) for name in recordings.files]
    said = dict.fromkeys(recordings.files, "")
    with common.open_store(args) as store:
        try:
            while open_:
                news = [_step(*one, store) for one in open_]
                for tail, _ in open_:
                    if tail.waiting and tail.waiting != said[tail.path.name]:
                        said[tail.path.name] = tail.waiting
                        common.note(f"waiting: {tail.waiting}")
                open_ = [one for one in open_ if one[0].footer is None]
                if open_ and not any(news):
                    time.sleep(POLL)
        except KeyboardInterrupt:
            for tail, _ in open_:
                if tail.header is not None:
                    common.note(unfinished(tail))
            raise
        finally:
            for tail, _ in open_:
                tail.close()
    return 0


def _step(tail: Tail, tally: Tally, store: Store) -> bool:
    """Print what is new in a file, and store its run after the footer; return whether there was."""
    from specscope.app.recordings import stored

    events = tail.read()
    for event in events:
        tally.add([event])
        if line := _line(event, tally):
            if isinstance(event, Footer) and tail.header:
                line |= {"run_id": tail.header.run_id, "message": stored(store, tail)}
                tail.close()
            print(common.json_text({"file": tail.path.name, **line}), flush=True)
    return bool(events)


def _line(event: Event, tally: Tally) -> dict[str, Any]:
    """Return the fields of a header, a round or a footer with the figures so far; else none."""
    if isinstance(event, Header):
        return {"event": "header", "run_id": event.run_id, "method": event.method, "title": event.title}
    if not isinstance(event, Round | Footer):
        return {}
    names: Sequence[str] = ("status", "error")
    if isinstance(event, Round):
        names = ("step", "sequence", "drafted", "accepted", "emitted")
    return {
        "event": event.tag,
        **{name: getattr(event, name) for name in names},
        "time_ms": event.time / 1e6,
        "rounds": tally.rounds,
        "tokens": tally.tokens,
        "acceptance_rate": tally.acceptance_rate,
        "tokens_per_second": tally.tokens_per_second,
    }
