"""The process that writes: steps of vLLM, a line each on stdin, become a recording per request.

    python -m specscope.engine.vllm.writer FOLDER

Needs the standard library, and for texts `tokenizers`, which vLLM has. It ends with its stdin; what
it cannot write is one line on stdout.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from specscope.engine.errors import one_line
from specscope.engine.trace.appended import Lines
from specscope.engine.trace.events import Header, Status
from specscope.engine.trace.recorder import RECORDED, Recorder
from specscope.engine.trace.texts import TokenTexts
from specscope.engine.trace.work import devices_of

COLUMNS = "start_ns,requests,rows,drafted,accepted,tokens,forward_us,sample_us,draft_us,recorder_us\n"
UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
"""A client chooses a part of a request's name, which becomes a part of the file's."""


class RequestRecording:
    """The open recording of a request."""

    def __init__(self, path: Path, told: dict[str, Any], about: dict[str, Any], decode: Any) -> None:
        self.told, self.about = told, about
        self.out = 0
        """Tokens of the output."""
        self._end = 0
        """Of the last span: the spans of a device do not overlap."""
        rule = "match" if told["sampling"]["temperature"] == 0 and about["rule"] else about["rule"]
        header = Header(
            run_id=uuid.uuid4().hex[:12],
            created=datetime.now(UTC).isoformat(timespec="milliseconds"),
            method=RECORDED,
            title=about["title"],
            config=about["config"],
            prompts=(),
            prompt_ids=(),
            sampling=told["sampling"],
            limits={"max_new_tokens": told["most"]},
            runtime="vLLM",
            profile="",
            devices=devices_of({about["device"]: "drafter+target"}),
            target_path=about["target"],
            drafter_path=about["drafter"],
            environment=about["environment"],
            lossless=about["lossless"],
        )
        lines = Lines(path, replace=True)
        self.recorder = Recorder(lines, header, TokenTexts(decode), rule, measured=False)
        self.recorder.prompt(ids=told["prompt"])

    def step(self, spans: Sequence[Any], fed: Sequence[int], found: dict[str, Any] | None) -> bool:
        """Record a step; return whether the output has ended."""
        rows, context = fed
        length = len(self.told["prompt"]) + self.out
        prefill = not self.out or rows > 1 + (found["rows"] if found else 0)
        ended = False
        for kind, begun, end in spans:
            if kind == "forward":
                first = "prefill" if prefill else "verify"
                self._add(first, begun, end, rows=rows, context=context if prefill else length - 1)
            elif kind == "sample":
                self._add(kind, begun, end)
                if found and found["ids"]:
                    ended = self._round(found, self._end)
            elif not ended:  # no draft follows the last token
                self._add(kind, begun, end, rows=0 if self.about["searches"] else -1)
        return ended

    def _add(self, kind: str, begun: int, end: int, rows: int = -1, context: int = -1) -> None:
        begun = max(begun, self._end)
        self._end = max(begun, end)
        self.recorder.add(kind, begun, self._end, rows=rows, context=context)

    def _round(self, found: dict[str, Any], time: int) -> bool:
        ids, told = found["ids"], self.told
        end = next((i + 1 for i, token in enumerate(ids) if token in told["stops"]), 0)
        room = self.about["most"] - len(told["prompt"])
        left = min(room, told["most"] or room) - self.out
        cut = min(end or len(ids), left)
        self.out += cut
        reason = "eos" if cut == end else "length" if cut == left else ""
        self.recorder.round(
            found["drafted"],
            len(ids) - 1,
            ids[:cut],
            p=found["p"],
            q=found["q"],
            time=time,
            reason=reason,
        )
        return bool(reason)

    def close(self, status: Status = "done", error: str = "") -> None:
        """End the file; of a request without a token nothing but its prompt is known."""
        self.recorder.close(status, error)


class Writer:
    """The requests that run."""

    def __init__(
        self, folder: Path, about: dict[str, Any], decode: Callable[[list[int]], str] | None
    ) -> None:
        self._folder, self._about, self._decode = folder, about, decode
        self._open: dict[str, RequestRecording] = {}
        self._started = f"{datetime.now():%Y%m%d-%H%M%S%f}-{os.getpid()}"
        self._count = 0
        self._table = (folder / f"{self._started}-steps.csv").open("a", buffering=1, encoding="utf-8")
        self._table.write(COLUMNS)

    def step(self, said: dict[str, Any]) -> None:
        if said["lost"]:
            self.end(
                "failed",
                f"{said['lost']} of vLLM's steps before this end were not recorded: the queue was full",
            )
        for name in said["finished"]:
            if request := self._open.pop(name, None):  # vLLM's worker is not told why
                request.close("done" if request.told["hidden"] else "cancelled")
        for name, known in said["known"].items():
            self._resampled(name, known)
        for told in said["new"]:
            self._begin(told)
        found = _of_requests(said)
        self._tell(said, found)
        for name, fed in said["fed"].items():
            request = self._open.get(name)
            if request is not None and request.step(said["spans"], fed, found.get(name)):
                self._open.pop(name).close()

    def _tell(self, said: dict[str, Any], found: dict[str, dict[str, Any]]) -> None:
        """Write a step's line of the table."""
        if not said["fed"]:
            return
        times = {kind: round((end - begun) / 1e3) for kind, begun, end in said["spans"]}
        ids, drafts = (sum(len(one[name]) for one in found.values()) for name in ("ids", "drafted"))
        accepted = sum(max(0, len(one["ids"]) - 1) for one in found.values())
        counts = (len(said["fed"]), sum(rows for rows, _ in said["fed"].values()), drafts, accepted, ids)
        parts = (times.get(kind, 0) for kind in ("forward", "sample", "draft"))
        row = (said["spans"][0][1], *counts, *parts, round(said["cost"] / 1e3))
        self._table.write(",".join(map(str, row)) + "\n")

    def _resampled(self, name: str, known: int) -> None:
        """End a recording of which vLLM's scheduler knows fewer tokens: it dropped the others.

        It may also expect more than there are, while a step is under way.
        """
        request = self._open.get(name)
        if request is not None and known < request.out:
            again = f"vLLM dropped sampled tokens and samples them again after {known} of {request.out} recorded ones"
            self._open.pop(name).close("failed", again)

    def _begin(self, told: dict[str, Any]) -> None:
        name, known = told["name"], max(0, told["known"] - len(told["prompt"]))
        old = self._open.get(name)
        if old is not None and old.told["prompt"] == told["prompt"]:
            self._resampled(name, known)
            return
        if old is not None:  # the next input of a session
            self._open.pop(name).close()
        if known:  # its first tokens were not recorded
            return
        self._count += 1
        safe = UNSAFE.sub("_", name)[:80]
        path = self._folder / f"{self._started}-{self._count:06d}-{safe}.jsonl"
        self._open[name] = RequestRecording(path, told, self._about, self._decode)

    def end(self, status: Status, error: str) -> None:
        """Close all files that are open."""
        opened, self._open = self._open, {}
        for request in opened.values():
            request.close(status, error)


