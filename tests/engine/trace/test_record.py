"""The recorder: rows, checks, threads, processes, CUDA events, crashes, and its cost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

import engine
from engine.errors import UsageError
from engine.trace.jsonl import read_jsonl
from traces.checks import check
from traces.imports.reading import read_traces

ROOT = Path(__file__).parents[3]
DEVICES = {"d": "drafter", "t": "target"}


def read(path):
    """Return the trace of a file, checked as an import checks it."""
    trace = read_jsonl(path.read_text(encoding="utf-8").splitlines())
    check(trace)
    return trace


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mine.jsonl"


def test_a_loop_in_five_lines(path):
    with engine.record(path, method="my loop", devices=DEVICES, sampling={"temperature": 0}) as rec:
        assert rec.prompt("The prompt", ids=[1, 2, 3]) == 0
        with rec.span("draft", rows=1):
            time.sleep(0.001)
        with rec.span("verify", rows=4, context=3):
            time.sleep(0.002)
        rec.round(drafted=[4, 5, 6], accepted=2, emitted=[4, 5, 9], texts=["a", "b", "c"], q=[0.5, 0.4, 0.3])
    trace = read(path)
    assert (trace.header.title, trace.header.prompts, trace.header.prompt_ids) == (
        "my loop",
        ("The prompt",),
        ((1, 2, 3),),
    )
    assert trace.header.clock == "measured · own code"
    draft, verify = trace.spans
    assert (draft.device, draft.kind, draft.model, draft.step, draft.rows, draft.context) == (
        "d",
        "draft",
        "drafter",
        1,
        1,
        -1,
    )
    assert (verify.device, verify.model, verify.rows, verify.context) == ("t", "target", 4, 3)
    assert draft.end - draft.start >= 1e6
    assert draft.end <= verify.start
    assert [(c.position, c.token, c.origin, c.text) for c in trace.commits] == [
        (3, 4, "accepted", "a"),
        (4, 5, "accepted", "b"),
        (5, 9, "corrected", "c"),
    ]
    rows = [
        (d.node, d.parent, d.position, d.outcome, d.q, d.draft_span, d.verify_span) for d in trace.decisions
    ]
    assert rows == [
        (0, -1, 3, "accepted", 0.5, draft.id, verify.id),
        (1, 0, 4, "accepted", 0.4, draft.id, verify.id),
        (2, 1, 5, "rejected", 0.3, draft.id, verify.id),
        (-1, 1, 5, "corrected", None, -1, verify.id),
    ]
    (one,) = trace.rounds
    assert (one.mode, one.drafted, one.accepted, one.emitted, one.span) == ("verify", 3, 2, 3, verify.id)
    assert one.time >= verify.end
    assert (trace.status, trace.text) == ("done", "abc")


def test_the_same_trace_is_read_again(path):
    with engine.record(path) as rec:
        with rec.span("verify"):
            pass
        rec.round(drafted=[4], accepted=1, emitted=[4, 5])
    trace = read(path)
    text = "".join(f"{engine.trace.jsonl.to_json(event)}\n" for event in trace.events())
    again = read_jsonl(text.splitlines())
    assert again == trace


def test_a_plain_loop_and_the_token_of_the_prompts_forward(path):
    """The first token is step 0 if no verification made it; plain rounds have a target span."""
    with engine.record(path) as rec:
        rec.prompt("p", ids=[7])
        with rec.span("prefill", rows=1, context=0):
            pass
        rec.round(emitted=[1])
        with rec.span("verify", rows=1, context=1):
            pass
        rec.round(emitted=[2], reason="eos")
    trace = read(path)
    assert [(s.kind, s.step) for s in trace.spans] == [("prefill", 0), ("verify", 1)]
    assert [(c.step, c.origin, c.position) for c in trace.commits] == [(0, "plain", 1), (1, "plain", 2)]
    assert [(r.step, r.mode, r.drafted) for r in trace.rounds] == [(1, "plain", 0)]
    assert trace.footer.reasons == ("eos",)


TREE = {"drafted": [10, 11, 12, 13, 14, 15], "parents": [-1, -1, 0, 1, 1, 4]}
"""Two roots, 10 and 11; 12 follows 10; 13 and 14 follow 11; 15 follows 14."""


@pytest.mark.parametrize("accepted", [2, [1, 4]])
def test_a_tree_with_the_number_of_its_accepted_tokens_or_their_indices(path, accepted):
    with engine.record(path) as rec:
        for _ in range(3):
            with rec.span("draft"):
                pass
        with rec.span("verify"):
            pass
        rec.round(**TREE, accepted=accepted, emitted=[11, 14, 99])
    trace = read(path)
    assert [(d.node, d.outcome, d.position) for d in trace.decisions] == [
        (0, "rejected", 0),
        (1, "accepted", 0),
        (2, "discarded", 1),
        (3, "rejected", 1),
        (4, "accepted", 1),
        (5, "rejected", 2),
        (-1, "corrected", 2),
    ]
    levels = [s.id for s in trace.spans if s.kind == "draft"]
    assert [d.draft_span for d in trace.decisions] == [levels[i] for i in (0, 0, 1, 1, 1, 2)] + [-1]
    assert [c.origin for c in trace.commits] == ["accepted", "accepted", "corrected"]


def test_a_tree_that_is_accepted_to_a_leaf_has_a_bonus(path):
    with engine.record(path) as rec:
        rec.round(**TREE, accepted=2, emitted=[10, 12, 99], verify=5)
    assert read(path).decisions[-1].outcome == "bonus"


def test_a_round_without_a_token_of_the_targets_own(path):
    """PEARL: after a full acceptance no own token; after the end of the text none is rejected."""
    with engine.record(path) as rec:
        rec.round(drafted=[1, 2], accepted=2, emitted=[1, 2])
        rec.round(drafted=[3, 4, 5], accepted=2, emitted=[3, 4], reason="eos")
    trace = read(path)
    assert [d.outcome for d in trace.decisions] == ["accepted"] * 4 + ["discarded"]
    assert [c.position for c in trace.commits] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"drafted": [1, 2], "accepted": 3, "emitted": [1, 2, 3]},
            "accepted 3 of 2 drafted tokens; give 0 to 2",
        ),
        (
            {"drafted": [1, 2], "accepted": 1, "emitted": [2, 9]},
            "emitted token 2 at place 0, but accepted 1 there",
        ),
        ({"drafted": [1, 2], "accepted": 1, "emitted": [1, 9, 9]}, "emitted 3 tokens and accepted 1"),
        (
            {"drafted": [1, 2], "accepted": 0.5, "emitted": []},
            "accepted of round 1 of sequence 0 is 0.5; give a whole",
        ),
        (
            {"drafted": [[1, 2]], "accepted": 0, "emitted": [1]},
            "is [[1, 2]]; give a flat list of whole numbers",
        ),
        ({"drafted": [1, -2], "accepted": 0, "emitted": [1]}, "has -2 at place 1; a token id is 0 or more"),
        (
            {"drafted": [1, 2], "parents": [-1], "accepted": 0, "emitted": [3]},
            "1 parents of 2 drafted tokens",
        ),
        (
            {"drafted": [1, 2], "parents": [1, -1], "accepted": 0, "emitted": [3]},
            "parents come before children",
        ),
        ({**TREE, "accepted": [0, 3], "emitted": [10, 13]}, "has 3 after 0, which is not its parent"),
        (
            {**TREE, "accepted": 2, "emitted": [10, 13, 1]},
            "no path of its tree has the output's token 13 at place 1",
        ),
        (
            {"drafted": [1, 2], "accepted": 0, "emitted": [3], "q": [0.5]},
            "q of round 1 of sequence 0 has 1 values",
        ),
        ({"drafted": [1], "accepted": 0, "emitted": [3], "p": [1.5]}, "has 1.5; a probability is 0 to 1"),
        ({"drafted": [1], "accepted": 0, "emitted": [3], "texts": []}, "0 texts of 1 emitted tokens"),
        (
            {"drafted": [1], "accepted": 0, "emitted": [3], "mode": "fast"},
            "mode of round 1 of sequence 0 is 'fast'",
        ),
        (
            {"drafted": [1], "accepted": 0, "emitted": [3], "reason": "full"},
            "reason of round 1 of sequence 0 is 'full'",
        ),
        (
            {"drafted": [1], "accepted": 0, "emitted": [3], "sequence": 1},
            "sequence 1 has no prompt; give 0 to 0",
        ),
        (
            {"drafted": [1], "accepted": 0, "emitted": [3], "draft": [1, 2]},
            "2 spans in draft= for 1 drafted tokens",
        ),
    ],
)
def test_a_round_that_cannot_be_is_refused_in_one_line(path, given, message):
    with engine.record(path) as rec, pytest.raises(UsageError) as error:
        rec.round(**given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert read(path).rounds == []


def test_no_round_follows_the_end_of_an_output(path):
    with engine.record(path) as rec:
        rec.round(drafted=[1, 2], accepted=2, emitted=[1])
        with pytest.raises(UsageError, match="sequence 0 has a round after its end at token 1"):
            rec.round(emitted=[3])


def test_spans_that_overlap_on_a_device_are_refused(path):
    ms = 1_000_000
    with engine.record(path, devices=DEVICES) as rec:
        rec.add("verify", 1 * ms, 3 * ms, "t")
        rec.add("draft", 2 * ms, 4 * ms, "d")
        with pytest.raises(
            UsageError, match=r"a verify on t starts at 1.500 ms, but the verify there ends at 2.0"
        ):
            rec.add("verify", 5 * ms // 2, 4 * ms, "t")
        with pytest.raises(UsageError, match="lasts from 4000000 to 3000000 ns"):
            rec.add("verify", 5 * ms, 4 * ms, "t")
        with pytest.raises(UsageError, match="a round is 1000000 ns before the recording's start"):
            rec.round(emitted=[1], time=0)
    assert [(s.start, s.end) for s in read(path).spans] == [(0, 2 * ms), (1 * ms, 3 * ms)]


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ({"kind": "think"}, "the kind of a span is 'think'; give prefill, draft"),
        ({"kind": "draft", "device": "x"}, "device 'x' is not among d, t"),
        (
            {"kind": "draft", "device": "t"},
            "a draft is work of the drafter, but device 't' has the role target",
        ),
        ({"kind": "sample", "model": "both"}, "the model of a span is 'both'"),
        ({"kind": "verify", "sequence": 4}, "sequence 4 has no prompt"),
    ],
)
def test_a_span_that_cannot_be_is_refused(path, span, message):
    with engine.record(path, devices=DEVICES) as rec, pytest.raises(UsageError) as error:
        rec.span(**span)
    assert message in str(error.value)


def test_a_device_is_named_where_several_fit(path):
    with engine.record(path, devices={"t0": "target", "t1": "target"}) as rec:
        with pytest.raises(UsageError, match="a verify may be on 2 devices; give device=, one of t0, t1"):
            rec.span("verify")
        with pytest.raises(UsageError, match="a draft may be on 0 devices"):
            rec.span("draft")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"devices": {"a": "boss"}}, "the role of device 'a' is 'boss'"),
        ({"devices": {"a": "drafter"}}, "has the role target"),
        ({"rule": "luck"}, "rule is 'luck'; give one of ratio, match, typical"),
    ],
)
def test_settings_that_cannot_be_are_refused(path, given, message):
    with pytest.raises(UsageError, match=message):
        engine.record(path, **given)
    assert not path.exists()


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"cannot record to .*absent/x.jsonl: No such file"):
        engine.record(tmp_path / "absent" / "x.jsonl")


def test_prompts_are_given_before_the_first_span(path):
    with engine.record(path) as rec:
        rec.prompt("one")
        with rec.span("verify"):
            pass
        with pytest.raises(UsageError, match="prompt 2 was given after the first span"):
            rec.prompt("two")


def test_a_batch_shares_spans_and_steps(path):
    """One verification of two sequences: both rounds have its step and its span."""
    with engine.record(path) as rec:
        rec.prompt("a", ids=[1])
        rec.prompt("b", ids=[1, 2])
        for step in range(2):
            with rec.span("draft", sequence=-1):
                pass
            with rec.span("verify", sequence=-1):
                pass
            for sequence in range(2):
                rec.round(drafted=[5], accepted=step, emitted=[5, 6][1 - step :], sequence=sequence)
    trace = read(path)
    verifies = [s.id for s in trace.spans if s.kind == "verify"]
    assert [(r.sequence, r.step, r.span) for r in trace.rounds] == [
        (sequence, step + 1, verifies[step]) for step in range(2) for sequence in range(2)
    ]
    drafts = [s.id for s in trace.spans if s.kind == "draft"]
    assert [d.draft_span for d in trace.decisions if d.node == 0] == [
        drafts[0],
        drafts[0],
        drafts[1],
        drafts[1],
    ]
    assert [c.position for c in trace.commits if c.sequence == 1] == [2, 3, 4]


def test_drafts_of_a_wrong_text_are_no_rounds_drafts(path):
    """PEARL: the drafter drafts on while the target verifies; a rejection throws that away."""
    clock = iter(range(0, 1000, 10))

    def add(kind, device, length):
        start = next(clock)
        return rec.add(kind, start, start + length, device)

    with engine.record(path, devices=DEVICES) as rec:
        first = add("draft", "d", 9)
        verify = add("verify", "t", 100)
        wrong = add("draft", "d", 9)
        rec.round(drafted=[1, 2], accepted=0, emitted=[7], time=verify.track.base + 120, verify=verify)
        again = rec.add("draft", 130, 139, "d")
        rec.add("verify", 140, 190, "t")
        ahead = rec.add("draft", 150, 159, "d")
        rec.round(drafted=[3, 4], accepted=2, emitted=[3, 4], time=verify.track.base + 200)
        rec.add("verify", 210, 220, "t")
        rec.round(drafted=[5, 6], accepted=2, emitted=[5, 6], time=verify.track.base + 230)
    spans = [d.draft_span for d in read(path).decisions if d.node >= 0]
    assert spans == [first.id] * 2 + [again.id] * 2 + [ahead.id] * 2
    assert wrong.id not in spans


def test_drafts_that_are_thrown_away_unjudged(path):
    with engine.record(path, devices=DEVICES) as rec:
        rec.prompt(ids=[1, 2])
        with rec.span("draft") as work:
            pass
        rec.discard([8, 9], ahead=3, q=[0.5, 0.25], draft=work)
    rows = [(d.node, d.position, d.token, d.q, d.outcome, d.draft_span) for d in read(path).decisions]
    assert rows == [(-1, 5, 8, 0.5, "discarded", work.id), (-1, 6, 9, 0.25, "discarded", work.id)]


def test_a_decoder_gives_the_texts(path):
    """A token's text is what it adds to the text before it; half a character adds none."""
    words = {1: b"Hi", 2: b"\xc3", 3: b"\xa9", 4: b" there"}

    def decode(ids):
        return b"".join(words[i] for i in ids).decode("utf-8", "replace")

    with engine.record(path, decode=decode) as rec:
        rec.prompt(ids=[1])
        rec.round(drafted=[2, 3], accepted=2, emitted=[2, 3, 4])
    trace = read(path)
    assert trace.header.prompts == ("Hi",)
    assert [c.text for c in trace.commits] == ["", "é", " there"]
    assert trace.pieces == {2: "�", 3: "�", 4: " there"}
    assert trace.text == "é there"


