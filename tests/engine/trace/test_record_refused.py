"""What the recorder refuses while it records, each in one line."""

from __future__ import annotations

import fcntl
import time

import numpy as np
import pytest

import specscope
from specscope.engine.errors import UsageError
from tests.engine.trace.recordings import DEVICES, TREE, read


def round_(drafted=(1,), accepted=0, emitted=(3,), **more):
    given = {"drafted": [*drafted], "accepted": accepted, "emitted": [*emitted], **more}
    return lambda rec: rec.round(**given)


def span(kind, **given):
    return lambda rec: rec.span(kind, **given)


def add(**given):
    return lambda rec: rec.add("verify", 1, **given)


REFUSED = [
    (round_([1, 2], 3, [1, 2, 3]), "accepted 3 of 2 drafted tokens; give 0 to 2"),
    (round_([1, 2], 1, [2, 9]), "emitted token 2 at place 0, but accepted 1 there"),
    (round_([1, 2], 1, [1, 9, 9]), "emitted 3 tokens and accepted 1"),
    (round_([1, 2], 0.5, []), "accepted of round 1 of sequence 0 is 0.5; give a whole"),
    (round_([[1, 2]], 0, [1]), "is [[1, 2]]; give a flat list of whole numbers"),
    (lambda rec: rec.round(drafted=np.ones((2, 1)), emitted=[1]), "is array([[1.],        [1.]]); give a flat list"),
    (round_([1, -2], 0, [1]), "has -2 at place 1; a token id is 0 to 2147483647"),
    (round_([1, 2], parents=[-1]), "1 parents of 2 drafted tokens"),
    (round_([1, 2], parents=[1, -1]), "parents come before children"),
    (round_(**TREE, accepted=[0, 3], emitted=[10, 13]), "has 3 after 0, which is not its parent"),
    (round_(**TREE, accepted=2, emitted=[10, 13, 1]), "no path of its tree has the output's token 13 at place 1"),
    (round_([1, 2], q=[0.5]), "q of round 1 of sequence 0 has 1 values"),
    (round_(p=[1.5]), "has 1.5; a probability is 0 to 1"),
    (round_(accepted=1, emitted=[]), "emitted no token; give emitted="),
    (round_([1, 2], [True, False], [1, 3]), "give the number of accepted tok"),
    (round_(q=[[0.5, 0.5]]), "has [0.5, 0.5]; a probability is 0 to 1"),
    (round_(top_q=[[1, 2]]), "is [[1, 2]]; give pairs (id, probability)"),
    (round_(top_p=[[(1, 1.5)]]), "has 1.5; a probability is 0 to 1"),
    (round_(texts=[]), "0 texts of 1 emitted tokens"),
    (round_(texts="a"), "texts of round 1 of sequence 0 is 'a'; give a text of whole characters for each emitted token"),
    (round_(mode="fast"), "mode of round 1 of sequence 0 is 'fast'"),
    (round_(reason="full"), "reason of round 1 of sequence 0 is 'full'"),
    (round_(sequence=1), "sequence 1 has no prompt; give 0 to 0"),
    (round_(sequence="0"), "sequence '0' has no prompt; give 0 to 0"),
    (round_(draft=[1, 2]), "2 spans in draft= for 1 drafted tokens"),
    (round_(draft=["d"]), "draft= of round 1 of sequence 0 has 'd'; give what span() returns, or its id"),
    (round_(draft=-2), "has -2; give what span() returns"),
    (round_(verify="v"), "verify= of sequence 0 has 'v'; give what span() returns, or its id"),
    (round_(time=1.5), "the time of a round is 1.5; give one of time.perf_counter_ns()"),
    (span("think"), "the kind of a span is 'think'; give prefill, draft"),
    (span("draft", device="x"), "device 'x' is not among d, t"),
    (span("draft", device="t"), "a draft is work of the drafter, but device 't' has the role target"),
    (span("sample", model="both"), "the model of a span is 'both'"),
    (span("verify", sequence=4), "sequence 4 has no prompt"),
    (span("verify", sequence=None), "sequence None has no prompt"),
    (add(end=2.5), "the end of a span is 2.5; give a whole number"),
    (add(end=2, rows="3"), "give whole numbers"),
    (add(end=2, outcome='do"ne'), "the outcome of a span is 'do\"ne'; give done, cancelled"),
    *((lambda rec, text=text: rec.prompt(text), "give a text of whole characters, and token ids as ids=") for text in ([1, 2], None)),
    (lambda rec: rec.discard([1], ahead=-1), "begin 1 before the output's end"),
    (lambda rec: rec.close("success"), "is 'success'; give running, done"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_a_call_that_cannot_be_is_refused_in_one_line_and_writes_no_row(path, call, message):
    with specscope.record(path, devices=DEVICES) as rec:
        with pytest.raises(UsageError) as error:
            call(rec)
        rec.round(drafted=[4], accepted=0, emitted=[5])
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    trace = read(path)
    assert ([r.emitted for r in trace.rounds], trace.spans, trace.status) == ([1], [], "done")


def test_no_round_follows_the_end_of_an_output(path):
    with specscope.record(path) as rec:
        rec.round(drafted=[1, 2], accepted=2, emitted=[1])
        with pytest.raises(UsageError, match="sequence 0 has a round after its end at token 1"):
            rec.round(emitted=[3])


def test_spans_that_overlap_on_a_device_are_refused(path):
    ms = 1_000_000
    with specscope.record(path, devices=DEVICES) as rec:
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


def test_a_device_is_named_where_several_fit(path):
    with specscope.record(path, devices={"t0": "target", "t1": "target"}) as rec:
        with pytest.raises(UsageError, match="a verify may be on t0, t1; give device=, one of these"):
            rec.span("verify")
        with pytest.raises(UsageError, match="device 't0' has the role target; give it drafter\\+target"):
            rec.span("draft")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"devices": "cuda:0"}, "devices is 'cuda:0'; give name -> role, such as {'cuda:0': 'drafter"),
        ({"devices": {"a": "boss"}}, "the role of device 'a' is 'boss'"),
        ({"devices": {"a": "drafter"}}, "has the role target"),
        ({"rule": "luck"}, "rule is 'luck'; give ratio, match, typical, or leave it out"),
        ({"sampling": 3}, "sampling is 3; give name -> value"),
        ({"sampling": {"temperature": "hot"}}, "temperature in sampling is 'hot'; give a number"),
        ({"config": "gamma"}, "config is 'gamma'; give name -> value"),
    ],
)
def test_settings_that_cannot_be_are_refused(path, given, message):
    with pytest.raises(UsageError, match=message):
        specscope.record(path, **given)
    assert not path.exists()


