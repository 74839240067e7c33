"""A tiny target for heads with random weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.model import tiny


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pair") / "target"
    tiny.save(tiny.reference("llama", num_hidden_layers=6, seed=2), path)
    return path