def test_tensors_and_arrays_are_token_ids(path):
    import numpy as np
    import torch

    with engine.record(path) as rec:
        rec.prompt(ids=torch.tensor([1, 2]))
        rec.round(
            drafted=torch.tensor([3, 4]),
            accepted=torch.tensor(1),
            emitted=np.array([3, 5]),
            q=torch.tensor([0.5, float("nan")]),
            p=np.array([0.25, 0.125, 1.0001], dtype=np.float32),
        )
    trace = read(path)
    assert trace.token_ids() == [3, 5]
    assert [(d.p, d.q) for d in trace.decisions] == [(0.25, 0.5), (0.125, None), (1.0, None)]


def test_threads_may_record_at_once(path):
    """Every line is whole, every id is its own, and each span is on its thread's device."""
    devices = {f"d{i}": "drafter" for i in range(3)} | {"t": "target"}
    with engine.record(path, devices=devices) as rec:
        rec.start()

        def work(device):
            for rows in range(300):
                with rec.span("draft", device, rows=rows):
                    pass

        threads = [threading.Thread(target=work, args=(f"d{i}",)) for i in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(100):
            with rec.span("verify"):
                pass
            rec.round(drafted=[1], accepted=1, emitted=[1, 2])
        for thread in threads:
            thread.join()
    trace = read(path)
    assert len(trace.spans) == 1000
    assert len({s.id for s in trace.spans}) == 1000
    assert len(trace.rounds) == 100
    for device in devices:
        own = [s for s in trace.spans if s.device == device]
        assert all(a.end <= b.start for a, b in pairwise(own))


PROCESS = """
import sys, time, engine
with engine.record(sys.argv[1], join=True) as rec:
    now = time.perf_counter_ns()
    work = rec.add("draft", now, now + 5, "d", rows=int(sys.argv[2]))
    print(now, work.id)
    try:
        rec.round(emitted=[1])
    except engine.UsageError as error:
        assert "records spans only" in str(error)
    else:
        sys.exit("a joined process recorded a round")
"""


def test_processes_append_to_one_file_with_one_clock(path):
    with engine.record(path, devices=DEVICES) as rec:
        begin = time.perf_counter_ns()
        rec.start(begin)
        runs = [
            subprocess.run(
                [sys.executable, "-c", PROCESS, path, str(rows)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            for rows in (1, 2)
        ]
        assert [run.returncode for run in runs] == [0, 0], runs
        stamps = [tuple(map(int, run.stdout.split())) for run in runs]
        rec.round(drafted=[3, 4], accepted=2, emitted=[3, 4, 5], draft=[number for _, number in stamps])
    trace = read(path)
    assert [(s.start, s.id) for s in trace.spans] == [(now - begin, number) for now, number in stamps]
    assert all(0 < s.start < trace.commits[0].time for s in trace.spans)
    assert [d.draft_span for d in trace.decisions] == [*(s.id for s in trace.spans), -1]
    assert max(s.id for s in trace.spans) < 2**53


FORKED = """
import os, sys, engine
with engine.record(sys.argv[1], devices={"d": "drafter", "t": "target"}) as rec:
    with rec.span("verify"): pass
    if os.fork() == 0:
        with rec.span("draft"): pass
        os._exit(0)
    os.wait()
    with rec.span("verify"): pass
"""


def test_a_forked_child_records_with_its_parents_recorder(path):
    subprocess.run([sys.executable, "-c", FORKED, path], cwd=ROOT, check=True)
    trace = read(path)
    assert [s.kind for s in trace.spans] == ["verify", "draft", "verify"]
    first, child, last = (s.id for s in trace.spans)
    assert (first, last) == (0, 1)
    assert 2**30 <= child < 2**53


def test_only_a_recording_can_be_joined(path, tmp_path):
    with pytest.raises(UsageError, match=r"cannot join the recording .*absent.*call start"):
        engine.record(tmp_path / "absent", join=True)
    path.write_text('{"event":"piece","token":1,"text":""}\n')
    with pytest.raises(UsageError, match="it is no recording"):
        engine.record(path, join=True)


def test_the_clock_of_another_machine_is_shifted_and_its_error_kept(path):
    clocks = {"d": {"node": "10.0.0.2", "offset_ns": 1000, "uncertainty_ns": 40}}
    with engine.record(path, devices=DEVICES, clocks=clocks) as rec:
        rec.start(5000)
        rec.add("draft", 6100, 6200, "d")
        rec.add("verify", 5200, 5300, "t")
    trace = read(path)
    assert [(s.start, s.end) for s in trace.spans] == [(100, 200), (200, 300)]
    assert trace.header.environment["clocks"] == clocks


class Event:
    """A CUDA event of a device that begins work half a millisecond after its launch."""

    now = 0

    def record(self):
        Event.now += 500_000
        self.time = Event.now

    def query(self):
        return True

    def synchronize(self):
        """Nothing to wait for."""

    def elapsed_time(self, other):
        return (other.time - self.time) / 1e6


def test_cuda_events_time_the_spans_of_cuda_devices(path):
    """The times are those of the events, the order that of the stream; the header has the error."""
    devices = {"cuda:0": "target", "cpu": "drafter"}
    with engine.record(path, devices=devices, events=Event) as rec:
        with rec.span("verify"):
            pass
        with rec.span("verify"):
            pass
        rec.round(drafted=[1], accepted=1, emitted=[1, 2])
    trace = read(path)
    first, second = trace.spans
    assert (first.end - first.start, second.start - first.end, second.end - second.start) == (500_000,) * 3
    assert set(trace.header.environment["clocks"]) == {"cuda:0"}
    assert trace.header.environment["clocks"]["cuda:0"]["uncertainty_ns"] >= 0
    assert [d.kind for d in trace.header.devices] == ["cuda", "cpu"]


def test_a_process_that_joins_has_cuda_events_too(path):
    devices = {"cuda:0": "target", "cuda:1": "drafter"}
    with engine.record(path, devices=devices) as rec:
        rec.start()
        with engine.record(path, join=True, events=Event) as other:
            for _ in range(2):
                with other.span("draft"):
                    pass
    first, second = read(path).spans
    assert (first.end - first.start, second.start - first.end) == (500_000, 500_000)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"end": 2.5},
            r"start, end, rows and context of a verify are \(0, 1.5, -1, -1\); give whole numbers",
        ),
        ({"end": 2, "rows": "3"}, "give whole numbers"),
        ({"end": 2, "outcome": 'do"ne'}, "the outcome of a span is 'do\"ne'; give done or cancelled"),
    ],
)
def test_a_span_of_strange_values_writes_no_line(path, given, message):
    with engine.record(path) as rec, pytest.raises(UsageError, match=message):
        rec.add("verify", 1, **given)
    assert read(path).spans == []


