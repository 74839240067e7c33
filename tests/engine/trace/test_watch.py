"""`specscope.watch` with architectures that SpecScope's own decoder does not have."""

import time
from unittest.mock import Mock

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

import specscope
from specscope.engine.errors import UsageError
from specscope.engine.model.families import FAMILIES
from specscope.engine.trace import watched as call_module
from specscope.traces.export.report import render_report
from specscope.traces.facts.checks import check
from specscope.traces.facts.metrics import measure
from specscope.traces.imports.reading import read_traces
from specscope.traces.judge.diff import diff
from tests.engine.trace.recordings import read
from tests.engine.trace.watched import (
    ARCHITECTURES,
    CALLS,
    ENDS,
    PROMPT,
    characters,
    check_rounds,
    generated,
    hooks,
    letters,
    pair_of,
    set_up,
)


def watched(target, drafter, **call):
    """Return a watched call's trace and tokens; nothing is left behind on the models."""
    before = left(target, drafter)
    with specscope.watch(target, drafter) as trace:
        tokens = generated(target, **call)
    check(trace)
    assert left(target, drafter) == before
    return trace, tokens


def left(*models):
    """Return the hooks and names that models have."""
    return [(hooks(one), set(vars(one))) for one in models if one is not None]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_text_is_that_of_the_call_that_is_not_watched(name, call):
    """Greedy and sampled; a watched call draws the same random numbers."""
    arguments, settings = CALLS[call]
    target, drafter = pair_of(name, **settings)
    assert target.__class__.__name__ not in FAMILIES, "SpecScope has no decoder for it"
    more = {"assistant_model": drafter} if settings else {}
    for sampling in ({"do_sample": False}, {"do_sample": True, "temperature": 0.7, "top_k": 0}):
        set_up(drafter, **settings)  # the heuristic schedule would go on in the next call
        alone = generated(target, **arguments, **more, **sampling)
        set_up(drafter, **settings)
        trace, tokens = watched(target, drafter, **arguments, **more, **sampling)
        assert tokens == alone == trace.token_ids()
        assert (trace.status, trace.footer.reasons) == ("done", ("length",))
        check_rounds(trace)
        assert any(r.drafted for r in trace.rounds) == bool(arguments or settings)
        if name == "GPTNeoX" and (arguments or settings) and not sampling["do_sample"]:
            assert {"accepted", "rejected"} <= {d.outcome for d in trace.decisions}


@pytest.mark.parametrize("call", [name for name, (_, settings) in CALLS.items() if settings])
def test_the_probabilities_are_those_of_the_models(call):
    """Draft lengths, forwards and outcomes are those of the golden texts `watch`."""
    _, settings = CALLS[call]
    target, drafter = pair_of("GPTNeoX", **settings)
    sampling = {"do_sample": True, "temperature": 0.7, "top_k": 0}
    trace, _ = watched(target, drafter, assistant_model=drafter, **sampling)
    assert trace.header.config["schedule"] == settings["num_assistant_tokens_schedule"]
    drafts = [d for d in trace.decisions if d.node >= 0]
    assert len({d.draft_span for d in drafts}) == len(drafts)
    assert len([s for s in trace.spans if s.model == "target"]) == len(trace.rounds)
    for d in drafts:
        assert dict(d.top_q).get(d.token, d.q) == d.q
        assert d.outcome != "accepted" or d.rule == "ratio"
    logits = target(torch.tensor([[*PROMPT, *trace.token_ids()]])).logits[0, len(PROMPT) - 1 : -1]
    chances = (logits / 0.7).softmax(-1)
    for d in trace.decisions:
        if d.outcome in ("accepted", "corrected", "bonus", "plain"):
            assert d.p == pytest.approx(chances[d.position - len(PROMPT), d.token].item(), abs=1e-4)


@pytest.mark.parametrize(
    "sampling", [{"do_sample": False}, {"do_sample": True, "temperature": 0.7, "top_k": 0}]
)
def test_the_probabilities_are_those_after_the_calls_processors(sampling):
    """A repetition penalty depends on all tokens before, the draft's own included."""
    target, drafter = pair_of("GPTNeoX", num_assistant_tokens=4, num_assistant_tokens_schedule="constant")
    trace, tokens = watched(target, drafter, assistant_model=drafter, repetition_penalty=1.4, **sampling)
    assert tokens != generated(target, **sampling) or sampling["do_sample"]
    check_rounds(trace)
    ids = torch.tensor([[*PROMPT, *tokens]])
    logits, penalty = target(ids).logits[0], RepetitionPenaltyLogitsProcessor(1.4)
    known = [d for d in trace.decisions if d.outcome in ("accepted", "corrected", "bonus")]
    assert len(known) > 8
    for d in known:
        scores = penalty(ids[:, : d.position], logits[d.position - 1 : d.position])
        chances = (scores / sampling.get("temperature", 1.0)).softmax(-1)[0]
        assert d.p == pytest.approx(chances[d.token].item(), abs=1e-4)
        assert sampling["do_sample"] or d.token == int(chances.argmax())


