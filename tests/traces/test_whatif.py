"""What-if: a replay under the recorded settings repeats the run; other settings change it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.drafting.suffix import Finished
from specscope.engine.errors import ModelError, UsageError
from specscope.engine.methods import METHODS
from specscope.engine.run.serving import Load
from specscope.engine.simulate.oracle import Scripted, Source, bernoulli_models, number
from specscope.engine.trace.trace import Trace
from specscope.traces.comparable import comparisons
from specscope.traces.imported import NO_TOKEN, UNKNOWN_TEXT
from specscope.traces.imports.reading import read_traces
from specscope.traces.metrics import measure
from specscope.traces.whatif.rates import LEAST, Judged, Rates
from specscope.traces.whatif.recording import read
from specscope.traces.whatif.replay import Change, WhatIf, what_if
from specscope.traces.whatif.result import facts, rows, sentences
from specscope.traces.whatif.rules import processed, recorded_way, way_of
from specscope.traces.whatif.script import NO_TEXTS
from tests.traces.samples import sample_trace

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


def replayed(trace: Trace, method: str = "", **more: Any) -> WhatIf:
    config = more.pop("config", {})
    return what_if(trace, Change(method=method, config=config, **more))


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
    result = replayed(trace)
    assert any(c.document == 0 for c in trace.copies)
    assert result.replay.documents == trace.documents
    assert (result.replay.copies, result.replay.forecasts) == (trace.copies, trace.forecasts)
    alone = replayed(trace, config={"finished": 0}).replay
    assert alone.documents == []
    assert len(alone.rounds) > len(trace.rounds)


def test_what_the_recording_did_not_test_is_drawn_and_counted():
    trace = recorded(gamma=4)
    result = replayed(trace, config={"gamma": 7})
    tested = {d.position for d in trace.decisions if d.node >= 0 and d.outcome != "discarded"}
    again = [d for d in result.replay.decisions if d.node >= 0 and d.outcome != "discarded"]
    assert result.decided == sum(d.position in tested for d in again)
    assert result.drawn == sum(d.position not in tested for d in again) > 0
    assert result.replay.token_ids() == trace.token_ids()
    assert max(r.drafted for r in result.replay.rounds) == 7
    assert replayed(trace, config={"gamma": 7}).replay.rounds == result.replay.rounds
    (first, *_) = sentences(result)
    assert first == (
        f"Tested drafts: {result.decided} decided by the recording, {result.drawn} drawn from its probabilities or rates."
    )


def test_another_method_on_the_same_drafts_overlaps_and_is_compared_with_plain_decoding():
    result = replayed(recorded(gamma=5), "pearl")
    assert measure(result.replay).waiting["both"] > 0.5
    assert result.plain is not None
    assert not any(r.drafted for r in result.plain.rounds)
    assert result.replay.header.group == result.plain.header.group != ""
    assert [c.baseline for c in comparisons([[result.replay], [result.plain]])] == [1, 1]
    figures = facts(result)
    assert figures["speedup"] == pytest.approx(
        figures["what_if"]["metrics"]["tokens_per_second"] / figures["plain"]["metrics"]["tokens_per_second"]
    )
    assert figures["same_clock"] is True
    assert {row.label for row in rows(result)} >= {
        "tokens/s",
        "speed-up",
        "accepted / drafted",
        "accepted / tested",
        "both busy",
    }


def test_another_profile_changes_times_only():
    trace = recorded(gamma=5)
    result = replayed(trace, profile="8xA100")
    assert [(r.drafted, r.accepted) for r in result.replay.rounds] == [
        (r.drafted, r.accepted) for r in trace.rounds
    ]
    assert measure(result.replay).decode_seconds != measure(trace).decode_seconds
    assert facts(result)["same_clock"] is False
    assert "compare the last two columns" in sentences(result)[-1]


def test_devices_replace_the_profiles_number():
    trace = recorded("dsi")
    more = replayed(trace, devices=8)
    assert more.replay.header.profile == f"{PROFILE} with 8 devices"
    assert more.replay.header.config["sp"] > trace.header.config["sp"]


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
    return Trace(recorded(gamma=4).header, **parts)


def vllm(number: int) -> Trace:
    return read_traces(FILES / "vllm.jsonl").traces[number]


@pytest.mark.parametrize(
    ("run", "change", "message"),
    [
        (lambda: recorded(gamma=4), {"method": "tree"}, "drafts trees, and run .* has no ranks"),
        (
            lambda: recorded(gamma=4),
            {"method": "ssd"},
            "guesses the target's own tokens, and run .* no ranks",
        ),
        (lambda: recorded(gamma=4), {"method": "lookahead"}, "n-grams that the models write beside the text"),
        (lambda: recorded(gamma=4), {"method": "medusa"}, "drafts with a head, which reads hidden states"),
        (
            lambda: recorded("autoregressive"),
            {"method": "pearl"},
            "tested no draft of a drafter, so pearl has",
        ),
        (
            lambda: recorded("llma"),
            {"config": {"reference": "once"}},
            "a text, and a recording has no tokenizer",
        ),
        (lambda: recorded("dsi"), {"devices": 1}, "the profile pearl-4xA100 with 1 devices has 1"),
        (
            lambda: recorded("dsi"),
            {"devices": 100_000},
            "devices is 100000; it must be at least 1 and at most 1",
        ),
        (lambda: cut(commits=recorded(gamma=4).commits), {}, "is still in progress"),
        (lambda: cut(footer=recorded(gamma=4).footer), {}, "sequence 0 of run .* has no tokens"),
        (lambda: vllm(1), {"method": "prompt_lookup"}, "copies from the text, and the token ids of run"),
        (lambda: vllm(0), {"method": "assisted", "config": CONSTANT}, "has no probabilities of its drafts"),
        (lambda: vllm(0), {"config": {"schedule": "threshold"}}, "has no probabilities of its drafts"),
        (lambda: vllm(0), {"method": "specbranch"}, "choose settings without a threshold"),
        (
            lambda: bundled("medusa", "8xA100", 0.0),
            {"config": {"heads": 1}},
            "or a run of this method with its own",
        ),
    ],
)
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
    prompt, limits = "Why is the sky blue?", specscope.Limits(64)
    config = {"width": 3, "depth": 3}
    with specscope.open("bundled", runtime="virtual", profile=PROFILE) as cluster:
        chain = cluster.run("speculative", prompt, config={"gamma": 6}, limits=limits)
        tree = cluster.run("tree", prompt, config=config, limits=limits)
        sampled = cluster.run(
            "speculative", prompt, config={"gamma": 6}, limits=limits, sampling=specscope.Sampling(1.0)
        )
    result = replayed(chain, "tree", config=config)
    assert result.replay.token_ids() == tree.token_ids()
    real, again = (measure(trace).tokens_per_target_forward for trace in (tree, result.replay))
    assert again == pytest.approx(real, rel=0.1)
    assert "The drafter's next choices are known where the run tested a draft" in " ".join(result.notes)
    with pytest.raises(UsageError, match="a run at temperature 0"):
        replayed(sampled, "tree", config=config)


def test_of_siblings_the_first_one_is_the_chains_draft():
    trace = sample_trace("tree", tokens=30, acceptance=0.6)
    output = read(trace).outputs[0]
    start = len(output.prompt)
    for index, test in output.tests.items():
        siblings = [
            d for d in trace.decisions if d.step == test.step and d.position == index + start and d.node >= 0
        ]
        assert test.node == min(d.node for d in siblings if d.outcome != "discarded")
        assert output.agrees[index] == (test.token == output.tokens[index])


def test_rates_are_by_place_where_there_are_enough_tests():
    tests = [(1, True)] * 8 + [(1, False)] * 2 + [(2, True)] * LEAST + [(3, False)] * (LEAST - 1)
    rates = Rates.of(Judged(*test) for test in tests)
    assert (rates.at(1), rates.at(2), rates.at(3), rates.at(9)) == (0.8, 1.0, 1.0, 1.0)
    assert Rates.of([Judged(1, right=True), Judged(1, right=False)]).at(1) == 0.5
    assert not Rates.of([]).known


def test_rates_are_those_of_tests_with_nearly_the_targets_probability():
    tests = [Judged(1, i >= 15, i / 30) for i in range(30)] + [Judged(1, right=False, p=1.0)] * LEAST
    rates = Rates.of(tests)
    assert (rates.at(1, 0.0), rates.at(1, 0.7), rates.at(1, 14.5 / 30), rates.at(1, 1.0)) == (0, 1, 0.5, 0)
    assert rates.at(1) == rates.overall == 15 / 40
    assert Rates.of(tests[: LEAST - 1]).at(1, 0.9) == 0


class TestImported:
    def test_a_replay_with_the_imported_draft_length_has_the_files_rounds(self):
        trace = read_traces(FILES / "vllm.jsonl").traces[0]
        result = replayed(trace, profile=PROFILE)
        first, *others = [(r.drafted, r.accepted) for r in trace.rounds]
        replay = [r.accepted for r in result.replay.rounds]
        assert replay[-len(others) :] == [accepted for _, accepted in others]
        assert first
        assert result.replay.token_ids() == trace.token_ids()
        assert result.replay.header.prompt_ids == trace.header.prompt_ids
        assert [c.position for c in result.replay.commits] == [c.position for c in trace.commits]
        assert "imported" not in result.replay.header.environment

    def test_unknown_ids_and_prompts_are_assumed_in_words(self):
        trace = read_traces(FILES / "vllm.jsonl").traces[1]
        result = replayed(trace, "pearl", profile=PROFILE)
        assert result.notes[:2] == (
            "The prompt is unknown: its length is taken as one token.",
            "The token ids are unknown: nothing can be copied from the text.",
        )
        assert [note[:27] for note in result.notes[2:]] == ["Drawn at the recorded rates"]
        assert result.replay.token_ids() == [NO_TOKEN] * 5
        assert {c.text for c in result.replay.commits} == {f"{UNKNOWN_TEXT} "}

    @pytest.mark.parametrize("file", ["speculation_profile.json", "sglang.json"])
    def test_counts_are_replayed_in_a_drawn_order(self, file: str):
        trace = read_traces(FILES / file).traces[0]
        result = replayed(trace, profile=PROFILE)
        recording = read(trace)
        assert result.decided == 0 < result.drawn
        assert any("the order is drawn" in note for note in result.notes)
        assert len(result.replay.commits) == len(recording.outputs[0].tokens)
        assert result.replay.header.prompts == ("",)

    def test_a_long_profile_is_a_sample_of_its_verifications(self):
        trace = read_traces(FILES / "speculation_profile.json").traces[0]
        entry = dict(trace.header.environment["imported"])
        counts = dict(entry["counts"], histogram=[n * 1000 for n in entry["counts"]["histogram"]])
        many = replace(trace.header, environment={"imported": {**entry, "counts": counts}})
        recording = read(Trace(many, footer=trace.footer))
        assert any("256 are drawn" in note for note in recording.notes)


def test_probabilities_of_recorded_drafts_are_kept_and_others_are_unknown():
    trace = recorded(gamma=4)
    position = next(d for d in trace.decisions if d.outcome == "accepted").position
    decisions = [replace(d, p=0.5, q=0.25) if d.position == position else d for d in trace.decisions]
    changed = replace(trace, decisions=decisions)
    replay = replayed(changed, config={"gamma": 6}).replay
    kept = next(d for d in replay.decisions if d.position == position and d.outcome == "accepted")
    assert (kept.p, kept.q, kept.u) == (0.5, 0.25, None)
    untested = {d.position for d in trace.decisions if d.node >= 0 and d.outcome != "discarded"}
    assert all(d.q is None for d in replay.decisions if d.position not in untested)


def test_a_draft_of_low_recorded_probability_ends_an_assisted_draft():
    trace, config = recorded(gamma=4), {"start": 4, "confidence": 0.4}
    doubted = replace(trace, decisions=[replace(d, q=0.3) for d in trace.decisions])
    sure = replayed(trace, "assisted", config=config).replay
    unsure = replayed(doubted, "assisted", config=config).replay
    assert max(r.drafted for r in unsure.rounds) < max(r.drafted for r in sure.rounds)


@cache
def sampled(method: str = "speculative", seed: int = 0, tokens: int = 60, **config: Any) -> Trace:
    """Return a run at temperature 1 of two models that are unsure of their tokens."""

    def token(path: Any, key: str) -> int:
        return number(key, path[-1], len(path)) % 5

    models = [
        Scripted(
            "target", lambda path, _: token(path, "a"), 5, certainty=lambda path, _: 0.5 + path[-1] % 5 / 10
        ),
        Scripted(
            "drafter",
            lambda path, _: token(path, "a" if len(path) % 3 else "b"),
            5,
            certainty=lambda path, _: 0.3 + path[-1] % 4 / 10,
        ),
    ]
    with toy(Source(tuple(models), "unsure"), 5, ()) as cluster:
        sampling, limits = specscope.Sampling(temperature=1.0, seed=seed), specscope.Limits(tokens)
        return cluster.run(method, (1, 2, 3), config=config, sampling=sampling, limits=limits)


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-3, 10.0])
@pytest.mark.parametrize(
    "more", [{}, {"top_p": 0.5}, {"top_p": 1e-9}, {"top_k": 1}, {"top_k": 3, "top_p": 0.9}]
)
@pytest.mark.parametrize(
    ("method", "drafts"), [("speculative", "greedy"), ("dsi", "greedy"), ("ssd", "sampled")]
)
def test_every_legal_sampling_is_replayed_under_every_rule(
    method: str, drafts: str, temperature: float, more: dict[str, Any]
):
    limits, sampling = specscope.Limits(12), specscope.Sampling(temperature, seed=1, **more)
    with specscope.open("bundled", runtime="virtual", profile=PROFILE) as cluster:
        trace = cluster.run(method, "Hi", config={"drafts": drafts}, sampling=sampling, limits=limits)
    for other, config in [
        ("speculative", {}),
        ("speculative", {"drafts": "greedy"}),
        ("dsi", {"drafts": "sampled"}),
    ]:
        result = replayed(trace, other, config=config)
        assert result.replay.token_ids() == trace.token_ids()


class TestAboveTemperatureZero:
    @pytest.mark.parametrize(
        ("method", "config"),
        [
            ("speculative", {"gamma": 4}),
            ("speculative", {"gamma": 4, "drafts": "greedy"}),
            ("assisted", {}),
            ("pearl", {}),
            ("dsi", {}),
            ("dsi", {"drafts": "sampled"}),
            ("dsi", {"acceptance": "rejection"}),
            ("tree", {"width": 1}),
            ("ems", {"base": "speculative"}),
        ],
    )
    def test_a_methods_settings_say_how_it_tests(self, method: str, config: dict[str, Any]):
        trace = sampled(method, **config)
        assert recorded_way(trace) == way_of(METHODS[method].configure(trace.header.config))

    @pytest.mark.parametrize(
        ("source", "method", "config"),
        [
            (("speculative", 5), "speculative", {"gamma": 2}),
            (("speculative", 5), "dsi", {}),
            (("dsi", 0), "speculative", {"gamma": 5}),
            (("dsi", 0), "pearl", {"gamma": 3}),
        ],
    )
    def test_the_text_differs_from_the_first_token_with_other_draws(
        self, source: tuple[str, int], method: str, config: dict[str, Any]
    ):
        recorded = sampled(source[0], **({"gamma": source[1]} if source[1] else {}))
        result = replayed(recorded, method, config=config)
        real = sampled(method, **config)
        pairs = zip(real.token_ids(), recorded.token_ids(), strict=True)
        first = next(i for i, (a, b) in enumerate(pairs) if a != b)
        assert result.differs is not None
        assert result.differs <= first
        assert facts(result)["text_differs_from"] == result.differs
        assert f"another text from token {result.differs + 1} on" in " ".join(sentences(result))
        assert result.decided <= result.differs

    def test_without_other_draws_the_text_and_all_outcomes_are_the_recorded_ones(self):
        result, real = replayed(sampled("dsi"), config={"lookahead": 9}), sampled("dsi", lookahead=9)
        assert real.token_ids() == sampled("dsi").token_ids()
        assert [(r.drafted, r.accepted) for r in result.replay.rounds] == [
            (r.drafted, r.accepted) for r in real.rounds
        ]
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
        self, method: str, config: dict[str, Any], other: str, settings: dict[str, Any]
    ):
        rates = [list[float](), list[float]()]
        for seed in range(5):
            result = replayed(sampled(method, seed, 100, **config), other, config=settings)
            for found, trace in zip(
                rates, (result.replay, sampled(other, seed, 100, **settings)), strict=True
            ):
                found.append(measure(trace).acceptance_rate_tested or 0)
            assert result.decided <= (result.differs or 0)
        predicted, real = map(fmean, rates)
        unchanged = fmean(
            measure(sampled(method, s, 100, **config)).acceptance_rate_tested or 0 for s in range(5)
        )
        assert abs(predicted - real) < 0.07 < abs(unchanged - real)

    def test_a_temperature_and_a_nucleus_change_the_probabilities_of_greedy_drafts(self):
        top = ((3, 0.5), (4, 0.25), (5, 0.25))
        assert dict(processed(top, {"temperature": 0.5})) == pytest.approx({3: 2 / 3, 4: 1 / 6, 5: 1 / 6})
        assert processed(top, {"temperature": 1.0, "top_k": 1}) == ((3, 1.0),)
        assert dict(processed(top, {"temperature": 1.0, "top_p": 0.7})) == pytest.approx({3: 2 / 3, 4: 1 / 3})


def unsure(seed: int = 0) -> Source:
    """Return a pair whose drafter gives its tokens a probability between 0.15 and 0.85."""
    target, drafter = bernoulli_models((0.7,), 30, avoid=[EOS], seed=seed)
    certainty = {"certainty": lambda path, _: 0.15 + number("sure", *path) % 8 / 10}
    return Source((target, Scripted("drafter", drafter._next_token, 30, **certainty)), "unsure")


class TestConfidence:
    @pytest.mark.parametrize("seed", range(3))
    def test_drafts_end_where_those_of_a_real_run_do(self, seed: int):
        """After a wrong draft the recorded run's discarded drafts say how sure the drafter is."""
        with toy(unsure(seed)) as cluster:
            limits = specscope.Limits(120)
            trace = cluster.run("speculative", PROMPT, config={"gamma": 5}, limits=limits)
            real = cluster.run("assisted", PROMPT, config={"schedule": "constant"}, limits=limits)
        replay = replayed(trace, "assisted", config={"schedule": "constant"}).replay
        drafted = [sum(r.drafted for r in t.rounds) for t in (replay, real)]
        assert drafted[0] == pytest.approx(drafted[1], rel=0.15)
        assert measure(replay).decode_seconds == pytest.approx(measure(real).decode_seconds, rel=0.1)

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
    def test_lengths_that_adapt_are_the_recorded_ones(self, method: str, config: dict[str, Any], like: str):
        """Also those of PEARL's chunks that were dropped before they were judged."""
        with toy(unsure()) as cluster:
            trace = cluster.run(method, PROMPT, config={"gamma": 4, **config}, limits=specscope.Limits(120))
        result = replayed(trace, profile=like)
        assert result.replay.chains == trace.chains
        assert result.replay.spans == trace.spans
        assert result.notes == ()
        assert len({c.asked for c in trace.chains} | {c.stop for c in trace.chains}) > 2

    def test_another_schedule_learns_from_the_replayed_verdicts(self):
        replay = replayed(recorded(gamma=4), config={"schedule": "average"}).replay
        assert {c.asked for c in replay.chains} & {1, 2, 8}


