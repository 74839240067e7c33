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
from types import SimpleNamespace

import pytest

import specscope
from specscope.app.cli import common
from specscope.app.jobs.recordings import Recordings
from specscope.app.jobs.runs import Lane
from specscope.app.jobs.service import Service
from specscope.app.render.addresses import follow_address
from specscope.app.render.follow import following
from specscope.app.tabs.follow import Following, wanted_files
from specscope.app.tabs.streaming import LivePane, frames
from specscope.engine.errors import UsageError
from specscope.engine.trace.jsonl import to_json
from specscope.traces.database.store import Store
from specscope.traces.facts.metrics import measure
from specscope.traces.following.follow import Tail
from tests.app.commands import IMPORTED, call, printed, refused
from tests.app.fakes import FakeOpen, until
from tests.engine.servers.replayed import serving
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
    monkeypatch.setattr("specscope.app.web.server.serve", lambda **arguments: served.append(arguments) or 0)
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


# Logs, folders and counters: in the service, the page's field and the command.

PRINTED = IMPORTED / "printed"


def test_a_log_is_shown_while_it_grows_and_is_done_when_it_is_stopped(service, tmp_path) -> None:
    file, told = tmp_path / "server.log", list[str]()
    recordings = service.follower.recordings
    recordings.anywhere, recordings.tell = True, told.append
    file.write_bytes((PRINTED / "04-vllm.log").read_bytes())
    followed = service.follower.start(recordings.add(str(file)))
    until(lambda: followed.tally.tokens == 1306)
    assert (service.trace(followed.run.run_id).status, len(told)) == ("running", 3)
    pane = LivePane(Lane([followed.run]))
    assert pane.update()
    assert "0/840 accepted" in pane.html
    assert "578 rounds · 1306 tokens · 32% of drafts accepted · 43.5 tokens/s" in following([followed])
    with file.open("ab") as opened:
        opened.write((PRINTED / "04-vllm.log").read_bytes().replace(b"09:0", b"10:0"))
    until(lambda: followed.tally.tokens == 2612)
    service.follower.stop("server.log")
    assert followed.run.wait(20)
    assert (followed.run.state, service.trace(followed.run.run_id).status) == ("done", "done")
    assert len(service.store.load(followed.run.run_id).windows) == len(told) == 6
    assert "data-keep" not in following([followed]), "it is stored"


def test_of_several_servers_in_a_log_one_stays_shown_until_another_is_chosen(service, tmp_path) -> None:
    file = tmp_path / "<b>.log"
    lines = (PRINTED / "two-llama-servers.log").read_text().splitlines(keepends=True)
    file.write_text("".join(lines).replace("ngram", "<i>"))
    service.follower.recordings.anywhere = True
    followed = service.follower.start(name := service.follower.recordings.add(str(file)))
    until(lambda: len(followed.source.titles) == 2 and followed.tally.drafted == 104)
    first, second = followed.source.titles
    said = following([followed])
    assert followed.run.run_id == first
    assert "Shown: llama.cpp · llama-draft.err, one of 2 servers." in said
    assert f'data-show="{second}">Show llama.cpp · llama-&lt;i&gt;.err</button>' in said
    assert "<b>" not in said.replace("<b>&lt;b&gt;.log</b>", "")
    with file.open("a") as opened:  # the other one grows
        opened.write(
            next(line for line in lines[::-1] if "ngram" in line and "draft acc" in line).replace(
                "ngram", "<i>"
            )
        )
    until(lambda: len(service.store.load(second).windows) > 2)
    assert followed.run.run_id == first
    Following.choose(SimpleNamespace(service=service), SimpleNamespace(file=name, run=second))
    until(lambda: followed.run.run_id == second)
    service.follower.show("nobody", second)
    service.follower.stop(name)
    assert followed.run.wait(20)
    said = following([followed])
    assert "Shown: llama.cpp · llama-&lt;i&gt;.err" in said
    assert f'<a href="/?run={first}">llama.cpp · llama-draft.err</a>' in said


