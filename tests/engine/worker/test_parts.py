"""The wire, q buffers, stop texts and the checks of settings."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specscope.engine.errors import SpecScopeError, UsageError
from specscope.engine.methods import METHODS, find
from specscope.engine.run.run import Sequence
from specscope.engine.runtimes.process import Wire
from specscope.engine.types import Draft, DraftToken, Limits, Prefix, Sampling
from specscope.engine.worker.jobs import Prefill
from specscope.engine.worker.shared import ROWS, QBuffer, attach

ids = st.lists(st.integers(0, 3), min_size=1, max_size=12)


def _job(model, *prefixes):
    return Prefill(model, tuple(Prefix(n, np.asarray(t, dtype=np.int64)) for n, t in prefixes))


@given(
    st.lists(
        st.tuples(st.sampled_from(["target", "drafter"]), st.dictionaries(st.integers(0, 2), ids)), max_size=9
    )
)
def test_prefixes_survive_the_wire(sent):
    sender, receiver = Wire(), Wire()
    for model, prefixes in sent:
        packed = pickle.loads(pickle.dumps(sender.pack(_job(model, *prefixes.items()))))
        received = receiver.unpack(packed)
        assert {p.sequence: p.tokens.tolist() for p in received.prefixes} == prefixes


def test_the_wire_sends_only_new_tokens():
    wire = Wire()
    wire.pack(_job("target", (0, range(1000)), (1, range(5))))
    packed = wire.pack(_job("target", (0, range(1004)), (1, [0, 1, 7])))
    sent = [
        (sequence, kept, np.frombuffer(new, dtype=np.int64).tolist())
        for sequence, kept, new in packed.prefixes
    ]
    assert sent == [(0, 1000, [1000, 1001, 1002, 1003]), (1, 2, [7])]


def test_rows_of_q_are_free_once_the_last_draft_is_gone():
    q_buffer = QBuffer("drafter", 8)
    q_buffer.close()
    lease = q_buffer.lease(5)
    draft = Draft(tuple(DraftToken(i, i - 1) for i in range(5)), (lease,))
    tail = draft[3:]
    del lease, draft
    gc.collect()
    rest = q_buffer.lease(ROWS - 5)
    with pytest.raises(SpecScopeError, match=f"{ROWS} rows"):
        q_buffer.lease(1)
    del tail
    gc.collect()
    assert len(q_buffer.lease(5).rows) == 5
    del rest


def test_all_mappings_of_a_q_buffer_share_its_rows():
    q_buffer = QBuffer("drafter", 8)
    one, two = (attach(q_buffer.path, q_buffer.shape) for _ in range(2))
    q_buffer.close()
    two[3] = np.arange(8)
    assert one[3].tolist() == list(range(8))


class Letters:
    """A detokenizer: token i is letter i of the alphabet."""

    def push(self, token):
        return chr(97 + token)

    def flush(self):
        return ""


def _decode(tokens, limits):
    sequence = Sequence(0, [0], limits, Letters())
    streamed = ""
    for token in tokens:
        if sequence.done:
            break
        streamed += sequence.push(token)
    assert streamed == sequence.text
    return sequence


@example([0, 1, 2], ["ab"])
@given(st.lists(st.integers(0, 2), max_size=20), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_the_text_ends_before_the_first_stop_string(tokens, stop):
    sequence = _decode([*tokens, 25], Limits(50, tuple(stop), eos=(25,)))
    text = "".join(chr(97 + t) for t in tokens)
    cuts = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
    if not cuts:
        assert sequence.text == text
        assert sequence.reason == "eos"
        return
    assert sequence.reason == "stop"
    first = min(end for end, _ in cuts)  # the stop text completed first ends the text ...
    assert sequence.text == text[: min(start for end, start in cuts if end == first)]  # ... before its start


def test_length_and_eos():
    assert _decode([1, 2, 3, 4], Limits(3)).text == "bcd"
    assert _decode([1, 2, 3, 4], Limits(3)).reason == "length"
    assert _decode([1, 2, 25, 4], Limits(3, eos=(25,))).reason == "eos"
    assert _decode([1, 2, 25, 4], Limits(3, eos=(25,))).text == "bc"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sampling(temperature=11), "temperature is 11; it must be at least 0 and at most 10"),
        (lambda: Sampling(temperature=float("nan")), "temperature is nan"),
        (lambda: Sampling(top_k=-1), "top_k is -1; it must be at least 0"),
        (lambda: Sampling(top_p=1.5), "top_p is 1.5; it must be more than 0 and at most 1"),
        (lambda: Sampling(seed=-1), "seed is -1"),
        (lambda: Limits(0), "max_new_tokens is 0; it must be at least 1"),
        (lambda: find("magic"), "there is no method 'magic'; choose one of assisted, autoregressive"),
        (lambda: find("pearl").configure({"gamma": 2.5}), "gamma is 2.5; it must be a whole number of at least 1"),
        (lambda: find("pearl").configure({"pre_verify": 3}), "pre_verify is 3"),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused_with_value_and_range(make, message):
    with pytest.raises(UsageError) as caught:
        make()
    assert message in str(caught.value)


def test_every_setting_is_documented_and_its_default_allowed():
    for method in METHODS.values():
        assert method.summary.endswith(".")
        for setting in method.settings():
            assert setting.doc.endswith(".")
            assert setting.parse(setting.default) == setting.default
