"""The plug-in of vLLM on stand-ins of both runners; tests/engines has the real one."""

from __future__ import annotations

import gc
import logging
import os
import re
import resource
import subprocess
import sys
import time
import weakref
from pathlib import Path
from types import SimpleNamespace as Some
from typing import Any

import pytest
import torch

from specscope.engine.errors import UsageError
from specscope.engine.trace.appended import Process
from specscope.engine.trace.trace import Trace
from specscope.engine.vllm import chances, plugin, sender, watch, writer
from specscope.engine.vllm.chances import Asked, ChanceRows
from specscope.engine.vllm.clock import Events
from specscope.traces.facts.checks import check
from specscope.traces.facts.metrics import measure
from specscope.traces.imports.reading import read_traces
from tests.engine.vllm.runners import V1, V2, VOCAB, Play, new, scheduled, worker

AGAIN = "vLLM dropped sampled tokens and samples them again after 1 of 2 recorded ones"
RUNNERS = pytest.mark.parametrize("kind", [V1, V2])
TOLD = {"finished": [], "new": [], "known": {}, "fed": {}, "names": [], "lost": 0, "spans": [], "cost": 0}


class Server:
    """A worker whose steps are played."""

    def __init__(self, runner: Any, folder: Path, **more: Any) -> None:
        self.runner, self.folder = runner, folder
        wrapper = worker(runner, **more)
        plugin.hook(wrapper)
        self.worker = wrapper()
        self.outputs: list[list[int]] = []

    @property
    def watch(self) -> Any:
        return self.worker.__dict__[plugin.WATCH]

    def step(self, play: Play | None, **more: Any) -> None:
        """Run a step of one play, whose requests were fed their drafts and one token, or `fed`."""
        play = play or Play()
        fed = {name: 1 + len(draft) for name, (draft, _) in play.requests.items()} | more.pop("fed", {})
        self.runner.play, grammar = play, more.pop("grammar", None)
        if self.worker.execute_model(scheduled(fed, **more)) is None:
            output, taken = self.runner.sample_tokens(grammar)
            assert not isinstance(output, list)
            self.outputs.append(taken.tolist())

    def end(self) -> list[Trace]:
        if self.watch is not None:
            self.watch.sender._exit()
        traces = [trace for path in sorted(self.folder.glob("*.jsonl")) for trace in read_traces(path).traces]
        for trace in traces:
            check(trace)
        return traces


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SPECSCOPE_RECORD", str(tmp_path / "rec"))
    logger = logging.getLogger("vllm.specscope")
    logger.setLevel("INFO")
    return tmp_path / "rec"


def by_prompt(traces: list[Trace]) -> dict[tuple[int, ...], Trace]:
    return {trace.header.prompt_ids[0]: trace for trace in traces}


def play_two(server: Server) -> None:
    """Let two requests interleave: one ends with end of text, the other at its most tokens."""
    server.step(Play(a=([], [4])), fed={"a": 2}, news=[new("a", [1, 2])])
    server.step(
        Play(a=([5, 6, 7], [5, 6, 3]), b=([], [8])), fed={"b": 3}, news=[new("b", [1, 2, 3], max_tokens=3)]
    )
    server.step(Play(b=([8], [9]), a=([1], [1, 0])), computed={"a": 5, "b": 3})
    server.step(Play(b=([9, 9], [9, 9, 9])), computed={"b": 4}, finished=("a",))
    server.step(None, finished=("b",))


@RUNNERS
def test_ids_drafts_and_counts_of_interleaved_requests(kind, folder, caplog):
    server = Server(kind(), folder)
    play_two(server)
    found = by_prompt(server.end())
    a, b = found[1, 2], found[1, 2, 3]
    assert a.token_ids() == [4, 5, 6, 3, 1, 0]
    assert b.token_ids() == [8, 9, 9]
    assert [(r.drafted, r.accepted) for r in a.rounds] == [(3, 2), (1, 1)]
    assert [(r.drafted, r.accepted) for r in b.rounds] == [(1, 0), (2, 2)]
    assert a.footer.reasons == ("eos",)
    assert b.footer.reasons == ("length",)
    assert [d.token for d in a.decisions if d.step == 1 and d.node >= 0] == [5, 6, 7]
    assert {d.p for d in a.decisions if d.outcome in ("accepted", "rejected")} == {1 / VOCAB}
    assert [s.kind for s in a.spans][:4] == ["prefill", "sample", "draft", "verify"]
    assert [(s.rows, s.context) for s in a.spans if s.kind in ("prefill", "verify")] == [
        (2, 0),
        (4, 2),
        (2, 5),
    ]
    assert not caplog.records
    (table,) = folder.glob("*.csv")
    start, *counts = map(int, table.read_text().splitlines()[2].split(","))
    assert counts[:5] == [2, 7, 3, 2, 4]
    assert counts[-1] > 0
    begun = a.header.environment["recorded"]["start_ns"]
    assert start == begun + next(s for s in a.spans if s.kind == "verify").start


