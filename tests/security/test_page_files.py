"""Attacks on files through the page: no handler and no address reads or serves a file."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from gradio import processing_utils
from gradio.context import LocalContext
from gradio.utils import get_upload_folder

from specscope.app.web import routes
from specscope.app.web.page import check_plain
from specscope.engine.trace.jsonl import write_jsonl
from tests.security.conftest import asked

SECRET = "secret-of-the-machine"
FILE_DATA = {"_type": "gradio.FileData"}


@pytest.fixture
def targets(outside: Path, tmp_path: Path) -> list[str]:
    """Return paths that an attacker would use: files, devices, pipes, folders, links, URLs."""
    link, pipe = tmp_path / "link.jsonl", tmp_path / "pipe.jsonl"
    link.symlink_to(outside)
    os.mkfifo(pipe)
    return [
        *("/etc/passwd", "/proc/self/environ", "/dev/zero", "/dev/stdin", "/", "../../etc/passwd"),
        *(str(outside), str(link), str(pipe), str(tmp_path), f"file://{outside}"),
        *(f"/gradio_api/file={outside}", "pyproject.toml", str(Path(get_upload_folder()) / "other.jsonl")),
        *("http://127.0.0.1:1/x", "https://huggingface.co/robots.txt", ""),
    ]


def shapes(target: str) -> list[Any]:
    """Return values that Gradio would treat as a file, bare and nested."""
    bare = {"path": target, "meta": FILE_DATA}
    return [
        bare,
        {**bare, "url": target, "is_stream": True},
        {"path": target},
        [bare],
        {"query": "", "offset": 0, "selected": [{"run": bare}]},
        {"value": bare, "__type__": "update"},
    ]


@pytest.fixture
def copied(monkeypatch) -> list[str]:
    """Return the paths that Gradio copies; the list must stay empty."""
    paths: list[str] = []

    def copy(path: Any, *_: Any) -> str:
        paths.append(str(path))
        return str(path)

    monkeypatch.setattr(processing_utils, "save_file_to_cache", copy)
    monkeypatch.setattr(processing_utils, "async_ssrf_protected_download", copy)
    return paths


def test_every_handler_refuses_every_file_in_every_input(page, targets, copied) -> None:
    async def attack() -> None:
        assert len(page.fns) > 20
        for handler in page.fns.values():
            for place in range(len(handler.inputs)):
                for value in (shape for target in targets for shape in shapes(target)):
                    inputs: list[Any] = [None] * len(handler.inputs)
                    inputs[place] = value
                    with pytest.raises(gr.Error, match="this page takes no files"):
                        await page.preprocess_data(handler, inputs, None)

    asyncio.run(attack())
    assert copied == []


def test_a_handler_that_returns_a_file_is_refused(page, outside, copied) -> None:
    """Gradio would copy such files from the working directory and from temporary folders."""

    async def attack() -> None:
        LocalContext.blocks.set(page)
        for target in (str(outside), "pyproject.toml", str(Path(tempfile.gettempdir()) / "x"), "/etc/passwd"):
            value, block = {"path": target, "meta": FILE_DATA}, next(iter(page.blocks.values()))
            with pytest.raises(processing_utils.InvalidPathError):
                await processing_utils.async_move_files_to_cache(value, block, postprocess=True)

    asyncio.run(attack())
    assert copied == []


def test_a_queue_call_with_a_file_reveals_nothing_of_it(client, page, outside, copied, capfd) -> None:
    for number, handler in page.fns.items():
        if handler.inputs:
            answer = asked(client, page, number, shapes(str(outside))[:1] * len(handler.inputs))
            assert '"success":false' in answer, handler.name
            assert "this page takes no files" in answer, handler.name
            assert SECRET not in answer
            assert str(outside) not in answer
    assert copied == []
    assert "Traceback" not in "".join(capfd.readouterr())


def test_a_file_in_the_data_of_an_event_is_only_text(client, page, outside, copied, capfd) -> None:
    file = shapes(str(outside))[0]
    for number, handler in page.fns.items():
        if handler.fn is not None and handler.name not in ("ask", "regenerate"):
            event = dict.fromkeys(("run", "error", "offset", "listed", "ticked"), file)
            answer = asked(client, page, number, [None] * len(handler.inputs), event)
            assert "process_completed" in answer, handler.name
            assert SECRET not in answer
            if handler.name == "download":
                assert "no network" in answer, "the handler asks for the model of its button"
    assert copied == []
    assert "Traceback" not in "".join(capfd.readouterr())


def test_an_endless_device_does_not_block_a_handler(client, page) -> None:
    for number, handler in page.fns.items():
        if len(handler.inputs) == 1:
            assert "takes no files" in asked(client, page, number, shapes("/dev/zero")[:1])
    assert client.get("/config").status_code == 200


def test_a_cluster_that_is_not_in_the_list_is_refused(client, page, tmp_path) -> None:
    """The command line accepts a profile's path, the page only a listed name."""
    secret = tmp_path / "mine.toml"
    secret.write_text(f'title = "{SECRET}"')
    (number,) = [
        n for n, fn in page.fns.items() if fn.targets and fn.inputs and fn.inputs[0].elem_id == "profile"
    ]
    answer = asked(client, page, number, [str(secret)])
    assert '"success":false' in answer
    assert SECRET not in answer


