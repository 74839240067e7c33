"""`specscope.watch` with transformers' generators whose drafts need no second language model."""

from collections import Counter
from itertools import groupby
from unittest.mock import Mock

import pytest
import torch

import specscope
from specscope.engine.errors import UsageError
from specscope.engine.trace.recorder import LAYERS
from specscope.traces.facts.metrics import measure
from tests.engine.trace.recordings import read
from tests.engine.trace.test_watch import watched
from tests.engine.trace.watched import PROMPT, check_rounds, generated, hooks
from tests.engine.trace.watched_heads import dflash, early_exit, mtp, one_position, spied

HEADS = {
    "MTP, one layer": lambda folder: mtp(folder, 1),
    "MTP, three layers": lambda folder: mtp(folder, 3),
    "DFlash": lambda _: dflash(),
    "Gemma 4": lambda _: one_position(),
    "early exit": lambda _: early_exit(),
}
SAMPLING = {"greedy": {}, "sampled": {"do_sample": True, "temperature": 0.8, "top_k": 0}}
BLOCKS = ("MTP, one layer", "MTP, three layers", "DFlash")
"""Heads that draft a whole block in one forward, and read the prompt in the first."""


@pytest.fixture(scope="module", params=HEADS)
def head(request, tmp_path_factory):
    return HEADS[request.param](tmp_path_factory.mktemp("head"))


@pytest.fixture(scope="module", params=BLOCKS)
def block(request, tmp_path_factory):
    return HEADS[request.param](tmp_path_factory.mktemp("block"))


def call_of(head, **more):
    return {**head.arguments, "pad_token_id": 0, **more}


@pytest.mark.parametrize("sampling", SAMPLING)
def test_drafts_forwards_and_text_are_those_of_transformers(head, sampling, monkeypatch):
    call = call_of(head, **SAMPLING[sampling])
    alone = generated(head.target, **call)
    drafts = spied(monkeypatch, head.generator, "get_candidates")
    models = {type(head.target), head.module}
    forwards = {model: spied(monkeypatch, model, "forward") for model in models}
    trace, tokens = watched(head.target, head.drafter, **call)
    assert tokens == alone == trace.token_ids()
    check_rounds(trace)
    assert any(r.accepted for r in trace.rounds) or (head.settings == {"gamma": 3} and sampling == "greedy")
    check_drafts(trace, drafts)
    spans = Counter(s.model for s in trace.spans)
    assert spans.total() == sum(map(len, forwards.values()))
    assert len(models) == 1 or spans["drafter"] == len(forwards[head.module])
    assert (trace.header.title, trace.header.config) == (head.title, head.settings)
    assert trace.header.lossless == (head.lossless or sampling == "greedy")
    rules = {d.rule for d in trace.decisions if d.outcome == "accepted"}
    assert rules <= {"match" if sampling == "greedy" else "ratio"}


def check_drafts(trace, drafts):
    """The drafts and q are those that the generator returned: (ids of the text so far, logits)."""
    at = len(PROMPT)
    if len(trace.commits) > sum(r.emitted for r in trace.rounds):  # the prompt's forward judged nothing
        assert drafts.pop(0)[0].shape[1] == at
        at += 1
    for r, (ids, logits) in zip(trace.rounds, drafts, strict=True):
        made = [d for d in trace.decisions if d.step == r.step and d.node >= 0]
        assert [d.token for d in made] == ids[0, at:].tolist()
        for i, d in enumerate(made):
            assert d.q == pytest.approx(logits[0, i].float().softmax(-1)[d.token].item(), abs=1e-5)
        at += r.emitted


def test_a_block_is_drafted_by_one_forward_and_the_first_one_reads_the_prompt(block):
    trace, _ = watched(block.target, block.drafter, **call_of(block))
    drafting, judging = ([s for s in trace.spans if s.model == side] for side in ("drafter", "target"))
    assert [s.kind for s in judging] == ["prefill"] + ["verify"] * len(trace.rounds)
    assert [s.kind for s in drafting] == ["prefill"] + ["draft"] * (len(drafting) - 1)
    tokens = {step: {d.draft_span for d in ds} for step, ds in drafts_by_step(trace).items()}
    assert list(tokens.values()) == [{s.id} for s in drafting]
    for s, r in zip(judging[1:], trace.rounds, strict=True):
        assert (s.rows, s.id) == (r.drafted + 1, r.span)
    width = block.settings.get("block_size", 0)
    assert (drafting[0].rows, drafting[0].context) == (len(PROMPT) + width, 0)
    for before, s, r in zip(drafting, drafting[1:], trace.rounds, strict=False):
        read = before.context + before.rows - width + r.emitted
        assert s.context + s.rows == read + width, "what the target has read, and the block"
    assert measure(trace).draft_forwards == len(drafting) - 1


