"""What the recorder refuses, in one line each; odd values of every argument, refused or read."""

import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import specscope
from specscope.engine.errors import UsageError
from specscope.traces.imports.reading import read_traces
from specscope.traces.view.document import view_model
from tests.engine.trace.recordings import DEVICES, TREE, followed, read


def round_(drafted=(1,), accepted=0, emitted=(3,), **more):
    given = {"drafted": [*drafted], "accepted": accepted, "emitted": [*emitted], **more}
    return lambda rec: rec.round(**given)


def span(kind, **given):
    return lambda rec: rec.span(kind, **given)


def add(**given):
    return lambda rec: rec.add("verify", 1, **given)


OF = " of round 1 of sequence 0"
REFUSED = [
    (round_([1, 2], 3, [1, 2, 3]), "accepted 3 of 2 drafted tokens; give 0 to 2"),
    (round_([1, 2], 1, [2, 9]), "emitted token 2 at place 0, but accepted 1 there"),
    (round_([1, 2], 1, [1, 9, 9]), "emitted 3 tokens and accepted 1"),
    (round_([1, 2], 0.5, []), f"accepted{OF} is 0.5; give a whole"),
    (round_([[1, 2]], 0, [1]), "is [[1, 2]]; give a flat list of whole numbers"),
    (lambda rec: rec.round(drafted=np.ones((2, 1)), emitted=[1]), "is array([[1.],        [1.]]); give a flat list"),
    (round_([1, -2], 0, [1]), "has -2 at place 1; a token id is 0 to 2147483647"),
    (round_([1, 2], parents=[-1]), "1 parents of 2 drafted tokens"),
    (round_([1, 2], parents=[1, -1]), "parents come before children"),
    (round_(**TREE, accepted=[0, 3], emitted=[10, 13]), "has 3 after 0, which is not its parent"),
    (round_(**TREE, accepted=2, emitted=[10, 13, 1]), "no path of its tree has the output's token 13 at place 1"),
    (round_([1, 2], q=[0.5]), f"q{OF} has 1 values"),
    (round_(p=[1.5]), "has 1.5; a probability is 0 to 1"),
    (round_(accepted=1, emitted=[]), "emitted no token; give emitted="),
    (round_([1, 2], [1, 0], [1, 3]), "give the number of accepted tok"),
    (round_([1, 2], [True, False], [1, 3]), "is [True, False]; give a flat list of whole numbers"),
    (round_([1], np.array([False]), [1, 3]), "is array([False]); give a flat list of whole numbers"),
    (lambda rec: rec.round(drafted={7, 8}, emitted=[1]), "give a flat list of whole numbers"),
    (lambda rec: rec.discard({7: 0.5}), "give a flat list of whole numbers"),
    (round_(q=[[0.5, 0.5]]), "has [0.5, 0.5]; a probability is 0 to 1"),
    (round_(top_q=[[1, 2]]), "is [[1, 2]]; give pairs (id, probability)"),
    (round_(top_p=[[(1, 1.5)]]), "has 1.5; a probability is 0 to 1"),
    (round_(texts=[]), "0 texts of 1 emitted tokens"),
    (round_(texts="a"), f"texts{OF} is 'a'; give a text of whole characters for each emitted token"),
    (round_(mode="fast"), f"mode{OF} is 'fast'"),
    (round_(reason="full"), f"reason{OF} is 'full'"),
    (round_(sequence=1), "sequence 1 has no prompt; give 0 to 0"),
    (round_(sequence="0"), "sequence '0' has no prompt; give 0 to 0"),
    (round_(draft=[1, 2]), "2 spans in draft= for 1 drafted tokens"),
    (round_(draft=["d"]), f"draft={OF} has 'd'; give what span() returns, or its id"),
    (round_(draft=-2), "has -2; give what span() returns"),
    (round_(verify="v"), "verify= of sequence 0 has 'v'; give what span() returns, or its id"),
    (round_(time=1.5), "the time of a round is 1.5; give a whole number"),
    (span("think"), "the kind of a span is 'think'; give prefill, draft"),
    (span("draft", device="x"), "device 'x' is not among d, t"),
    (span("draft", device="t"), "a draft is work of the drafter, but device 't' has the role target"),
    (span("sample", model="both"), "the model of a span is 'both'"),
    (span("verify", sequence=4), "sequence 4 has no prompt"),
    (span("verify", sequence=None), "sequence None has no prompt"),
    (add(end=2.5), "the end of a span is 2.5; give a whole number"),
    (add(end=2, rows="3"), "give whole numbers"),
    (add(end=2, outcome='do"ne'), "the outcome of a span is 'do\"ne'; give done, cancelled"),
    (lambda rec: rec.prompt([1, 2]), "give a text of whole characters, and token ids as ids="),
    (lambda rec: rec.prompt(None), "give a text of whole characters, and token ids as ids="),
    (lambda rec: rec.discard([1], ahead=-1), "begin 1 before the output's end"),
    (lambda rec: rec.close("success"), "is 'success'; give done, "),
    (lambda rec: rec.close("running"), "is 'running'; give done, "),
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


def test_what_comes_too_late_is_refused(path):
    with specscope.record(path) as rec:
        with rec.span("verify"):
            pass
        with pytest.raises(UsageError, match="prompt 2 was given after the first span"):
            rec.prompt("two")
        rec.round(drafted=[1, 2], accepted=2, emitted=[1])
        with pytest.raises(UsageError, match="sequence 0 has ended at token 1, and no round may follow"):
            rec.round(emitted=[3])
    with pytest.raises(UsageError, match="is closed; end all work before close"), rec.span("verify"):
        pass
    rec.close()
    assert read(path).status == "done"


def test_spans_that_overlap_on_a_device_are_refused(path):
    ms = 1_000_000
    with specscope.record(path, devices=DEVICES) as rec:
        rec.add("verify", 1 * ms, 3 * ms, "t")
        rec.add("draft", 2 * ms, 4 * ms, "d")
        for call, message in (
            (
                lambda: rec.add("verify", 5 * ms // 2, 4 * ms, "t"),
                r"a verify on t starts at 1.500 ms, but the verify there ends at 2.0",
            ),
            (lambda: rec.add("verify", 5 * ms, 4 * ms, "t"), "lasts from 4000000 to 3000000 ns"),
            (lambda: rec.round(emitted=[1], time=0), "a round is 1000000 ns before the recording's start"),
        ):
            with pytest.raises(UsageError, match=message):
                call()
    assert [(s.start, s.end) for s in read(path).spans] == [(0, 2 * ms), (1 * ms, 3 * ms)]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("verify", "a verify may be on t0, t1; give device=, one of these"),
        ("draft", r"device 't0' has the role target; give it drafter\+target"),
    ],
)
def test_a_device_is_named_where_several_fit(path, kind, message):
    with specscope.record(path, devices={"t0": "target", "t1": "target"}) as rec:
        with pytest.raises(UsageError, match=message):
            rec.span(kind)


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
        ({"config": {"gamma": {1, 2}}}, "set is not JSON serializable; give Python's own values"),
        ({"path": "absent/x.jsonl"}, r"cannot record to .*absent/x.jsonl: No such file"),
    ],
)
def test_settings_that_cannot_be_are_refused(path, given, message):
    path.write_text("an older file")
    with pytest.raises(UsageError, match=message):
        specscope.record(**{"path": path, **given})
    assert path.read_text() == "an older file"


