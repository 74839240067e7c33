"""Show which outputs differ from the recorded hashes.

`python -m tests.golden` prints the names of changed, new and lost outputs; exit code 1 if there are
any. With `--write DIR` each output is also a file, so that `diff -r` of the folders of two
checkouts shows each change. `--record` records the hashes; a commit that does so gives the reason.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

from tests.golden.outputs import GROUPS

HASHES = Path(__file__).parent / "hashes.json"


def hashes_of(group: str, folder: Path | None = None) -> dict[str, str]:
    """Return the SHA-256 of each output of a group, and write the outputs to a folder."""
    found = dict[str, str]()
    for name, text in GROUPS[group]():
        found[name] = hashlib.sha256(text.encode()).hexdigest()
        if folder:
            (folder / f"{group} {name.replace('/', '_')}.txt").write_text(text)
    return found


def recorded() -> dict[str, dict[str, str]]:
    """Return the recorded hashes: group -> name -> SHA-256."""
    return json.loads(HASHES.read_text()) if HASHES.exists() else {}


def changes(known: dict[str, str], found: dict[str, str]) -> list[str]:
    """Return a line for each changed, new and lost output."""
    return [
        *(f"changed: {name}" for name in known if name in found and known[name] != found[name]),
        *(f"new: {name}" for name in found if name not in known),
        *(f"lost: {name}" for name in known if name not in found),
    ]


def main() -> int:
    """Compare, write or record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, metavar="DIR")
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    if args.write:
        args.write.mkdir(parents=True, exist_ok=True)
    found, known = {group: hashes_of(group, args.write) for group in GROUPS}, recorded()
    lines = [line for group in GROUPS for line in changes(known.get(group, {}), found[group])]
    print("\n".join(lines or [f"{sum(map(len, found.values()))} outputs are as recorded"]))
    if args.record:
        HASHES.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n")
    return 0 if args.record or not lines else 1


if __name__ == "__main__":
    sys.exit(main())
