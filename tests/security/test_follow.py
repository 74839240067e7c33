"""Attacks on files through following: only named files and those of one folder are read."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from specscope.app.recordings import MOST_FOLLOWED, Recordings
from specscope.app.server import build_app
from specscope.app.service import Service
from specscope.engine.errors import UsageError
from specscope.engine.trace.jsonl import to_json
from specscope.traces import follow
from specscope.traces.follow import Tail
from tests.app.fakes import FakeOpen
from tests.security.conftest import HOST
from tests.traces.samples import sample_events

LINES = [to_json(event) + "\n" for event in sample_events("pearl")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "recordings"
    path.mkdir()
    (path / "run.jsonl").write_text("".join(LINES), encoding="utf-8")
    return path


@pytest.fixture
def recordings(folder: Path) -> Recordings:
    return Recordings((), folder)


def read_on(tail: Tail) -> None:
    for _ in range(100):
        tail.read()


def test_a_name_leads_to_no_file_outside_the_list(recordings, folder, outside) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (inner / "deep.jsonl").write_text("".join(LINES), encoding="utf-8")
    (folder / "notes.txt").write_text("private")
    names = [
        *(str(outside), f"../{outside.name}", "../recordings/run.jsonl", str(folder / "run.jsonl")),
        *("./run.jsonl", "inner/deep.jsonl", "inner", "notes.txt", "", ".", "..", "/dev/zero", "/etc/passwd"),
        *(
            "run.jsonl\0",
            "run.jsonl/",
            "RUN.JSONL",
            "*.jsonl",
            "%2e%2e/run.jsonl",
            "\udcff.jsonl",
            "x" * 9000,
        ),
    ]
    for name in names:
        with pytest.raises(UsageError, match=r"there is no file .* to follow") as refusal:
            recordings.tail(name)
        assert "secret" not in str(refusal.value)
    assert [row["name"] for row in recordings.listed()] == ["run.jsonl"]


def test_links_pipes_devices_and_folders_inside_are_neither_listed_nor_followed(
    recordings, folder, outside
) -> None:
    (folder / "link.jsonl").symlink_to(outside)
    (folder / "loop.jsonl").symlink_to(folder / "loop.jsonl")
    (folder / "device.jsonl").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "folder.jsonl").mkdir()
    assert [row["name"] for row in recordings.listed()] == ["run.jsonl"]
    for name in ("link.jsonl", "loop.jsonl", "device.jsonl", "pipe.jsonl", "folder.jsonl"):
        with pytest.raises(UsageError, match="there is no file"):
            recordings.tail(name)


def test_a_file_that_becomes_a_link_is_not_opened(recordings, folder, outside) -> None:
    tail = recordings.tail("run.jsonl")
    (folder / "run.jsonl").unlink()
    (folder / "run.jsonl").symlink_to(outside)
    with pytest.raises(UsageError, match=r"cannot read run\.jsonl"):
        tail.read()


def test_the_followed_file_is_stored_and_not_what_its_name_became(recordings, folder, outside) -> None:
    tail = recordings.tail("run.jsonl")
    assert tail.read()
    (folder / "run.jsonl").unlink()
    (folder / "run.jsonl").symlink_to(outside)
    assert tail.trace().header.run_id == "sample-pearl"
    tail.close()


def test_an_endless_line_and_a_huge_file_are_given_up(folder, monkeypatch) -> None:
    monkeypatch.setattr(follow, "MOST_READ", 2**12)
    monkeypatch.setattr(follow, "MOST_LINE", 2**16)
    (folder / "endless.jsonl").write_text("x" * 2**18)
    tail = Tail(folder / "endless.jsonl")
    with pytest.raises(UsageError, match="line 1 has no end within 65536 bytes"):
        read_on(tail)
    assert len(tail._cut) <= 2**16 + 2**12, "no more than a line is kept"
    with (folder / "huge.jsonl").open("wb") as file:
        file.truncate(2**40)  # a hole, which takes no space
    huge, began = Tail(folder / "huge.jsonl"), time.monotonic()
    with pytest.raises(UsageError, match="line 1 has no end"):
        read_on(huge)
    assert time.monotonic() - began < 20


def test_the_address_of_the_list_has_names_only(folder, tmp_path) -> None:
    service = Service(tmp_path / "traces.db", FakeOpen(), recordings=Recordings((), folder))
    try:
        with TestClient(build_app(service), base_url=HOST) as client:
            answer = client.get("/specscope/recordings")
            assert [row["name"] for row in answer.json()["files"]] == ["run.jsonl"]
            assert str(folder.parent) not in answer.text
            assert client.get("/specscope/recordings/../run.jsonl").status_code == 404
            foreign = client.get("/specscope/recordings", headers={"Origin": "http://evil.example"})
            assert foreign.status_code == 403
    finally:
        service.close()


def test_one_file_more_than_the_limit_stops_the_first(folder) -> None:
    service = Service(None, FakeOpen(), recordings=Recordings((), folder))
    runs = []
    try:
        for number in range(MOST_FOLLOWED + 2):
            (folder / f"{number}.jsonl").write_text(LINES[0].replace("sample-pearl", f"run{number}"))
            runs.append(service.follower.start(f"{number}.jsonl").run)
        assert [run.wait(20) for run in runs[:2]] == [True, True]
        assert not any(run.ended for run in runs[2:])
    finally:
        service.close()
    assert all(run.ended for run in runs)


def test_a_wrong_line_of_a_followed_file_is_shown_in_part(folder) -> None:
    (folder / "secret.jsonl").write_text("root:" + "secret-" * 5000 + "\n")
    tail = Recordings((), folder).tail("secret.jsonl")
    with pytest.raises(UsageError) as refusal:
        tail.read()
    assert "secret-" not in str(refusal.value).replace("secret.jsonl", "")
