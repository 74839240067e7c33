"""A pair with all heads in virtual time."""

import pytest

import specscope
from tests.engine.heads.random_heads import with_heads
from tests.engine.methods.pairs import make_pair


@pytest.fixture(scope="package")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("load")
    pair = with_heads(make_pair(folder, "qwen3", "other")[0], folder / "heads")
    with specscope.open(pair, runtime="virtual", profile="pearl-4xA100") as opened:
        yield opened