@RUNNERS
def test_the_server_gets_its_own_values(kind, folder):
    """Neither results nor drafts, logits or ids change; asynchronous outputs are not read."""
    watched = Server(kind(q=True), folder)
    play_two(watched)
    watched.end()
    alone = Server(kind(q=True), folder, rank=1)
    play_two(alone)
    assert alone.watch is None
    assert watched.outputs == alone.outputs
    assert len(watched.outputs) == 4


@RUNNERS
def test_q_and_the_rule_of_sampled_drafts(kind, folder):
    server = Server(kind(q=True), folder, spec={"draft_sample_method": "probabilistic"})
    hot = {"temperature": 0.5}
    server.step(Play(a=([], [4])), fed={"a": 2}, news=[new("a", [1, 2], **hot)])
    play = Play(a=([5, 6], [5, 3]))
    play.logits[0, 5] = 1.0
    server.step(play)
    server.step(None, finished=("a",))
    (trace,) = server.end()
    first, second = (d for d in trace.decisions if d.node >= 0)
    best = torch.tensor([2.0] + [0.0] * (VOCAB - 1)).softmax(0)[0]
    assert first.p == pytest.approx(float(best))
    assert (second.p, second.q, second.rule) == (pytest.approx(1 / VOCAB), pytest.approx(1 / VOCAB), "ratio")


@RUNNERS
def test_a_long_prompt_in_parts_a_preemption_and_an_abort(kind, folder):
    server = Server(kind(), folder)
    first = Play(a=([], [3]))
    first.partial = [0]
    server.step(first, fed={"a": 2}, news=[new("a", [1, 2, 3])])
    server.step(Play(a=([], [4])), fed={"a": 1}, computed={"a": 2})
    again = [new("a", [1, 2, 3], known=[1, 2, 3, 4])] if kind is V2 else []
    server.step(Play(a=([], [5])), fed={"a": 4}, news=again, outputs={} if again else {"a": 1})
    server.step(None, finished=("a",))
    (trace,) = server.end()
    fed = [(s.kind, s.rows, s.context) for s in trace.spans if s.kind in ("prefill", "verify")]
    assert fed == [("prefill", 2, 0), ("prefill", 1, 2), ("prefill", 4, 0)]
    (table,) = folder.glob("*.csv")
    rows = [line.split(",")[1:6] for line in table.read_text().splitlines()]
    assert rows == [["requests", "rows", "drafted", "accepted", "tokens"]] + [
        ["1", rows, "0", "0", tokens] for rows, tokens in (("2", "0"), ("1", "1"), ("4", "1"))
    ]
    assert trace.token_ids() == [4, 5]
    assert trace.status == "cancelled"


def test_tokens_that_are_sampled_again_end_the_recording(folder):
    server = Server(V2(), folder)
    server.step(Play(a=([], [4])), fed={"a": 2}, news=[new("a", [1, 2])])
    server.step(Play(a=([], [5])))
    server.step(Play(a=([], [6])), fed={"a": 3}, news=[new("a", [1, 2], known=[1, 2, 4])])
    (trace,) = server.end()
    assert trace.status == "failed"
    assert trace.footer.error == AGAIN


