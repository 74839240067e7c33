"""Names of models: directory, GGUF file, short name, hub id; an existing path has precedence."""

from __future__ import annotations

from pathlib import Path

import pytest

from specscope.engine.checkpoints import catalog, hub
from specscope.engine.checkpoints.forms import usual_form
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.checkpoints.progress import Progress
from specscope.engine.checkpoints.sources import is_slow, resolve, resolve_local
from specscope.engine.errors import ModelError
from tests.engine.checkpoints.gguf_files import write


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "cached", lambda model: None)
    monkeypatch.chdir(tmp_path)


def test_a_gguf_file_is_converted_to_a_pair_with_progress(tmp_path):
    file = write(tmp_path / "a.gguf", "Q8_0")
    assert is_slow(str(file))
    with pytest.raises(ModelError, match=r"a\.gguf is no longer in the cache; run again to get it"):
        resolve_local(file)
    reports: list[Progress] = []
    folder = resolve(str(file), reports.append)
    assert str(reports[-1]).startswith("Converting model.safetensors of a.gguf: ")
    assert reports[-1].percent == 100
    assert resolve_local(file) == folder
    pair = Pair.of(file)
    assert (pair.target_path, pair.context, pair.eos) == (folder, 128, (1,))


def test_an_existing_directory_has_precedence_over_other_names(tmp_path):
    for name in ("smollm2", "owner/name", "model.gguf"):
        (tmp_path / name).mkdir(parents=True)
        assert not is_slow(name)
        assert resolve(name) == resolve_local(name) == Path(name)


def test_a_short_name_names_a_target_and_a_pair(tmp_path, monkeypatch):
    folder = resolve(write(tmp_path / "a.gguf", "Q8_0"))
    assert is_slow("smollm2")
    with pytest.raises(ModelError, match="smollm2 is no longer in the cache"):
        resolve_local("smollm2")
    monkeypatch.setattr(catalog, "installed", lambda name: folder)
    monkeypatch.setattr("specscope.engine.checkpoints.catalog.PAIRS", tmp_path)
    assert resolve("smollm2") == resolve_local("smollm2") == folder
    pair = Pair.find("smollm2")
    assert (pair.name, pair.target_path) == ("smollm2", folder)
    assert pair.drafter_paths == (folder / usual_form(),), "its own weights in fewer bits"
