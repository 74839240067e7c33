"""Several programs that write to one new database at the same time: nothing is lost."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing

from specscope.traces.store import Store

RUNS, SPANS, IMPORTS = 3, 2000, 20
RECORD = """
import sys
from dataclasses import replace
from tests.traces.samples import sample_events
from tests.traces.test_recorder import span
from specscope.traces.store import Store

database, name, spans = sys.argv[1], sys.argv[2], int(sys.argv[3])
header, *_, footer = sample_events()
input()
with Store(database) as store, store.record(replace(header, run_id=name)) as recording:
    for number in range(spans):
        recording.add(span(number))
    recording.add(footer)
"""
IMPORT = """
import sys
from dataclasses import replace
from tests.traces.samples import sample_trace
from specscope.traces.store import Store

database, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
trace = sample_trace()
header = trace.header
input()
for number in range(count):
    trace.header = replace(header, run_id=f"{name}{number}")
    with Store(database) as store:
        store.insert(trace)
        if number % 2:
            assert store.delete([f"{name}{number}"]) == 1
"""


def test_programs_that_record_import_and_delete_together_lose_nothing(tmp_path):
    database = tmp_path / "traces.db"
    words = [(RECORD, f"recorded{i}", SPANS) for i in range(RUNS)] + [(IMPORT, "imported", IMPORTS)]
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(database), name, str(count)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for code, name, count in words
    ]
    for program in programs:  # the file is new for all of them
        assert program.stdin is not None
        program.stdin.write("\n")
        program.stdin.flush()
    errors = [program.communicate(timeout=240)[1] for program in programs]
    assert (errors, [program.returncode for program in programs]) == ([""] * 4, [0] * 4)
    with Store(database, readonly=True) as store:
        runs, total = store.runs(limit=100)
        assert total == RUNS + IMPORTS // 2
        assert {run.status for run in runs} == {"done"}
        for i in range(RUNS):
            assert [span.id for span in store.load(f"recorded{i}").spans] == [*range(SPANS)]
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
