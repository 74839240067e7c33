"""Show how the outputs differ from the recorded ones.

`python -m tests.golden` prints lost and new outputs and the difference of each changed one; exit
code 1 if there are any. `--against REV` compares with what a commit has recorded; with `--stored`
nothing runs: what the working tree has recorded is compared. `--write DIR` writes each output to a
file. `--record` records the outputs; a commit that does so gives the reason.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import tests.conftest  # noqa: F401 - one thread, no downloaded models
from tests.golden import stored
from tests.golden.groups import GROUPS, PACKED


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, write or record."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"{', '.join(GROUPS)} (all)")
    parser.add_argument("--lines", type=int, default=30, metavar="N", help="of each difference (30)")
    parser.add_argument("--against", default="", metavar="REV", help="a commit (the working tree)")
    parser.add_argument("--stored", action="store_true", help="compare what is recorded, run nothing")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write each output to a file")
    parser.add_argument("--record", action="store_true", help="record the outputs")
    args = parser.parse_args(argv)
    if unknown := [group for group in args.groups if group not in GROUPS]:
        parser.error(f"there is no group {', '.join(unknown)}; the groups are {', '.join(GROUPS)}")
    if args.against and not stored.is_commit(args.against):
        parser.error(f"there is no commit {args.against}")
    changed = sum(_compare(group, args) for group in args.groups or GROUPS)
    print(f"{changed} outputs differ" if changed else "the outputs are as recorded")
    return 1 if changed and not args.record else 0


def _compare(group: str, args: argparse.Namespace) -> int:
    """Print how a group differs, write and record it; return how many outputs differ."""
    packed = group in PACKED
    found = stored.read(group, packed) if args.stored else dict(GROUPS[group]())
    known = stored.read(group, packed, args.against)
    changed = sum(known.get(name) != found.get(name) for name in known | found)
    if changed:
        print(f"{group}: {changed} of {len(known | found)} outputs differ")
    for line in stored.changes(known, found, args.lines):
        print(line, flush=True)
    if args.write:
        args.write.mkdir(parents=True, exist_ok=True)
        for name, text in found.items():
            (args.write / f"{group} {name.replace('/', '_')}.txt").write_text(text, encoding="utf-8")
    if args.record:
        stored.write(group, packed, found)
    return changed


if __name__ == "__main__":
    sys.exit(main())
