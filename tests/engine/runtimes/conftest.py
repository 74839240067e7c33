"""One cluster of worker processes with the bundled pair, for all tests of this folder."""

import pytest

import engine


@pytest.fixture(scope="package")
def cluster():
    with engine.open(device="cpu") as opened:
        yield opened
