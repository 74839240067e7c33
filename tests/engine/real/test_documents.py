"""The commands of docs/ on a machine with SmolLM2: all run, and the tutorial's figures hold."""

from __future__ import annotations

import pytest

from specscope.engine.checkpoints import catalog
from specscope.engine.cluster import probing
from tests.docs import test_commands as commands
from tests.docs.lines import PAGES
from tests.engine.real.test_smollm2 import FOLDER

place = commands.place
"""The fixture, on this file's machine."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> bool:
    """Open the downloaded model where a line names it, or none; plan drafts from two rounds."""
    monkeypatch.setattr(catalog, "get", lambda *_: FOLDER)
    monkeypatch.setattr(catalog, "installed", lambda _: FOLDER)
    for name, value in (("VERIFY_S", 0.1), ("BUDGET_S", 0.0), ("FEWEST", 2)):
        monkeypatch.setattr(probing, name, value)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page(page, place, capsys, machine):
    commands.check_page(page, place, capsys, present=machine)


def test_the_tutorials_comparison_and_what_if_give_its_figures(place, capsys):
    commands.test_the_tutorials_comparison_and_what_if_give_its_figures(place, capsys)
