"""One cluster of worker processes with the bundled pair, for all tests of this folder."""

import pytest

import specscope


@pytest.fixture(scope="package")
def cluster():
    with specscope.open(device="cpu") as opened:
        yield opened
