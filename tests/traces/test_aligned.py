"""Runs aligned by token."""

from dataclasses import replace

import pytest

from specscope.traces.imported import NO_TOKEN
from specscope.traces.view.aligned import aligned
from specscope.traces.view.document import view_model
from tests.traces.samples import sample_trace


@pytest.fixture(scope="module")
def trace():
    return sample_trace("speculative")


def with_commits(trace, commits):
    return replace(trace, commits=commits)


def test_runs_of_one_text_align_to_their_end(trace):
    shorter = with_commits(trace, trace.commits[:10])
    (group,) = aligned([trace, trace, shorter])
    assert [row["same"] for row in group["rows"]] == [24, 24, 10]
    assert {(row["sequence"], row["reason"]) for row in group["rows"]} == {(0, "")}


def test_a_run_with_another_text_aligns_up_to_the_first_difference(trace):
    commits = list(trace.commits)
    commits[7] = replace(commits[7], token=commits[7].token + 1)
    (group,) = aligned([trace, with_commits(trace, commits)])
    assert group["rows"][1] == {"sequence": 0, "same": 7, "reason": ""}


def test_runs_that_cannot_be_aligned_say_why(trace):
    first = replace(trace.commits[0], token=trace.commits[0].token + 1)
    unknown = replace(trace.commits[0], token=NO_TOKEN)
    others = [
        with_commits(trace, [first, *trace.commits[1:]]),
        with_commits(trace, []),
        with_commits(trace, [unknown]),
        replace(trace, header=replace(trace.header, prompt_ids=((1, 2),))),
    ]
    (group,) = aligned([trace, *others])
    assert [row["reason"] for row in group["rows"]] == [
        "",
        "another text from the first token on",
        "no tokens",
        "its token ids are unknown",
        "another prompt",
    ]
    assert {row["same"] for row in group["rows"][1:]} == {0}


def test_a_sequence_of_a_batch_aligns_with_the_run_of_its_prompt(trace):
    ids = trace.header.prompt_ids[0]
    header = replace(trace.header, prompts=("other", *trace.header.prompts), prompt_ids=((1, 2), ids))
    batch = replace(trace, header=header, commits=[replace(commit, sequence=1) for commit in trace.commits])
    (group,) = aligned([trace, batch])
    assert group["rows"][1] == {"sequence": 1, "same": 24, "reason": ""}
    first, second = aligned([batch, trace])
    assert first["rows"][1]["reason"] == "another prompt"
    assert second["rows"][1] == {"sequence": 0, "same": 24, "reason": ""}


def test_a_single_run_has_no_alignment(trace):
    assert view_model([trace])["aligned"] == []
