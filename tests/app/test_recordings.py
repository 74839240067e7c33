"""Files that other processes write: which may be followed, and their runs in the service."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

import pytest

import specscope
from specscope.app.recordings import Recordings
from specscope.app.render.follow import following
from specscope.app.routes import follow_address
from specscope.app.runs import Lane
from specscope.app.service import Service
from specscope.app.tabs.follow import wanted_files
from specscope.app.tabs.streaming import LivePane, frames
from specscope.engine.errors import UsageError
from specscope.engine.trace.jsonl import to_json
from specscope.traces.follow import Tail
from tests.app.fakes import FakeOpen, until
from tests.traces.samples import sample_events, sample_trace

EVENTS = sample_events("pearl")
LINES = [to_json(event) + "\n" for event in EVENTS]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "recordings"
    path.mkdir()
    return path


@pytest.fixture
def service(tmp_path: Path, folder: Path):
    opened = Service(tmp_path / "traces.db", FakeOpen(), recordings=Recordings((), folder))
    yield opened
    opened.close()


def write(file: Path, *lines: str) -> None:
    with file.open("a", encoding="utf-8") as opened:
        opened.write("".join(lines))


def followed_to_its_end(service: Service, name: str):
    followed = service.follower.start(name)
    assert followed.run.wait(20)
    return followed


def test_a_run_takes_the_way_of_a_run_of_the_page(service, folder) -> None:
    write(folder / "run.jsonl", *LINES[:40])
    followed = service.follower.start("run.jsonl")
    until(lambda: followed.run.run_id == "sample-pearl")
    assert service.follower.start("run.jsonl") is followed, "a file is followed once"
    assert service.find("sample-pearl") is followed.run
    assert (service.trace("sample-pearl").status, service.store.runs()[1]) == ("running", 0)
    write(folder / "run.jsonl", *LINES[40:])
    assert followed.run.wait(20)
    assert (followed.run.state, followed.run.note) == ("done", "Run sample-pearl is stored.")
    assert service.trace("sample-pearl") == service.store.load("sample-pearl") == sample_trace("pearl")


def test_the_panes_and_figures_of_a_followed_run(service, folder) -> None:
    write(folder / "run.jsonl", *LINES)

    async def collect() -> list:
        followed = service.follower.start("run.jsonl")
        return [frame async for frame in frames([Lane([followed.run])], own=False)], followed

    got, followed = asyncio.run(collect())
    assert (got[-1].state, got[-1].last, got[-1].draw) == ("done", True, True)
    html = {index: pane for frame in got for index, pane in frame.panes.items()}[0]
    assert "PEARL" in html
    assert html.count('class="ss-token') == len(sample_trace("pearl").commits)
    line = following([followed])
    assert "15 rounds · 24 tokens · 32% of drafts accepted · 132.3 tokens/s" in line
    assert not any(button in line for button in ("data-stop", "data-keep"))


def test_every_followed_run_has_a_document_when_it_begins(service, folder) -> None:
    write(folder / "early.jsonl", *LINES[:40])
    write(folder / "late.jsonl", "")

    async def drawn() -> list[int]:
        followed, counts = [service.follower.start(f"{name}.jsonl") for name in ("early", "late")], []
        async for frame in frames([Lane([one.run]) for one in followed], own=False):
            if frame.draw:
                counts.append(sum(bool(one.run.run_id) for one in followed))
                write(folder / "late.jsonl", LINES[0].replace("sample-pearl", "late"))
            if counts[-1:] == [2]:
                break
        return counts

    assert asyncio.run(asyncio.wait_for(drawn(), 4))[-1] == 2, "not after the pause between documents"


def test_a_recorded_loop_is_followed_span_by_span(service, folder) -> None:
    file = folder / "own.jsonl"
    with specscope.record(file, method="my loop", devices={"gpu0": "drafter", "gpu1": "target"}) as rec:
        rec.prompt("The prompt", ids=[1, 2, 3])
        rec.start()
        followed = service.follower.start(file.name)
        until(lambda: bool(followed.run.run_id))
        assert followed.run.trace().header.environment["recorded"]["unknown"] == [], "it may come"
        with rec.span("draft", rows=2):
            pass
        until(lambda: len(followed.run.trace().spans) == 1)
        with rec.span("verify", rows=3):
            pass
        rec.round(drafted=[4, 5], accepted=1, emitted=[4, 9])
        until(lambda: followed.tally.tokens == 2)
        pane = LivePane(Lane([followed.run]))
        assert pane.update()
        words = re.findall(r'ss-ink">([^<]*)<', pane.html)
        assert [word.strip() for word in words] == ["4", "9"], "ids, because it records no texts"
        assert "texts of the tokens" in followed.run.trace().header.environment["recorded"]["unknown"]
    assert followed.run.wait(20)
    assert followed.run.note == f"Run {followed.run.run_id} is stored."
    assert followed.run.trace() == service.store.load(followed.run.run_id)


def test_runs_of_other_processes_keep_their_status_and_an_id_is_stored_once(service, folder) -> None:
    for status in ("failed", "cancelled"):
        footer = LINES[-1].replace('"done"', f'"{status}"').replace('"error":""', '"error":"no memory"')
        header = LINES[0].replace("sample-pearl", status)
        write(folder / f"{status}.jsonl", header, *LINES[1:-1], footer)
        run = followed_to_its_end(service, f"{status}.jsonl").run
        assert (run.state, run.error) == (status, "no memory")
        assert service.store.load(status).footer.error == "no memory"
    for name in ("a.jsonl", "b.jsonl"):
        write(folder / name, *LINES)
        run = followed_to_its_end(service, name).run
        assert run.state == "done"
    assert run.note == "Not stored: a run with this id is already stored; delete it in the History first."
    assert service.find("sample-pearl") is run, "the newest run of an id is found"


def test_a_stopped_run_is_incomplete_and_stored_on_request(service, folder) -> None:
    write(folder / "run.jsonl", *LINES[:60], LINES[60][:30])
    followed = service.follower.start("run.jsonl")
    until(lambda: followed.tally.tokens > 2)
    assert 'data-stop="run.jsonl"' in following([followed])
    service.follower.stop("run.jsonl")
    assert followed.run.wait(20)
    assert "has no footer yet, so the run is not stored" in followed.run.note
    assert 'data-keep="run.jsonl"' in following([followed])
    assert followed.run.trace().status == "incomplete"
    assert service.store.runs()[1] == 0
    assert service.follower.keep("run.jsonl") == "Run sample-pearl is stored."
    assert service.store.load("sample-pearl").status == "incomplete"


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (lambda file: write(file, "nonsense\n"), "run.jsonl: line 41: Expecting value"),
        (lambda file: file.write_text(""), "run.jsonl was shortened to 0 bytes"),
        (lambda file: file.unlink(), "run.jsonl was removed before its footer"),
    ],
)
def test_a_fault_ends_following_and_its_reason_is_shown(service, folder, after, message) -> None:
    file = folder / "run.jsonl"
    write(file, *LINES[:40])
    followed = service.follower.start("run.jsonl")
    until(lambda: bool(followed.run.run_id))
    time.sleep(0.15)  # all lines are read
    after(file)
    assert followed.run.wait(20)
    assert followed.run.state == "failed"
    assert followed.run.error.startswith(message)
    line = following([followed])
    assert f"No longer followed: {message}" in line
    assert 'data-again="run.jsonl"' in line
    assert "data-keep" not in line
    assert followed.run.trace().status == "failed"


def test_an_unexpected_error_ends_following_too(service, folder, monkeypatch) -> None:
    monkeypatch.setattr(Tail, "read", lambda _: 1 // 0)
    write(folder / "run.jsonl", LINES[0])
    run = followed_to_its_end(service, "run.jsonl").run
    assert (run.state, run.error.partition(":")[0]) == ("failed", "ZeroDivisionError")


def test_markup_in_names_and_figures_is_text(service, folder) -> None:
    files = ["<img src=x onerror=alert(1)>.jsonl", "a,b.jsonl"]
    write(folder / files[0], LINES[0])
    assert "<img" not in following([service.follower.start(files[0])])
    assert wanted_files(follow_address(files).partition("=")[2].replace("%25", "%")) == files


def test_without_a_footer_or_a_database_a_run_is_not_stored_and_says_how(tmp_path, folder, capsys) -> None:
    file = tmp_path / "my run.jsonl"
    write(file, *LINES[:40])
    service = Service(None, FakeOpen(), recordings=Recordings([file], folder))
    run = service.follower.start("my run.jsonl").run
    until(lambda: bool(run.run_id))
    service.close()
    assert run.ended
    said = "my run.jsonl has no footer yet, so it is not stored"
    remedy = f"`specscope import '{file}'` stores what is there"
    assert capsys.readouterr().err == f"specscope: {said}; {remedy}\n"
    write(folder / "run.jsonl", *LINES)
    service = Service(None, FakeOpen(), recordings=Recordings((), folder))
    run = followed_to_its_end(service, "run.jsonl").run
    assert run.note == "Not stored: SpecScope was started without a database."
    assert service.trace("sample-pearl").status == "done"
    service.close()


def test_the_list_has_the_named_files_that_exist_then_the_newest_of_the_folder(tmp_path, folder) -> None:
    named = [tmp_path / "here.jsonl", tmp_path / "later.jsonl"]
    write(named[0], "x")
    for name in ("old.jsonl", "new.jsonl", "other.json", "here.jsonl"):
        write(folder / name, "xyz")
    old = time.time() - 100
    os.utime(folder / "old.jsonl", (old, old))
    listed = Recordings(named, folder).listed()
    sizes = {"here.jsonl": 1, "new.jsonl": 3, "old.jsonl": 3}
    assert [(row["name"], row["size"]) for row in listed] == [*sizes.items()]
    assert listed[2]["age"] == pytest.approx(100, abs=20)


def test_the_folder_is_in_the_data_folder_and_names_are_unique(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert Recordings().folder == tmp_path / "specscope" / "recordings"
    assert Recordings().listed() == [], "it does not exist"
    with pytest.raises(UsageError, match=r"two files have the name 'run\.jsonl'"):
        Recordings([tmp_path / "a" / "run.jsonl", tmp_path / "b" / "run.jsonl"])