def test_settings_of_sampling_may_be_none(path):
    with specscope.record(path, sampling={"temperature": 0.7, "top_k": None, "seed": None}) as rec:
        rec.round(emitted=[1])
    assert read(path).header.sampling == {"temperature": 0.7, "top_k": None, "seed": None}


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"cannot record to .*absent/x.jsonl: No such file"):
        specscope.record(tmp_path / "absent" / "x.jsonl")


def test_prompts_are_given_before_the_first_span(path):
    with specscope.record(path) as rec:
        rec.prompt("one")
        with rec.span("verify"):
            pass
        with pytest.raises(UsageError, match="prompt 2 was given after the first span"):
            rec.prompt("two")


def test_settings_that_json_cannot_hold_are_refused(path):
    path.write_text("an older file")
    with pytest.raises(UsageError, match=r"set is not JSON serializable; give Python's own values"):
        specscope.record(path, config={"gamma": {1, 2}})
    assert path.read_text() == "an older file"


def test_nothing_is_recorded_after_the_end(path):
    with specscope.record(path) as rec:
        rec.start()
    with pytest.raises(UsageError, match="is closed; end all work before close"), rec.span("verify"):
        pass
    rec.close()
    assert read(path).status == "done"


def test_a_span_that_never_ended_fails_the_recording(path):
    rec = specscope.record(path, devices=DEVICES)
    for _ in range(2):
        rec.span("draft")
    rec.drop(rec.span("verify"))
    with pytest.raises(
        UsageError, match=r"the draft on d at \d+\.\d+ ms has not ended, nor have 1 others; use `with"
    ):
        rec.close()
    assert read(path).status == "failed"
    assert "has not ended" in read(path).footer.error


def test_the_blocks_own_error_is_the_one_to_see(path):
    rec = specscope.record(path, decode=lambda _: 1 / 0)
    rec.prompt("Hello", ids=[1])
    with pytest.raises(ZeroDivisionError), rec:
        rec.start()
    assert path.read_bytes() == b""


def test_times_of_another_clock_are_refused(path):
    with specscope.record(path) as rec:
        rec.start()
        with pytest.raises(
            UsageError, match=r"a verify on .* ends \d+ s from now; give times of time.perf_co"
        ):
            rec.add("verify", time.perf_counter_ns(), time.perf_counter_ns() + 2 * 10**9)
        with pytest.raises(UsageError, match=r"a round is \d+ s from now"):
            rec.round(emitted=[1], time=time.perf_counter_ns() + 2 * 10**9)
    assert not read(path).spans + read(path).rounds


def test_a_decoder_makes_texts(path):
    with specscope.record(path, decode=lambda ids: ids) as rec:
        with pytest.raises(UsageError, match=r"decode of \[1\] is \[1\]; give what makes a text"):
            rec.round(emitted=[1])


def test_only_a_recording_can_be_joined(path, tmp_path):
    with pytest.raises(UsageError, match=r"cannot join the recording .*absent.*call start"):
        specscope.record(tmp_path / "absent", join=True)
    path.write_text('{"event":"piece","token":1,"text":""}\n')
    with pytest.raises(UsageError, match="no program records to it now; join before close"):
        specscope.record(path, join=True)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(UsageError, match="it is no recording"):
            specscope.record(path, join=True)
