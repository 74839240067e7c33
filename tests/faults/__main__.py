"""Plant each fault in a copy of this tree, and say which test finds it.

A fault is found if a test fails with it that passes without it. Of the tests, those of `make test`
run: first the ones that the fault names; with --all-tests also the others, if these miss it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import NamedTuple

from tests.faults.planted import ROOT, Fault, faults

FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)
PYTEST = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--ignore", "tests/faults")
MOST_SECONDS = 3600
ALL = ["tests"]


class Result(NamedTuple):
    """What the tests said of a fault."""

    fault: Fault
    test: str | None
    """The test that found it."""
    trouble: str
    """Why nothing can be said: the tests do not run, or fail without the fault."""
    seconds: float

    def __str__(self) -> str:
        state = "found " if self.test else "MISSED" if not self.trouble else "ERROR "
        return f"{state} {self.fault.name}{f'  by {self.test}' if self.test else ''}  {self.trouble}".rstrip()


@contextmanager
def copied_trees(count: int) -> Iterator[Queue[Path]]:
    """Yield copies of the tracked files of this tree, each a git repository like this one."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    trees = Queue[Path]()
    with tempfile.TemporaryDirectory(prefix="specscope-faults-") as folder:
        for i in range(count):
            tree = Path(folder, str(i))
            for name in filter(None, names.stdout.split("\0")):
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, tree / name, follow_symlinks=False)
            for command in (["init", "-q"], ["add", "-A"]):
                subprocess.run(["git", *command], cwd=tree, check=True)
            trees.put(tree)
        yield trees


def failing(tree: Path, tests: list[str]) -> tuple[str | None, str]:
    """Run tests in a tree up to the first that fails; return it, and why they could not run."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *PYTEST, "-m", "not gpu and not thorough", "--", *tests],
            cwd=tree,
            env=env | {"PYTHONPATH": f"{tree / 'src'}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return None, f"the tests did not end within {MOST_SECONDS} s"
    failed = FAILED.search(done.stdout)
    if done.returncode == 0 or failed:
        return failed and failed[1], ""
    lines = (done.stdout + done.stderr).strip().splitlines()
    return None, f"pytest exits with {done.returncode}: {lines[-1] if lines else 'it says nothing'}"


def tried(fault: Fault, tree: Path, every_test: bool) -> Result:
    """Plant a fault, run the tests, take it out, and run the test that failed without it."""
    start, path = time.monotonic(), tree / fault.file
    clean = path.read_text()
    if fault.places(tree) != 1:
        return Result(fault, None, f"its old text occurs {fault.places(tree)} times in {fault.file}", 0)
    fault.plant(tree)
    try:
        test, trouble = failing(tree, fault.tests)
        if every_test and not test and not trouble:
            test, trouble = failing(tree, ALL)
    finally:
        path.write_text(clean)
    if test and failing(tree, [test])[0]:
        test, trouble = None, f"{test} fails without the fault, too"
    return Result(fault, test, trouble, time.monotonic() - start)


HEAD = """# Planted faults and the tests that find them

`python -m tests.faults --table tests/faults/RESULTS.md` writes this page: {found} of {count} faults are found by the
tests of `make test`. "At first" is whether a test found the fault when the list was made, {missed} were missed; each of
these got a test.

| fault | what it breaks | file | at first | found by |
|---|---|---|---|---|
"""


def page(results: list[Result]) -> str:
    """Return results as a table in Markdown."""

    def cell(text: str) -> str:
        return text.replace("|", "\\|")

    rows = [
        f"| {r.fault.name} | {cell(r.fault.breaks)} | `{r.fault.file}` | {'missed' if r.fault.was_missed else 'found'} "
        f"| {f'`{cell(r.test)}`' if r.test else cell(r.trouble) or 'missed'} |\n"
        for r in results
    ]
    found, missed = (
        sum(map(bool, each)) for each in ([r.test for r in results], [r.fault.was_missed for r in results])
    )
    return HEAD.format(found=found, missed=missed, count=len(results)) + "".join(rows)


def results_of(chosen: list[Fault], jobs: int, every_test: bool) -> Iterator[Result]:
    """Yield the results of faults as they are known."""
    with copied_trees(jobs) as trees, ThreadPoolExecutor(jobs) as pool:

        def one(fault: Fault) -> Result:
            tree = trees.get()
            try:
                return tried(fault, tree, every_test)
            finally:
                trees.put(tree)

        try:
            for result in as_completed([pool.submit(one, fault) for fault in chosen]):
                yield result.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def main() -> int:
    """Try the chosen faults; 1 if one is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a fault, or the beginning of names (all)")
    parser.add_argument("--list", action="store_true", help="name the faults and what they break")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trees that are tried at once (1)")
    parser.add_argument("--all-tests", action="store_true", help="run all tests if the named ones miss it")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the results as a page, too")
    args = parser.parse_args()
    known = faults()
    unknown = [name for name in args.names if not any(f.name.startswith(name) for f in known)]
    if unknown:
        parser.exit(2, f"tests.faults: there is no fault {unknown[0]!r}; --list names the {len(known)}\n")
    if args.jobs < 1:
        parser.exit(2, f"tests.faults: --jobs is {args.jobs}; it must be at least 1\n")
    chosen = [f for f in known if not args.names or f.name.startswith(tuple(args.names))]
    if args.list:
        print("\n".join(f"{f.name:42} {f.breaks}" for f in chosen))
        return 0
    results = list[Result]()
    for result in results_of(chosen, args.jobs, args.all_tests):
        results.append(result)
        print(f"{len(results):3}/{len(chosen)} {result.seconds:4.0f} s  {result}", flush=True)
    if args.table:
        args.table.write_text(page(sorted(results, key=lambda result: chosen.index(result.fault))))
    found = sum(result.test is not None for result in results)
    print(f"{found} of {len(results)} faults are found")
    return 0 if found == len(results) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("tests.faults: stopped")
