"""Fixtures of the tests of traces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specscope.traces.store import Store
from specscope.traces.view import document


@pytest.fixture(scope="package", autouse=True)
def views_that_fail_are_not_left_out() -> Iterator[None]:
    """Tests see the errors of views."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document._Views, "of", lambda _views, _name, make, _empty: make())
        yield


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An open database without runs."""
    with Store(tmp_path / "traces.db") as opened:
        yield opened