@RUNNERS
def test_an_output_that_the_scheduler_drops_ends_the_recording(kind, folder):
    """With asynchronous scheduling a preemption may drop what is under way."""
    server = Server(kind(), folder)
    server.step(Play(a=([], [4]), b=([], [4])), fed={"a": 2, "b": 2}, news=[new("a", [1, 2]), new("b", [3])])
    under_way = {"outputs": {"a": 1, "b": 1}}
    server.step(Play(a=([5, 6], [5, 7]), b=([5, 6], [5, 7])), **under_way)
    server.step(Play(a=([], [8])), outputs={"a": 3}, fed={"a": 5})  # preempted, but nothing was dropped
    server.step(Play(a=([1, 1], [9]), b=([], [5])), outputs={"a": 6, "b": 1}, fed={"b": 3})
    server.step(Play(b=([], [7])), outputs={"b": 2})
    found = by_prompt(server.end())
    assert found[1, 2].token_ids() == [4, 5, 7, 8, 9]
    assert (found[3,].token_ids(), found[3,].status) == ([4, 5, 7], "failed")
    assert found[3,].footer.error == AGAIN.replace("1 of 2", "1 of 3")


@RUNNERS
def test_drafts_that_a_grammar_refuses_are_not_counted(kind, folder):
    """With asynchronous scheduling the runner is fed all; vLLM counts the allowed ones."""
    server = Server(kind(q=True), folder)
    server.step(Play(a=([], [4]), b=([], [4])), fed={"a": 2, "b": 2}, news=[new("a", [1, 2]), new("b", [3])])
    grammar = Some(structured_output_request_ids=["b"], num_acceptable_drafts=[2], grammar_bitmask=None)
    drafts = [5, 6, 7], [5, 9]
    server.step(Play(a=drafts, b=drafts), grammar=grammar)
    grammar.num_acceptable_drafts = None
    server.step(Play(a=drafts, b=drafts), grammar=grammar)
    found = by_prompt(server.end())
    assert [(r.drafted, r.accepted) for r in found[1, 2].rounds] == [(3, 1), (3, 1)]
    assert [(r.drafted, r.accepted) for r in found[3,].rounds] == [(2, 1), (3, 1)]
    tested = [(d.token, d.outcome, d.p) for d in found[3,].decisions if d.step == 1]
    assert [one[:2] for one in tested] == [(5, "accepted"), (6, "rejected"), (9, "corrected")]
    assert {p for *_, p in tested} == {1 / VOCAB}
    assert [s.rows for s in found[3,].spans if s.kind == "verify"] == [4, 4]


def test_a_request_whose_first_tokens_were_not_recorded_has_no_file(folder):
    """Preempted again after its recording had ended: its next token is not the first one."""
    server = Server(V2(), folder)
    server.step(Play(a=([], [4])), fed={"a": 2}, news=[new("a", [1, 2], max_tokens=3)])
    server.step(Play(a=([], [5])))
    for known in ([1, 2, 4], [1, 2, 4, 6]):
        server.step(Play(a=([], [6])), fed={"a": 3}, news=[new("a", [1, 2], known=known, max_tokens=3)])
    (trace,) = server.end()
    assert (trace.status, trace.token_ids()) == ("failed", [4, 5])


@RUNNERS
def test_each_input_of_a_session_is_a_run(kind, folder):
    """vLLM sends the request again; its prompt is then the last prompt and the output so far."""
    server = Server(kind(), folder)
    for prompt, ids in (([1, 2], [4]), ([1, 2, 4, 8], [5]), ([1, 2, 4, 8, 5, 9], [6])):
        known = prompt if kind is V2 else None
        server.step(Play(a=([], ids)), fed={"a": 2}, news=[new("a", prompt, known=known)])
    server.step(None, finished=("a",))
    traces = server.end()
    assert [t.header.prompt_ids[0] for t in traces] == [(1, 2), (1, 2, 4, 8), (1, 2, 4, 8, 5, 9)]
    assert [(t.status, t.token_ids()) for t in traces] == [("done", [4]), ("done", [5]), ("cancelled", [6])]


def test_a_forward_with_placeholders_is_a_verification(folder):
    """Drafts that a grammar refuses are fed as -1: their rows are no prompt's."""
    server = Server(V1(), folder)
    server.step(Play(a=([], [4])), fed={"a": 2}, news=[new("a", [1, 2])])
    server.step(Play(a=([5, -1, -1], [5, 6])), computed={"a": 2})
    (trace,) = server.end()
    (forward,) = (s for s in trace.spans if s.step == 1 and s.kind in ("prefill", "verify"))
    assert (forward.kind, forward.rows, forward.context) == ("verify", 4, 2)
    assert [(r.drafted, r.accepted, r.span) for r in trace.rounds] == [(1, 1, forward.id)]


