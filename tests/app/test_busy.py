"""The load by other programs between two readings of the processor times."""

import json
import os
from itertools import chain, repeat

import pytest

from specscope.app import busy
from specscope.app.busy import ProcessorTime, busy_warning, read_load, used_by_others
from tests.app.commands import VIRTUAL, call


def test_the_load_by_others_leaves_out_this_program_and_a_calm_machine_has_no_warning() -> None:
    before = ProcessorTime(100.0, 1000.0, {1: 50.0, 2: 7.0})
    after = ProcessorTime(110.0, 1016.0, {1: 54.0, 3: 4.0})  # worker 2 has ended, worker 3 is new
    assert used_by_others(before, after) == 0.8
    assert "Other programs used 0.8 of 2 cores" in busy_warning(before, after, 2)
    before = ProcessorTime(100.0, 1000.0, {1: 50.0})
    assert busy_warning(before, ProcessorTime(110.0, 1014.0, {1: 60.0}), 2) == ""
    assert busy_warning(before, ProcessorTime(100.1, 1010.0, {1: 50.0}), 2) == ""
    assert used_by_others(before, ProcessorTime(110.0, 1009.0, {1: 60.0})) == 0.0, "clocks of different grain"
    reading = read_load()
    assert reading.own[os.getpid()] > 0
    assert reading.machine > 0


@pytest.mark.usefixtures("shared_clusters")
@pytest.mark.parametrize(
    "words",
    [
        ["run", "--method", "autoregressive"],
        ["compare", "--methods", "autoregressive"],
        ["sweep", "--method", "speculative", "--over", "gamma=1"],
    ],
    ids=lambda words: words[0],
)
def test_measured_commands_warn_of_a_busy_machine_in_one_line_and_in_json(capsys, db, monkeypatch, words):
    words = [*words, "--prompt", "Hi", "--json", *db]

    def warning(*place: str) -> tuple[str | None, int]:
        """Return the warning in the JSON object, and the number of lines on stderr that have it."""
        readings = chain([ProcessorTime(100.0, 1000.0, {})], repeat(ProcessorTime(110.0, 1019.0, {})))
        monkeypatch.setattr(busy, "read_load", lambda: next(readings))
        code, out, err = call(capsys, *words, *place)
        assert code == 0
        return json.loads(out)["warning"], err.count("Other programs used 1.9 of")

    found, lines = warning("--runtime", "local-thread", "--max-new-tokens", "2")
    assert lines == 1
    assert found is not None
    assert found.startswith("Other programs used 1.9 of")
    assert warning(*VIRTUAL) == (None, 0)
