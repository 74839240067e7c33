"""Many requests as one thing: figures, parts, sentences, comparisons, and what is not pooled."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from specscope.engine.errors import UsageError
from specscope.traces.database.store import Store
from specscope.traces.export.report import render_report, render_set
from specscope.traces.export.sets import html, lines
from specscope.traces.facts.metrics import measure
from specscope.traces.imports.reading import read_traces
from specscope.traces.sets.compared import sets_of
from specscope.traces.sets.figures import t
from specscope.traces.sets.members import SetMember, members_of
from tests.traces.samples import sample_trace

PRINTED = Path(__file__).parent / "imported" / "printed"
K = 4
SETTING = (("of", "request"), ("method", "m"), ("settings", ""), ("target", "t"))


def response(number: int, accepted: list[int], **facts: Any) -> dict[str, Any]:
    """A response of vLLM whose drafts all have `K` tokens."""
    metrics = {
        "mean_acceptance_length": 1.0,
        "draft_acceptance_rate": 0.0,
        "acceptance_histogram": [accepted.count(n) for n in range(K + 1)],
        "num_spec_steps": len(accepted),
        "num_accepted_draft_tokens": sum(accepted),
        "num_draft_tokens": K * len(accepted),
        "num_spec_tokens": K,
        "per_step_accepted": accepted,
        "per_step_drafted": [K] * len(accepted),
    }
    tokens = 1 + sum(accepted) + len(accepted)
    usage = {"prompt_tokens": facts.pop("prompt", 20), "completion_tokens": tokens}
    base = {"id": f"r-{number}", "created": 1787366213 + 60 * number, "model": "org/m", "usage": usage}
    return {**base, "choices": [{"text": "a"}], "metrics": {"speculative_decoding": metrics}, **facts}


def drawn(seed: int, rate: float, rounds: int = 60) -> list[int]:
    draws = random.Random(seed)
    return [next((n for n in range(K) if draws.random() > rate), K) for _ in range(rounds)]


@pytest.fixture
def write(tmp_path):
    def written(*rows: Any, name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(json.dumps(row) for row in rows))
        return path

    return written


def the_sets(*paths: Path):
    return sets_of([[m for path in paths for m in members_of(read_traces(path).traces)]])


def the_set(*paths: Path):
    found = the_sets(*paths)
    (one,) = found["sets"]
    assert not found["note"]
    return one


def test_pooled_and_mean_of_requests_are_two_numbers_and_who_prints_them(write):
    one = the_set(write(response(1, [4] * 10), response(2, [1] * 90)))
    assert one["whole"]["length"]["value"] == pytest.approx(1 + 130 / 100)
    assert one["whole"]["mean"]["value"] == pytest.approx((5 + 2) / 2)
    assert (one["whole"]["rate"], one["whole"]["mean_rate"]) == (130 / 400, (1 + 0.25) / 2)
    (both,) = [text for text in one["sentences"] if "Pooled" in text]
    assert both.startswith("Pooled 2.30, mean of the requests 3.50: requests of few rounds accept more.")
    assert "SpecForge and Spec-Bench print the pooled one; AIPerf" in both
    even = the_set(write(response(1, [2] * 50), response(2, [2] * 60)))
    assert not any("Pooled" in text for text in even["sentences"])


def test_percentiles_and_the_ends_are_of_requests(write):
    one = the_set(write(*(response(n, [n % 5] * 20) for n in range(11))))
    assert one["percentiles"] == {"p10": 1.0, "p50": 3.0, "p90": 5.0}
    assert [row["name"] for row in one["worst"]] == ["r-0", "r-5", "r-10", "r-1", "r-6"]
    assert one["best"][0]["length"] == 5
    short = the_set(write(*(response(n, [n % 5] * 20) for n in range(4)), response(9, [4])))
    assert "r-9" not in [row["name"] for row in short["best"]]  # one round says little


def test_a_fall_with_the_length_of_the_prompt_is_named(write):
    """As people post it: one request at each of three lengths."""
    rows = [
        response(n, drawn(n, rate, 200), prompt=length)
        for n, (length, rate) in enumerate([(1_000, 0.8), (34_000, 0.6), (86_000, 0.3)])
    ]
    one = the_set(write(*rows))
    assert [part["name"] for part in one["prompts"]] == [
        "256 to 1,023",
        "16,384 to 65,535",
        "65,536 to 262,143",
    ]
    (fall,) = [text for text in one["sentences"] if "length of the prompt" in text]
    assert fall.startswith("Acceptance falls with the length of the prompt: 3.")
    assert "256 to 1,023 prompt tokens (1 request)" in fall
    assert fall.endswith("so few requests may differ for other reasons.")
    many = [response(n, drawn(n, 0.8 - 0.02 * n, 60), prompt=1000 + 300 * n) for n in range(30)]
    (fall,) = [text for text in the_set(write(*many))["sentences"] if "length of the prompt" in text]
    assert "reasons" not in fall


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_no_fall_is_named_among_requests_of_one_kind(write, spread):
    named = 0
    for seed in range(40):
        rates = random.Random(seed)
        rows = [
            response(
                n, drawn(1000 * seed + n, rates.uniform(0.6 - spread, 0.6 + spread), 30), prompt=200 << n % 6
            )
            for n in range(30)
        ]
        named += any(
            "prompt" in text or "fell" in text or "rose" in text
            for text in the_set(write(*rows))["sentences"]
        )
    assert named == 0


def test_the_interval_holds_the_rate_of_many_requests():
    """Requests differ in their rates and lengths; 95 % of the intervals hold it."""
    held, draws, times = 0, random.Random(5), 400
    low, high = 0.3, 0.9
    truth = 1 + sum((high ** (i + 1) - low ** (i + 1)) / (i + 1) for i in range(1, K + 1)) / (high - low)
    for seed in range(times):
        members: list[SetMember] = []
        for n in range(12):
            kept = drawn(10_000 * seed + n, draws.uniform(low, high), draws.randint(20, 80))
            counts = {"drafts": len(kept), "drafted": K * len(kept), "accepted": sum(kept)}
            members.append(SetMember(str(n), None, str(n), "request", SETTING, longest=K, **counts))
        whole = sets_of([members])["sets"][0]["whole"]["length"]
        held += whole["low"] <= truth <= whole["high"]
    assert 0.92 < held / times < 0.98
    assert (t(1), t(4), t(10), t(1000)) == pytest.approx((12.71, 2.78, 2.228, 1.962), abs=0.005)


def test_few_requests_are_not_over_read(write):
    lone = the_set(write(response(1, drawn(1, 0.6, 100))))
    assert lone["whole"]["length"]["low"] < lone["whole"]["length"]["value"] < lone["whole"]["length"]["high"]
    assert lone["whole"]["mean"]["low"] is None
    assert lone["sentences"][-1] == "1 request says little of others."
    assert not lone["worst"]
    short = the_set(write(response(1, [4, 4])))
    assert short["whole"]["length"] == {"value": 5.0, "low": None, "high": None}
    alike = the_set(write(response(1, [2] * 50)))["whole"]["length"]
    assert alike["low"] < 3 < alike["high"]


def test_a_collapse_has_its_times(write):
    rows = [response(n, [0] * 30 if 20 <= n < 40 else drawn(n, 0.7, 30)) for n in range(60)]
    one = the_set(write(*rows))
    assert len(one["times"]) == 12
    (note,) = [text for text in one["sentences"] if "0 of" in text]
    assert note.startswith("From ")
    assert "of 1,920" in note or "of 1800" in note or "drafted tokens were accepted" in note
    undated = [{k: v for k, v in row.items() if k != "created"} for row in rows]
    assert the_set(write(*undated))["times"] == []  # the date of an import is none of a request


def test_a_log_is_a_set_of_windows():
    one = the_set(PRINTED / "04-vllm.log")
    assert (one["noun"], one["members"]) == ("window", 3)
    assert [part["name"] for part in one["times"]] == ["09:03:44", "09:03:54", "09:04:04"]
    assert any(text.startswith("From 09:03:54 to 09:04:04, 0 of 840") for text in one["sentences"])


def test_iterations_have_the_mean_that_tensorrt_llm_tests_took(write):
    rows = [
        {
            "iter": n,
            "specDecodingStats": {
                "numDraftTokens": 3 * r,
                "numAcceptedTokens": a,
                "numRequestsWithDraftTokens": r,
            },
        }
        for n, (r, a) in enumerate([(8, 8), (1, 3), (1, 3)])
    ]
    one = the_set(write(*rows))
    assert one["whole"]["length"]["value"] == pytest.approx(1 + 14 / 10)
    assert one["whole"]["mean"]["value"] == pytest.approx((2 + 4 + 4) / 3)
    assert any("TensorRT-LLM's acceptanceLength is the mean" in text for text in one["sentences"])


def test_spec_bench_is_compared_by_category():
    found = the_sets(PRINTED / "11-spec-bench-sps.jsonl", PRINTED / "11-spec-bench-vanilla.jsonl")
    assert found["note"] == "2 settings are mixed; they are not pooled: each is a set of its own."
    (one,) = found["compared"]
    assert (one["name"], one["baseline"]) == ("target-7b-sps", "target-7b-vanilla")
    assert one["sentences"] == [
        "0.83× over 2 requests: writing 0.72×, math_reasoning 1.20×.",
        "By the mean of each request's tokens/s, which Spec-Bench and EAGLE print, it is 0.96×.",
        "A step takes 4.0 of the other's (120 against 30 ms) and brings 3.3 tokens against 1.0.",
    ]
    by_name = {part["name"]: round(part["speedup"], 2) for part in one["categories"]}
    assert by_name == {"writing": 0.72, "math_reasoning": 1.2}


def answer(number: int, category: str = "qa", seconds: float = 1.0, **facts: Any) -> dict[str, Any]:
    choice = {"new_tokens": [10], "wall_time": [seconds], "accept_lengths": [3, 3, 4], **facts}
    return {"question_id": number, "category": category, "model_id": "m", "choices": [choice]}


def test_only_common_questions_are_compared(write):
    mine = write(*(answer(n, seconds=1 if n < 3 else 50) for n in range(4)), name="a")
    theirs = write(
        *({**answer(n, accept_lengths=[1] * 10, seconds=2), "model_id": "v"} for n in range(3)), name="b"
    )
    (one,) = the_sets(mine, theirs)["compared"]
    assert one["sentences"][0] == "2.00× over 3 requests."
    assert one["sentences"][-1] == "1 request of only one of them left out."


def test_categories_are_data(write):
    wild = '<b>&\x1b[31m" · x'
    one = the_set(
        write(answer(1, wild), answer(2, ""), answer(3, ""), {**answer(1, "only"), "question_id": ""})
    )
    names = [part["name"] for part in one["categories"]]
    assert "only" in names
    assert "without a category" in names
    page = html({"sets": [one], "left_out": 0, "note": "", "compared": []}, lambda run: f'/?"{run}')
    assert "<b>" not in page
    assert "&lt;b&gt;&amp;" in page
    assert '/?"' not in page


def test_other_models_and_methods_are_not_pooled(write):
    found = the_sets(write(response(1, [2] * 9), response(2, [3] * 9, model="org/other")))
    assert found["note"].startswith("2 settings are mixed")
    assert [one["name"] for one in found["sets"]] == ["org/m", "org/other"]
    assert [one["whole"]["length"]["value"] for one in found["sets"]] == [3, 4]
    many = the_sets(write(*(response(n, [2], model=f"m{n}") for n in range(12))))
    assert (len(many["sets"]), many["left_out"]) == (8, 4)
    assert "4 further settings left out" in list(lines(many))


def test_what_lacks_counts_or_drafts_is_counted_and_in_no_figure(write):
    timings = {"predicted_n": 20, "predicted_ms": 100.0}
    drafted = {"draft_n": 30, "draft_n_accepted": 10, **timings}
    one = the_set(write({"timings": drafted}, {"timings": {**timings, "draft_n": 0, "draft_n_accepted": 0}}))
    assert (one["members"], one["plain"], one["whole"]["requests"]) == (2, 1, 1)
    assert one["by_steps"]
    assert "1 request is without a draft, and in no figure of acceptance." in one["sentences"]
    unknown = {"meta_info": {"spec_verify_ct": 5}}
    told = {"meta_info": {"spec_verify_ct": 5, "spec_accept_token_num": 5, "spec_draft_token_num": 15}}
    lacking = the_set(write(told, unknown))
    assert (lacking["without"], lacking["whole"]["requests"]) == (1, 1)
    assert "1 request is without counts, and in no figure." in lacking["sentences"]
    assert the_set(write(unknown))["sentences"][0] == "No acceptance is known."


def test_no_member_and_no_round():
    assert sets_of([[]]) == {"sets": [], "left_out": 0, "note": "", "compared": []}
    assert html(sets_of([[]])) == ""
    empty = SetMember("a", None, "a", "request", SETTING, drafts=0, steps=0, drafted=0, accepted=0)
    one = sets_of([[empty]])["sets"][0]
    assert one["sentences"] == ["Nothing was drafted."]
    assert "a" in "".join(lines(sets_of([[empty]])))
    odd = SetMember("a", None, "a", "summary", SETTING, drafts=9, steps=9, drafted=24, accepted=8, longest=0)
    assert sets_of([[odd]])["sets"][0]["whole"]["length"]["value"] == pytest.approx(
        1 + 8 / 9
    )  # as a file says


def test_a_request_that_a_file_has_twice_counts_once(write):
    found = read_traces(write(response(1, [2] * 9), response(2, [3] * 9), response(1, [2] * 9)))
    assert (len(found.traces), found.repeated) == (2, 1)
    assert found.notes == ["1 request was left out: the file has the same one twice"]
    again = the_set(write(answer(1), answer(1, seconds=2)))
    assert again["repeated"] == 1
    assert any("repeat the prompt or the name" in text for text in again["sentences"])


def test_lengths_of_prompts_are_read_where_they_are_written(write):
    timings = {"predicted_n": 20, "predicted_ms": 100.0, "draft_n": 30, "draft_n_accepted": 10}
    rows = [{"timings": {**timings, "prompt_n": 5, "cache_n": n}} for n in (100, 3000)]
    assert [part["name"] for part in the_set(write(*rows))["prompts"]] == ["64 to 127", "2,048 to 4,095"]
    odd = [
        response(n, [2] * 9, usage={"prompt_tokens": length, "completion_tokens": 28})
        for n, length in enumerate(["x", -1, 2**60, None])
    ]
    assert the_set(write(*odd))["prompts"] == []


def test_sequences_of_a_run_are_a_set():
    trace = sample_trace("speculative")
    members = list(members_of([trace]))
    speed = members[0].tokens / members[0].seconds
    assert speed == pytest.approx(measure(trace).tokens_per_second)
    rounds = [row for row in trace.rounds if row.drafted]
    assert sum(m.accepted for m in members) == sum(row.accepted for row in rounds)
    assert sum(m.drafts for m in members) == len(rounds)
    assert members[0].prompt == len(trace.header.prompt_ids[0])


def test_a_stored_set_has_the_figures_of_its_file(write, tmp_path):
    found = read_traces(write(*(response(n, drawn(n, 0.5), prompt=50 << n) for n in range(9))))
    with Store(tmp_path / "a.db") as store:
        store.insert(*found.traces)
        stored = sets_of([list(members_of(store.outlines([found.set])))])
        assert stored == sets_of([list(members_of(found.traces))])
        loop = sample_trace("speculative")
        store.insert(loop)
        assert list(members_of(store.outlines([loop.header.run_id]))) == list(members_of([loop]))
        first = found.traces[0].header.run_id
        assert len(list(store.outlines([found.set, first, first]))) == 9
        assert store.group(first) == [first]
        (row,), _ = store.runs(f"id:{first}")
        assert row.speedup is None
        with pytest.raises(UsageError, match="there is no run 'nothing'"):
            list(store.outlines(["nothing"]))
        page = render_set(store, [found.set])
    assert "9 requests" in page
    assert page.count('"id":"') >= 8
    assert "ss-set" not in render_report(found.traces[:1]).partition("</style>")[2].partition("<script")[0]
