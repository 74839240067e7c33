"""What the recorder refuses while it records, each in one line."""

from __future__ import annotations

import fcntl
import multiprocessing
import time

import numpy as np
import pytest

import specscope
from specscope.engine.errors import UsageError
from tests.engine.trace.recordings import DEVICES, TREE, read


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"drafted": [1, 2], "accepted": 3, "emitted": [1, 2, 3]}, "accepted 3 of 2 drafted tokens; give 0 to 2",  ),
        ({"drafted": [1, 2], "accepted": 1, "emitted": [2, 9]}, "emitted token 2 at place 0, but accepted 1 there",  ),
        ({"drafted": [1, 2], "accepted": 1, "emitted": [1, 9, 9]}, "emitted 3 tokens and accepted 1"),
        ({"drafted": [1, 2], "accepted": 0.5, "emitted": []}, "accepted of round 1 of sequence 0 is 0.5; give a whole",  ),
        ({"drafted": [[1, 2]], "accepted": 0, "emitted": [1]}, "is [[1, 2]]; give a flat list of whole numbers",  ),
        ({"drafted": np.ones((2, 1)), "emitted": [1]}, "is array([[1.],        [1.]]); give a flat list"),
        ({"drafted": [1, -2], "accepted": 0, "emitted": [1]}, "has -2 at place 1; a token id is 0 to 2147483647",  ),
        ({"drafted": [1, 2], "parents": [-1], "accepted": 0, "emitted": [3]}, "1 parents of 2 drafted tokens",  ),
        ({"drafted": [1, 2], "parents": [1, -1], "accepted": 0, "emitted": [3]}, "parents come before children",  ),
        ({**TREE, "accepted": [0, 3], "emitted": [10, 13]}, "has 3 after 0, which is not its parent"),
        ({**TREE, "accepted": 2, "emitted": [10, 13, 1]}, "no path of its tree has the output's token 13 at place 1",  ),
        ({"drafted": [1, 2], "accepted": 0, "emitted": [3], "q": [0.5]}, "q of round 1 of sequence 0 has 1 values",  ),
        ({"drafted": [1], "accepted": 0, "emitted": [3], "p": [1.5]}, "has 1.5; a probability is 0 to 1"),
        ({"drafted": [1], "accepted": 1, "emitted": []}, "emitted no token; give emitted="),
        ({"drafted": [1, 2], "accepted": [True, False], "emitted": [1, 3]}, "give the number of accepted tok",  ),
        ({"drafted": [1], "emitted": [3], "q": [[0.5, 0.5]]}, "has [0.5, 0.5]; a probability is 0 to 1"),
        ({"drafted": [1], "emitted": [3], "top_q": [[1, 2]]}, "is [[1, 2]]; give pairs (id, probability)"),
        ({"drafted": [1], "emitted": [3], "top_p": [[(1, 1.5)]]}, "has 1.5; a probability is 0 to 1"),
        ({"drafted": [1], "accepted": 0, "emitted": [3], "texts": []}, "0 texts of 1 emitted tokens"),
        ({"drafted": [1], "accepted": 0, "emitted": [3], "mode": "fast"}, "mode of round 1 of sequence 0 is 'fast'",  ),
        ({"drafted": [1], "accepted": 0, "emitted": [3], "reason": "full"}, "reason of round 1 of sequence 0 is 'full'",  ),
        ({"drafted": [1], "accepted": 0, "emitted": [3], "sequence": 1}, "sequence 1 has no prompt; give 0 to 0",  ),
        ({"drafted": [1], "accepted": 0, "emitted": [3], "draft": [1, 2]}, "2 spans in draft= for 1 drafted tokens",  ),
    ],
)  # fmt: skip
def test_a_round_that_cannot_be_is_refused_in_one_line(path, given, message):
    with specscope.record(path) as rec, pytest.raises(UsageError) as error:
        rec.round(**given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert read(path).rounds == []


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


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ({"kind": "think"}, "the kind of a span is 'think'; give prefill, draft"),
        ({"kind": "draft", "device": "x"}, "device 'x' is not among d, t"),
        ({"kind": "draft", "device": "t"}, "a draft is work of the drafter, but device 't' has the role target",  ),
        ({"kind": "sample", "model": "both"}, "the model of a span is 'both'"),
        ({"kind": "verify", "sequence": 4}, "sequence 4 has no prompt"),
        ({"kind": "verify", "sequence": None}, "sequence None has no prompt"),
    ],
)  # fmt: skip
def test_a_span_that_cannot_be_is_refused(path, span, message):
    with specscope.record(path, devices=DEVICES) as rec, pytest.raises(UsageError) as error:
        rec.span(**span)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sequence": "0"}, "sequence '0' has no prompt; give 0 to 0"),
        ({"verify": "v"}, "verify= of sequence 0 has 'v'; give what span() returns, or its id"),
        ({"draft": ["d"]}, "draft= of round 1 of sequence 0 has 'd'; give what span() returns, or its id"),
        ({"draft": -2}, "has -2; give what span() returns"),
        ({"time": 1.5}, "the time of a round is 1.5; give one of time.perf_counter_ns()"),
        ({"texts": "a"}, "texts of round 1 of sequence 0 is 'a'; give a text of whole characters for each emitted token",  ),
    ],
)  # fmt: skip
def test_a_round_that_cannot_be_is_refused(path, given, message):
    with specscope.record(path) as rec:
        with pytest.raises(UsageError) as error:
            rec.round(drafted=[4], accepted=0, emitted=[5], **given)
        rec.round(drafted=[4], accepted=0, emitted=[5])
    assert message in str(error.value)
    assert [r.emitted for r in read(path).rounds] == [1]


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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"end": 2.5}, r"the end of a span is 2.5; give a whole number",  ),
        ({"end": 2, "rows": "3"}, "give whole numbers"),
        ({"end": 2, "outcome": 'do"ne'}, "the outcome of a span is 'do\"ne'; give done, cancelled"),
    ],
)  # fmt: skip
def test_a_span_of_strange_values_writes_no_line(path, given, message):
    with specscope.record(path) as rec, pytest.raises(UsageError, match=message):
        rec.add("verify", 1, **given)
    assert read(path).spans == []


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


