"""Logs, counters and folders that grow: each window once, cuts, rotation, restarts, odd files."""

from __future__ import annotations

import os
import random
import time
from itertools import zip_longest
from pathlib import Path

import pytest

from specscope.engine.errors import UsageError
from specscope.engine.servers import address
from specscope.engine.servers.address import Address
from specscope.engine.trace.jsonl import to_json
from specscope.traces.database.store import Store
from specscope.traces.facts.metrics import measure
from specscope.traces.following import folder as folders
from specscope.traces.following.folder import Folder
from specscope.traces.following.growing import Counting, GrowingLog, GrowingMetrics
from specscope.traces.imports.reading import read_traces
from tests.engine.servers.replayed import RECORDED, serving
from tests.traces.samples import sample_events

PRINTED = Path(__file__).parent / "imported" / "printed"
LOGS = ("01-llama-server.log", "01b-llama-server-old.log", "04-vllm.log", "07-sglang.log", "two-llama-servers.log")  # fmt: skip
EVENTS = [to_json(event) + "\n" for event in sample_events("pearl")]


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "traces.db") as opened:
        yield opened


@pytest.fixture
def log(tmp_path) -> Path:
    return tmp_path / "server.log"


def settled(source: Counting | Folder, *, last: bool = False) -> list:
    """Return what all steps tell until there is nothing new."""
    found, idle = [], 0
    while idle < 2:
        news = source.step(last=last)
        found += news or ()
        idle = 0 if news is not None else idle + 1
    return found


def fresh(counting: Counting) -> list:
    counting._due = 0.0
    return [window for growth in settled(counting) for window in growth.fresh]