@pytest.mark.parametrize("name", ["eos", "stop"])
def test_an_output_that_ends_within_a_draft(name):
    """The accepted EOS is an accepted token, and nothing follows it."""
    target, drafter = pair_of("GPTNeoX", num_assistant_tokens=6, num_assistant_tokens_schedule="constant")
    tokens = generated(target)
    last = tokens.index(tokens[9])

    def stop(ids, scores, **_):
        return torch.tensor([tokens[9] in ids[0, len(PROMPT) :]])

    end = {"eos_token_id": tokens[9]} if name == "eos" else {"stopping_criteria": [stop]}
    trace, watched_tokens = watched(target, drafter, assistant_model=drafter, **end)
    assert watched_tokens[: last + 1] == tokens[: last + 1]
    assert watched_tokens == trace.token_ids()
    assert trace.footer.reasons == (name,)
    check_rounds(trace)


def test_plain_decoding_of_several_sequences():
    target, _ = pair_of("Phimoe")
    prompts = torch.tensor([[0, 0, *PROMPT[:-2]], PROMPT])
    mask = torch.tensor([[0, 0, *[1] * (len(PROMPT) - 2)], [1] * len(PROMPT)])
    call = {"attention_mask": mask, "max_new_tokens": 12, "pad_token_id": 0}
    ended = target.generate(prompts, **call)[0, len(PROMPT) + 5].item()
    alone = target.generate(prompts, **call, eos_token_id=ended)
    with specscope.watch(target) as trace:
        output = target.generate(prompts, **call, eos_token_id=ended)
    check(trace)
    assert output.tolist() == alone.tolist()
    assert [len(ids) for ids in trace.header.prompt_ids] == [len(PROMPT) - 2, len(PROMPT)]
    for i, row in enumerate(output[:, len(PROMPT) :].tolist()):
        assert trace.token_ids(i) == row[: row.index(ended) + 1 if ended in row else None]
    assert trace.footer.reasons[0] == "eos"
    assert all(s.sequence == -1 and s.rows % 2 == 0 for s in trace.spans)


@pytest.mark.parametrize("sequences", [1, 2])
def test_a_model_that_keeps_a_state_has_no_rows_cached(sequences):
    config = MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=8, **ENDS)
    target, ids = MambaForCausalLM(config).eval(), torch.tensor([PROMPT] * sequences)
    trace, tokens = watched(target, None, ids=ids)
    assert trace.token_ids() == tokens == generated(target, ids)
    assert {(s.rows, s.context) for s in trace.spans} == {(8 * sequences, -1), (sequences, -1)}
    assert measure(trace).tokens == 24 * sequences


@pytest.mark.parametrize("do_sample", [False, True])
def test_two_tokenizers(do_sample):
    """Universal assisted generation, and with sampling universal speculative decoding."""
    theirs, ours = letters(), characters()
    settings = {"num_assistant_tokens": 5, "num_assistant_tokens_schedule": "constant"}
    prompt = theirs("the cat sat on the mat and the cat sat", return_tensors="pt")["input_ids"]
    target, _ = pair_of("GPTNeoX", vocab=len(theirs), seed=1)
    _, drafter = pair_of("GPTNeoX", vocab=len(ours), seed=2, **settings)
    tokenizers = {"tokenizer": theirs, "assistant_tokenizer": ours}
    arguments = {"assistant_model": drafter, "do_sample": do_sample, **tokenizers}
    generated(target, prompt, **arguments)  # the first call changes the drafter's head, and draws for it
    alone = generated(target, prompt, **arguments)
    with specscope.watch(target, drafter, tokenizer=theirs) as trace:
        tokens = generated(target, prompt, **arguments)
    check(trace)
    assert tokens == alone == trace.token_ids()
    assert (trace.header.prompts, trace.text) == ((theirs.decode(prompt[0]),), theirs.decode(tokens))
    assert sum(r.drafted for r in trace.rounds) > 0
    assert trace.header.title == f"universal {'speculative decoding' if do_sample else 'assisted generation'}"
    drafted = [d for d in trace.decisions if d.node >= 0]
    assert all((d.q is not None) == do_sample for d in drafted)
    assert all(d.draft_span >= 0 and d.p is not None for d in drafted)


def test_a_trace_in_memory_is_that_of_the_file_and_all_tools_read_it(tmp_path):
    target, drafter = pair_of("Phimoe", num_assistant_tokens=4, num_assistant_tokens_schedule="heuristic")
    path = tmp_path / "mine.jsonl"
    with specscope.watch(target, drafter, path=path) as trace:
        generated(target, assistant_model=drafter)
    assert read(path) == trace
    plain, _ = watched(target, None)
    assert trace.header.clock == plain.header.clock == "measured · transformers"
    metrics = measure(trace)
    assert metrics.target_forwards == len(trace.rounds) - 1
    assert metrics.acceptance_rate > 0
    assert diff(plain, trace).first_difference is None
    page = render_report([plain, trace])
    assert "assisted generation" in page
    assert "texts of the tokens" in page  # not recorded without a tokenizer


