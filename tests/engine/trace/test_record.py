"""The rows that the recorder writes of spans, rounds, trees and batches."""

import time

import pytest

import specscope
from tests.engine.trace.recordings import DEVICES, TREE, read


def test_a_loop_in_five_lines(path):
    """Its rows are those of the golden text `record`."""
    with specscope.record(path, method="my loop", devices=DEVICES) as rec:
        assert rec.prompt("The prompt", ids=[1, 2, 3]) == 0
        with rec.span("draft", rows=1):
            time.sleep(0.001)
        with rec.span("verify", rows=4, context=3):
            time.sleep(0.002)
        rec.round(drafted=[4, 5, 6], accepted=2, emitted=[4, 5, 9], texts=["a", "b", "c"])
    trace = read(path)
    assert (trace.header.title, trace.header.clock) == ("my loop", "measured · own code")
    draft, verify = trace.spans
    assert draft.start + 1e6 <= draft.end <= verify.start
    assert verify.start + 2e6 <= verify.end <= trace.rounds[0].time
    assert (trace.status, trace.text) == ("done", "abc")


def test_a_plain_loop_and_the_token_of_the_prompts_forward(path):
    """The first token is step 0 if no verification made it; plain rounds have a target span."""
    with specscope.record(path) as rec:
        rec.prompt("p", ids=[7])
        with rec.span("prefill", rows=1, context=0):
            pass
        rec.round(emitted=[1], mode=None, reason=None)
        with rec.span("verify", rows=1, context=1):
            pass
        rec.round(emitted=[2], reason="eos")
    trace = read(path)
    assert [(s.kind, s.step) for s in trace.spans] == [("prefill", 0), ("verify", 1)]
    assert [(c.step, c.origin, c.position) for c in trace.commits] == [(0, "plain", 1), (1, "plain", 2)]
    assert [(r.step, r.mode, r.drafted) for r in trace.rounds] == [(1, "plain", 0)]
    assert trace.footer.reasons == ("eos",)


OUTCOMES = {
    "a tree and the indices of its accepted tokens": (
        [{**TREE, "accepted": [1, 4], "emitted": [11, 14, 99]}],
        "0 rejected, 0 accepted, 1 discarded, 1 rejected, 1 accepted, 2 rejected, 2 corrected",
    ),
    "a tree that is accepted to a leaf has a bonus": (
        [{**TREE, "accepted": 2, "emitted": [10, 12, 99], "verify": 5}],
        "0 accepted, 0 discarded, 1 accepted, 1 discarded, 1 discarded, 2 discarded, 2 bonus",
    ),
    "PEARL has no own token after a full acceptance, and rejects none after the end": (
        [
            {"drafted": [1, 2], "accepted": 2, "emitted": [1, 2]},
            {"drafted": [3, 4, 5], "accepted": 2, "emitted": [3, 4], "reason": "eos"},
        ],
        "0 accepted, 1 accepted, 2 accepted, 3 accepted, 4 discarded",
    ),
}
"""A fact -> its rounds, and the position and outcome of every decision."""


@pytest.mark.parametrize(("rounds", "found"), OUTCOMES.values(), ids=OUTCOMES)
def test_the_outcomes_of_drafted_tokens(path, rounds, found):
    with specscope.record(path) as rec:
        for _ in range(3):
            with rec.span("draft"):
                pass
        with rec.span("verify"):
            pass
        for one in rounds:
            rec.round(**one)
    trace = read(path)
    assert ", ".join(f"{d.position} {d.outcome}" for d in trace.decisions) == found
    assert [c.position for c in trace.commits] == [*range(len(trace.commits))]
    if "parents" in rounds[0]:
        levels = [s.id for s in trace.spans if s.kind == "draft"]
        assert [d.draft_span for d in trace.decisions] == [levels[i] for i in (0, 0, 1, 1, 1, 2)] + [-1]


def test_a_batch_shares_spans_and_steps(path):
    """One verification of two sequences: both rounds have its step and its span."""
    with specscope.record(path) as rec:
        rec.prompt("a", ids=[1])
        rec.prompt("b", ids=[1, 2])
        for step in range(2):
            for kind in ("draft", "verify"):
                with rec.span(kind, sequence=-1):
                    pass
            for sequence in range(2):
                rec.round(drafted=[5], accepted=step, emitted=[5, 6][1 - step :], sequence=sequence)
    trace = read(path)
    drafts, verifies = ([s.id for s in trace.spans if s.kind == kind] for kind in ("draft", "verify"))
    assert [(r.sequence, r.step, r.span) for r in trace.rounds] == [
        (sequence, step + 1, verifies[step]) for step in range(2) for sequence in range(2)
    ]
    assert [d.draft_span for d in trace.decisions if d.node == 0] == [drafts[i] for i in (0, 0, 1, 1)]
    assert [c.position for c in trace.commits if c.sequence == 1] == [2, 3, 4]


