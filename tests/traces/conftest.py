"""Fixtures of the tests of traces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from traces.view import document


@pytest.fixture(scope="package", autouse=True)
def views_that_fail_are_not_left_out() -> Iterator[None]:
    """Tests see the errors of views."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document._Views, "of", lambda _views, _name, make, _empty: make())
        yield
