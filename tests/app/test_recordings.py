"""Files that other processes write: in the service, in `specscope follow` and other commands."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import specscope
from specscope.app.cli import common
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
from specscope.traces.metrics import measure
from specscope.traces.store import Store
from tests.app.commands import call, printed, refused
from tests.app.fakes import FakeOpen, until
from tests.traces.samples import sample_events, sample_trace

LINES = [to_json(event) + "\n" for event in sample_events("pearl")]
ROOT = Path(__file__).resolve().parents[2]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


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


# `specscope follow`, and the commands on recordings of own loops.


def rows(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


def test_a_line_per_round_as_the_file_grows_and_the_run_is_stored(capsys, db, tmp_path, monkeypatch) -> None:
    file, waiting, note = tmp_path / "run.jsonl", threading.Event(), common.note
    monkeypatch.setattr(common, "note", lambda text: (note(text), waiting.set()))

    def slowly() -> None:
        assert waiting.wait(60)
        with file.open("w", encoding="utf-8") as opened:
            for line in LINES:
                opened.write(line[:9])
                opened.flush()
                opened.write(line[9:])
                time.sleep(0.001)

    writer = threading.Thread(target=slowly)
    writer.start()
    code, out, err = call(capsys, "follow", str(file), "--json", *db)
    writer.join()
    assert code == 0
    assert err.splitlines()[0] == "specscope: waiting: run.jsonl does not exist yet"
    header, *rounds, footer = rows(out)
    trace = sample_trace("pearl")
    known = measure(trace)
    assert header == {
        "file": "run.jsonl", "event": "header", "run_id": "sample-pearl", "method": "pearl", "title": "PEARL"
    }  # fmt: skip
    assert [row["step"] for row in rounds] == [row.step for row in trace.rounds]
    assert [row["rounds"] for row in rounds] == list(range(1, len(rounds) + 1))
    assert [row["tokens"] for row in rounds] == sorted(row["tokens"] for row in rounds)
    assert (footer["status"], footer["message"]) == ("done", "Run sample-pearl is stored.")
    assert footer["tokens"] == known.tokens
    assert footer["acceptance_rate"] == pytest.approx(known.acceptance_rate)
    assert footer["tokens_per_second"] == pytest.approx(known.tokens_per_second)
    with Store(db[1]) as store:
        assert store.load("sample-pearl") == trace


def test_several_files_are_followed_to_their_footers_and_a_wrong_line_has_its_number(
    capsys, db, tmp_path
) -> None:
    for name in ("a", "b"):
        text = "".join(LINES).replace("sample-pearl", f"run-{name}")
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    code, out, err = call(capsys, "follow", *(str(tmp_path / f"{n}.jsonl") for n in "ab"), "--json", *db)
    assert (code, err) == (0, "")
    ends = [row for row in rows(out) if row["event"] == "footer"]
    assert [(row["file"], row["run_id"]) for row in ends] == [("a.jsonl", "run-a"), ("b.jsonl", "run-b")]
    (tmp_path / "run.jsonl").write_text("".join(LINES[:5]) + "nonsense\n", encoding="utf-8")
    code, out, err = call(capsys, "follow", str(tmp_path / "run.jsonl"), "--json", *db)
    assert (code, len(rows(out))) == (2, 1)
    assert err == "specscope: run.jsonl: line 6: Expecting value at character 1\n"


def test_without_json_the_page_opens_on_the_files(capsys, monkeypatch, tmp_path) -> None:
    served = []
    monkeypatch.setattr("specscope.app.server.serve", lambda **arguments: served.append(arguments) or 0)
    files = [str(tmp_path / "a,b.jsonl"), str(tmp_path / "c.jsonl")]
    code, _, err = call(capsys, "follow", *files, "--port", "0")
    (given,) = served
    assert (code, err, given["port"], given["query"]) == (0, "", 0, "/?follow=a%252Cb.jsonl,c.jsonl")
    assert [*given["recordings"].files] == ["a,b.jsonl", "c.jsonl"]
    assert "host" not in given, "only this machine reaches the page"
    call(capsys, "follow", "--folder", str(tmp_path))
    assert served[1]["query"] == "/?tab=history"
    assert served[1]["recordings"].folder == tmp_path


def test_ctrl_c_ends_cleanly_and_says_how_to_store_what_is_there(tmp_path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text("".join(LINES[:60]), encoding="utf-8")
    command = [sys.executable, "-m", "specscope.app.main", "follow", str(file), "--json", "--db"]
    process = subprocess.Popen([*command, str(tmp_path / "t.db")], cwd=ROOT, **PIPES)
    assert process.stdout is not None
    rounds = sum('{"event":"round"' in line for line in LINES[:60])
    events = [json.loads(process.stdout.readline())["event"] for _ in range(1 + rounds)]
    assert events == ["header", *["round"] * rounds]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    note = f"run.jsonl has no footer yet, so it is not stored; `specscope import {file}` stores what is there"
    assert err == f"specscope: {note}\nspecscope: stopped\n"


# Recordings of own loops in commands.


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "mine.jsonl"
    with specscope.record(path, "my own loop", devices=["drafter", "target"], target="org/big") as rec:
        rec.prompt("Count", ids=[1])
        for _ in range(2):
            with rec.span("draft", rows=1):
                pass
            with rec.span("verify", rows=3):
                pass
            rec.round([2, 3], 1, [2, 4], texts=[" two", " four"])
    return path


def test_a_recording_is_imported_listed_reported_exported_and_compared(capsys, db, recorded, tmp_path):
    out = printed(capsys, "import", str(recorded), *db)
    run = out.split()[1].rstrip(":")
    assert out == f"run {run}: my own loop, 4 tokens, done\n"
    listed = printed(capsys, "runs", *db).splitlines()[1]
    assert re.fullmatch(rf"{run} .* my own loop .*org/big · measured · own code", listed)
    report, again = tmp_path / "mine.html", tmp_path / "again.jsonl"
    printed(capsys, "report", run, "-o", str(report), *db)
    assert " two four two four" in report.read_text(encoding="utf-8")
    printed(capsys, "export", run, "--format", "jsonl", "-o", str(again), *db)
    assert "rows cached before each forward" in again.read_text(encoding="utf-8")
    assert "a run with this id is already stored" in refused(capsys, "import", str(recorded), *db, code=1)
    out = printed(capsys, "diff", run, run, *db)
    assert out.startswith(f"{run}: my own loop · org/big · measured · own code · 4 tokens in ")
    assert printed(capsys, "audit", run, *db).startswith("no test has a known chance: ")
    assert "name a cluster for the what-if with --profile" in refused(capsys, "whatif", run, *db)


def test_runs_whose_acceptance_is_not_that_of_the_rule_are_audited_alone_and_together(capsys, db, tmp_path):
    runs = []
    for name in ("a", "b"):
        facts = {"sampling": {"temperature": 0.7}, "rule": "ratio"}
        with specscope.record(tmp_path / name, **facts) as rec:
            for i in range(12):
                rec.round([2, 3], i % 6 == 0, [2, 4] if i % 6 == 0 else [4], q=[0.5, 0.5], p=[0.4, 0.3])
        runs.append(printed(capsys, "import", str(tmp_path / name), *db).split()[1].rstrip(":"))
    lines = printed(capsys, "audit", runs[0], *db).splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["tested", "expected", "accepted", "z"],
        ["all", "14", "10.8", "2", "-5.7"],
        ["place", "1", "12", "9.6", "2", "-5.5"],
        ["place", "2", "2", "1.2", "0", "-1.7"],
    ]
    found = json.loads(printed(capsys, "audit", *runs, *db, "--json"))["audit"]
    assert (found["whole"]["tested"], found["whole"]["low"]) == (28, 21.6)
    assert [part["name"] for part in found["stretches"]] == [f"run {run}" for run in runs]
    assert found["sentence"].startswith(
        "Of 28 tested drafts, 21.6 were expected to be kept and 4 were (z = -8.0): "
    )