CLOCKED = {
    "PEARL drafts on while the target verifies; a rejection throws that away": (
        "draft 0 9, verify 10 110, draft 20 29, round 1 2/0/7 120, draft 130 139, verify 140 190,"
        "draft 150 159, round 3 4/2/3 4 200, verify 210 220, round 5 6/2/5 6 230",
        [0, 0, 2, 2, 3, 3],
    ),
    "PEARL's first token is judged first, then one more than the forward had": (
        "draft 0 10, draft 10 20, pre-verify 0 50, round 10/1/10 60 pre-verify,"
        "draft 100 110, draft 110 120, verify 100 150, round 11 12/2/11 12 160 post-verify,"
        "draft 200 210, draft 210 220, verify 200 250, round 13 14/0/19 260 post-verify,"
        "draft 300 310, draft 310 320, pre-verify 300 350, round 16/1/16 360 pre-verify",
        [0, 1, 2, 3, 4, 6],
    ),
    "a draft that began before the target's own token was known continues another text": (
        "draft 0 10, verify 10 30, draft 12 20, round 1/1/1 2 30,draft 31 40, verify 40 50, round 3/1/3 4 50",
        [0, 2],
    ),
}
"""A fact -> spans (kind, start, end) and rounds (drafted/accepted/emitted and time, mode); which
draft's span each drafted token has."""


@pytest.mark.parametrize(("events", "spans"), CLOCKED.values(), ids=CLOCKED)
def test_the_span_in_which_a_token_was_drafted(path, events, spans):
    drafts = list[int]()
    with specscope.record(path, devices=DEVICES) as rec:
        rec.start(0)
        for event in events.split(","):
            kind, *words = event.split()
            if kind == "round":
                mode = words.pop() if words[-1].endswith("verify") else None
                tokens, accepted, emitted = (
                    map(int, part.split()) for part in " ".join(words[:-1]).split("/")
                )
                rec.round([*tokens], *accepted, [*emitted], time=int(words[-1]), mode=mode)
            else:
                work = rec.add(kind, *map(int, words), "d" if kind == "draft" else "t")
                drafts += [work.id] * (kind == "draft")
    assert [d.draft_span for d in read(path).decisions if d.node >= 0] == [drafts[i] for i in spans]


def test_a_dropped_span_verified_nothing(path):
    with specscope.record(path) as rec:
        with rec.span("draft"):
            pass
        rec.drop(rec.span("verify"))
        rec.round(drafted=[4], accepted=1, emitted=[4, 5])
        dropped, ended = rec.span("verify"), rec.span("other")
        rec.end(ended)
        rec.drop(dropped)
        rec.drop(ended)
        rec.round(drafted=[4], accepted=1, emitted=[4, 5], draft=dropped, verify=dropped)
        rec.round(emitted=[4], verify=ended)
    trace = read(path)
    assert [(r.step, r.span) for r in trace.rounds] == [(1, -1), (2, -1), (3, 3)]
    assert {d.draft_span for d in trace.decisions if d.step == 2} == {-1}


def test_drafts_that_are_thrown_away_unjudged(path):
    with specscope.record(path, devices=DEVICES) as rec:
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
        return b"".join(words.get(i, b" more") for i in ids).decode("utf-8", "replace")

    with specscope.record(path, decode=decode) as rec:
        rec.prompt(ids=[1])
        rec.round(drafted=[2, 3], accepted=2, emitted=[2, 3, 4])
        for token in range(5, 50):
            rec.round(emitted=[token])
    trace = read(path)
    assert trace.header.prompts == ("Hi",)
    assert [c.text for c in trace.commits][:3] == ["", "é", " there"]
    assert {2: "�", 3: "�", 4: " there"}.items() <= trace.pieces.items()
    assert trace.text == "é there" + " more" * 45


def test_tensors_and_arrays_are_token_ids(path):
    import numpy as np
    import torch

    with specscope.record(path) as rec:
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


@pytest.mark.parametrize(
    ("temperature", "rule", "rules"), [(0, "", "match"), (0.8, "ratio", "ratio"), (0.8, "", "")]
)
def test_the_rule_is_the_given_one_and_match_at_temperature_0(path, temperature, rule, rules):
    with specscope.record(path, sampling={"temperature": temperature}, rule=rule) as rec:
        rec.round([1, 2], 1, [1, 3])
        rec.round([4], 1, [4, 5])
    assert [d.rule for d in read(path).decisions] == [*[rules] * 4, "target" if rules else ""]
