"""No attack by a hub or network hangs, crashes, fills the disk or writes outside the cache."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from huggingface_hub import constants

import specscope.engine.checkpoints.hub as hub_module
from specscope.app.main import main
from specscope.engine.checkpoints import hub_process
from specscope.engine.checkpoints.hub_process import needed
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.checkpoints.progress import Progress
from specscope.engine.checkpoints.sources import resolve, resolve_local
from specscope.engine.errors import ModelError, RunCancelled
from tests.security.hubs import COMMIT, FILES, MODEL, Hub, serving

WEIGHTS = "model.safetensors"
RUN = ["run", "--method", "autoregressive", "--prompt", "Hi", "--target", MODEL, "--db"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test an empty cache."""
    folder = tmp_path / "home" / "hub"
    for name in [
        "HF_TOKEN",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "http_proxy",
        "HTTP_PROXY",
        "ALL_PROXY",
    ]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(folder.parent))
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub()) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def refused(model: str = MODEL) -> str:
    """Return the error of a failed download, checked to be one line."""
    with pytest.raises(ModelError) as error:
        resolve(model)
    message = str(error.value)
    assert message.startswith(f"{model} is not a directory here and cannot be downloaded: ")
    assert message.isprintable(), "one line without terminal codes"
    return message


def reason(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the error of a failed download that runs in this process."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    address = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
    with pytest.raises(Exception) as error:  # noqa: PT011 - errors of the library, too
        hub_process.fetch(MODEL, lambda **_: None)
    message = hub_process.reason(error.value)
    assert message.isprintable()
    return message


def incomplete(cache: Path) -> list[str]:
    return [path.name for path in cache.rglob("*.incomplete")]


# -- no reply, or an incomplete one ---------------------------------------------------------------


@pytest.mark.parametrize("how", ["hang", "drip"])
def test_the_list_has_a_time_limit(hub: Hub, how: str, monkeypatch) -> None:
    monkeypatch.setattr(hub_module, "ANSWER", 1.0)
    setattr(hub, how, "/api/")
    message = refused()
    assert f"the hub ({hub.url}) did not answer in 1 s; check the network, or give a directory" in message


def test_a_refused_connection_is_reported(hub: Hub, monkeypatch) -> None:
    with serving(Hub()) as closed:
        pass
    monkeypatch.setenv("HF_ENDPOINT", closed.url)
    assert re.search(r"127\.0\.0\.1.*ConnectError: .*refused; check the network", refused())


@pytest.mark.parametrize("how", ["hang", "drip"])
def test_a_stalled_file_ends_the_download(hub: Hub, how: str, cache: Path, monkeypatch) -> None:
    monkeypatch.setattr(hub_module, "STALL", 1.0)
    setattr(hub, how, "model.safetensors")
    assert "made no progress for 1 s, at " in refused()
    assert incomplete(cache) == []
    with pytest.raises(ModelError, match="no longer in the cache"):
        resolve_local(MODEL)


def test_a_connection_that_always_breaks_ends_the_download(hub: Hub, cache: Path, monkeypatch) -> None:
    monkeypatch.setattr(hub_module, "STALL", 4.0)
    hub.cut = 100_000
    assert "made no progress for 4 s" in refused()
    assert incomplete(cache) == []


def test_a_download_continues_after_a_broken_connection(hub: Hub) -> None:
    hub.cut, hub.cuts = 100_000, 1
    assert (resolve(MODEL) / WEIGHTS).read_bytes() == FILES[WEIGHTS]


# -- a correct hub --------------------------------------------------------------------------------


def test_only_needed_files_are_downloaded_and_only_once(hub: Hub, cache: Path) -> None:
    more = "pytorch_model.bin modeling_evil.py onnx/config.json consolidated.safetensors README.md"
    hub.files |= dict.fromkeys(more.split(), b"x")
    reports: list[Progress] = []
    folder = resolve(MODEL, reports.append)
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert folder == cache / "models--someone--tiny" / "snapshots" / COMMIT
    assert (reports[0].file, reports[0].total) == ("", 0)
    assert (reports[-1].done, reports[-1].total) == (sum(map(len, FILES.values())),) * 2
    assert hub.sent[-1] == "config.json", "config.json marks a complete model"
    before = len(hub.requests)
    assert resolve(MODEL) == resolve_local(MODEL) == folder
    assert len(hub.requests) == before, "the cache needs no network"
    (folder / "tokenizer.json").unlink()
    assert resolve(MODEL) == folder
    assert hub.sent[len(FILES) :] == [], "the cache still held the file"
    assert (folder / "tokenizer.json").read_bytes() == FILES["tokenizer.json"]


def test_offline_mode_sends_no_request(hub: Hub, monkeypatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set; unset it, or give a directory" in refused()
    assert hub.requests == []


@pytest.mark.parametrize(
    "model", ["~nobody-here/x", "no/such/path", "a/" + "b" * 5000, "a/b..c", "x\0/y", "a/.."]
)
def test_an_invalid_hub_id_sends_no_request(hub: Hub, model: str) -> None:
    with pytest.raises(ModelError) as error:
        Pair.of(model)
    assert "\n" not in str(error.value)
    assert hub.requests == []


# -- refusals and false replies -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "headers", "message"),
    [
        (404, {"X-Error-Code": "RepoNotFound"}, "or only for a login; check the name, or set HF_TOKEN"),
        (401, {}, "has no such model, or only for a login; check the name, or set HF_TOKEN"),
        (403, {"X-Error-Code": "GatedRepo"}, "asks for an agreement first; accept it there, then set HF_TOKEN"),
        (500, {"X-Error-Message": "\x1b[2J\x07boo"}, "answered 500; check the network, or give a directory"),
    ],
)  # fmt: skip
def test_an_error_status_gives_a_cause_and_a_remedy(
    hub: Hub, status: int, headers: dict[str, str], message: str, monkeypatch
) -> None:
    hub.status, hub.headers = status, headers
    assert message in reason(hub, monkeypatch)


def test_a_redirect_to_another_host_gets_no_token(hub: Hub, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serving(Hub()) as elsewhere:
        hub.location = f"{elsewhere.url}/api/models/{MODEL}"
        resolve(MODEL)
        assert elsewhere.requests == [f"GET /api/models/{MODEL}"]
        assert elsewhere.tokens == [None]
    assert set(hub.tokens) == {"Bearer hf_secret"}


@pytest.mark.parametrize("place", ["file:///etc/passwd", "{url}/api/models/someone/tiny"])
def test_a_redirect_to_a_file_or_to_itself_is_refused(hub: Hub, place: str, monkeypatch) -> None:
    hub.location = place.format(url=hub.url)
    assert reason(hub, monkeypatch).endswith("; check the network, or give a directory")


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>\x1b[2J not JSON",
        b"[" * 100_000,
        b'{"id": "someone/tiny", "sha": "../../../../tmp", "siblings": []}',
        b'{"id": "someone/tiny", "sha": "%s", "siblings": [{"rfilename": 5}, 7]}' % COMMIT.encode(),
    ],
    ids=["no JSON", "deep JSON", "a path as commit", "wrong types"],
)
def test_an_invalid_list_is_refused(hub: Hub, answer: bytes, cache: Path, monkeypatch) -> None:
    hub.answer = answer
    reason(hub, monkeypatch)
    assert not cache.exists()


@pytest.mark.parametrize(
    "name", ["../../x.json", "/etc/x.json", "a/../../x.json", "..\\x.json", "", "x\0.json"]
)
def test_a_file_name_outside_the_repository_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="which is no name in a repository"):
        needed([(name, 1), *((name, 1) for name in FILES)])


