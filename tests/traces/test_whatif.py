"""What-if: a replay under the recorded settings repeats the run; other settings change it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.drafting.suffix import Finished
from specscope.engine.errors import UsageError
from specscope.engine.methods import METHODS
from specscope.engine.run.serving import Load
from specscope.engine.simulate.oracle import Scripted, Source, bernoulli_models, number
from specscope.engine.trace.trace import Trace
from specscope.traces.facts.comparable import comparisons
from specscope.traces.facts.metrics import measure
from specscope.traces.imports.reading import read_traces
from specscope.traces.whatif.recording import read
from specscope.traces.whatif.replay import Change, WhatIf, what_if
from specscope.traces.whatif.result import facts, rows, sentences
from specscope.traces.whatif.script import NO_TEXTS
from tests.traces.samples import bundled, sample_trace

PROMPT = (5, 6, 7)
PROFILE = "pearl-4xA100"
FILES = Path(__file__).parent / "imported"
EOS = 3
CONSTANT = {"schedule": "constant"}


def toy(tokens: Source, vocabulary: int = 30, eos: tuple[int, ...] = (EOS,)) -> specscope.Cluster:
    """Return a virtual cluster of a pair without files."""
    pair = Pair("toy", Path("target"), Path("drafter"), NO_TEXTS, vocabulary, 4096, eos)
    return specscope.open(pair, runtime="virtual", profile=PROFILE, tokens=tokens)


def right(rate: float) -> Source:
    return Source(bernoulli_models((rate,), 30, avoid=[EOS]), f"bernoulli:{rate}")


@cache
def recorded(method: str = "speculative", tokens: int = 40, **config: Any) -> Trace:
    """Return a run in virtual time with drafts that are right with probability 0.7."""
    with toy(right(0.7)) as cluster:
        return cluster.run(method, PROMPT, config=config, limits=specscope.Limits(tokens))


def chain() -> Trace:
    return recorded(gamma=4)


def replayed(trace: Trace, method: str = "", **more: Any) -> WhatIf:
    return what_if(trace, Change(method=method, config=more.pop("config", {}), **more))


def verdicts(trace: Trace) -> list[tuple[int, int]]:
    return [(r.drafted, r.accepted) for r in trace.rounds]


@pytest.mark.parametrize("policy", ["", "minedraft"])
def test_a_replay_keeps_load_and_policy_and_its_plain_decoding_the_load(policy: str):
    more = {"policy": policy} if policy else {"chunk": 4}
    load = Load((0.0, 0.001, 0.2, 0.9), batch=1 if policy else 2, **more)
    prompts, limits = [(5, 6, 7 + i) * 3 for i in range(4)], specscope.Limits(12)
    with toy(right(0.7)) as cluster:
        trace = cluster.run("speculative", *prompts, config={"gamma": 3}, limits=limits, load=load)
    result = replayed(trace)
    assert (result.replay.spans, result.replay.rounds) == (trace.spans, trace.rounds)
    known = trace.header.environment["load"]
    assert known.get("policy", "") == policy
    assert result.replay.header.environment["load"] == known
    assert result.plain
    assert result.plain.header.method == "autoregressive"
    assert result.plain.header.environment["load"] == {k: v for k, v in known.items() if k != "policy"}
    assert comparisons([[result.replay], [result.plain]])[0].baseline == 1


def test_a_replay_drafts_from_the_recorded_finished_texts():
    with toy(right(0.7)) as cluster:
        plain = cluster.run("autoregressive", PROMPT, limits=specscope.Limits(40)).token_ids()
        options = {"limits": specscope.Limits(40), "finished": Finished([plain[5:30], (9, 9, 9)])}
        trace = cluster.run("suffix", PROMPT, config={"offset": 2.0}, **options)
    replay, alone = replayed(trace).replay, replayed(trace, config={"finished": 0}).replay
    assert any(c.document == 0 for c in trace.copies)
    for name in ("documents", "copies", "forecasts"):
        assert getattr(replay, name) == getattr(trace, name)
    assert alone.documents == []
    assert len(alone.rounds) > len(trace.rounds)


def test_what_the_recording_did_not_test_is_drawn_and_counted():
    trace = chain()
    result = replayed(trace, config={"gamma": 7})
    tested = {d.position for d in trace.decisions if d.node >= 0 and d.outcome != "discarded"}
    again = [d for d in result.replay.decisions if d.node >= 0 and d.outcome != "discarded"]
    assert result.decided == sum(d.position in tested for d in again)
    assert result.drawn == sum(d.position not in tested for d in again) > 0
    assert result.replay.token_ids() == trace.token_ids()
    assert max(r.drafted for r in result.replay.rounds) == 7
    assert replayed(trace, config={"gamma": 7}).replay.rounds == result.replay.rounds
    said = f"{result.decided} decided by the recording, {result.drawn} drawn from its probabilities or rates."
    assert sentences(result)[0] == f"Tested drafts: {said}"


def test_another_method_on_the_same_drafts_overlaps_and_is_compared_with_plain_decoding():
    result = replayed(recorded(gamma=5), "pearl")
    assert measure(result.replay).waiting["both"] > 0.5
    assert result.plain is not None
    assert not any(r.drafted for r in result.plain.rounds)
    assert result.replay.header.group == result.plain.header.group != ""
    assert [c.baseline for c in comparisons([[result.replay], [result.plain]])] == [1, 1]
    figures = facts(result)
    speeds = [figures[key]["metrics"]["tokens_per_second"] for key in ("what_if", "plain")]
    assert figures["speedup"] == pytest.approx(speeds[0] / speeds[1])
    assert figures["same_clock"] is True
    labels = {"tokens/s", "speed-up", "accepted / drafted", "accepted / tested", "both busy"}
    assert {row.label for row in rows(result)} >= labels


def test_another_profile_changes_times_only_and_devices_replace_its_number():
    trace = recorded(gamma=5)
    result = replayed(trace, profile="8xA100")
    assert verdicts(result.replay) == verdicts(trace)
    assert measure(result.replay).decode_seconds != measure(trace).decode_seconds
    assert facts(result)["same_clock"] is False
    assert "compare the last two columns" in sentences(result)[-1]
    more = replayed(recorded("dsi"), devices=8).replay.header
    assert more.profile == f"{PROFILE} with 8 devices"
    assert more.config["sp"] > recorded("dsi").header.config["sp"]


@pytest.mark.parametrize(("method", "name"), [("pearl", "gamma"), ("dsi", "lookahead")])
def test_planned_settings_are_planned_anew_and_given_ones_stay(method: str, name: str):
    trace, pair = recorded(method), {"profile": "pearl-3xA100", "profile_pair": "codellama-7-34"}
    with specscope.open(runtime="virtual", **pair) as cluster:
        planned = METHODS[method].plan(METHODS[method].Config(), cluster.situation)
    result = replayed(trace, **pair)
    assert result.replay.header.config[name] == getattr(planned, name) != trace.header.config[name]
    assert f"{name} {getattr(planned, name)} (recorded {trace.header.config[name]})" in " ".join(result.notes)
    given = recorded(method, **{name: trace.header.config[name]})
    assert replayed(given, **pair).replay.header.config[name] == given.header.config[name]


def cut(**parts: Any) -> Trace:
    """Return a run of which these parts are known."""
    return Trace(chain().header, **parts)


def vllm(number: int) -> Trace:
    return read_traces(FILES / "vllm.jsonl").traces[number]


REFUSED = {
    "a tree": (chain, {"method": "tree"}, "drafts trees, and run .* has no ranks"),
    "guesses": (chain, {"method": "ssd"}, "guesses the target's own tokens, and run .* no ranks"),
    "n-grams": (chain, {"method": "lookahead"}, "n-grams that the models write beside the text"),
    "a head": (chain, {"method": "medusa"}, "drafts with a head, which reads hidden states"),
    "no draft": (lambda: recorded("autoregressive"), {"method": "pearl"}, "tested no draft of a drafter, so"),
    "a text": (lambda: recorded("llma"), {"config": {"reference": "once"}}, "a recording has no tokenizer"),
    "too few": (lambda: recorded("dsi"), {"devices": 1}, "the profile pearl-4xA100 with 1 devices has 1"),
    "too many": (
        lambda: recorded("dsi"),
        {"devices": 100_000},
        "is 100000; it must be at least 1 and at most 1",
    ),
    "no end": (lambda: cut(commits=chain().commits), {}, "is still in progress"),
    "no tokens": (lambda: cut(footer=chain().footer), {}, "sequence 0 of run .* has no tokens"),
    "no ids": (
        lambda: vllm(1),
        {"method": "prompt_lookup"},
        "copies from the text, and the token ids of run",
    ),
    "no q": (
        lambda: vllm(0),
        {"method": "assisted", "config": CONSTANT},
        "has no probabilities of its drafts",
    ),
    "threshold": (
        lambda: vllm(0),
        {"config": {"schedule": "threshold"}},
        "has no probabilities of its drafts",
    ),
    "branches": (lambda: vllm(0), {"method": "specbranch"}, "choose settings without a threshold"),
}


@pytest.mark.parametrize(("run", "change", "message"), REFUSED.values(), ids=REFUSED)
def test_what_a_recording_cannot_drive_is_refused(run: Any, change: dict[str, Any], message: str):
    trace = run()
    known = {} if trace.header.profile else {"profile": PROFILE}
    with pytest.raises(UsageError, match=message):
        replayed(trace, **known, **change)


@pytest.mark.parametrize("method", ["pearl", "dsi", "prompt_lookup", "llma"])
def test_methods_that_a_recording_can_drive_write_its_text(method: str):
    trace = recorded("autoregressive") if method == "llma" else vllm(0)
    known = {} if trace.header.profile else {"profile": PROFILE}
    assert replayed(trace, method, **known).replay.token_ids() == trace.token_ids()


def test_trees_have_the_drafters_next_choices_at_temperature_0():
    """Beside a real run of the tree: equal texts, and nearly as many tokens a verification."""
    prompt, limits, cluster = "Why is the sky blue?", specscope.Limits(64), bundled()
    config, given = {"width": 3, "depth": 3}, {"config": {"gamma": 6}, "limits": limits}
    recording = cluster.run("speculative", prompt, **given)
    tree = cluster.run("tree", prompt, config=config, limits=limits)
    result = replayed(recording, "tree", config=config)
    assert result.replay.token_ids() == tree.token_ids()
    tokens, again = (measure(trace).tokens_per_target_forward for trace in (tree, result.replay))
    assert again == pytest.approx(tokens, rel=0.1)
    assert "The drafter's next choices are known where the run tested a draft" in " ".join(result.notes)
    with pytest.raises(UsageError, match="a run at temperature 0"):
        replayed(cluster.run("speculative", prompt, sampling=specscope.Sampling(1.0), **given), "tree")


def test_of_siblings_the_first_one_is_the_chains_draft():
    trace = sample_trace("tree", tokens=30, acceptance=0.6)
    output = read(trace).outputs[0]
    for index, test in output.tests.items():
        place = (test.step, index + len(output.prompt))
        siblings = [d for d in trace.decisions if (d.step, d.position) == place and d.node >= 0]
        assert test.node == min(d.node for d in siblings if d.outcome != "discarded")
        assert output.agrees[index] == (test.token == output.tokens[index])


def test_probabilities_of_recorded_drafts_are_kept_and_others_are_unknown():
    trace = chain()
    position = next(d for d in trace.decisions if d.outcome == "accepted").position
    decisions = [replace(d, p=0.5, q=0.25) if d.position == position else d for d in trace.decisions]
    replay = replayed(replace(trace, decisions=decisions), config={"gamma": 6}).replay
    kept = next(d for d in replay.decisions if d.position == position and d.outcome == "accepted")
    assert (kept.p, kept.q, kept.u) == (0.5, 0.25, None)
    tested = {d.position for d in trace.decisions if d.node >= 0 and d.outcome != "discarded"}
    assert all(d.q is None for d in replay.decisions if d.position not in tested)


@cache
def sampled(method: str = "speculative", seed: int = 0, tokens: int = 60, **config: Any) -> Trace:
    """Return a run at temperature 1 of two models that are unsure of their tokens."""

    def token(path: Any, key: str) -> int:
        return number(key, path[-1], len(path)) % 5

    def model(role: str, says: Any, least: float, of: int) -> Scripted:
        return Scripted(role, says, 5, certainty=lambda path, _: least + path[-1] % of / 10)

    target = model("target", lambda path, _: token(path, "a"), 0.5, 5)
    drafter = model("drafter", lambda path, _: token(path, "a" if len(path) % 3 else "b"), 0.3, 4)
    with toy(Source((target, drafter), "unsure"), 5, ()) as cluster:
        sampling, limits = specscope.Sampling(temperature=1.0, seed=seed), specscope.Limits(tokens)
        return cluster.run(method, (1, 2, 3), config=config, sampling=sampling, limits=limits)


SAMPLINGS = list(
    product(
        [5e-324, 1e-30, 1e-3, 10.0],
        [{}, {"top_p": 0.5}, {"top_p": 1e-9}, {"top_k": 1}, {"top_k": 3, "top_p": 0.9}],
    )
)
RULES = [("speculative", "greedy"), ("dsi", "greedy"), ("ssd", "sampled")]


@pytest.mark.parametrize("number", range(len(SAMPLINGS)), ids=lambda i: str(SAMPLINGS[i]))
def test_every_legal_sampling_is_replayed_under_every_rule(number: int):
    """Each temperature and each cut meets each of the recorded rules."""
    (temperature, more), (method, drafts) = SAMPLINGS[number], RULES[number % 3]
    limits, sampling = specscope.Limits(12), specscope.Sampling(temperature, seed=1, **more)
    trace = bundled().run(method, "Hi", config={"drafts": drafts}, sampling=sampling, limits=limits)
    for other, drafted in (("speculative", "sampled"), ("speculative", "greedy"), ("dsi", "sampled")):
        result = replayed(trace, other, config={"drafts": drafted})
        assert result.replay.token_ids() == trace.token_ids()


@pytest.mark.parametrize(
    ("source", "method", "config"),
    [
        (("speculative", 5), "speculative", {"gamma": 2}),
        (("speculative", 5), "dsi", {}),
        (("dsi", 0), "speculative", {"gamma": 5}),
        (("dsi", 0), "pearl", {"gamma": 3}),
    ],
)
def test_the_text_differs_from_the_first_token_with_other_draws(source: Any, method: str, config: Any):
    recording = sampled(source[0], **({"gamma": source[1]} if source[1] else {}))
    result = replayed(recording, method, config=config)
    pairs = zip(sampled(method, **config).token_ids(), recording.token_ids(), strict=True)
    assert result.differs is not None
    assert result.differs <= next(i for i, (a, b) in enumerate(pairs) if a != b)
    assert facts(result)["text_differs_from"] == result.differs
    assert f"another text from token {result.differs + 1} on" in " ".join(sentences(result))
    assert result.decided <= result.differs


def test_without_other_draws_the_text_and_all_outcomes_are_the_recorded_ones():
    result, real_run = replayed(sampled("dsi"), config={"lookahead": 9}), sampled("dsi", lookahead=9)
    assert real_run.token_ids() == sampled("dsi").token_ids()
    assert verdicts(result.replay) == verdicts(real_run)
    assert (result.drawn, result.differs) == (0, None)


@pytest.mark.parametrize(
    ("method", "config", "other", "settings"),
    [
        ("speculative", {"gamma": 5}, "dsi", {}),
        ("dsi", {}, "speculative", {"gamma": 5}),
        ("speculative", {"gamma": 5}, "dsi", {"drafts": "sampled"}),
        ("speculative", {"gamma": 5, "drafts": "greedy"}, "pearl", {"gamma": 5}),
    ],
)
def test_acceptance_under_another_rule_is_that_of_real_runs(
    method: str, config: Any, other: str, settings: Any
):
    rates = list[list[float]]()
    for seed in range(5):
        recording, real_run = sampled(method, seed, 100, **config), sampled(other, seed, 100, **settings)
        result = replayed(recording, other, config=settings)
        runs = (result.replay, real_run, recording)
        rates.append([measure(trace).acceptance_rate_tested or 0 for trace in runs])
        assert result.decided <= (result.differs or 0)
    predicted, expected, unchanged = map(fmean, zip(*rates, strict=True))
    assert abs(predicted - expected) < 0.07 < abs(unchanged - expected)


def doubtful(seed: int = 0) -> Source:
    """Return a pair whose drafter gives its tokens a probability between 0.15 and 0.85."""
    target, drafter = bernoulli_models((0.7,), 30, avoid=[EOS], seed=seed)
    certainty = {"certainty": lambda path, _: 0.15 + number("sure", *path) % 8 / 10}
    return Source((target, Scripted("drafter", drafter._next_token, 30, **certainty)), "unsure")


@pytest.mark.parametrize("seed", range(3))
def test_drafts_end_where_those_of_a_real_run_do(seed: int):
    """After a wrong draft the recorded run's discarded drafts say how sure the drafter is."""
    with toy(doubtful(seed)) as cluster:
        limits = specscope.Limits(120)
        trace = cluster.run("speculative", PROMPT, config={"gamma": 5}, limits=limits)
        expected = cluster.run("assisted", PROMPT, config=CONSTANT, limits=limits)
    replay = replayed(trace, "assisted", config=CONSTANT).replay
    drafted = [sum(r.drafted for r in t.rounds) for t in (replay, expected)]
    assert drafted[0] == pytest.approx(drafted[1], rel=0.15)
    assert measure(replay).decode_seconds == pytest.approx(measure(expected).decode_seconds, rel=0.1)


