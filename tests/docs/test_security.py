"""The document on security agrees with the tests of attacks and with the limits in the code."""

from __future__ import annotations

import re
from pathlib import Path

from specscope.app import guard, limits, page, recordings, routes
from specscope.engine.files import MOST_VALUES
from specscope.traces import follow

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def test_every_test_in_the_document_exists() -> None:
    tests = ROOT / "tests"
    others = [tests / f"{name}.py" for name in ("app/test_notebook", "browser/report/test_notebook")]
    others.append(tests / "browser" / "report" / "test_states.py")
    files = [*(tests / "security").glob("test_*.py"), *others]
    known = {
        name
        for file in files
        for name in re.findall(r"^def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)
    }
    named = re.findall(r"`(test_\w+)`", TEXT)
    assert len(named) > 20
    assert not set(named) - known


def test_the_limits_in_the_document_are_the_codes() -> None:
    mb = 2**20
    for words in (
        f"at most {limits.MAX_BODY // mb} MB",
        f"at most {routes.MAX_UPLOAD // mb} MB and {routes.UPLOAD_SECONDS:g} s",
        f"at most {limits.BODY_SECONDS:g} s",
        f"complete in {limits.HEAD_SECONDS:g} s",
        f"at most {limits.CONNECTIONS}",
        f"after {limits.SEND_SECONDS:g} s without progress; at most {limits.MOST_UNREAD // mb} MB wait",
        f"at most {MOST_VALUES:,}",
        f"at most {page.MAX_SESSIONS:,}",
        f"at most {page.MAX_UNREAD} unread",
        f"at most {page.MAX_DEPTH} levels",
        f"after {guard.FREE_GUESSES} wrong guesses",
        f"then {guard.MAX_WAIT:g} s",
        f"lines of at most {follow.MOST_LINE // mb} MB, files of at most {follow.MOST_TRACE_BYTES // mb} MB",
        f"parts of {follow.MOST_READ // mb} MB",
        f"at most {recordings.MOST_FOLLOWED} at once",
    ):
        assert words in TEXT, words