def test_settings_may_be_none(path):
    names = ("devices", "rule", "decode", "config", "clocks", "events")
    sampling = {"temperature": 0.7, "top_k": None, "seed": None}
    with specscope.record(path, sampling=sampling, **dict.fromkeys(names)) as rec:
        rec.round(emitted=[1])
    header = read(path).header
    assert (header.sampling, [d.role for d in header.devices]) == (sampling, ["drafter+target"])


def test_a_span_that_never_ended_fails_the_recording(path):
    rec = specscope.record(path, devices=DEVICES)
    for _ in range(2):
        rec.span("draft")
    rec.drop(rec.span("verify"))
    message = r"the draft on d at \d+\.\d+ ms has not ended, nor have 1 others; use `with"
    with pytest.raises(UsageError, match=message):
        rec.close()
    assert read(path).status == "failed"
    assert "has not ended" in read(path).footer.error


def test_the_blocks_own_error_is_the_one_to_see(path):
    rec = specscope.record(path, decode=lambda _: 1 / 0)
    rec.prompt("Hello", ids=[1])
    with pytest.raises(ZeroDivisionError), rec:
        rec.start()
    assert path.read_bytes() == b""


def test_an_error_in_a_span_is_the_one_to_see(path):
    """Also if the span cannot be recorded: here it overlaps one that ended inside."""

    def overlapping(rec):
        with rec.span("verify"):
            rec.add("draft", time.perf_counter_ns(), time.perf_counter_ns())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), specscope.record(path) as rec:
        overlapping(rec)
    trace = read(path)
    assert [span.kind for span in trace.spans] == ["draft"]
    assert (trace.status, trace.footer.error) == ("failed", "ZeroDivisionError:")


