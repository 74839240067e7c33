"""Fixtures of the tests of traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from specscope.engine.simulate.profile import FOLDER
from specscope.traces.database.store import Store
from specscope.traces.view import document
from tests.traces.samples import OPEN


@pytest.fixture(scope="package", autouse=True)
def views_that_fail_are_not_left_out() -> Iterator[None]:
    """Tests see the errors of views."""

    def no_fault(failed: Sequence[str]) -> str:
        assert not failed
        return ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document, "_faults", no_fault)
        yield


@pytest.fixture(scope="session", autouse=True)
def clusters_are_closed() -> Iterator[None]:
    yield
    for cluster in OPEN.values():
        cluster.close()


@pytest.fixture(scope="session")
def like(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a copy of pearl-4xA100, on which a what-if drafts again."""
    text = (FOLDER / "pearl-4xA100.toml").read_text(encoding="utf-8")
    path = tmp_path_factory.mktemp("profile") / "mine.toml"
    path.write_text(text.replace('name = "pearl-4xA100"', 'name = "mine"', 1), encoding="utf-8")
    return str(path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An open database without runs."""
    with Store(tmp_path / "traces.db") as opened:
        yield opened
