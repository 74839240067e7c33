"""Worker processes with the bundled pair."""

import pytest

import engine


@pytest.fixture(scope="module")
def cluster():
    with engine.open(device="cpu") as opened:
        yield opened