@pytest.mark.parametrize("size", [-1, None, True, 1.5, "9"])
def test_an_invalid_size_is_refused(size: object) -> None:
    with pytest.raises(ModelError, match=r"the hub says that config.json has .* bytes"):
        needed([(name, size if name == "config.json" else 1) for name in FILES])


def test_a_repository_of_pickles_is_refused_before_a_download(hub: Hub, monkeypatch) -> None:
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"x", "tokenizer.json": b"{}"}
    assert "has no safetensors, only pytorch_model.bin, which can run code and is not read" in reason(
        hub, monkeypatch
    )
    assert hub.sent == []


def test_an_index_selects_the_shards(hub: Hub) -> None:
    names = ["config.json", "model.safetensors", "model-1-of-2.safetensors", "model.safetensors.index.json"]
    assert list(needed([(name, 1) for name in names])) == [*names[2:], "config.json"]


def test_a_model_of_a_petabyte_is_refused_before_a_download(hub: Hub, cache: Path, monkeypatch) -> None:
    hub.listed = [{"rfilename": name, "size": 10**15 if name == WEIGHTS else 5} for name in FILES]
    assert "it has 1000000.0 GB, the disk of" in reason(hub, monkeypatch)
    assert hub.sent == []
    assert not cache.exists()


def test_a_file_longer_than_listed_is_refused(hub: Hub, cache: Path, monkeypatch) -> None:
    hub.listed = [{"rfilename": name, "size": 70_000} for name in FILES]
    assert "the hub sends more of model.safetensors than the 70000 bytes that it listed" in reason(
        hub, monkeypatch
    )
    assert incomplete(cache) == []