def append(path: Path, text: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize("name", LOGS)
def test_a_log_that_grows_by_any_bytes_has_the_windows_of_its_import(name, log, store):
    content, chance = (PRINTED / name).read_bytes(), random.Random(7)
    counting, told = Counting(GrowingLog(log), store), 0
    while content:
        cut = chance.choice((1, 30, 200, 3000))
        append(log, content[:cut])
        content = content[cut:]
        told += len(fresh(counting))
    told += sum(len(growth.fresh) for growth in settled(counting, last=True))
    whole = read_traces(PRINTED / name).traces
    stored = [store.load(one.header.run_id) for one in store.runs()[0]]
    assert told == sum(len(trace.windows) for trace in whole)
    assert sorted((t.header.title, t.windows) for t in stored) == sorted(
        (t.header.title, t.windows) for t in whole
    )
    assert {t.status for t in stored} == {"done"}


def test_a_window_is_told_when_its_lines_are_complete(log):
    lines = (PRINTED / "01-llama-server.log").read_text().splitlines(keepends=True)
    drafts, totals = (
        next(i for i, line in enumerate(lines) if part in line) for part in ("draft accept", "statistics")
    )
    counting = Counting(GrowingLog(log), None)
    assert (counting.step(), counting.source.waiting) == (None, "server.log does not exist yet")
    append(log, "".join(lines[: drafts + 1]))
    assert not counting.step(), "its line of statistics may come"
    append(log, "".join(lines[drafts + 1 : totals + 1]))
    (window,) = fresh(counting)
    assert (window.drafted, window.accepted, window.drafts) == (270, 120, 90)
    assert fresh(counting) == []


@pytest.mark.parametrize("change", ["cut", "rotated", "removed"])
def test_a_log_that_is_cut_or_rotated_goes_on(change, log, store):
    counting = Counting(GrowingLog(log), store)
    content = (PRINTED / "04-vllm.log").read_text()
    append(log, content)
    assert len(fresh(counting)) == 3
    if change == "cut":
        os.truncate(log, 0)
    elif change == "rotated":
        log.rename(log.with_suffix(".1"))
    else:
        log.unlink()
    assert fresh(counting) == []
    append(log, content.replace("09:0", "10:0"))
    assert [window.label for window in fresh(counting)] == ["10:03:44", "10:03:54", "10:04:04"]
    settled(counting, last=True)
    (run,) = store.runs()[0]
    assert [w.label[:2] for w in store.load(run.header.run_id).windows] == ["09"] * 3 + ["10"] * 3
    assert run.tokens == 2 * 1306


def test_servers_of_several_engines_in_one_log_are_all_followed(log, store):
    names = ("01-llama-server.log", "04-vllm.log", "07-sglang.log")
    texts = [(PRINTED / name).read_text().splitlines() for name in names]
    counting = Counting(GrowingLog(log), store)
    for row in zip_longest(*texts, fillvalue=""):
        append(log, "\n".join(row) + "\n")
        settled(counting)
    settled(counting, last=True)
    stored = {t.header.runtime: t for t in (store.load(one.header.run_id) for one in store.runs()[0])}
    for name, engine in zip(names, ("llama.cpp", "vLLM", "SGLang"), strict=True):
        (whole,) = read_traces(PRINTED / name).traces
        assert (stored[engine].windows, stored[engine].header.environment["imported"]["source"]) == (
            whole.windows,
            whole.header.environment["imported"]["source"],
        )


def test_what_differs_in_each_line_makes_no_run_of_each(log, store):
    lines = (PRINTED / "04-vllm.log").read_text().splitlines() * 10
    append(log, "".join(f"[req-{i:x}] {line}\n" for i, line in enumerate(lines)))
    settled(Counting(GrowingLog(log), store), last=True)
    runs = [store.load(one.header.run_id) for one in store.runs()[0]]
    assert len(runs) <= 17
    assert sum(len(run.windows) for run in runs) == 30


def test_a_restarted_llama_server_goes_on_after_its_last_window(log, store):
    content = (PRINTED / "01-llama-server.log").read_text()
    counting = Counting(GrowingLog(log), store)
    append(log, content)
    before = fresh(counting)
    os.truncate(log, 0)
    fresh(counting)
    append(log, content)
    after = fresh(counting)
    assert [(w.label, w.drafted, w.accepted) for w in after] == [
        (w.label, w.drafted, w.accepted) for w in before
    ]
    assert after[0].end > before[-1].end
    append(log.with_name("both.log"), content + content)
    (whole,) = read_traces(log.with_name("both.log")).traces  # appended to the same file
    assert measure(whole).drafted == 2 * 420


def test_what_is_there_already_is_left_out_from_the_end(log):
    lines = (PRINTED / "01-llama-server.log").read_text().splitlines(keepends=True)
    half = next(i for i, line in enumerate(lines) if "task 91" in line)
    append(log, "".join(lines[:half]))
    counting = Counting(GrowingLog(log, from_end=True), None)
    assert fresh(counting) == []
    append(log, "".join(lines[half:]))
    (window,) = fresh(counting)
    # statistics are totals: the difference to those that are left out
    assert (window.label, window.drafts, window.drafted) == ("task 91", 50, 150)
    later = Counting(GrowingLog(log.with_name("later.log"), from_end=True), None)
    fresh(later)
    append(log.with_name("later.log"), "".join(lines))
    assert len(fresh(later)) == 2, "it did not exist: nothing was there already"


def test_the_same_log_is_the_same_run_and_another_one_is_not(log, store):
    append(log, (PRINTED / "04-vllm.log").read_text())
    for _ in range(2):
        settled(Counting(GrowingLog(log), store))
    assert store.runs()[1] == 1
    os.truncate(log, 0)
    append(log, (PRINTED / "04-vllm.log").read_text().replace("09:0", "11:0"))
    settled(Counting(GrowingLog(log), store))
    assert store.runs()[1] == 2


def test_two_followers_of_one_database_store_both(log, tmp_path):
    append(log, (PRINTED / "01-llama-server.log").read_text())
    other = log.with_name("vllm.log")
    append(other, (PRINTED / "04-vllm.log").read_text())
    with Store(tmp_path / "t.db") as one, Store(tmp_path / "t.db") as two:
        for counting in (
            Counting(GrowingLog(log), one),
            Counting(GrowingLog(other), two),
            Counting(GrowingLog(log), two),
        ):
            settled(counting)
        assert one.runs()[1] == two.runs()[1] == 2


ODD = {
    "binary": bytes(range(256)) * 4000,
    "a line of 10 MB": b"x" * (10 * 2**20) + b"\n",
    "half of a character": "é".encode()[:1] + b"\n",
    "carriage returns": b"loading 1 %\rloading 2 %\rready\n",
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_bytes_between_the_lines_change_nothing(odd, log):
    counting = Counting(GrowingLog(log), None)
    append(log, ODD[odd])
    assert fresh(counting) == []
    append(log, b"\n" + (PRINTED / "04-vllm.log").read_bytes())
    assert [w.drafts for w in fresh(counting)] == [188, 180, 210]


def test_what_is_no_file_is_refused_in_words(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(UsageError, match="is not a regular file"):
            Counting(GrowingLog(path), None).step()
    with pytest.raises(UsageError, match="cannot read the folder"):
        Folder(tmp_path / "none", None).step()


# Counters.


def text_of(drafts: int | str, drafted: int | str, accepted: int | str, tokens: int | str = 0) -> bytes:
    labels = '{engine="0",model_name="a b"}'
    rows = {
        "spec_decode_num_drafts": drafts, "spec_decode_num_draft_tokens": drafted,
        "spec_decode_num_accepted_tokens": accepted, "generation_tokens": tokens,
    }  # fmt: skip
    return "".join(f"vllm:{name}_total{labels} {value}\n" for name, value in rows.items()).encode()


def polled(served, *texts: bytes | None) -> tuple[list, list[str]]:
    """Return the windows of a server that answers these texts in turn, and what it says."""
    metrics, said, windows = GrowingMetrics(Address.of(served.url), 0.0), [], []
    for text in texts:
        served.answers["/metrics"] = text
        found = metrics.read()
        windows = found[0].windows if found else windows
        said.append(metrics.waiting)
    return windows, said


def test_differences_with_new_drafts_are_windows():
    with serving({}, []) as served:
        windows, said = polled(
            served,
            text_of(5, 20, 9, 90),
            text_of(5, 20, 9, 91),
            text_of(8, 32, 19, 110),
            text_of(9, 36, 20, 115),
        )
    assert [(w.drafts, w.drafted, w.accepted, w.tokens) for w in windows] == [(3, 12, 10, 19), (1, 4, 1, 5)]
    assert [w.end > w.start for w in windows] == [True, True]
    assert said == ["no drafts yet", "no drafts yet", "", ""]


def test_recorded_counters_of_llama_have_tokens_seconds_and_places():
    text = (RECORDED / "llama-metrics.txt").read_bytes()
    later = text.replace(b"num_drafts_total 28", b"num_drafts_total 30").replace(
        b"predicted_total 128", b"predicted_total 138"
    )
    later = later.replace(b"predicted_seconds_total 33.4306", b"predicted_seconds_total 35.4306")
    with serving({}, []) as served:
        ((window,), _) = polled(served, text, later)
    assert (window.drafts, window.tokens, window.busy, window.places) == (2, 10, 2_000_000_000, (0, 0, 0, 0))


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (text_of(1, 4, 1), "the counters fell: the server was started anew"),
        (None, "has no /metrics; llama-server has it with --metrics"),
        (b"vllm:num_requests_running 1.0\n", "counts no drafts (no spec_decode counters)"),
        (text_of("NaN", 24, 11), "the counter spec_decode_num_drafts is 'NaN'; expected 0 to 2^53"),
        (text_of(6, "1e300", 11), "the counter spec_decode_num_draft_tokens is '1e300'"),
        (text_of(6, 24, "1.2.3"), "the counter spec_decode_num_accepted_tokens is '1.2.3'"),
    ],
)
def test_a_server_that_tells_nothing_new_gets_a_sentence_and_is_asked_on(answer, sentence):
    with serving({}, []) as served:
        start = text_of(5, 20, 9) if answer != text_of(1, 4, 1) else text_of(9, 36, 20)
        windows, said = polled(served, start, answer, text_of(9, 36, 20), text_of(10, 40, 24))
    assert sentence in said[1]
    assert (windows[-1].drafts, windows[-1].accepted) == (1, 4)


def test_a_server_that_is_away_is_asked_on_and_a_redirection_is_not_followed():
    with serving({}, []) as other, serving({}, []) as served:
        served.moved = f"{other.url}/metrics"
        _, (said,) = polled(served, text_of(5, 20, 9))
        assert "answered /metrics with 302" in said
        assert other.headers == []
    metrics = GrowingMetrics(Address.of(served.url), 0.0)
    assert metrics.read() is None
    assert "does not answer" in metrics.waiting


@pytest.mark.parametrize("most", [0.5, 0.001])
def test_a_server_that_sends_byte_after_byte_is_left(monkeypatch, most):
    monkeypatch.setattr(address, "MOST_ASK_S", most)
    with serving({}, []) as served:
        served.drip = 0.01
        begun = time.monotonic()
        windows, (said,) = polled(served, text_of(5, 20, 9))
    assert (windows, time.monotonic() - begun < 10) == ([], True)
    assert f"sent no whole answer within {most} s" in said


def test_the_run_of_counters_grows_in_the_database(store):
    with serving({"/metrics": text_of(0, 0, 0)}, []) as served:
        counting = Counting(GrowingMetrics(Address.of(served.url), 0.0), store)
        counting.step()
        for number in (1, 2, 3):
            served.answers["/metrics"] = text_of(number, 4 * number, 2 * number, 3 * number)
            counting._due = 0.0
            assert len(counting.step()[0].fresh) == 1
    (run,) = store.runs()[0]
    found = measure(store.load(run.header.run_id))
    assert (run.tokens, found.drafted, found.accepted, found.acceptance_length) == (6 + 3, 12, 6, 3.0)
    assert run.tokens_per_second == pytest.approx(found.tokens_per_second)


# Folders.


def recording(name: str) -> list[str]:
    return [EVENTS[0].replace("sample-pearl", name), *EVENTS[1:]]


def test_recordings_are_stored_when_they_are_complete_and_bad_files_are_said_once(tmp_path, store):
    place = tmp_path / "in"
    place.mkdir()
    watched = Folder(place, store)
    append(place / "a.jsonl", "".join(recording("a")))
    append(place / "grows.jsonl", "".join(recording("grows")[:40]) + EVENTS[40][:9])
    append(place / "bad.jsonl", "{nonsense\n")
    append(place / "other.txt", "no recording")
    (place / "link.jsonl").symlink_to(place / "a.jsonl")
    os.mkfifo(place / "pipe.jsonl")
    found = {one.name: one for one in settled(watched)}
    assert found.keys() == {"a.jsonl", "bad.jsonl"}
    assert found["bad.jsonl"].problem.startswith("bad.jsonl: line 1: ")
    assert watched.note == "1 stored, 1 not read, 1 without an end."
    append(place / "grows.jsonl", EVENTS[40][9:] + "".join(EVENTS[41:]))
    assert [one.trace.header.run_id for one in settled(watched)] == ["grows"]
    assert store.load("grows").status == "done"
    again = Folder(place, store)
    assert [one.name for one in settled(again)] == ["bad.jsonl"]
    assert again.note == "2 stored before, 1 not read, 0 without an end."
    later = Folder(place, store, from_end=True)
    assert settled(later) == []


def test_a_thousand_files_of_which_many_have_no_end(tmp_path, store, monkeypatch):
    monkeypatch.setattr(folders, "MOST_OPEN", 16)
    small = [EVENTS[0], EVENTS[-1]]
    for number in range(1000):
        head = small[0].replace("sample-pearl", f"run-{number}")
        append(tmp_path / f"{number}.jsonl", head if number % 10 == 0 else head + small[1])
    watched = Folder(tmp_path, store)
    assert sum(one.trace is not None for one in settled(watched)) == 900
    assert len(watched._tails) == 16
    for number in range(0, 1000, 10):
        append(tmp_path / f"{number}.jsonl", small[1])
    assert sum(one.trace is not None for one in settled(watched)) == 100
    watched.close()
    assert store.runs()[1] == 1000


def test_a_file_that_is_written_while_the_folder_is_listed_counts_once(tmp_path, store, monkeypatch):
    good, bad = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for file in (good, bad):
        file.touch()
    watched = Folder(tmp_path, store)
    listed = watched._files()
    good.write_text("".join(EVENTS))
    bad.write_text("nonsense\n")
    with monkeypatch.context() as patch:
        patch.setattr(watched, "_files", lambda: listed)
        assert len(watched.step()) == 2
    assert watched.step() is None
    assert watched.note == "1 stored, 1 not read, 0 without an end."