def drafts_by_step(trace):
    drafted = [d for d in trace.decisions if d.node >= 0]
    return {step: list(ds) for step, ds in groupby(drafted, key=lambda d: d.step)}


def test_a_drafter_that_reads_the_targets_cache_has_no_prefill():
    head = one_position()
    trace, _ = watched(head.target, head.drafter, **call_of(head))
    drafting = [s for s in trace.spans if s.model == "drafter"]
    assert {(s.kind, s.rows) for s in drafting} == {("draft", 1)}
    assert drafting[0].context == len(PROMPT)
    assert len(drafting) == sum(r.drafted for r in trace.rounds)


@pytest.mark.parametrize("new", [1, 2, 3])
def test_short_outputs_and_drafts_that_are_longer_than_their_rest(block, new):
    call = call_of(block, max_new_tokens=new)
    trace, tokens = watched(block.target, block.drafter, **call)
    assert tokens == trace.token_ids() == generated(block.target, max_new_tokens=new)
    assert len(tokens) == new
    assert trace.footer.reasons == ("length",)
    check_rounds(trace)


def test_a_text_that_ends_inside_a_draft(block):
    """Of each token that was accepted before its draft's end, as the end of the text."""
    whole, tokens = watched(block.target, block.drafter, **call_of(block))
    inside = {
        d.token
        for ds in drafts_by_step(whole).values()
        for d in ds[:-1]
        if d.outcome == "accepted" and tokens.index(d.token) == d.position - len(PROMPT)
    }
    assert inside or block.settings == {LAYERS: 1}
    for end in inside:
        trace, found = watched(block.target, block.drafter, **call_of(block, eos_token_id=end))
        assert found == trace.token_ids() == tokens[: tokens.index(end) + 1]
        assert trace.footer.reasons == ("eos",)
        check_rounds(trace)
        last = trace.rounds[-1]
        kept = [d.outcome for d in drafts_by_step(trace)[last.step]][: last.accepted]
        assert kept == ["accepted"] * last.accepted
        assert last.accepted < last.drafted


def test_a_call_that_stops_in_a_draft_keeps_its_rows(block, tmp_path, monkeypatch):
    original, path = block.module.forward, tmp_path / "mine.jsonl"
    steps = Mock(side_effect=[None, None, KeyboardInterrupt])

    def forward(*args, **kwargs):
        steps()
        return original(*args, **kwargs)

    monkeypatch.setattr(block.module, "forward", forward)
    with pytest.raises(KeyboardInterrupt):
        with specscope.watch(block.target, block.drafter, path=path) as trace:
            generated(block.target, **call_of(block))
    assert read(path) == trace
    assert (trace.status, len(trace.rounds)) == ("cancelled", 2)
    assert [(s.kind, s.outcome) for s in trace.spans][-1] == ("draft", "cancelled")
    assert hooks(block.target) == (0, 0)


def test_only_the_call_is_recorded_and_only_one(block):
    ids, call = torch.tensor([PROMPT]), call_of(block)
    with specscope.watch(block.target, block.drafter) as trace:
        block.target(ids)
        generated(block.target, **call)
        block.target(ids)
    alone, _ = watched(block.target, block.drafter, **call)
    assert [(s.kind, s.rows) for s in trace.spans] == [(s.kind, s.rows) for s in alone.spans]
    with specscope.watch(block.target, block.drafter) as trace:
        generated(block.target, **call)
        with pytest.raises(UsageError, match="a second call of generate in one watch"):
            generated(block.target, **call)
    assert (trace.status, len(trace.token_ids())) == ("done", 24)


def test_a_call_whose_error_is_handled_in_the_context_has_not_ended(block, monkeypatch):
    monkeypatch.setattr(block.module, "forward", Mock(side_effect=RuntimeError("out of memory")))
    with specscope.watch(block.target, block.drafter) as trace:
        with pytest.raises(RuntimeError, match="out of memory"):
            generated(block.target, **call_of(block))
    assert (trace.status, len(trace.token_ids())) == ("failed", 1)
    assert trace.footer.error == "generate did not end its output"


def test_what_transformers_refuses_is_its_own_error(block):
    two = torch.tensor([PROMPT, PROMPT])
    with pytest.raises(ValueError, match="batch_size = 1"):
        with specscope.watch(block.target, block.drafter) as trace:
            generated(block.target, two, **call_of(block))
    assert (trace.status, trace.rounds) == ("failed", [])
    assert "batch_size = 1" in trace.footer.error
    head = one_position()
    with pytest.raises(ValueError, match="num_mtp_layers"):
        with specscope.watch(head.target):
            generated(head.target, use_mtp=True)
    with pytest.raises(UsageError, match="assistant_model is not watched"):
        with specscope.watch(head.target):
            generated(head.target, **head.arguments)
    with pytest.raises(UsageError, match="Linear has no _is_stateful in transformers"):
        specscope.watch(head.target, torch.nn.Linear(1, 1))