def _of_requests(said: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return name -> ids, draft, p and q of the requests that sampled."""
    found = dict[str, dict[str, Any]]()
    drafts = said.get("drafts", [])
    partial, allowed = {*said.get("partial", ())}, said.get("allowed", {})
    starts = accumulate(drafts, initial=0)
    for i, (name, start, n) in enumerate(zip(said["names"], starts, drafts, strict=False)):
        end = start + n
        drafted = said.get("drafted", [])[start:end]
        ids = [] if i in partial else said["ids"][i][: said["counts"][i]]
        size = next((k for k, token in enumerate(drafted) if token < 0), n)  # the rest are placeholders
        size = max(len(ids) - 1, min(size, allowed.get(name, n)))
        p = _numbers(said.get("p", [])[start : start + size]) if "own" in said else None
        own = _numbers(said["own"][i : i + 1]) if "own" in said else []
        found[name] = {
            "ids": ids,
            "drafted": drafted[:size],
            "rows": n,
            "p": None if p is None else [*p, *own],
            "q": _numbers(said["q"][start : start + size]) if "q" in said else None,
        }
    return found


def _numbers(values: Sequence[float]) -> list[float | None]:
    """Return probabilities; what is not a number is unknown, and rounding may exceed 1."""
    return [min(1.0, value) if value >= 0 else None for value in values]


def decoder(tokenizer: str) -> Callable[[list[int]], str] | None:
    """Return ids -> text; None without a tokenizer.json, and texts are then unknown."""
    if not tokenizer:
        return None
    try:
        from tokenizers import Tokenizer

        path = Path(tokenizer) / "tokenizer.json"
        if not path.is_file():
            from huggingface_hub import hf_hub_download

            path = hf_hub_download(tokenizer, "tokenizer.json", local_files_only=True)
        found: Any = Tokenizer.from_file(str(path))
    except Exception:  # noqa: BLE001 - a Rust library's errors have no common type
        return None
    return lambda ids: found.decode(ids, skip_special_tokens=False)


def main(folder: str) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError, ValueError):
        os.nice(5)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a file for each request
    writer = None
    try:
        about = json.loads(sys.stdin.buffer.readline())
        writer = Writer(Path(folder), about, decoder(about["tokenizer"]))
        failed = "the server ended before the request"
        for line in sys.stdin.buffer:
            said = json.loads(line)
            if "failed" in said:
                failed = said["failed"] or failed
                break
            writer.step(said)
        writer.end("incomplete", failed)
    except Exception as error:  # noqa: BLE001 - the server logs it
        why = one_line(error)
        sys.stdout.write(f"{why}\n")
        sys.stdout.flush()
        if writer is not None:
            with suppress(Exception):
                writer.end("failed", why)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