@cache
def bundled(method: str, profile: str, temperature: float, load: bool = False, **config: Any) -> Trace:
    """Return a run of the bundled models; without a profile it is measured."""
    runtime = "virtual" if profile else "local-thread"
    with specscope.open("bundled", runtime=runtime, profile=profile or None) as cluster:
        return cluster.run(
            method,
            "Tell me about the sea",
            config=config,
            sampling=specscope.Sampling(temperature=temperature, seed=1),
            limits=specscope.Limits(16),
            load=Load((0.0,)) if load else None,
        )


class TestHeadsAndTrees:
    @pytest.mark.parametrize("source", ["8xA100", PROFILE, ""])
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize(
        ("method", "config"),
        [
            ("eagle", {"tree": "eagle"}),
            ("eagle2", {"top": 4, "depth": 4, "total": 12}),
            ("hydra", {"tree": "medusa"}),
            ("medusa", {"tree": "medusa"}),
            ("parallelspec_eagle", {"tree": "[[0],[1],[0,0]]"}),
            ("parallelspec_medusa", {"tree": "[[0],[1],[0,0]]", "first": "mask"}),
            ("tree", {"width": 3, "depth": 4}),
            ("easyspec", {"width": 3, "devices": 1}),
        ],
    )
    def test_a_replay_is_a_real_run_on_the_other_profile(
        self, method: str, config: dict[str, Any], temperature: float, source: str
    ):
        real = bundled(method, "8xA100", temperature, **config)
        result = replayed(bundled(method, source, temperature, **config), profile="8xA100")
        replay = result.replay
        assert replay.spans == real.spans
        assert (replay.rounds, replay.commits, replay.decisions) == (
            real.rounds,
            real.commits,
            real.decisions,
        )
        assert replay.footer == real.footer
        assert replay.header.devices == real.header.devices
        assert measure(replay) == measure(real)
        assert result.drawn == 0 < result.decided
        assert result.plain is not None
        assert result.plain.token_ids() == real.token_ids()

    def test_settings_that_name_the_recorded_values_change_nothing(self, like: str):
        trace = bundled("tree", "8xA100", 0.0)
        assert trace.header.environment["open"] == {"width": 0, "depth": 0}
        result = replayed(trace, config={"width": trace.header.config["width"]}, profile=like)
        assert result.replay.spans == replayed(trace, profile=like).replay.spans
        assert result.notes[-1] == "Not planned anew: width, depth."

    def test_what_spans_do_not_time_is_refused(self, like: str):
        trace = bundled("tree", "8xA100", 0.0)
        head = bundled("medusa", "8xA100", 0.0)
        moved = replace(trace.spans[0], kind="communicate")
        ranks = [replace(s, device="gpu7") if s.id % 2 else s for s in trace.spans]
        for run, message in [
            (bundled("tree", "8xA100", 0.0, load=True), "does not say which of them share a forward"),
            (replace(trace, spans=[moved, *trace.spans[1:]]), "KV cache from the target"),
            (replace(trace, spans=ranks), "several devices share a model"),
            (bundled("specbranch", "8xA100", 0.0, threshold=0.9), "while the target verifies"),
            (replace(head, header=replace(head.header, environment={})), "does not name its head"),
        ]:
            with pytest.raises(UsageError, match=message):
                replayed(run, profile=like)

    def test_a_head_that_is_gone_is_named(self, like: str):
        trace = bundled("medusa", "8xA100", 0.0)
        environment = {**trace.header.environment, "head": "gone/head"}
        with pytest.raises(ModelError, match="gone/head"):
            replayed(replace(trace, header=replace(trace.header, environment=environment)), profile=like)

    def test_fewer_heads_of_medusa_draft_near_the_end(self):
        """Their number is not in the span."""
        trace = bundled("medusa", "8xA100", 0.0, tree="medusa")
        lengths = {s.end - s.start for s in trace.spans if s.kind == "draft"}
        assert len(lengths) > 1
        assert replayed(trace).replay.spans == trace.spans
