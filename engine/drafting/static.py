"""Static token trees from files (`assets/trees/*.toml`, or a user's), or written as paths."""

from __future__ import annotations

import reprlib
import tomllib
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Any

from specscope.engine.drafting.tree import Static
from specscope.engine.errors import UsageError, one_line
from specscope.engine.files import parse_json, read_text
from specscope.engine.schema import Range, fits

FOLDER = Path(__file__).parents[2] / "assets" / "trees"
MOST_NODES = 64
"""Nodes per tree; the target's forward has one row more."""
_LONGEST = 1 << 20
_Rank = Annotated[int, Range(0, inf)]


def trees() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def tree(name: str) -> Static:
    """Return the tree of a name of `trees`, a `.toml` file, or paths like `[[0],[1],[0,0]]`."""
    if name.endswith(".toml"):
        return _read(Path(name))
    if name.startswith("["):
        return _inline(name)
    if name not in trees():
        raise UsageError(
            f"there is no tree {reprlib.repr(name)}; choose one of {', '.join(trees())}, a list such as "
            "[[0],[1],[0,0]], or a path that ends in .toml"
        )
    return _read(FOLDER / f"{name}.toml")


def spelled(paths: Sequence[Sequence[int]]) -> str:
    return "[" + ",".join(f"[{','.join(map(str, path))}]" for path in paths) + "]"


def within(name: str, levels: int, asked: int, what: str) -> Static:
    """Return a tree that a head of `levels` levels can draft, cut to `asked` levels; 0 for all.

    `what` names the head in the UsageError for a tree that is deeper.
    """
    whole = tree(name)
    if not asked and whole.depth > levels:
        brief = reprlib.repr(name) if name.startswith("[") else name
        raise UsageError(
            f"the tree {brief} has {whole.depth} levels; {what} drafts at least 1 and at most {levels}: choose another tree, or let it be cut"
        )
    return whole.cut(asked or levels)


def _read(path: Path) -> Static:
    try:
        document = tomllib.loads(read_text(path, _LONGEST))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the tree {path} cannot be read: {one_line(error)}") from None
    try:
        return parse(document.get("paths"))
    except UsageError as error:
        raise UsageError(f"the tree {path} is wrong: {error}") from None


def _inline(text: str) -> Static:
    try:
        return parse(parse_json(text))
    except (ValueError, UsageError) as error:
        raise UsageError(f"the tree {reprlib.repr(text)} is wrong: {one_line(error)}") from None


def parse(paths: Any) -> Static:
    """Return the tree of paths: lists of ranks, [0, 2] for the third child of the first child."""
    if not paths or not fits(paths, list[list[_Rank]]) or not all(paths):
        raise UsageError(
            "paths must be a list of nodes, each a list of ranks from 0, such as [[0], [1], [0, 0]]"
        )
    if len(paths) > MOST_NODES:
        raise UsageError(f"it has {len(paths)} nodes; there must be at least 1 and at most {MOST_NODES}")
    nodes: list[tuple[int, ...]] = [tuple(path) for path in paths]
    known = set(nodes)
    if len(known) < len(nodes):
        twice = next(node for node in nodes if nodes.count(node) > 1)
        raise UsageError(f"{reprlib.repr([*twice])} is named twice; name each node once")
    nodes.sort(key=lambda node: (len(node), node))
    for node in nodes:
        *ancestors, rank = node
        parent = tuple(ancestors)
        if parent and parent not in known:
            raise UsageError(f"{reprlib.repr([*node])} has no parent; add {reprlib.repr([*parent])}")
        if rank and (*parent, rank - 1) not in known:
            raise UsageError(
                f"{reprlib.repr([*node])} has no elder sibling; add {reprlib.repr([*parent, rank - 1])}"
            )
    return Static(tuple(nodes))