def test_rounds_of_a_sequence_are_in_the_order_of_their_times(path):
    with specscope.record(path) as rec:
        for _ in range(2):
            rec.prompt(ids=[1])
        rec.start()
        begun = time.perf_counter_ns()
        rec.round(emitted=[5], time=np.int64(begun + 1000))
        rec.round(emitted=[6], sequence=1, time=begun)
        with pytest.raises(
            UsageError, match=r"is 1000 ns before the last one of the sequence; give rounds in"
        ):
            rec.round(emitted=[7], time=begun)
    assert [c.token for c in read(path).commits] == [5, 6]


def test_times_of_another_clock_are_refused(path):
    with specscope.record(path) as rec:
        rec.start()
        later = time.perf_counter_ns() + 2 * 10**9
        with pytest.raises(
            UsageError, match=r"a verify on .* ends \d+ s from now; give times of time.perf_co"
        ):
            rec.add("verify", time.perf_counter_ns(), later)
        with pytest.raises(UsageError, match=r"a round is \d+ s from now"):
            rec.round(emitted=[1], time=later)
    assert not read(path).spans + read(path).rounds


HALF = "\ud83d"
NOW = time.perf_counter_ns
NUMBERS = [
    *(0, 1, -1, -2, 2**31, 2**53 - 1, 2**53, 2**62, 2**63, 2**70, -(2**63), -(2**70), True, 10**5000),
    *(
        0.5,
        1.0,
        -0.0,
        1e300,
        float("nan"),
        float("inf"),
        1 + 2j,
        np.int64(3),
        np.float32(0.5),
        np.bool_(True),
    ),
    *(np.array(3), np.array([1, 2]), np.ones((2, 2)), np.array([])),
]
TEXTS = [
    *("", "a", "draft", "target", "x" * 400, b"a"),
    *"\n\u2028\x85\r\0",
    HALF,
    "\ude00" + HALF,
    "\x1b[2J",
]
OTHERS = [
    *(None, (), [], {}, set(), object(), int, len, iter([1]), [[1]], [None], range(3), slice(2)),
    *({1: 2}, {"a": {(1, 2): 3}}),
]
ANY = st.sampled_from([*NUMBERS, *TEXTS, *OTHERS])
odd = st.one_of(
    ANY,
    st.lists(ANY, max_size=4),
    st.dictionaries(st.sampled_from(["a", HALF, "\u2028", "temperature", "seed", "d"]), ANY, max_size=2),
    st.lists(st.lists(st.tuples(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS)), max_size=2), max_size=3),
)
ROUND = {"drafted": [1, 2], "accepted": 1, "emitted": [1, 3]}
SPAN = "kind device rows context sequence model"
METHODS = {
    "prompt": ({}, "text ids"),
    "start": ({}, "time"),
    "span": ({"kind": "verify"}, f"{SPAN} outcome rows_later context_later"),
    "add": ({"kind": "verify"}, f"{SPAN} start end outcome"),
    "round": (
        ROUND,
        "drafted accepted emitted parents sequence q p top_q top_p texts mode draft verify time reason",
    ),
    "discard": ({"drafted": [1]}, "drafted sequence ahead q draft"),
    "end": ({}, "work outcome"),
    "drop": ({}, "work"),
    "close": ({}, "status error"),
}
"""Method -> its usual arguments, and all names that get odd values."""
OPENED = (
    "method devices target drafter decode sampling config rule lossless runtime clocks events join enabled"
)