def test_a_runner_is_freed_with_its_weights(folder):
    """As after `del llm` where vLLM runs in the process itself; the writer ends, too."""
    server = Server(V1(), folder)
    server.step(Play(a=([], [4])), fed={"a": 2}, news=[new("a", [1, 2])])
    runner, sender_ = weakref.ref(server.runner), server.watch.sender
    del server
    gc.collect()
    assert runner() is None
    sender_._thread.join(20)
    assert not sender_._thread.is_alive()
    assert sender_._process.returncode == 0


def test_a_forked_child_ends_without_the_sender(folder, monkeypatch):
    server = Server(V1(), folder)
    server.step(Play(a=([], [4])), fed={"a": 2}, news=[new("a", [1, 2])])
    with monkeypatch.context() as child, server.watch.sender._queue.mutex:  # as its parent's thread held it
        child.setattr(Process, "token", object())
        server.watch.sender._exit()
    (trace,) = server.end()
    assert trace.token_ids() == [4]


def test_more_requests_than_a_process_may_have_files(folder):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    names = [f"r{i}" for i in range(300)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (250, limits[1]))
    try:
        server = Server(V1(), folder)
        play = Play(**{name: ([], [4]) for name in names})
        server.step(play, fed=dict.fromkeys(names, 2), news=[new(name, [1, 2]) for name in names])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [trace.token_ids() for trace in server.end()] == [[4]] * 300


@pytest.mark.parametrize("hidden", [{"stop": ["."]}, {"repetition_detection": object()}])
def test_a_stop_string_is_no_abort_and_names_are_no_paths(folder, hidden):
    server = Server(V1(), folder)
    name = "../../" + "x" * 300 + "\n"
    server.step(Play(**{name: ([], [4])}), fed={name: 2}, news=[new(name, [1, 2], **hidden)])
    server.step(None, finished=(name,))
    (trace,) = server.end()
    assert trace.status == "done"
    (path,) = folder.parent.rglob("*.jsonl")
    assert path.parent == folder
    assert re.fullmatch(r"\d{8}-\d{12}-\d+-000001-_x{79}\.jsonl", path.name)


@RUNNERS
@pytest.mark.parametrize("where", ["Step", "ChanceRows", "fetched"])
def test_a_hook_that_fails_is_one_line_and_gone(kind, where, folder, monkeypatch, caplog):
    server = Server(kind(), folder)
    server.step(Play(a=([], [4])), fed={"a": 2}, news=[new("a", [1, 2])])
    hooked = [*vars(server.runner)]

    def broken(*_: Any) -> None:
        raise KeyError("a name of another release\n")

    monkeypatch.setattr(watch, where, broken)
    server.step(Play(a=([5], [5, 6])))
    server.step(Play(a=([5], [5, 6])))
    assert [o[0][:2] for o in server.outputs] == [[4], [5, 6], [5, 6]]
    assert {"execute_model"} & {*hooked} - {*vars(server.runner)}
    assert "hooked" not in {f.__name__ for f in vars(server.runner).values() if callable(f)}
    (trace,) = server.end()
    assert trace.status == "failed" or trace.footer.error
    (line,) = [r.getMessage() for r in caplog.records]
    assert line.startswith("SpecScope stops recording, vLLM goes on: KeyError: ")
    assert "\n" not in line


