"""A pair with all heads in virtual time; what tests of rounds on the device share."""

import pytest

import specscope
from specscope.engine.worker import rounds
from tests.engine.heads.random_heads import with_heads
from tests.engine.methods.pairs import make_pair
from tests.engine.run.rounds_on_host import counting


@pytest.fixture(scope="package")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("load")
    pair = with_heads(make_pair(folder, "qwen3", "other")[0], folder / "heads")
    with specscope.open(pair, runtime="virtual", profile="pearl-4xA100") as opened:
        yield opened


@pytest.fixture
def ahead(monkeypatch):
    """Let rounds begin before they are asked for, as on a GPU."""
    monkeypatch.setattr(rounds, "AHEAD", {"cpu"})


@pytest.fixture
def counted():
    with counting() as counts:
        yield counts