def test_settings_that_json_cannot_hold_are_refused(path):
    rec = engine.record(path, config={"gamma": {1, 2}})
    with pytest.raises(UsageError, match=r"config of a header is .*; give plain values"):
        rec.start()


def test_nothing_is_recorded_after_the_end(path):
    with engine.record(path) as rec:
        work = rec.span("verify")
    with pytest.raises(UsageError, match="is closed; end all work before close"):
        rec.end(work)
    rec.close()
    assert read(path).status == "done"


def test_a_draft_ahead_of_a_bonus_is_of_no_round(path):
    """A draft that began before the target's own token was known continues another text."""
    with engine.record(path, devices=DEVICES) as rec:
        rec.start(0)
        rec.add("draft", 0, 10, "d")
        rec.add("verify", 10, 30, "t")
        rec.add("draft", 12, 20, "d")
        rec.round([1], 1, [1, 2], time=30)
        ready = rec.add("draft", 31, 40, "d")
        rec.add("verify", 40, 50, "t")
        rec.round([3], 1, [3, 4], time=50)
    assert [d.draft_span for d in read(path).decisions if d.node == 0] == [0, ready.id]


@pytest.mark.parametrize(
    ("temperature", "rule", "rules"), [(0, "", "match"), (0.8, "ratio", "ratio"), (0.8, "", "")]
)
def test_the_rule_is_the_given_one_and_match_at_temperature_0(path, temperature, rule, rules):
    with engine.record(path, sampling={"temperature": temperature}, rule=rule) as rec:
        rec.round([1, 2], 1, [1, 3])
        rec.round([4], 1, [4, 5])
    found = [d.rule for d in read(path).decisions]
    assert found == [rules, rules, rules, rules, "target" if rules else ""]