@pytest.mark.parametrize(
    "headers",
    [
        {"ETag": '"../../../../escaped"'},
        {"ETag": '"/{outside}/escaped"'},
        {"X-Repo-Commit": "../../../../escaped"},
    ],
    ids=["a path as ETag", "an absolute ETag", "a path as commit"],
)
def test_headers_cannot_place_files_outside_the_cache(
    hub: Hub, headers: dict[str, str], tmp_path: Path
) -> None:
    hub.headers = {name: value.format(outside=str(tmp_path).strip("/")) for name, value in headers.items()}
    refused()
    written = [path for path in tmp_path.rglob("*") if "escaped" in path.name and path.is_file()]
    assert written == []


def test_a_cache_that_cannot_be_written_is_reported(hub: Hub, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
    assert re.fullmatch(
        r"Not a directory: .*/file.*; set HF_HOME to another folder", reason(hub, monkeypatch)
    )


# -- stopping -------------------------------------------------------------------------------------


def test_a_stopped_download_leaves_no_incomplete_model(hub: Hub, cache: Path) -> None:
    hub.hang, cancel = WEIGHTS, threading.Event()

    def stop() -> None:
        hub.reached.wait(60)
        cancel.set()

    threading.Thread(target=stop).start()
    with pytest.raises(RunCancelled):
        resolve(MODEL, cancel=cancel)
    assert hub.reached.is_set()
    assert incomplete(cache) == []
    with pytest.raises(ModelError):
        resolve_local(MODEL)
    hub.hang = ""
    assert resolve(MODEL).is_dir()


def test_the_download_ends_with_a_killed_program(hub: Hub) -> None:
    hub.hang = "/api/"
    code = f"from specscope.engine.checkpoints.hub import download; download({MODEL!r})"
    program = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    assert hub.reached.wait(60)
    (download,) = psutil.Process(program.pid).children()
    program.kill()
    program.wait()
    download.wait(30)


def test_the_command_line_reports_the_download_and_its_error(hub: Hub, capsys, tmp_path: Path) -> None:
    hub.status = 500
    assert main([*RUN, str(tmp_path / "x.db")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"downloading {MODEL}; Ctrl-C stops it"
    assert lines[1].startswith(f"specscope: {MODEL} is not a directory here and cannot be downloaded: ")
    assert len(lines) == 2


def test_interrupting_the_command_line_stops_the_download(hub: Hub, capsys, tmp_path: Path) -> None:
    hub.hang = "/api/"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        hub.reached.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    try:
        assert main([*RUN, str(tmp_path / "x.db")]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err.splitlines()[-1] == "specscope: stopped"
    mine = psutil.Process(os.getpid()).children(recursive=True)
    assert not [child for child in mine if "specscope.engine.checkpoints.hub_process" in child.cmdline()]
