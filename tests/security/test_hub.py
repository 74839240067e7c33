"""No attack by a hub or network hangs, crashes, fills the disk or writes outside the cache."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
    for name in (
        "HF_TOKEN",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "http_proxy",
        "HTTP_PROXY",
        "ALL_PROXY",
    ):
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


def when_reached(hub: Hub, act: Callable[[], object]) -> None:
    """Do something in another thread when a request hangs."""
    threading.Thread(target=lambda: hub.reached.wait(60) and act()).start()


def incomplete(cache: Path) -> list[str]:
    return [path.name for path in cache.rglob("*.incomplete")]


STALLS = {
    "no list": ("ANSWER", 1, {"hang": "/api/"}, "the hub ({url}) did not answer in 1 s; check the network, or give a directory"),
    "a list byte by byte": ("ANSWER", 1, {"drip": "/api/"}, "the hub ({url}) did not answer in 1 s"),
    "no file": ("STALL", 1, {"hang": WEIGHTS}, "made no progress for 1 s, at "),
    "a file byte by byte": ("STALL", 1, {"drip": WEIGHTS}, "made no progress for 1 s, at "),
    "a connection that always breaks": ("STALL", 4, {"cut": 100_000}, "made no progress for 4 s"),
}  # fmt: skip
"""The limit, its seconds, the hub's misbehaviour, and the refusal."""


@pytest.mark.parametrize("name", STALLS)
def test_a_stalled_answer_ends_the_download(hub: Hub, name: str, cache: Path, monkeypatch) -> None:
    limit, seconds, misbehaviour, message = STALLS[name]
    monkeypatch.setattr(hub_module, limit, float(seconds))
    vars(hub).update(misbehaviour)
    assert message.replace("{url}", hub.url) in refused()
    assert incomplete(cache) == []
    with pytest.raises(ModelError, match=r"no longer in the cache|is not a directory"):
        resolve_local(MODEL)


def test_a_refused_connection_is_reported(hub: Hub, monkeypatch) -> None:
    with serving(Hub()) as closed:
        pass
    monkeypatch.setenv("HF_ENDPOINT", closed.url)
    assert re.search(r"127\.0\.0\.1.*ConnectError: .*refused; check the network", refused())


def test_a_download_continues_after_a_broken_connection(hub: Hub) -> None:
    hub.cut, hub.cuts = 100_000, 1
    assert (resolve(MODEL) / WEIGHTS).read_bytes() == FILES[WEIGHTS]


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


INVALID = b'{"id": "someone/tiny", "sha": "%s", "siblings": %s}'
AGAIN = "; check the network, or give a directory"
REFUSALS = {
    "no repository": ({"status": 404, "headers": {"X-Error-Code": "RepoNotFound"}}, "or only for a login; check the name, or set HF_TOKEN"),
    "no login": ({"status": 401}, "has no such model, or only for a login; check the name, or set HF_TOKEN"),
    "an agreement": ({"status": 403, "headers": {"X-Error-Code": "GatedRepo"}}, "asks for an agreement first; accept it there, then set HF_TOKEN"),
    "a failure": ({"status": 500, "headers": {"X-Error-Message": "\x1b[2J\x07boo"}}, "answered 500" + AGAIN),
    "a redirect to a file": ({"location": "file:///etc/passwd"}, AGAIN),
    "a redirect to itself": ({"location": "{url}/api/models/someone/tiny"}, AGAIN),
    "no JSON": ({"answer": b"<html>\x1b[2J not JSON"}, ""),
    "deep JSON": ({"answer": b"[" * 100_000}, ""),
    "a path as commit": ({"answer": INVALID % (b"../../../../tmp", b"[]")}, ""),
    "wrong types": ({"answer": INVALID % (COMMIT.encode(), b'[{"rfilename": 5}, 7]')}, ""),
    "pickles": ({"files": {"config.json": b"{}", "pytorch_model.bin": b"x", "tokenizer.json": b"{}"}}, "has no safetensors, only pytorch_model.bin, which can run code and is not read"),
    "a petabyte": ({"listed": [{"rfilename": name, "size": 10**15 if name == WEIGHTS else 5} for name in FILES]}, "it has 1000000.0 GB, the disk of"),
}  # fmt: skip
"""The hub's misbehaviour, and a part of the refusal."""