def test_a_branch_ends_where_the_largest_probability_is_low():
    """Above temperature 0 a draft may be improbable where the drafter is sure of another token."""
    config, limits = {"gamma": 6, "branches": 1, "threshold": 0.5}, specscope.Limits(64)
    given = {"sampling": specscope.Sampling(temperature=1.0, seed=1), "limits": limits}
    recording, real = (
        bundled().run(method, "Why is the sky blue?", config=settings, **given)
        for method, settings in (("speculative", {"gamma": 6}), ("specbranch", config))
    )
    replay = replayed(recording, "specbranch", config=config).replay
    drafted = [sum(r.drafted for r in trace.rounds) for trace in (replay, real)]
    assert drafted[0] == pytest.approx(drafted[1], rel=0.1)


@pytest.mark.parametrize("method", ["speculative", "pearl"])
@pytest.mark.parametrize(
    "config",
    [
        {"schedule": "threshold"},
        {"schedule": "average"},
        {"schedule": "average", "confidence": 0.4, "off_below": 0.65},
    ],
    ids=str,
)
def test_lengths_that_adapt_are_the_recorded_ones(method: str, config: dict[str, Any], like: str):
    """Also those of PEARL's chunks that were dropped before they were judged."""
    with toy(doubtful()) as cluster:
        trace = cluster.run(method, PROMPT, config={"gamma": 4, **config}, limits=specscope.Limits(120))
    result = replayed(trace, profile=like)
    assert result.replay.chains == trace.chains
    assert result.replay.spans == trace.spans
    assert result.notes == ()
    assert len({c.asked for c in trace.chains} | {c.stop for c in trace.chains}) > 2


def test_another_schedule_learns_from_the_replayed_verdicts():
    replay = replayed(chain(), config={"schedule": "average"}).replay
    assert {c.asked for c in replay.chains} & {1, 2, 8}
