"""The recorded texts, a file for each group, and how the outputs differ from them.

A packed group is an xz file with a JSON line [name, text] for each output. The others are text
files, whose changes a commit shows.
"""

from __future__ import annotations

import json
import lzma
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path

FOLDER = Path(__file__).parent / "recorded"
Texts = Mapping[str, str]
"""Name of an output -> its text."""
CONTEXT = 1
"""Equal lines shown on either side of a change."""
LONGEST = 200
"""A longer line is compared in pieces, so that the changed one is shown."""
NAMES = 6
"""Of outputs with one difference, named below it."""


def pack(texts: Texts) -> bytes:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in texts.items())
    return lzma.compress("".join(lines).encode(), preset=9)


def unpack(content: bytes) -> Texts:
    return dict(json.loads(line) for line in lzma.decompress(content).decode().split("\n") if line)


def join(texts: Texts) -> bytes:
    for name, text in texts.items():
        assert not re.search(r"^=== |\r", text, re.MULTILINE), f"the text of {name} needs a packed group"
    return "".join(f"=== {name}\n{text}\n" for name, text in texts.items()).encode()


def split(content: bytes) -> Texts:
    _, *parts = re.split(r"^=== (.*)\n", content.decode(), flags=re.MULTILINE)
    return {name: text.removesuffix("\n") for name, text in zip(parts[::2], parts[1::2], strict=True)}


def read(group: str, packed: bool, revision: str = "") -> Texts:
    """Return the recorded texts of a group, of the working tree or of a commit; {} without any."""
    path = _path(group, packed)
    if revision:
        known = _git("ls-tree", "--name-only", revision, path.name)
        content = _git("show", f"{revision}:./{path.name}") if known else b""
    else:
        content = path.read_bytes() if path.exists() else b""
    return {} if not content else unpack(content) if packed else split(content)


def is_commit(revision: str) -> bool:
    words = ["git", "rev-parse", "--quiet", "--verify", "--end-of-options", f"{revision}^{{commit}}"]
    return not subprocess.run(words, cwd=FOLDER, capture_output=True, check=False).returncode


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=FOLDER, stdout=subprocess.PIPE, check=True).stdout


def write(group: str, packed: bool, texts: Texts) -> None:
    """Record the texts of a group; equal ones keep their file: versions of xz pack differently."""
    if texts != read(group, packed):
        FOLDER.mkdir(exist_ok=True)
        _path(group, packed).write_bytes(pack(texts) if packed else join(texts))


def _path(group: str, packed: bool) -> Path:
    return FOLDER / (f"{group}.jsonl.xz" if packed else f"{group}.txt")


def changes(known: Texts, found: Texts, most: int) -> Iterator[str]:
    """Yield lost and new outputs, then each difference once, at most so many lines of it."""
    yield from (f"lost: {name}" for name in known if name not in found)
    yield from (f"new: {name}" for name in found if name not in known)
    same = defaultdict[tuple[str, ...], list[str]](list)
    for name in known:
        if name in found and known[name] != found[name]:
            same[tuple(difference(known[name], found[name]))].append(name)
    for lines, (first, *others) in same.items():
        yield f"changed: {first}"
        yield from (f"  {line}" for line in lines[:most])
        if len(lines) > most:
            yield f"  … {len(lines) - most} more lines"
        if others:
            more = f" and {len(others) - NAMES} more" if len(others) > NAMES else ""
            yield f"  the same in {', '.join(others[:NAMES])}{more}"


def difference(known: str, found: str) -> Iterator[str]:
    """Yield the lines of a unified difference, each new line after the old one in its place."""
    old, new = _pieces(known), _pieces(found)
    for part in SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT):
        yield "…"
        for kind, *places in part:
            before, after = old[slice(*places[:2])], new[slice(*places[2:])]
            if kind == "equal":
                yield from (f" {line}" for line in before)
                continue
            pairs = zip_longest((f"-{line}" for line in before), (f"+{line}" for line in after))
            yield from (line for pair in pairs for line in pair if line is not None)


def _pieces(text: str) -> list[str]:
    return [line[i : i + LONGEST] for line in text.split("\n") for i in range(0, len(line) or 1, LONGEST)]