def test_a_full_queue_ends_the_files_and_never_waits(folder, monkeypatch):
    monkeypatch.setattr(sender, "MOST_WAITING", 2)
    server = Server(V1(), folder)
    server.step(Play(a=([], [4])), fed={"a": 2}, news=[new("a", [1, 2])])
    read, held = server.watch.sender._read, Some(closed=True)

    def slow(step: Any) -> Any:
        while held.closed:
            time.sleep(0.01)
        return read(step)

    server.watch.sender._read = slow
    begun = time.monotonic()
    for _ in range(50):
        server.step(Play(a=([], [5])))
    assert time.monotonic() - begun < 5
    held.closed = False
    while server.watch.sender._queue.qsize():
        time.sleep(0.01)
    server.step(Play(a=([], [5]), b=([], [6])), fed={"b": 2}, news=[new("b", [3, 4])])
    found = by_prompt(server.end())
    assert found[1, 2].status == "failed"
    assert re.fullmatch(
        r"\d+ of vLLM's steps before this end were not recorded: the queue was full", found[1, 2].footer.error
    )
    assert found[3, 4].token_ids() == [6]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_writer_that_cannot_write_is_one_line(folder, monkeypatch, caplog):
    server = Server(V1(), folder)
    server.step(Play(a=([], [4])), fed={"a": 2}, news=[new("a", [1, 2])])
    server.watch.sender._process.kill()
    deadline = time.monotonic() + 20
    while hasattr(server.runner.execute_model, "__wrapped__") and time.monotonic() < deadline:
        server.step(Play(a=([], [5])))
        time.sleep(0.02)
    assert not hasattr(server.runner.execute_model, "__wrapped__")
    (line,) = [r.getMessage() for r in caplog.records]
    assert line == "SpecScope stops recording, vLLM goes on: the writing process ended"


def test_a_full_disk_is_told(tmp_path, monkeypatch, capfd):
    """The writer alone: its files have no room; it ends with one line."""

    def full(self: Any, lines: bytes) -> str:
        return "No space left on device"

    monkeypatch.setattr("specscope.engine.trace.appended.Lines._append", full)
    about = plugin.about(worker(V1())().vllm_config, "cpu")
    told = TOLD | {
        "new": [{"name": "a", "prompt": [1], "known": 0, "sampling": {"temperature": 0}, "stops": [], "hidden": False, "most": 9}],
        "fed": {"a": [1, 0]},
        "spans": [["forward", 1, 2]],
    }  # fmt: skip
    with pytest.raises(UsageError, match="No space left on device"):
        writer.Writer(tmp_path, about, None).step(told)


def test_a_folder_that_cannot_be_written_is_one_line(folder, caplog):
    folder.write_text("a file")
    server = Server(V1(), folder)
    server.step(Play(a=([], [4])), fed={"a": 2}, news=[new("a", [1, 2])])
    assert server.watch is None
    assert server.outputs == [[[4]]]
    (line,) = [r.getMessage() for r in caplog.records]
    assert line.startswith("SpecScope records nothing: cannot write to the folder ")


@pytest.mark.parametrize("part", ["adaptive_verification", "batch_sharder", "pcp_manager"])
def test_a_runner_that_is_not_known_has_no_hook(part, folder, caplog):
    for runner in (Some(execute_model=lambda _: "done", device=None), V2()):
        setattr(runner, part, object())
        server = Server(runner, folder)
        server.worker.execute_model(scheduled({}))
        assert server.watch is None
    assert len(caplog.records) == 2
    assert not folder.exists()


def test_one_of_several_workers_writes(folder):
    parallel = {"world_size": 4, "tensor_parallel_size": 2}
    servers = [Server(V1(), folder, rank=rank, parallel=parallel) for rank in range(4)]
    for server in servers:
        server.step(Play(a=([], [4])), fed={"a": 2}, news=[new("a", [1, 2])])
    assert [server.watch is not None for server in servers] == [False, False, True, False]
    (trace,) = servers[2].end()
    assert trace.header.config["tensor_parallel"] == 2