@pytest.mark.parametrize("name", REFUSALS)
def test_a_false_answer_is_refused_with_a_cause_before_a_download(
    hub: Hub, name: str, cache: Path, monkeypatch
) -> None:
    misbehaviour, message = REFUSALS[name]
    vars(hub).update(misbehaviour)
    hub.location = hub.location.replace("{url}", hub.url)
    why = reason(hub, monkeypatch)
    assert message in why
    assert why.endswith(AGAIN) or not message.endswith(AGAIN)
    assert hub.sent == []
    assert not cache.exists()


def test_a_redirect_to_another_host_gets_no_token(hub: Hub, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serving(Hub()) as elsewhere:
        hub.location = f"{elsewhere.url}/api/models/{MODEL}"
        resolve(MODEL)
        assert elsewhere.requests == [f"GET /api/models/{MODEL}"]
        assert elsewhere.tokens == [None]
    assert set(hub.tokens) == {"Bearer hf_secret"}


OUTSIDE = ("../../x.json", "/etc/x.json", "a/../../x.json", "..\\x.json", "", "x\0.json")
LISTS = [
    *(([(name, 1), *((file, 1) for file in FILES)], "which is no name in a repository") for name in OUTSIDE),
    *(
        (
            [(file, size if file == "config.json" else 1) for file in FILES],
            r"the hub says that config.json has .* bytes",
        )
        for size in (-1, None, True, 1.5, "9")
    ),
]


@pytest.mark.parametrize(("listed", "message"), LISTS)
def test_a_file_name_outside_the_repository_or_an_invalid_size_is_refused(listed: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        needed(listed)


def test_an_index_selects_the_shards(hub: Hub) -> None:
    names = ["config.json", "model.safetensors", "model-1-of-2.safetensors", "model.safetensors.index.json"]
    assert list(needed([(name, 1) for name in names])) == [*names[2:], "config.json"]


def test_a_file_longer_than_listed_is_refused(hub: Hub, cache: Path, monkeypatch) -> None:
    hub.listed = [{"rfilename": name, "size": 70_000} for name in FILES]
    message = "the hub sends more of model.safetensors than the 70000 bytes that it listed"
    assert message in reason(hub, monkeypatch)
    assert incomplete(cache) == []


ESCAPES = {
    "a path as ETag": {"ETag": '"../../../../escaped"'},
    "an absolute ETag": {"ETag": '"/{outside}/escaped"'},
    "a path as commit": {"X-Repo-Commit": "../../../../escaped"},
}


@pytest.mark.parametrize("name", ESCAPES)
def test_headers_cannot_place_files_outside_the_cache(hub: Hub, name: str, tmp_path: Path) -> None:
    hub.headers = {key: text.format(outside=str(tmp_path).strip("/")) for key, text in ESCAPES[name].items()}
    refused()
    assert not [path for path in tmp_path.rglob("*") if "escaped" in path.name and path.is_file()]


def test_a_cache_that_cannot_be_written_is_reported(hub: Hub, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
    why = reason(hub, monkeypatch)
    assert re.fullmatch(r"Not a directory: .*/file.*; set HF_HOME to another folder", why)


def test_a_stopped_download_leaves_no_incomplete_model(hub: Hub, cache: Path) -> None:
    hub.hang, cancel = WEIGHTS, threading.Event()
    when_reached(hub, cancel.set)
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
    when_reached(hub, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT))
    try:
        assert main([*RUN, str(tmp_path / "x.db")]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err.splitlines()[-1] == "specscope: stopped"
    mine = psutil.Process(os.getpid()).children(recursive=True)
    assert not [child for child in mine if "specscope.engine.checkpoints.hub_process" in child.cmdline()]