def test_a_second_recording_does_not_write_to_the_same_file(path):
    with specscope.record(path, method="one") as rec:
        rec.start()
        with pytest.raises(
            UsageError, match=r"another recording writes to .*; close it, give another file, or j"
        ):
            specscope.record(path, method="two")
    assert read(path).header.title == "one"
    specscope.record(path, method="two").close()
    assert read(path).header.title == "two"


def test_a_forked_child_does_not_keep_the_file(path):
    rec = specscope.record(path)
    rec.start()
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    rec.close()
    specscope.record(path).close()
    child.kill()
    child.join()


def test_a_decoder_makes_texts(path):
    with specscope.record(path, decode=lambda ids: ids) as rec:
        with pytest.raises(UsageError, match=r"decode of \[1\] is \[1\]; give what makes a text"):
            rec.round(emitted=[1])


@pytest.mark.parametrize("text", [[1, 2], None])
def test_a_prompt_is_a_text(path, text):
    with (
        specscope.record(path) as rec,
        pytest.raises(UsageError, match="give a text of whole characters, and token ids as ids="),
    ):
        rec.prompt(text)


def test_no_draft_is_discarded_before_the_outputs_end(path):
    with specscope.record(path) as rec, pytest.raises(UsageError, match="begin 1 before the output's end"):
        rec.discard([1], ahead=-1)


def test_the_status_of_a_recording_is_a_known_one(path):
    with specscope.record(path) as rec, pytest.raises(UsageError, match="is 'success'; give running, done"):
        rec.close("success")
    assert read(path).status == "done"


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