@pytest.mark.parametrize("version", ["0.31.2", "0.33.0", "1.0", "from source", "0.320.1"])
def test_another_release_is_one_line_and_no_hook(version, monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("SPECSCOPE_RECORD", str(tmp_path))
    monkeypatch.setattr(plugin, "release", lambda _: version)
    plugin.register()
    (line,) = [r.getMessage() for r in caplog.records]
    assert line == f"SpecScope records nothing: this is vLLM {version}; it records 0.32"


def test_nothing_happens_without_a_folder(monkeypatch, caplog):
    monkeypatch.delenv("SPECSCOPE_RECORD", raising=False)
    monkeypatch.setattr(plugin, "release", lambda _: 1 / 0)
    plugin.register()
    assert not caplog.records


def test_it_is_hooked_once(monkeypatch):
    wrapper = worker(V1())
    plugin.hook(wrapper)
    first = wrapper.execute_model
    plugin.hook(wrapper)
    assert wrapper.execute_model is first


def test_warm_up_and_dummy_runs_are_no_steps(folder):
    runner = V2()
    server = Server(runner, folder)
    runner.play = Play(w=([], [4]))
    runner.execute_model(scheduled({"w": 2}, news=[new("w", [1, 2])]))
    runner.sample_tokens(None)
    server.step(Play(a=([], [4])), fed={"a": 2}, news=[new("a", [1, 2])])
    runner.execute_model(scheduled({"d": 2}, news=[new("d", [7, 7])]), dummy_run=True)
    runner.sample_tokens(None)
    (trace,) = server.end()
    assert trace.header.prompt_ids == ((1, 2),)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (Asked(1.0, 0, 1.0), [0.4, 0.3, 0.2, 0.1]),
        (Asked(0.0, 0, 1.0), [0.4, 0.3, 0.2, 0.1]),
        (Asked(1.0, 2, 1.0), [4 / 7, 3 / 7, 0, 0]),
        (Asked(1.0, 0, 0.6), [4 / 7, 3 / 7, 0, 0]),
        (Asked(1.0, 0, 0.35), [1, 0, 0, 0]),
        (Asked(1.0, 3, 0.75), [4 / 7, 3 / 7, 0, 0]),
        (Asked(1.0, 99, 0.95), [0.4, 0.3, 0.2, 0.1]),
        (Asked(0.5, 0, 1.0), [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
    ],
)
def test_p_is_of_the_request_s_settings(asked, expected):
    """Beside a request with other settings; the logits are as before."""
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]] * 3, dtype=torch.float64).log()
    before = logits.clone()
    p = chances.target(logits, ChanceRows([Asked(1.0, 1, 1.0), asked], [0, 1]))
    assert torch.equal(logits, before)
    assert p[0].tolist() == [1, 0, 0, 0]
    for row in p[1:]:
        assert row.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("more", [{"presence_penalty": 0.5}, {"trace_decode_token_ids": [4]}])
def test_settings_that_shape_p_otherwise_leave_it_unknown(folder, more):
    server = Server(V1(), folder)
    news = [new("a", [1, 2], **more), new("b", [3, 4])]
    server.step(Play(a=([], [4]), b=([], [4])), fed={"a": 2, "b": 2}, news=news)
    server.step(Play(a=([], [4]), b=([], [4])))
    found = by_prompt(server.end())
    assert found[1, 2].decisions[0].p is None
    assert found[3, 4].decisions[0].p == 1 / VOCAB


def test_events_of_a_stream_are_times_of_the_host(monkeypatch):
    """A GPU's clock that runs 2 % slow: a new anchor each five seconds, never later than now."""
    now = Some(ns=0)
    monkeypatch.setattr("specscope.engine.vllm.clock.perf_counter_ns", lambda: now.ns)

    class Event:
        def record(self) -> None:
            self.at = now.ns

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, other: Any) -> float:
            return (other.at - self.at) * 0.98e-6

    clock = Events(Event)
    last = 0
    for _ in range(1000):
        begun, ended = clock.mark(), 0
        now.ns += 100_000_000
        ended = clock.mark()
        times = clock.times([begun, ended])
        assert last - 1000 <= times[0] < times[1] <= now.ns
        assert now.ns - times[1] < 0.25e9  # of 2 s in the end
        last = times[1]


def test_the_writer_runs_where_a_project_has_its_own_engine(folder, tmp_path):
    """In a process whose folder has modules of these names, as many projects have."""
    for name in ("engine", "app", "traces", "assets"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    code = """
import sys
sys.path.insert(0, "")
import engine_of_mine, specscope, specscope.engine.vllm.plugin
with specscope.record("mine.jsonl") as rec:
    rec.round(emitted=[1])
assert not {"torch", "gradio", "plotly", "transformers", "numpy"} & {*sys.modules}
"""
    (tmp_path / "engine_of_mine.py").write_text("")
    root = Path(plugin.__file__).parents[3]
    sources = root if (root / "specscope").exists() else Path(plugin.__file__).parents[2] / "src"
    variables = {**os.environ, "PYTHONPATH": str(sources)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    server = Server(V1(), folder)
    os.chdir(tmp_path)
    play_two(server)
    assert [measure(trace).tokens for trace in server.end()] == [6, 3]
