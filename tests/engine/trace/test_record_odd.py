"""Odd values of every argument of the recorder: one line of UsageError, or a file that is read."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specscope
from specscope.engine.errors import UsageError
from specscope.traces.follow import Tail
from specscope.traces.imports.reading import read_traces
from specscope.traces.view.document import view_model
from tests.engine.trace.recordings import Event

HALF = "\ud83d"
NOW = time.perf_counter_ns
NUMBERS = [
    *(0, 1, -1, -2, 2**31, 2**53 - 1, 2**53, 2**62, 2**63, 2**70, -(2**63), -(2**70), True, 10**5000),
    *(0.5, 1.0, -0.0, 1e300, float("nan"), float("inf"), 1 + 2j),
    *(
        np.int64(3),
        np.float32(0.5),
        np.bool_(True),
        np.array(3),
        np.array([1, 2]),
        np.ones((2, 2)),
        np.array([]),
    ),
]
TEXTS = [
    "",
    "a",
    "draft",
    "target",
    "\n",
    "\u2028",
    "\x85",
    "\r",
    "\0",
    HALF,
    "\ude00" + HALF,
    "x" * 400,
    b"a",
    "\x1b[2J",
]
OTHERS = [
    None,
    (),
    [],
    {},
    set(),
    object(),
    int,
    len,
    iter([1]),
    [[1]],
    [None],
    {1: 2},
    {"a": {(1, 2): 3}},
    range(3),
    slice(2),
]
odd = st.one_of(
    st.sampled_from([*NUMBERS, *TEXTS, *OTHERS]),
    st.lists(st.sampled_from([*NUMBERS, *TEXTS, *OTHERS]), max_size=4),
    st.dictionaries(
        st.sampled_from(["a", HALF, "\u2028", "temperature", "seed", "d"]),
        st.sampled_from([*NUMBERS, *TEXTS, *OTHERS]),
        max_size=2,
    ),
    st.lists(st.lists(st.tuples(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS)), max_size=2), max_size=3),
)
ROUND = {"drafted": [1, 2], "accepted": 1, "emitted": [1, 3]}
SPAN = ("kind", "device", "rows", "context", "sequence", "model")
METHODS = {
    "prompt": ({}, ("text", "ids")),
    "start": ({}, ("time",)),
    "span": ({"kind": "verify"}, (*SPAN, "outcome", "rows later", "context later")),
    "add": ({"kind": "verify"}, (*SPAN, "start", "end", "outcome")),
    "round": (
        ROUND,
        (
            *("drafted", "accepted", "emitted", "parents", "sequence", "q", "p", "top_q", "top_p", "texts"),
            *("mode", "draft", "verify", "time", "reason"),
        ),
    ),
    "discard": ({"drafted": [1]}, ("drafted", "sequence", "ahead", "q", "draft")),
    "end": ({}, ("work", "outcome")),
    "drop": ({}, ("work",)),
    "close": ({}, ("status", "error")),
}
"""Method -> its usual arguments, and all names that get odd values."""
OPENED = (
    *("method", "devices", "target", "drafter", "decode", "sampling", "config", "rule", "lossless"),
    *("runtime", "clocks", "events", "join", "enabled"),
)


@st.composite
def calls(draw):
    """Return a method and its arguments, one or two of them odd."""
    name = draw(st.sampled_from([*METHODS]))
    usual, names = METHODS[name]
    chosen = draw(st.lists(st.sampled_from(names), min_size=0, max_size=2, unique=True))
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
        later = {
            key: arguments.pop(f"{key} later") for key in ("rows", "context") if f"{key} later" in arguments
        }
        work = rec.span(**arguments)
        for key, value in later.items():
            setattr(work, key, value)
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
    tail = Tail(path)
    while tail.read():
        pass
    assert tail.header is not None
    tail.close()
    assert view_model([trace])["runs"]


@settings(max_examples=150, deadline=None)
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


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(OPENED), odd, max_size=3))
def test_what_a_recording_is_opened_with_is_read_or_refused(arguments):
    arguments.pop("events", None) if callable(arguments.get("events")) else None
    if callable(arguments.get("decode")):
        del arguments["decode"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "odd.jsonl"
        path.write_text("older")
        rec = allowed(specscope.record, path, **arguments)
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
    rec = allowed(specscope.record, path)
    assert rec is None


def test_left_out_and_none_are_the_same(path):
    with specscope.record(
        path, devices=None, rule=None, decode=None, sampling=None, config=None, clocks=None, events=None
    ) as rec:
        rec.round(emitted=[1])
    header = read_traces(path).traces[0].header
    assert [device.role for device in header.devices] == ["drafter+target"]


@pytest.mark.parametrize("events", [{}, {"cuda:1": Event}, {"cuda:0": 3}, 5])
def test_events_are_what_makes_events_of_each_cuda_device(path, events):
    allowed(specscope.record, path, devices={"cuda:0": "target"}, events=events)


def test_a_decoder_of_half_characters_makes_whole_ones(path):
    """A half character is incomplete; two halves that follow each other are one character."""
    pieces = {1: "\ud83d", 2: "\ude00", 3: "a", 4: "\u2028"}
    with specscope.record(path, decode=lambda ids: "".join(pieces[i] for i in ids)) as rec:
        rec.round(emitted=[1])
        rec.round(emitted=[2])
        rec.round(drafted=[4], accepted=1, emitted=[4, 3])
    assert read_traces(path).traces[0].text == "\U0001f600\u2028a"