def test_a_folder_shows_its_newest_run_and_goes_on_after_bad_files(service, tmp_path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    service.follower.recordings.anywhere = True
    followed = service.follower.start(service.follower.recordings.add(str(place)))
    write(place / "bad.jsonl", "nonsense\n")
    write(place / "a.jsonl", *LINES)
    until(lambda: followed.run.run_id == "sample-pearl")
    assert followed.run.trace().status == "done"
    until(lambda: "1 stored, 1 not read" in followed.run.note)
    write(place / "b.jsonl", LINES[0].replace("sample-pearl", "next"), *LINES[1:])
    until(lambda: followed.run.run_id == "next")
    assert {one.header.run_id for one in service.store.runs()[0]} == {"sample-pearl", "next"}


def test_counters_are_followed_and_an_error_is_shown(service) -> None:
    recordings = service.follower.recordings
    recordings.anywhere = True
    with serving({"/metrics": b"vllm:x 1\n"}, []) as served:
        name = recordings.add(f"{served.url}/metrics")
        followed = service.follower.start(name)
        until(lambda: "counts no drafts" in followed.run.note)
    assert name == f"{served.url}/metrics"
    for text in ("http://192.0.2.1:8000/metrics", "192.0.2.1:8000", "http://example.org/metrics"):
        with pytest.raises(UsageError, match=r"is another machine: give --remote to specscope follow"):
            recordings.add(text)


def test_a_page_that_others_reach_takes_no_paths(service, tmp_path) -> None:
    file = tmp_path / "server.log"
    file.write_bytes((PRINTED / "04-vllm.log").read_bytes())
    with pytest.raises(UsageError, match="other machines reach this page, so it opens no path"):
        service.follower.recordings.add(str(file))
    with pytest.raises(UsageError, match="there is no file"):
        service.follower.start(str(file))
    service.follower.recordings.anywhere = True
    with pytest.raises(UsageError, match="there is no file"):
        service.follower.start(str(file))  # an address of the page names it: nobody typed it
    for text, said in (("  ", "nothing is named"), (str(tmp_path / "no" / "x.log"), "is no folder")):
        with pytest.raises(UsageError, match=said):
            service.follower.recordings.add(text)


def following_process(tmp_path, *words: str):
    command = [sys.executable, "-m", "specscope.app.main", "follow", *words, "--db", str(tmp_path / "t.db")]
    return subprocess.Popen(command, cwd=ROOT, **PIPES)


def test_a_log_has_a_line_per_window_and_ctrl_c_keeps_its_run(tmp_path) -> None:
    file = tmp_path / "server.log"
    file.write_bytes((PRINTED / "04-vllm.log").read_bytes())
    process = following_process(tmp_path, str(file), "--lines")
    lines = [process.stdout.readline() for _ in range(3)]
    assert lines[0] == (
        "09:03:44 · 188 drafts · 353/752 accepted (47%) · 2.88 tokens/round · by place 85% 60% 28% 15% · 54.0 tokens/s\n"
    )
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    with Store(tmp_path / "t.db") as store:
        (run,) = store.runs()[0]
    assert (process.returncode, err) == (
        130,
        f"specscope: server.log: Run {run.header.run_id}.\nspecscope: stopped\n",
    )
    assert (run.tokens, run.tokens_per_second, run.status) == (1306, pytest.approx(43.53, abs=0.01), "done")


def test_counters_have_a_json_line_per_window(tmp_path) -> None:
    text = (PRINTED / "05-vllm-metrics-after.prom").read_bytes()
    with serving({"/metrics": text}, []) as served:
        process = following_process(tmp_path, f"{served.url}/metrics", "--json", "--every", "0.2")
        assert process.stderr.readline() == "specscope: waiting: no drafts yet\n"
        served.answers["/metrics"] = text.replace(b" 5000.0", b" 5010.0").replace(b" 20000.0", b" 20040.0")
        row = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert (row["event"], row["drafts"], row["drafted"], row["accepted"]) == ("window", 10, 40, 0)
    with Store(tmp_path / "t.db") as store:
        assert len(store.load(row["run_id"]).windows) == 1


def test_a_folder_has_a_line_per_run(tmp_path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    write(place / "bad.jsonl", "nonsense\n")
    write(place / "a.jsonl", *LINES)
    write(place / "open.jsonl", LINES[0].replace("sample-pearl", "open"))
    process = following_process(tmp_path, str(place), "--json")
    row = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (row["file"], row["event"], row["run_id"], row["tokens"]) == ("a.jsonl", "run", "sample-pearl", 24)
    assert err.splitlines()[0].startswith("specscope: bad.jsonl: line 1: ")
    assert "in: 1 stored, 1 not read, 1 without an end." in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{pipe}", "--lines"], "pipe is not a regular file; give a file"),
        (["http://192.0.2.1:9/metrics", "--lines"], "is another machine: give --remote to specscope follow"),
        (["{log}", "--lines", "--every", "0"], "--every is 0; it must be at least 0.1"),
        (["ftp://127.0.0.1/metrics", "--lines"], "the server's address is"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_a_line(capsys, db, tmp_path, words, said) -> None:
    os.mkfifo(tmp_path / "pipe")
    names = {"pipe": str(tmp_path / "pipe"), "log": str(tmp_path / "server.log")}
    assert said in refused(capsys, "follow", *(word.format(**names) for word in words), *db)


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