def test_nothing_is_left_behind_by_an_exception_and_the_rows_so_far_are_kept(tmp_path):
    target, drafter = pair_of("Phimoe", num_assistant_tokens=4, num_assistant_tokens_schedule="constant")
    before, path = left(target, drafter), tmp_path / "mine.jsonl"
    broken = Mock(side_effect=[None, None, None, RuntimeError("out of memory")])
    handle = target.model.register_forward_pre_hook(broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        with specscope.watch(target, drafter, path=path) as trace:
            generated(target, assistant_model=drafter)
    handle.remove()
    assert left(target, drafter) == before
    assert (trace.status, trace.footer.error) == ("failed", "RuntimeError: out of memory")
    assert len(trace.rounds) == 3
    assert [s.outcome for s in trace.spans].count("cancelled") == 1
    assert read(path) == trace
    assert generated(target) == watched(target, drafter, assistant_model=drafter)[1]


def test_a_call_that_cannot_be_recorded_is_refused():
    target, drafter = pair_of("Phimoe")

    def twice():
        generated(target)
        generated(target)

    odd = UnicodeDecodeError("utf-8", b"a", 0, 1, "odd")
    for watch, call, message in (
        ({}, lambda: generated(target, num_beams=2), "num_beams is 2"),
        ({}, lambda: generated(target, assistant_model=drafter), "assistant_model is not watched"),
        ({}, twice, "a second call"),
        ({}, lambda: generated(drafter), "nothing was recorded"),
        ({"model": torch.nn.Linear(1, 1)}, int, "Linear has no _prefill"),
        ({"model": None}, int, "NoneType has no _prefill"),
        *(
            ({"path": path}, int, "path is .*; give the name of a file, or None")
            for path in (5, True, b"x", [])
        ),
        ({"path": "/dev/full"}, lambda: generated(target), "is not a regular file; give a file"),
        ({"path": "/dev/zero"}, lambda: generated(target), "is not a regular file; give a file"),
        ({"tokenizer": Signs(ZeroDivisionError("by zero"))}, lambda: generated(target), "by zero"),
        ({"tokenizer": Signs(odd)}, lambda: generated(target), "odd"),
    ):
        with pytest.raises((UsageError, ZeroDivisionError, UnicodeDecodeError), match=message):
            with specscope.watch(**{"model": target, **watch}):
                call()
        assert hooks(target) == (0, 0)


class Event:
    """In place of a CUDA event; keeps the stream that it is recorded on."""

    streams: set[str] = set()  # noqa: RUF012
    query, synchronize = (lambda self: False), (lambda self: None)

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self, stream):
        Event.streams.add(stream)
        self.time = time.perf_counter_ns()

    def elapsed_time(self, other):
        return (other.time - self.time) / 1e6


def test_on_gpus_the_times_are_of_events_on_each_models_stream(monkeypatch):
    """With events in place of CUDA's: no GPU is needed."""
    target, drafter = pair_of("Phimoe", num_assistant_tokens=4, num_assistant_tokens_schedule="constant")
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(call_module, "_place", lambda model: "cuda:1" if model is target else "cuda:0")
    trace, tokens = watched(target, drafter, assistant_model=drafter)
    assert tokens == trace.token_ids() == generated(target)
    assert Event.streams == {"stream of cuda:0", "stream of cuda:1"}
    places = {("cuda:0", "drafter"), ("cuda:1", "target")}
    assert {(d.name, d.role) for d in trace.header.devices if d.kind == "cuda"} == places
    assert {(s.device, s.model) for s in trace.spans} == places
    assert set(trace.header.environment["clocks"]) == {"cuda:0", "cuda:1"}


SIGNS = ("\u2028", "\x85", "\r", "\x0b", "\x1c", "\ud83d", "a\ude00", "")


class Signs:
    """A tokenizer whose texts are one odd sign for each token; an exception is raised."""

    def __init__(self, sign):
        self._sign = sign

    def decode(self, ids):
        if isinstance(self._sign, Exception):
            raise self._sign
        return self._sign * len(ids)


@pytest.mark.parametrize("sign", SIGNS)
def test_texts_of_any_signs_are_recorded(sign, tmp_path):
    target, _ = pair_of("Phimoe")
    path = tmp_path / "signs.jsonl"
    with specscope.watch(target, tokenizer=Signs(sign), path=path) as trace:
        tokens = generated(target, max_new_tokens=5)
    check(trace)
    assert (trace.status, trace.token_ids()) == ("done", tokens)
    assert "\ufffd" in trace.header.prompts[0] or trace.header.prompts[0] == sign * len(PROMPT)
    (again,) = read_traces(path).traces
    assert (again.text, again.token_ids()) == (trace.text, tokens)
