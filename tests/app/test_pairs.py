"""The pairs that can be chosen: which one opens, and the methods that each can run."""

from __future__ import annotations

from pathlib import Path

import pytest

from specscope.app import pairs
from specscope.engine.checkpoints import catalog
from specscope.engine.methods import METHODS


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The models on this machine: none at first."""
    names: set[str] = set()
    monkeypatch.setattr(catalog, "installed", lambda name: Path(name) if name in names else None)
    return names


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory of stored pairs."""
    monkeypatch.setattr(catalog, "PAIRS", tmp_path)
    return tmp_path


def test_a_model_of_the_catalog_opens_and_the_toy_without_one(here: set[str]) -> None:
    assert pairs.opening() == "bundled"
    assert pairs.absent().name == "smollm2"
    here.add("smollm2")
    assert (pairs.opening(), pairs.absent()) == ("smollm2", None)


def test_the_bundled_pair_is_called_a_toy_and_runs_every_method() -> None:
    assert "a toy" in pairs.label("bundled")
    assert pairs.able("bundled") == list(METHODS)
    assert pairs.usual("bundled") == ["autoregressive", "speculative", "pearl"]
    assert pairs.reasons("bundled") == {}
    assert "2,304 tokens" in pairs.about("bundled")


def test_a_target_alone_drafts_with_its_own_weights_and_a_stored_head_brings_its_methods(
    folder: Path,
) -> None:
    heads = [key for key, method in METHODS.items() if method.layout(method.Config()).head]
    assert {"pearl", "speculative", "dsi", "llma"} <= set(pairs.able("smollm2"))
    assert list(pairs.reasons("smollm2")) == heads
    assert pairs.usual("smollm2") == ["autoregressive", "speculative", "pearl"]
    assert pairs.reasons("smollm2")["eagle"] == "needs a drafting head of kind eagle"
    assert "8,192 tokens" in pairs.about("smollm2")
    (folder / "smollm2" / "heads" / "eagle").mkdir(parents=True)
    able = pairs.able("smollm2")
    assert {"eagle", "eagle2"} <= set(able)
    assert not {"medusa", "hydra"} & set(able)
    assert pairs.usual("smollm2") == ["autoregressive", "speculative", "pearl"]
    assert pairs.reasons("smollm2")["medusa"] == "needs a drafting head of kind medusa"
