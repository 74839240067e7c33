"""Fixtures of the tests of the recorder."""

import pytest


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mine.jsonl"