@st.composite
def calls(draw):
    """Return a method and its arguments, one or two of them odd."""
    name = draw(st.sampled_from([*METHODS]))
    usual, names = METHODS[name]
    chosen = draw(st.lists(st.sampled_from(names.split()), min_size=0, max_size=2, unique=True))
    return name, usual | {one: draw(odd) for one in chosen}


def allowed(call, *words, **named):
    """Call; UsageError of one line is an answer."""
    try:
        return call(*words, **named)
    except UsageError as error:
        message = str(error)
    assert "\n" not in message
    assert len(message) < 2000
    assert message.encode()
    return None


def apply(rec, name, arguments):
    if name == "span":
        outcome = arguments.pop("outcome", "done")
        later = {key: arguments.pop(key) for key in [*arguments] if key.endswith("_later")}
        work = rec.span(**arguments)
        for key, value in later.items():
            setattr(work, key.removesuffix("_later"), value)
        rec.end(work, outcome)
    elif name == "add":
        start = NOW()
        rec.add(**{"start": start, "end": start + 1, **arguments})
    elif name in ("end", "drop") and "work" not in arguments:
        work = rec.span("verify")
        getattr(rec, name)(work, **arguments)
        allowed(rec.end, work)  # twice
    else:
        getattr(rec, name)(**arguments)


def check_file(path):
    """Import the file, read it as a follower, and draw it."""
    (trace,) = read_traces(path).traces
    assert followed(path)
    assert view_model([trace])["runs"]


@settings(max_examples=80)
@example([("discard", {"drafted": [1], "draft": np.array(3)})], None)
@example([("discard", {"drafted": [1], "draft": True})], None)
@example([("discard", {"drafted": [1], "ahead": 2**31})], None)
@example([("round", {**ROUND, "verify": True})], None)
@given(
    st.lists(calls(), max_size=6),
    st.sampled_from([None, lambda ids: HALF * len(ids), lambda ids: "\u2028" * len(ids)]),
)
def test_what_the_recorder_takes_is_read(made, decode):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "odd.jsonl"
        rec = specscope.record(path, decode=decode)
        for name, arguments in made:
            allowed(apply, rec, name, dict(arguments))
        allowed(rec.close)
        check_file(path)


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(OPENED.split()), odd, max_size=3))
def test_what_a_recording_is_opened_with_is_read_or_refused(arguments):
    given = {k: v for k, v in arguments.items() if not (k in ("events", "decode") and callable(v))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "odd.jsonl"
        path.write_text("older")
        rec = allowed(specscope.record, path, **given)
        if rec is None:
            assert path.read_text() == "older", "a refused recording leaves the older file"
            return
        allowed(rec.round, **ROUND)
        allowed(rec.close)
        if path.read_text() != "older":
            check_file(path)


@pytest.mark.parametrize("path", [5, 1.5, b"a", [], {}, object(), "", "\0", "a\0b", HALF, "x" * 5000, "/"])
def test_a_path_that_is_none_is_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert allowed(specscope.record, path) is None


def test_a_decoder_of_half_characters_makes_whole_ones(path):
    """A half character is incomplete; two halves that follow each other are one character."""
    pieces = {1: "\ud83d", 2: "\ude00", 3: "a", 4: "\u2028"}
    with specscope.record(path, decode=lambda ids: "".join(pieces[i] for i in ids)) as rec:
        rec.round(emitted=[1])
        rec.round(emitted=[2])
        rec.round(drafted=[4], accepted=1, emitted=[4, 3])
    assert read_traces(path).traces[0].text == "\U0001f600\u2028a"
