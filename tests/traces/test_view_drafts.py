"""Sections of the document about drafts: trees, forks, n-grams, copies, lengths, guesses."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given

import specscope
from specscope.engine.trace.events import Chain, Document, Footer, Forecast
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.export.report import render_report
from specscope.traces.facts import fates, waiting
from specscope.traces.facts.forks import lookups
from specscope.traces.facts.imported import NO_TOKEN
from specscope.traces.facts.waiting import decoding_clock
from specscope.traces.view.aligned import aligned
from specscope.traces.view.document import view_model
from specscope.traces.view.fan import fans, hits
from specscope.traces.view.forecasts import forecasts
from specscope.traces.view.forks import trees_and_forks
from specscope.traces.view.lengths import lengths
from specscope.traces.view.ngrams import ngrams, sources
from specscope.traces.view.packed import packed
from specscope.traces.view.tokens import by_branch, ghosts, trees
from specscope.traces.view.tracks import span_fates
from tests.engine.methods import test_specbranch
from tests.engine.worker.harness import Flat
from tests.traces import strategies
from tests.traces.samples import DOCUMENT, PROMPT, WORDS, bundled, sample_trace, shown, with_header
from tests.traces.scripted import ahead, expecting, ssd

PROMPTS = ("Tell me a story.", "Once upon a time")


# Trees and forks.


def test_the_first_lost_branches_of_the_sample():
    """a b c under the prefix, d e under a, f under b, g h under d, i under e; a, e accepted."""
    trace = sample_trace("tree")
    fates = dict.fromkeys(range(9), "discarded") | {
        0: "accepted",
        1: "rejected",
        3: "rejected",
        4: "accepted",
    }
    trace.decisions = [
        replace(d, outcome=fates[d.node]) if d.step == 1 and d.node >= 0 else d for d in trace.decisions
    ]
    rows = [(g["node"], g["before"] - 5, g["branch"]) for g in ghosts(trace) if g["step"] == 1]
    under = [(3, 1, False), (6, 1, False), (7, 1, True), (8, 2, False)]
    assert rows == [*under, (1, 0, False), (5, 0, False), (2, 0, True)]


@strategies.many
@given(strategies.work())
def test_any_trace_has_its_trees(trace):
    for tree in trees(trace):
        size = len(tree["nodes"]["parent"])
        assert {len(column) for column in tree["nodes"].values()} == {size}
        assert all(-1 <= p < size for p in tree["nodes"]["parent"])
    assert sorted(by_branch(trace), key=repr) == sorted(trace.decisions, key=repr)


@pytest.fixture(scope="module")
def forked() -> Trace:
    return test_specbranch.decode()


def forks(trace: Trace) -> dict[int, dict]:
    return {tree["step"]: tree["fork"] for tree in trees_and_forks(trace) if "fork" in tree}


def test_a_fork_has_its_siblings_and_the_branch_of_each(forked):
    """Rows after the third have one sibling, so their drafts are chains."""
    found = forks(forked)
    names = ("level", "confidence", "siblings", "winner", "lost")
    assert {step: [fork[name] for name in names] for step, fork in found.items()} == {
        1: [2, pytest.approx(0.25), 3, 2, 6],  # trunk 10 11, siblings 50 12 60
        2: [2, pytest.approx(0.28), 2, 0, 6],
        3: [3, pytest.approx(0.2), 3, 0, 9],
    }
    nodes = found[1]["nodes"]
    assert list(zip(nodes["parent"], nodes["id"], nodes["level"], nodes["outcome"], strict=True)) == [
        (3, 13, 3, "pending"),  # of the winner, node 3
        (5, 14, 4, "pending"),
        *((2, 7, 3, "discarded"), (4, 7, 3, "discarded")),  # of nodes 2 and 4, by level
        *((7, 7, 4, "discarded"), (8, 7, 4, "discarded")),
        *((9, 7, 5, "discarded"), (10, 7, 5, "discarded")),
    ]
    rows = [g for g in ghosts(forked) if g["step"] == 1 and g["node"] < 0]
    assert {row["before"] for row in rows} == {3 + 2}, "lost branches: before the output's third token"
    assert [tree["fork"]["siblings"] for tree in shown(forked)["trees"]] == [3, 2, 3]


def test_tokens_whose_branch_is_not_known_are_counted_only(forked):
    lost = [d for d in forked.decisions if d.node < 0 and d.step == 3 and d.outcome == "discarded"]
    fork = forks(replace(forked, decisions=[d for d in forked.decisions if d is not lost[0]]))[3]
    assert (fork["lost"], fork["nodes"]["id"]) == (8, [])
    assert forks(sample_trace("tree")) == {}, "other trees have no fork"


# N-grams, copies and forecasts.


@pytest.fixture(scope="module", params=["lookahead", "ouroboros"])
def pooled(request) -> Trace:
    return ahead(request.param)


def test_n_grams_have_the_text_of_every_token_and_are_left_out_of_a_redacted_document(pooled):
    run = shown(pooled)
    ids = {i for row in run["ngrams"] for gram in (*row["window"], *row["gained"]) for i in gram}
    ids |= {i for row in run["ngrams"] for tried in row["tried"] for i in tried["ids"]}
    assert {str(i) for i in ids} <= set(run["pieces"])
    assert shown(pooled, redact_prompt=True)["ngrams"] == []


@pytest.fixture
def copied():
    return sample_trace("llma", tokens=60, acceptance=0.7)


def test_sources_are_the_texts_of_prompts_and_documents(copied):
    prompt = {"sequence": 0, "document": -1, "texts": [WORDS[t] for t in PROMPT]}
    document = {"sequence": -1, "document": 0, "texts": [WORDS[t] for t in DOCUMENT]}
    assert sources(copied) == [prompt, document]
    copied.add(Document(1, (1, 99)))
    assert sources(copied) == [prompt, document], "a text with an unknown token is left out"
    copied.pieces[PROMPT[0]], copied.pieces[PROMPT[1]] = "<|im_start|>", "</s>"
    assert sources(copied)[0]["texts"] == ["", "", *(WORDS[t] for t in PROMPT[2:])], "special tokens"


def test_a_character_of_several_tokens_is_the_text_of_the_last(copied):
    pieces = {50: " x", 51: r"\xe2\x80", 52: r"\x99", 53: "s", 54: r"\xff", 55: r"C:\new"}
    copied.pieces |= pieces
    copied.documents = [Document(0, tuple(pieces))]
    assert sources(copied)[1]["texts"] == [" x", "", "\u2019", "s", r"\xff", r"C:\new"]


def test_a_redacted_document_has_no_text_of_prompt_and_reference(copied):
    trace = with_header(copied, config={"copy": 4, "reference": "my secret text"})
    run = shown(trace, redact_prompt=True)
    assert run["sources"] == []
    assert "secret" not in json.dumps(run)
    assert {(g["id"], g["text"]) for g in run["ghosts"]} == {(None, "▒")}
    assert "secret" not in render_report([trace], redact_prompt=True)
    assert "my secret text" in render_report([trace])
    run = shown(trace)
    assert {g["text"] for g in run["ghosts"]} <= set(WORDS)
    assert [part["label"] for part in run["headline"]] == ["target busy", "target idle"], "no drafter"


def test_only_finished_texts_that_were_copied_from_are_shown():
    trace = expecting()
    assert len(trace.documents) == 3
    assert {c.document for c in trace.copies if c.document >= 0} == {0, 1}
    assert {row["document"] for row in sources(trace)} == {-1, 0, 1}
    redacted = shown(trace, redact_prompt=True)
    assert (bool(redacted["forecasts"]), redacted["sources"]) == (True, [])
    trace.add(Forecast(len(trace.rounds) + 1, 0, "own", 1, 2, 0.5, None))
    assert len(forecasts(trace)) == len(trace.rounds), "of a run in progress the rounds that ended"


@pytest.mark.parametrize(
    ("section", "run"), [(trees, lambda: sample_trace("tree")), (ngrams, ahead)], ids=["trees", "n-grams"]
)
def test_incomplete_rounds_of_a_run_in_progress_are_left_out(section, run):
    trace = run()
    last = trace.rounds[-1]
    young = Trace.of([e for e in trace.events() if e != last and not isinstance(e, Footer)])
    assert len(section(young)) == len(trace.rounds) - 1


# Draft lengths.


@pytest.fixture(scope="module", params=["speculative", "pearl"])
def unsure(request) -> Trace:
    config = {"gamma": 4, "schedule": "threshold"}
    options = {"config": config, "sampling": Sampling(0.7), "limits": Limits(50)}
    return bundled().run(request.param, PROMPTS[0], **options)


def test_each_drafted_token_belongs_to_one_draft_whose_time_is_the_end_of_its_last_forward(unsure):
    rows, clock, spans = lengths(unsure), decoding_clock(unsure), {s.id: s for s in unsure.spans}
    assert [(r["step"], r["asked"], r["drafted"], r["stop"]) for r in rows] == [
        (c.step, c.asked, c.drafted, c.stop) for c in unsure.chains
    ]
    assert sum(r["accepted"] for r in rows) == sum(r.accepted for r in unsure.rounds)
    assert all(r["accepted"] + r["lost"] == r["drafted"] for r in rows), "the run has ended"
    assert sum(r["drafted"] for r in rows) == sum(d.draft_span >= 0 for d in unsure.decisions)
    assert any(r["accepted"] and r["lost"] for r in rows)
    assert {"full", "uncertain"} <= {r["stop"] for r in rows}
    for row in rows:
        own = [s for s in unsure.spans if s.kind == "draft" and row["first"] <= s.id <= row["last"]]
        assert len(own) == row["drafted"]
        assert not own or row["t"] == clock(spans[row["last"]].end)
    assert shown(unsure, redact_prompt=True)["lengths"] == rows


def test_a_run_in_progress_has_tokens_that_are_not_decided(unsure):
    step = unsure.rounds[0].step
    decisions = [d for d in unsure.decisions if d.step == step]
    rows = lengths(
        replace(unsure, chains=unsure.chains[:2], rounds=unsure.rounds[:1], decisions=decisions, footer=None)
    )
    assert rows[0]["asked"] == unsure.chains[0].asked
    assert any(r["accepted"] + r["lost"] < r["drafted"] for r in rows)


def test_a_draft_that_never_began_has_the_time_of_its_round():
    trace = sample_trace("speculative", tokens=4)
    ended = trace.rounds[-1]
    trace.add(Chain(ended.step, 0, 30, 0, 0, "off", -1))
    trace.add(Chain(ended.step + 1, 0, 31, 0, 0, "off", -1))  # its round is not over
    (row,) = lengths(trace)
    found = (row["t"], row["first"], row["accepted"], row["lost"])
    assert found == (decoding_clock(trace)(ended.time), -1, 0, 0)


def test_drafts_and_verifications_of_a_batch_of_minedraft_have_its_number():
    load = specscope.Load((0.0,) * 4, batch=2, policy="minedraft")
    trace = bundled().run("speculative", *"abcd", config={"gamma": 2}, limits=Limits(12), load=load)
    fixed = bundled().run("speculative", "a", limits=Limits(4), load=specscope.Load((0.0,)))
    run = shown(trace)
    assert run["config"] == "γ 2 · minedraft"
    columns = [track["spans"] for track in run["tracks"] if "batch" in track["spans"]]
    batch = {i: number for spans in columns for i, number in zip(spans["id"], spans["batch"], strict=True)}
    kinds = {s.id: s.kind for s in trace.spans}
    assert all((number >= 0) == (kinds[span] in ("draft", "verify")) for span, number in batch.items())
    drafted = {d.draft_span: d for d in trace.decisions if min(d.draft_span, d.verify_span) >= 0}
    assert drafted
    assert all(batch[span] == batch[d.verify_span] for span, d in drafted.items())
    own = [{batch[r.span] for r in trace.rounds if r.sequence == i and r.drafted} for i in range(4)]
    assert sorted(own, key=min) == [{0}, {0}, {1}, {1}]
    verified = [batch[s.id] for s in trace.spans if s.kind == "verify"]
    assert all(a != b for a, b in pairwise(verified[:4]))
    tracks = packed(view_model([trace]))["runs"][0]["tracks"]
    assert all("batch" in track["spans"] for track in tracks if track["role"] != "requests")
    assert all("batch" not in track["spans"] for track in shown(fixed)["tracks"])


# The cache of guesses.


@pytest.fixture(scope="module")
def guessed():
    return ssd()


def test_lookups_are_counted_by_place(guessed):
    rows, places = fans(guessed), hits(guessed)
    results = Counter(row["result"] for row in rows)
    assert sum(place["lookups"] for place in places) == len(lookups(guessed))
    assert sum(place["hits"] for place in places) == results["hit"] == len(lookups(guessed)) - results["miss"]
    assert [place["place"] for place in places] == sorted({o.round.accepted for o in lookups(guessed)})
    run = shown(guessed)
    assert {str(token) for row in run["fans"] for token in row["guesses"]["token"]} <= set(run["pieces"])


def test_saved_time_is_drafting_before_the_verdict():
    """Steps of 400 us beside a verification of 1000: the glue, one step, and half of the second."""
    rows = fans(ssd(Flat(1000, 400, sample_us=100)))
    assert {row["saved"] for row in rows[1:-2] if row["result"] == "hit"} == {0.7}
    assert {row["saved"] for row in rows if row["result"] != "hit"} == {0.0}


def test_work_for_outcomes_that_did_not_occur_is_wasted_once_the_run_has_ended(guessed):
    taken = {fork.step for fork in guessed.forks if fork.taken}
    missed = {s.id for s in guessed.spans if s.kind in ("glue", "branch") and s.step not in taken}
    assert missed
    running = replace(guessed, footer=None)
    for run, fate in ((guessed, "discarded"), (running, "open")):
        assert {span_fates(run)[i] for i in missed} == {fate}
        assert missed & {span.id for span in fates.wasted(run)} == (missed if fate == "discarded" else set())


def test_gaps_between_the_forwards_of_a_fan_are_the_hosts(guessed):
    late = [
        replace(s, start=s.start + 20_000) if (s.kind, s.step) == ("branch", 2) else s for s in guessed.spans
    ]
    found = [w for w in waiting.timeline(replace(guessed, spans=late)).waits if w.end - w.start == 20_000]
    assert [w.reason for w in found if w.device == "gpu-drafter"] == ["host"] * 3


# Runs aligned by token.


def test_runs_align_up_to_their_first_difference_or_say_why_not():
    trace = sample_trace("speculative")
    commits = trace.commits

    def other(number: int, token: int) -> Trace:
        return replace(
            trace, commits=[*commits[:number], replace(commits[number], token=token), *commits[number + 1 :]]
        )

    cases = [
        (trace, 24, ""),
        (replace(trace, commits=commits[:10]), 10, ""),
        (other(7, commits[7].token + 1), 7, ""),
        (other(0, commits[0].token + 1), 0, "another text from the first token on"),
        (replace(trace, commits=[]), 0, "no tokens"),
        (replace(trace, commits=[replace(commits[0], token=NO_TOKEN)]), 0, "its token ids are unknown"),
        (with_header(trace, prompt_ids=((1, 2),)), 0, "another prompt"),
    ]
    (group,) = aligned([run for run, _, _ in cases])
    found = [(row["sequence"], row["same"], row["reason"]) for row in group["rows"]]
    assert [row for row in found if row[1]] == [(0, same, reason) for _, same, reason in cases if same]
    assert [row[1:] for row in found] == [case[1:] for case in cases]
    assert view_model([trace])["aligned"] == []


def test_a_sequence_of_a_batch_aligns_with_the_run_of_its_prompt():
    trace = sample_trace("speculative")
    header = trace.header
    batch = with_header(trace, prompts=("other", *header.prompts), prompt_ids=((1, 2), header.prompt_ids[0]))
    batch = replace(batch, commits=[replace(commit, sequence=1) for commit in trace.commits])
    (group,) = aligned([trace, batch])
    assert group["rows"][1] == {"sequence": 1, "same": 24, "reason": ""}
    first, second = aligned([batch, trace])
    assert first["rows"][1]["reason"] == "another prompt"
    assert second["rows"][1] == {"sequence": 0, "same": 24, "reason": ""}
