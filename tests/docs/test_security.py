"""The documents on security and failures agree with the code's limits and with the tests' names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specscope.app.jobs import recordings
from specscope.app.web import guard, limits, page, routes
from specscope.app.web.server import CLOSE_S, PAGE_S
from specscope.engine.files import MOST_VALUES
from specscope.engine.hangs import IDLE, IDLE_LONG
from specscope.engine.runtimes.watchdog import FACTOR, FLOOR
from specscope.traces.following import follow

ROOT = Path(__file__).resolve().parents[2]
MB = 2**20
LIMITS = {
    "security": (
        f"at most {limits.MAX_BODY // MB} MB",
        f"at most {routes.MAX_UPLOAD // MB} MB and {routes.UPLOAD_SECONDS:g} s",
        f"at most {limits.BODY_SECONDS:g} s",
        f"complete in {limits.HEAD_SECONDS:g} s",
        f"at most {limits.CONNECTIONS}",
        f"after {limits.SEND_SECONDS:g} s without progress; at most {limits.MOST_UNREAD // MB} MB wait",
        f"at most {MOST_VALUES:,}",
        f"at most {page.MAX_SESSIONS:,}",
        f"at most {page.MAX_UNREAD} unread",
        f"at most {page.MAX_DEPTH} levels",
        f"after {guard.FREE_GUESSES} wrong guesses",
        f"then {guard.MAX_WAIT:g} s",
        f"lines of at most {follow.MOST_LINE // MB} MB, files of at most {follow.MOST_TRACE_BYTES // MB} MB",
        f"parts of {follow.MOST_READ // MB} MB",
        f"at most {recordings.MOST_FOLLOWED} at once",
    ),
    "reliability": (
        f"did nothing for {IDLE} s",
        f"the same with `{IDLE_LONG} s`",
        f"worked on one job for {FLOOR + 1} s, {FACTOR} times as long",
        f"the limit of {FLOOR} s",
        f"runs, workers and\nthe database {CLOSE_S:g} s",
        f"open calls of pages {PAGE_S:g} s",
    ),
}


@pytest.mark.parametrize("document", LIMITS)
def test_the_limits_in_the_document_are_the_codes(document) -> None:
    text = (ROOT / "docs" / f"{document}.md").read_text(encoding="utf-8")
    assert not [words for words in LIMITS[document] if words not in text]


def test_every_test_in_the_document_exists() -> None:
    tests = ROOT / "tests"
    names = (
        "app/test_notebook",
        "app/test_recordings",
        "app/test_servers",
        "browser/report/test_notebook",
        "browser/report/test_states",
        "engine/servers/test_servers",
        "traces/test_growing",
    )
    files = [*(tests / "security").glob("test_*.py"), *(tests / f"{name}.py" for name in names)]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "security.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    assert not set(named) - set(re.findall(r"^def (test_\w+)", text, re.MULTILINE))