def test_the_text_of_a_long_output_is_the_texts_of_its_tokens(path):
    with engine.record(path, decode=lambda ids: " ".join(map(str, ids))) as rec:
        rec.prompt(ids=[7])
        for token in range(50):
            rec.round(emitted=[token])
    assert read(path).text == "".join(f" {token}" for token in range(50))


def test_an_error_ends_the_recording_as_failed(path):
    def loop():
        with engine.record(path) as rec:
            rec.round(emitted=[1], texts=["x"])
            with rec.span("verify"):
                raise ZeroDivisionError("by zero")

    with pytest.raises(ZeroDivisionError):
        loop()
    trace = read(path)
    assert (trace.status, trace.footer.error) == ("failed", "ZeroDivisionError: by zero")
    assert [s.outcome for s in trace.spans] == ["cancelled"]
    assert trace.text == "x"


def test_an_interrupt_ends_it_as_cancelled(path):
    with pytest.raises(KeyboardInterrupt), engine.record(path):
        raise KeyboardInterrupt
    assert read(path).status == "cancelled"


KILLED = """
import sys, time, engine
rec = engine.record(sys.argv[1], devices={"d": "drafter", "t": "target"})
rec.prompt("p", ids=[1])
for i in range(10**6):
    with rec.span("draft"): pass
    with rec.span("verify"): pass
    rec.round(drafted=[2], accepted=1, emitted=[2, 3], texts=["a", "b"])
    if i == 4:
        print("ready", flush=True)
        time.sleep(60)
"""


