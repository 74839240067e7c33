"""Show live what other processes write: recordings, logs of servers, and their counters."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specscope.app.cli import common, options
from specscope.engine.errors import UsageError
from specscope.engine.trace.events import Footer, Header, Round
from specscope.engine.types import check_range

if TYPE_CHECKING:
    from specscope.app.jobs.recordings import Recordings
    from specscope.engine.trace.events import Event
    from specscope.traces.database.store import Store
    from specscope.traces.following.folder import Ended, Folder
    from specscope.traces.following.follow import Tail, Tally
    from specscope.traces.following.growing import Counting, Growth

EVERY_S, LEAST_EVERY_S = 5.0, 0.1
"""Seconds between two questions for counters, and the fewest."""
PLACE: options.Options = {
    "--folder": (Path, "FOLDER", "offer its *.jsonl, too (recordings in SpecScope's data folder)"),
    "--port": (int, "N", "port of the page (7860, or the next free one)"),
    "--every": (EVERY_S, "SECONDS", f"between two questions for counters ({EVERY_S:g})"),
    "--from-end": (False, "", "leave out what a log or a folder has already"),
    "--remote": (False, "", "an address may be on another machine"),
}
LINES: options.Options = {
    "--lines": (False, "", "no page: a line for each round or window of counts"),
    "--json": (False, "", "no page: a JSON object for each, until the footers"),
}
WHAT = (
    "a recording (JSONL) that is being written, the log of llama.cpp's server, vLLM or SGLang, "
    "a folder of recordings, or the address of a server's /metrics; a file may not exist yet"
)
OPTIONS = ({"files": ({"nargs": "*"}, "WHAT", WHAT)}, PLACE, options.DATABASE, LINES)


def run(args: argparse.Namespace) -> int:
    from specscope.app.jobs.recordings import Recordings

    printed = args.json or args.lines
    if not args.files and (printed or args.folder is None):
        raise UsageError(
            "nothing is named; give a recording, a log, a folder or an address to follow, or --folder and no --json"
        )
    check_range("--every", args.every, LEAST_EVERY_S, 86_400)
    if args.folder is not None and not args.folder.is_dir():
        raise UsageError(f"{args.folder} is no folder; make it first")
    given = {"every": args.every, "from_end": args.from_end, "remote": args.remote}
    recordings = Recordings(args.files, args.folder, **given)
    return _print(args, recordings) if printed else _open(args, recordings)


def _open(args: argparse.Namespace, recordings: Recordings) -> int:
    if sys.stderr.isatty():
        common.note("starting the page")  # the imports take seconds
    from specscope.app.render.addresses import follow_address
    from specscope.app.web.server import AUTH, serve

    query = follow_address([*recordings.files]) if recordings.files else "/?tab=history"
    auth, recordings.tell = os.environ.get(AUTH), lambda words: print(common.printable(words), flush=True)
    return serve(port=args.port, auth=auth, database=args.db, recordings=recordings, query=query)


def _print(args: argparse.Namespace, recordings: Recordings) -> int:
    """Print what all sources tell until each recording has its footer; store their runs."""
    from specscope.traces.following.follow import POLL

    with common.open_store(args) as store:
        open_ = [_Printer(name, recordings.source(name, store), store, args) for name in recordings.files]
        try:
            while open_:
                news = [one.step() for one in open_]
                open_ = [one for one in open_ if not one.over]
                if open_ and not any(news):
                    time.sleep(POLL)
        except KeyboardInterrupt:
            for one in open_:
                one.stop()
            raise
        finally:
            for one in open_:
                one.source.close()
    return 0


class _Printer:
    """Prints the news of one recording, log, folder or address."""

    def __init__(
        self, name: str, source: Tail | Counting | Folder, store: Store, args: argparse.Namespace
    ) -> None:
        from specscope.traces.following.follow import Tally

        self.source, self.over = source, False
        self._name, self._store, self._json, self._tally = name, store, args.json, Tally()
        self._said = ""

    def step(self) -> bool:
        """Print what is new; return whether there was something."""
        from specscope.traces.following.follow import Tail
        from specscope.traces.following.growing import Counting

        if isinstance(self.source, Tail):
            found: Any = self._recording(self.source)
            waiting = self.source.waiting
        elif isinstance(self.source, Counting):
            found = self._counts(self.source.step())
            waiting = self.source.source.waiting
        else:
            found, waiting = self._runs(self.source.step()), ""
        if waiting and waiting != self._said:
            common.note(f"waiting: {waiting}")
        self._said = waiting or self._said
        return found

    def stop(self) -> None:
        """Print what was held back until more would come, and what is not stored."""
        from specscope.app.jobs.recordings import unfinished
        from specscope.traces.following.follow import Tail
        from specscope.traces.following.growing import Counting

        if isinstance(self.source, Counting):
            self._counts(self.source.step(last=True))
            common.note(f"{self._name}: {self.source.note}") if self.source.note else None
        elif not isinstance(self.source, Tail):
            common.note(f"{self._name}: {self.source.note}")
        elif self.source.unfinished:
            common.note(unfinished(self.source))

    def _recording(self, tail: Tail) -> bool:
        """Print what is new in a recording, and store its run after the footer."""
        from specscope.app.jobs.recordings import stored

        events = tail.read()
        for event in events:
            self._tally.add([event])
            if row := _line(event, self._tally):
                if isinstance(event, Footer) and tail.header:
                    row |= {"run_id": tail.header.run_id, "message": stored(self._store, tail)}
                    tail.close()
                    self.over = True
                self._out({"file": self._name, **row}, _words(row))
        return bool(events)

    def _counts(self, grown: Sequence[Growth] | None) -> bool:
        from specscope.traces.following.growing import Counting
        from specscope.traces.view.counts import line, view_of

        several = isinstance(self.source, Counting) and len(self.source.titles) > 1
        for run in grown or ():
            server = run.title.partition(" · ")[2] or run.title * several
            for one in run.fresh:
                row = {"file": self._name, "event": "window", "run_id": run.run_id, **view_of(one)}
                self._out(row | {"server": server}, f"{server} · {line(one)}" if server else line(one))
        return grown is not None

    def _runs(self, ended: Sequence[Ended] | None) -> bool:
        from specscope.traces.following.follow import Tally

        for name, trace, problem in ended or ():
            if trace is None:
                common.note(problem)
                continue
            tally = Tally()
            tally.take(trace)
            row = {"file": name, "run_id": trace.header.run_id, **_figures(tally)}
            words = f"{name} · run {trace.header.run_id} · {trace.status}"
            self._out(row | {"event": "run", "status": trace.status}, _words(row | {"event": words}))
        return ended is not None

    def _out(self, row: Mapping[str, Any], words: str) -> None:
        print(common.json_text(row) if self._json else common.printable(words), flush=True)


def _line(event: Event, tally: Tally) -> dict[str, Any]:
    """Return the fields of a header, a round or a footer with the figures so far; else none."""
    if isinstance(event, Header):
        return {"event": "header", "run_id": event.run_id, "method": event.method, "title": event.title}
    if not isinstance(event, Round | Footer):
        return {}
    names: Sequence[str] = ("status", "error")
    if isinstance(event, Round):
        names = ("step", "sequence", "drafted", "accepted", "emitted")
    row = {"event": event.tag, **{name: getattr(event, name) for name in names}}
    return {**row, "time_ms": event.time / 1e6, **_figures(tally)}


def _figures(tally: Tally) -> dict[str, Any]:
    return {
        "rounds": tally.rounds,
        "tokens": tally.tokens,
        "acceptance_rate": tally.acceptance_rate,
        "tokens_per_second": tally.tokens_per_second,
    }


def _words(row: Mapping[str, Any]) -> str:
    """Return a row as a line of text."""
    rate, speed = row.get("acceptance_rate"), row.get("tokens_per_second")
    parts = [
        str(row["event"]),
        *(str(row[name]) for name in ("step", "title", "status", "error", "message") if row.get(name)),
        f"{row['accepted']}/{row['drafted']} accepted" if "drafted" in row else "",
        f"{row['tokens']} tokens so far" if "tokens" in row else "",
        "" if rate is None else f"{rate:.0%} of drafts accepted",
        "" if speed is None else f"{speed:.1f} tokens/s",
    ]
    return " · ".join(filter(None, parts))
