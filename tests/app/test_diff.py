"""`specscope diff`: both runs, a waterfall per device, the first differing token."""

from __future__ import annotations

from pathlib import Path

import pytest

from specscope.traces.store import Store
from tests.app.commands import answer, call
from tests.traces.samples import sample_trace


@pytest.fixture
def stored(db: list[str]) -> list[str]:
    """Return the option for a database with two runs."""
    with Store(Path(db[1])) as store:
        store.insert(sample_trace("speculative", tokens=24), sample_trace("pearl", tokens=24))
    return db


def test_json_sums_the_changes_of_each_device_and_the_text_names_runs_and_the_first_differing_token(
    capsys, stored
):
    found = answer(capsys, "diff", "sample-speculative", "sample-pearl", "--json", *stored)
    assert found["runs"] == ["sample-speculative", "sample-pearl"]
    assert [w["role"] for w in found["waterfalls"]] == ["target", "drafter"]
    for waterfall in found["waterfalls"]:
        assert sum(step["change_ns"] for step in waterfall["steps"]) == found["difference_ns"]
    code, out, _ = call(capsys, "diff", "sample-speculative", "sample-pearl", *stored)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("sample-speculative: Speculative decoding · sample · virtual · sample-2xGPU")
    assert "sum" in {line.split()[0] for line in lines if line}
    assert any(line.startswith(("first differing token", "no token is known")) for line in lines)