def test_a_killed_process_loses_no_row(path):
    run = subprocess.Popen([sys.executable, "-c", KILLED, path], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "ready\n"
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    (trace,) = read_traces(path).traces
    assert (len(trace.spans), len(trace.rounds), len(trace.commits)) == (10, 5, 10)
    assert (trace.status, trace.footer.error) == ("incomplete", "the run ended without a footer")
    assert trace.text == "ab" * 5


def test_a_file_that_ends_within_a_line_keeps_the_lines_before(path):
    with engine.record(path) as rec:
        rec.round(emitted=[1], texts=["a"])
        rec.round(drafted=[2], accepted=1, emitted=[2], texts=["b"])
    lines = path.read_bytes().splitlines(keepends=True)[:-1]
    path.write_bytes(b"".join(lines)[:-5])
    (trace,) = read_traces(path).traces
    assert trace.footer.error == "the file ends within a line, without a footer"
    assert trace.text == "ab"
    path.write_bytes(lines[0] + b'{"event":"com\n' + lines[1])
    with pytest.raises(UsageError, match="line 2"):
        read_traces(path)


@pytest.mark.parametrize("off", [{"path": None}, {"enabled": False}])
def test_a_recording_that_is_off_does_nothing(path, off):
    with engine.record(**{"path": path, **off}) as rec:
        rec.prompt("x", ids=[1])
        rec.start()
        with rec.span("nonsense", device="nowhere") as work:
            work.rows = 3
        rec.end(rec.span("draft"))
        rec.add("draft", 2, 1)
        rec.round(drafted=[1], accepted=9)
        rec.discard([1])
        rec.close()
    assert not path.exists()


def test_a_span_costs_microseconds_and_nothing_when_off(path):
    """Bounds that a busy machine keeps; `specscope bench` has the figures."""

    def cost(rec):
        best = float("inf")
        for _ in range(20):
            begun = time.perf_counter()
            for _ in range(200):
                with rec.span("draft", rows=1):
                    pass
            best = min(best, (time.perf_counter() - begun) / 200)
        return best

    with engine.record(path) as on, engine.record(None) as off:
        assert cost(on) < 50e-6
        assert cost(off) < 5e-6


def test_each_line_is_one_json_object_with_short_ids(path):
    with engine.record(path, method='my "loop"\n', devices={'a"b': "drafter+target"}) as rec:
        for _ in range(3):
            with rec.span("draft"):
                pass
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["event"] for row in rows] == ["header", "span", "span", "span", "footer"]
    assert [row["id"] for row in rows[1:-1]] == [0, 1, 2]
    assert rows[1]["device"] == 'a"b'