def test_deeply_nested_values_are_refused() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(gr.Error, match="nested too deeply"):
        check_plain(deep)
    check_plain({"past": [["a", "b", "c"]], "answers": [["x", "y"]]})


POSTS = """
upload run/turn_page api/turn_page call/turn_page call/v2/turn_page component_server cancel reset process_recording
vibe-edit vibe-code undo-vibe-edit stream/x stream/x/close run-history/connect
"""
READS = """
/gradio_api/info /gradio_api/openapi.json /gradio_api/deep_link?session_hash=x /gradio_api/queue/status
/gradio_api/upload_progress?upload_id=x /gradio_api/user /gradio_api/token /gradio_api/app_id /gradio_api/dev/reload
/gradio_api/runs /gradio_api/vibe-code /gradio_api/custom_component/x/client/y/z.js /gradio_api/call/x/y
/gradio_api/stream/a/b/1/playlist.m3u8 /gradio_api/Upload /monitoring /monitoring/summary /logout /login /pwa_icon
"""


def test_no_address_serves_or_takes_files_runs_handlers_directly_or_fetches_from_elsewhere(
    client, outside
) -> None:
    cached = Path(get_upload_folder()) / "another-session" / "theirs.txt"
    cached.parent.mkdir(parents=True, exist_ok=True)
    try:
        cached.write_text(SECRET)
        for path in (outside, cached, "/etc/passwd", "/dev/zero", "http://127.0.0.1:1/x"):
            for form in ("/gradio_api/file={}", "/gradio_api/file/{}", "/gradio_api/proxy={}"):
                answer = client.get(form.format(path))
                assert answer.status_code == 404
                assert SECRET not in answer.text
    finally:
        cached.unlink()
        cached.parent.rmdir()
    for name in POSTS.split():
        assert client.post(f"/gradio_api/{name}", json={"data": []}).status_code == 404, name
    for path in READS.split():
        assert client.get(path).status_code == 404, path


def test_paths_out_of_the_served_folders_are_refused(client) -> None:
    for top in ("/assets", "/static", "/specscope/files"):
        for climb in ("../" * 12, "..%2f" * 12, "%2e%2e/" * 12, "/", "....//" * 8):
            answer = client.get(f"{top}/{climb}etc/passwd")
            assert answer.status_code in (403, 404), answer.url
            assert "root:" not in answer.text


def test_an_import_reads_the_body_and_no_path(client, outside) -> None:
    for body in (str(outside), json.dumps(shapes(str(outside))[0]), json.dumps({"path": "/dev/zero"})):
        answer = client.post("/specscope/import", content=body)
        assert answer.status_code == 422
        assert SECRET not in answer.text
        assert "/dev/fd" not in answer.text
        assert answer.json()["error"].startswith("cannot import the file: ")


def test_an_imported_file_is_stored_once_and_leaves_no_copy(client, site, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    trace = site.store.load(site.store.runs()[0][0].header.run_id)
    text = io.StringIO()
    write_jsonl(trace, text)
    lines = text.getvalue().replace(trace.header.run_id, "imported01").encode()
    assert client.post("/specscope/import", content=lines).json() == {"run": "imported01", "set": ""}
    assert site.store.load("imported01").commits == trace.commits
    assert "already stored" in client.post("/specscope/import", content=lines).json()["error"]
    assert list(tmp_path.iterdir()) == []


def test_a_file_over_the_limit_is_refused_while_it_is_sent(client, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(routes, "MAX_UPLOAD", 2**20)
    answer = client.post("/specscope/import", content=(b"x" * 2**16 for _ in range(64)))
    assert "more than 1 MB" in answer.json()["error"]
    assert list(tmp_path.iterdir()) == []


def test_a_second_import_at_once_is_refused(client, monkeypatch) -> None:
    answers = []

    def import_during_another_import(service, file) -> str:
        answers.append(client.post("/specscope/import", content=b"x"))
        return "first", ""

    monkeypatch.setattr(routes, "import_trace", import_during_another_import)
    assert client.post("/specscope/import", content=b"x").json() == {"run": "first", "set": ""}
    assert answers[0].status_code == 503
    assert "another import is running" in answers[0].json()["error"]


def test_the_buttons_of_the_list_of_models_take_no_input(page) -> None:
    acting = [f for f in page.fns.values() if getattr(f.fn, "__qualname__", "").startswith("Shelf.")]
    names = {handler.fn.__name__ for handler in acting}
    assert names >= {"download", "stop", "delete", "follow"}
    assert [handler.inputs for handler in acting] == [[]] * len(acting)
