"""`specscope advise`: places, memory, speeds, ranges and break-even points, each by another way."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import combinations
from math import exp, hypot, log

import pytest

import specscope
from specscope.engine.cluster.capacity import LOGIT_ROWS, spread
from specscope.engine.errors import OutOfMemory, UsageError
from specscope.engine.methods import BASELINE
from specscope.engine.simulate.oracle import Source, bernoulli_models
from specscope.engine.simulate.shapes import data
from specscope.engine.trace.events import NO_DEVICES
from specscope.engine.types import Limits
from specscope.traces.advise.acceptance import LEAST_RATE, UNKNOWN, acceptance_of, parse_rates
from specscope.traces.advise.answer import (
    DEPENDENT,
    LONGER,
    RATIO_ERROR,
    Answer,
    advise,
    estimates,
    plain_estimate,
)
from specscope.traces.advise.changes import changes
from specscope.traces.advise.option import Likely, combined
from specscope.traces.advise.places import ONE_CARD, PLAIN, Estimate, Seating, entrants, plain_ways, ways
from specscope.traces.advise.question import Question, parse_batches, parse_gpus
from specscope.traces.advise.runs import run, speed
from specscope.traces.advise.words import headline, left_out, notes, refusal
from specscope.traces.facts.closed_forms import pearl_speedup, speculative_speedup, speculative_tokens
from specscope.traces.facts.metrics import measure
from specscope.traces.imports.reading import read_traces
from specscope.traces.lab.plan import default
from specscope.traces.lab.sweep import scripted_pair
from specscope.traces.papers.forwards import sources
from specscope.traces.papers.rows import numbers
from tests.app.commands import IMPORTED

SMALL = Question(2, "H100", "qwen3-8b", "qwen3-0.6b", rates=(0.6, 0.8), context=64, tokens=64)
"""Both models fit one card."""
LARGE = Question(2, "H100", "llama-3.1-70b", "llama-3.1-8b", rates=(0.6, 0.8), context=512, tokens=32)
"""The target fills both cards."""


@cache
def answered(question: Question) -> Answer:
    return advise(question)


def entrant(short: str):
    return next(e for e in entrants(SMALL) if e.short == short)


def on(short: str, count: int, **given: int) -> list[tuple[int, ...]]:
    question = replace(SMALL, count=count, **given)
    return sorted((w.target, w.drafter, w.cards, w.share) for w in ways(question, entrant(short)))


# -- places

PLACES = {
    ("SD", 1): [(1, 1, 1, 0)],
    ("SD", 2): [(1, 1, 1, 0), (1, 1, 2, 0), (2, 1, 2, 0), (2, 2, 2, 0)],
    ("SD", 3): [(1, 1, 1, 0), (1, 1, 2, 0), (2, 1, 2, 0), (2, 1, 3, 0), (2, 2, 2, 0)],
    ("PEARL", 1): [],
    ("PEARL", 2): [(1, 1, 2, 0)],
    ("PEARL", 3): [(1, 1, 2, 0), (2, 1, 3, 0)],
    ("SSD", 4): [(1, 1, 2, 0), (2, 1, 3, 0), (2, 2, 4, 0)],
    ("Branch", 8): [(1, 1, 2, 0), (2, 1, 3, 0), (2, 2, 4, 0), (4, 1, 5, 0), (4, 2, 6, 0), (4, 4, 8, 0)],
    ("co-located PEARL", 1): [(1, 1, 1, 0)],
    ("co-located PEARL", 4): [
        (1, 1, 1, 0),
        (2, 1, 2, 0),
        (2, 2, 2, 0),
        (4, 1, 4, 0),
        (4, 2, 4, 0),
        (4, 4, 4, 0),
    ],
    ("DSI", 1): [],
    ("DSI", 2): [(1, 1, 2, 1)],
    ("DSI", 3): [(1, 1, 2, 1), (1, 1, 3, 2), (2, 1, 3, 1)],
    ("DSI", 4): [(1, 1, 2, 1), (1, 1, 3, 2), (1, 1, 4, 3), (2, 1, 3, 1), (2, 2, 4, 1)],
    ("DSI", 8): [
        *((1, 1, 1 + n, n) for n in range(1, 8)),
        *((2, 1, 1 + 2 * n, n) for n in (1, 2, 3)),
        *((2, 2, 2 + 2 * n, n) for n in (1, 2, 3)),
        (4, 1, 5, 1),
        (4, 2, 6, 1),
        (4, 4, 8, 1),
    ],
    ("Easy", 1): [],
    ("Easy", 2): [(1, 1, 2, 2), (2, 1, 2, 2)],
    ("Easy", 3): [(1, 1, 2, 2), (2, 1, 2, 2)],
    ("Easy", 8): [
        *((1, 1, n, n) for n in (2, 4)),
        *((2, 1, n, n) for n in (2, 4)),
        (4, 1, 4, 2),
        (4, 1, 4, 4),
        (8, 1, 8, 2),
        (8, 1, 8, 4),
    ],
}


@pytest.mark.parametrize(("short", "count"), PLACES)
def test_each_method_has_the_places_of_a_hand_written_list(short, count):
    assert on(short, count) == PLACES[short, count]


def test_plain_decoding_has_each_width_and_asked_widths_are_the_only_ones():
    assert [way.target for way in plain_ways(replace(SMALL, count=8))] == [1, 2, 4, 8]
    assert [way.target for way in plain_ways(replace(SMALL, count=8, target_cards=4))] == [4]
    assert on("PEARL", 8, target_cards=4, drafter_cards=2) == [(4, 2, 6, 0)]


def test_the_words_of_a_place_say_where_both_models_lie():
    assert Seating(PLAIN, 2, 0, 2).words() == "the target on 2 cards"
    assert Seating(entrant("SD"), 2, 1, 2).words() == "the target on 2 cards, the drafter on one of them"
    assert Seating(entrant("SD"), 2, 2, 2).words() == "the target on 2 cards, the drafter on the same"
    assert (
        Seating(entrant("SSD"), 4, 2, 6).words() == "the target on 4 cards, the drafter on 2 cards of its own"
    )
    assert Seating(entrant("DSI"), 2, 1, 7, 3).words() == (
        "3 targets on 2 cards each, the drafter on one card of its own"
    )
    assert Seating(entrant("DSI"), 1, 1, 3, 2).words() == (
        "2 targets on one card each, the drafter on one card of its own"
    )
    assert Seating(entrant("Easy"), 4, 1, 4, 2).words() == (
        "the target on 4 cards, the drafter's layers shared by 2"
    )


# -- memory


def test_a_card_holds_the_sums_of_capacity_and_fits_to_the_byte(monkeypatch):
    one = Estimate(replace(SMALL, batches=(4,)), Seating(entrant("PEARL"), 1, 1, 2), 4)
    (drafter,), (target,) = one.kept["gpu0"], one.kept["gpu1"]
    for part, model in ((drafter, one.latency.drafter), (target, one.latency.target)):
        (size,) = spread(model, 1)
        tokens = 4 * (64 + 64 + 96)  # prompt, answer, room for a draft
        assert (part.weights, part.cache) == (size.weights, tokens * size.per_token)
        assert part.logits == 4 * 4 * LOGIT_ROWS * model.vocab
    assert not one.missing
    for lacks in (0, 1):
        card = {**data("gpus")["cards"]["H100"], "memory_gib": (target.total - lacks) / 2**30}
        monkeypatch.setitem(data("gpus")["cards"], "H100", card)
        again = Estimate(one.question, one.way, 4)
        assert again.missing == lacks
    with pytest.raises(OutOfMemory, match="gpu1 would hold Qwen3 8B in bfloat16"):
        _ = again.kept


def test_models_on_the_same_cards_are_summed():
    one = Estimate(SMALL, Seating(entrant("SD"), 2, 2, 2), 1)
    assert [[part.named for part in parts] for parts in one.kept.values()] == [["Qwen3 8B", "Qwen3 0.6B"]] * 2
    target, drafter = one.kept["gpu0"]
    assert target.weights == spread(one.latency.target, 2)[0].weights
    assert drafter.weights == spread(one.latency.drafter, 2)[0].weights


def test_a_target_that_fits_nowhere_is_refused_with_its_sums_and_with_what_would_fit():
    question = Question(1, "RTX-4090", "qwen3-14b", "qwen3-0.6b", context=1000)
    with pytest.raises(OutOfMemory) as caught:
        advise(question)
    words = refusal(question, caught.value)
    assert "\n" not in words
    assert "would hold Qwen3 14B in bfloat16 (weights 29.5 GB + keys and values " in words
    assert "NVIDIA GeForce RTX 4090 has 25.8 GB; what fits: Qwen3 14B in fp8, or Qwen3 14B on 2 GPUs" in words
    assert words.endswith(
        "; 1 × H100 or H200 or A100-40G or A100-80G or L40S or RTX-5090 or MI300X would hold it"
    )
    for other in ({"dtype": "fp8"}, {"count": 2}, {"card": "RTX-5090"}):
        assert plain_estimate(replace(question, **other), 1)


def test_a_refusal_names_the_context_and_the_batch_that_fit():
    question = Question(1, "RTX-4090", "qwen3-8b", "qwen3-0.6b", context=4000, batches=(16,))
    with pytest.raises(
        OutOfMemory, match=r"what fits: 16 × [0-9,]+ tokens, or [0-9]+ × 4,224 tokens"
    ) as caught:
        advise(question)
    words = str(caught.value).partition("what fits: 16 × ")[2]
    tokens, sequences = int(words.split()[0].replace(",", "")), int(words.split(", or ")[1].split()[0])
    assert plain_estimate(replace(question, context=tokens - 128 - 96), 16)
    assert plain_estimate(question, sequences)
    with pytest.raises(OutOfMemory):
        plain_estimate(question, sequences + 1)


# -- speeds


def by_hand(way: Seating, config: dict, seed: int) -> float:
    """Return the speed of a run on the cluster of a place, made without `advise`."""
    profile = SMALL.profile(way.cards, way.target, way.drafter or 1)
    models = bernoulli_models(
        (0.7,), 512, 64, seed, avoid=[0], doubt=default().doubt, misses=default().misses
    )
    prompt = tuple(1 + i % 511 for i in range(64))
    with specscope.open(
        scripted_pair(), runtime="virtual", profile=profile, tokens=Source(models, "")
    ) as cluster:
        trace = cluster.run(way.entrant.key, prompt, config=config, limits=Limits(64))
    return measure(trace).tokens_per_second


def test_a_speed_up_is_that_of_runs_made_by_hand():
    answer = answered(SMALL)
    plain, best = (
        next(o for o in answer.at(1) if (o.key == BASELINE) == plainly) for plainly in (True, False)
    )
    ratios = [by_hand(best.way, dict(best.config), seed) / by_hand(plain.way, {}, seed) for seed in (0, 1)]
    assert best.speed.mid == pytest.approx(sum(ratios) / 2)
    closed = (Estimate(SMALL, option.way, 1).tokens_per_second for option in (best, plain))
    ratios.append(next(closed) / next(closed))  # a third draw
    drafts = best.parts["drafts"]
    ends = min(ratios) * (1 - DEPENDENT), max(ratios) * (1 + DEPENDENT)
    assert (drafts.low, drafts.high) == pytest.approx(ends)
    assert plain.speed == (1, 1, 1)


def test_the_closed_form_of_a_place_is_the_formula_with_the_times_of_its_cluster():
    one = Estimate(SMALL, Seating(entrant("SD"), 2, 2, 2), 1)
    latency, gamma = one.latency, one.config["gamma"]
    verify, plain = latency("target", 1 + gamma, 64) + 600, latency("target", 1, 64)
    draft = latency("drafter", 1, 64)
    rounds = 1e6 * speculative_tokens(0.7, gamma) / (gamma * draft + verify)
    assert one.tokens_per_second == pytest.approx(rounds)
    assert one.speedup() == pytest.approx(speculative_speedup(0.7, gamma, verify / draft) * plain / verify)
    assert all(one.speedup(config={"gamma": other}) <= one.speedup() for other in range(1, 25))
    shared = Estimate(SMALL, Seating(ONE_CARD, 1, 1, 1), 1)
    gamma = shared.config["gamma"]
    c = shared.verify_us(1 + gamma) / shared.draft_us
    both = pearl_speedup(0.7, gamma, c) * max(gamma / c, 1) / (gamma / c + 1)
    assert shared.speedup() == pytest.approx(both * shared.plain_us / shared.verify_us(1 + gamma))


def test_a_batch_counts_while_all_of_its_sequences_decode():
    """No drafter's prefill counts, which follows the first token, no first draft, and no end."""
    question = replace(SMALL, context=2048, batches=(4,))
    plain, one = (
        Estimate(question, Seating(which, 1, drafter, 1), 4)
        for which, drafter in ((PLAIN, 0), (entrant("SD"), 1))
    )
    trace = run(one, 0)
    prefill = max(s.end for s in trace.spans if s.kind == "prefill" and s.model == "drafter")
    first = min(c.time for c in trace.commits)
    assert first < prefill
    rounds = [
        s for s in trace.spans if s.kind == "sample" and s.device not in NO_DEVICES and s.start >= prefill
    ]
    ends = [max(c.time for c in trace.commits if c.sequence == i) for i in range(4)]
    counted = [s for s in rounds if s.end <= min(ends)]
    first = max(min(c.time for c in trace.commits if c.sequence == i and c.time > prefill) for i in range(4))
    tokens = sum(first < c.time <= min(ends) for c in trace.commits)
    assert 4 * (len(counted) - 1) <= tokens <= 4 * len(counted) * (1 + one.config["gamma"])
    assert speed(trace) == pytest.approx(1e9 * tokens / (min(ends) - first))
    assert speed(run(plain, 0)) == pytest.approx(plain.tokens_per_second, rel=0.1)


@pytest.mark.parametrize(("batch", "most"), [(1, 0.1), (4, 0.06)])
def test_a_closed_form_is_near_its_runs(batch, most):
    """With one sequence at most 8 % off, with four 4 %; SpecBranch's runs have half of it then.

    Sequences that draft alone and those that draft beside a verification take turns in lockstep,
    which the closed form of one sequence does not know.
    """
    answer = answered(replace(SMALL, batches=(batch,)))
    found = dict[str, float]()
    for option in answer.at(batch):
        one = Estimate(answer.question, option.way, batch)
        found.setdefault(option.way.entrant.form, option.tokens_per_second / one.tokens_per_second)
    assert found.keys() >= {"turns", "overlapped", "branches", "layers", "shared"}
    if batch > 1:
        assert 0.45 < found.pop("branches") < 0.65
    assert max(abs(share - 1) for share in found.values()) < most
    assert answer.scale(one) == pytest.approx(option.tokens_per_second / one.tokens_per_second, rel=0.05)


# -- ranges


def test_ranges_of_independent_parts_combine_by_squares_of_logarithms():
    found = combined(2.0, [Likely(1.0, 2.0, 4.0), Likely(1.0, 2.0, 2.0)])
    assert found.low == pytest.approx(2 * exp(-hypot(log(2), log(2))))
    assert found.high == pytest.approx(4.0)
    assert combined(3.0, [Likely(3.0, 3.0, 3.0)]) == (3.0, 3.0, 3.0)


def best_form(one: Estimate, rate: float = 0.7, error: float = 1.0, longer: float = 1.0) -> float:
    """Return the best closed form of speculative decoding under other conditions, by hand."""
    found = []
    for gamma in range(1, 25):
        verify = longer * one.verify_us(1 + gamma)
        tokens = speculative_tokens(rate, gamma)
        found.append(tokens * one.plain_us / (gamma * one.draft_us / error + verify))
    return max(found)


def test_the_parts_of_a_range_are_closed_forms_at_the_ends_around_the_runs():
    """Settings are the best ones there: whoever has the cluster tunes them."""
    answer = answered(SMALL)
    option = next(o for o in answer.at(1) if o.key == "speculative")
    one = Estimate(SMALL, option.way, 1)
    assert one.speedup() == pytest.approx(best_form(one))
    low, high = (best_form(one, rate) / one.speedup() * option.speed.mid for rate in (0.6, 0.8))
    assert option.parts["acceptance"] == pytest.approx((low, option.speed.mid, high))
    plain = next(o for o in answer.at(1) if o.key == BASELINE)
    ratio, usual = 1 + RATIO_ERROR, one.speedup()
    elsewhere = log(ratio) if plain.way.target != option.way.target else 0.0
    slower = best_form(one, error=1 / ratio), best_form(one, longer=1 + LONGER)
    low = exp(-hypot(*(log(usual / changed) for changed in slower), elsewhere))
    high = exp(hypot(log(best_form(one, error=ratio) / usual), elsewhere))
    mid = option.speed.mid
    assert option.parts["times"] == pytest.approx((mid * low, mid, mid * high))
    assert option.speed == pytest.approx(combined(option.speed.mid, [*option.parts.values()]))
    assert option.dominant == max(
        option.parts, key=lambda part: option.parts[part].high / option.parts[part].low
    )


def test_the_roofline_error_is_that_of_the_pairs_of_two_papers():
    pearl, nano = (
        next(s for s in sources() if s.title.startswith(name))
        for name in ("PEARL, Table 10", "nano-PEARL, AIME")
    )
    off = {}
    for source in (pearl, nano):
        pairs = [sorted(pair, key=lambda f: -f.published) for pair in combinations(source.forwards, 2)]
        ratios = [a.ours / b.ours / (a.published / b.published) for a, b in pairs]
        off[source] = [max(ratio, 1 / ratio) - 1 for ratio in ratios]
    assert len(off[pearl]) == 45
    within = {
        error: sum(one <= error for one in off[pearl]) / 45 for error in (RATIO_ERROR - 0.02, RATIO_ERROR)
    }
    assert within[RATIO_ERROR - 0.02] < 0.8 <= within[RATIO_ERROR]
    assert max(off[nano]) <= RATIO_ERROR


def test_published_verifications_take_longer_than_the_roofline_says():
    """Each beside plain decoding of the same model in the same source."""
    forwards = {f.name: f for source in sources() for f in source.forwards}
    pairs = {
        "llama-2-7-70, verification": "Llama 2 70B",
        "codellama-7-34, verification": "Codellama 34B",
        "deepseek-1.3-33, verification": "Deepseek-Coder 33B",
        "reproduction, Qwen3 32B, verification": "reproduction, Qwen3 32B, plain",
        "opt-6.7b, batch 16, 5 rows each": "opt-6.7b, batch 16, 1 rows each",
        "7B, static, 16 rows": "7B, static, 1 rows",
        "7B, transformers, 16 rows": "7B, transformers, 1 rows",
    }
    longer = sorted(
        forwards[many].published / forwards[one].published / (forwards[many].ours / forwards[one].ours) - 1
        for many, one in pairs.items()
    )
    assert -0.03 < longer[0] < 0
    assert LONGER < longer[-2] < LONGER + 0.02
    assert 0.30 < longer[-1] < 0.32


def test_a_drafter_of_few_layers_is_shared_by_as_many_cards():
    sizes = {"title": "68M", "source": "typed", "dim": 768, "ffn": 3072, "kv_heads": 12, "vocab": 32_000}
    for layers, size in ((1, None), (2, 2), (6, 4)):
        question = replace(SMALL, drafter={**sizes, "head_dim": 64, "layers": layers}, methods=("easyspec",))
        answer = advise(replace(question, tokens=16))
        found = {o.config.get("size", 4) for o in answer.at(1) if o.key != BASELINE}
        assert found == ({size} if size else set())
        assert [*answer.left_out.values()] == ([] if size else ["the drafter has too few layers"])


def test_real_texts_bring_more_or_fewer_tokens_than_independent_drafts():
    texts = numbers("pearl-acceptance")["texts"]
    rate = sum(text.count("1") for text in texts) / sum(map(len, texts))

    def tokens(of: list[str], gamma: int) -> float:
        """Return the mean number of tokens of a round of speculative decoding."""
        rounds = [
            len(run) for text in of for run in re.findall(f"1{{0,{gamma - 1}}}0|1{{{gamma}}}.?|1+$", text)
        ]
        return sum(rounds) / len(rounds)

    pooled = [tokens(texts, gamma) / speculative_tokens(rate, gamma) - 1 for gamma in range(2, 9)]
    assert -DEPENDENT - 0.02 < min(pooled) < max(pooled) < 0
    single = [tokens([text], 5) / speculative_tokens(text.count("1") / len(text), 5) - 1 for text in texts]
    assert sum(abs(off) <= DEPENDENT for off in single) >= 5


def test_a_run_holds_no_more_than_so_many_tokens_of_prompts():
    with pytest.raises(
        UsageError, match=r"the context times the batch is 1000000; it must be .* at most 262144"
    ):
        advise(replace(SMALL, context=1_000_000))


# -- what would change the answer


@pytest.mark.parametrize("question", [SMALL, LARGE], ids=["small", "large"])
def test_at_the_printed_rate_the_scaled_closed_forms_cross(question):
    answer = answered(question)
    best = answer.best(1)
    found = [change for change in changes(answer, 1) if change.name == "acceptance"]
    assert found

    def at(option, rate: float) -> float:
        one, usual = (
            Estimate(replace(question, rates=rates), option.way, 1)
            for rates in ((rate, rate), question.rates)
        )
        return option.tokens_per_second * one.tokens_per_second / usual.tokens_per_second

    for change in found:
        title = change.text.partition(f"{change.value:.2f} ")[2].removesuffix(" is as fast")
        other = next(o for o in answer.at(1) if title in (o.title, o.key == BASELINE and "plain decoding"))
        ahead = [at(best, rate) > at(other, rate) for rate in (change.value - 0.015, change.value + 0.015)]
        assert ahead == ([True, False] if change.text.startswith("above") else [False, True]), change


def test_a_method_that_has_no_run_here_gets_one_for_a_hint():
    one = Estimate(SMALL, Seating(entrant("Branch"), 1, 1, 2), 4)
    answer = Answer(SMALL)
    assert answer.scale(one) == pytest.approx(speed(run(one, 0)) / one.tokens_per_second)
    assert answer.scale(one) < 0.7
    assert [*answer.scales] == [("Branch", 4)]


def test_a_context_and_a_batch_are_the_largest_that_fit():
    answer = answered(LARGE)
    best = answer.best(1)
    found = {change.name: change for change in changes(answer, 1)}
    context, batch = found["context"].value, found["batch"].value
    assert found["context"].text == f"beyond a context of {context:,} tokens it does not fit there"
    assert found["batch"].text == f"more than {batch} sequences do not fit there"
    for more in (0, 1):
        assert bool(Estimate(replace(LARGE, context=context + more), best.way, 1).missing) == bool(more)
        assert bool(Estimate(LARGE, best.way, batch + more).missing) == bool(more)


def test_what_cannot_go_in_lockstep_ends_with_one_sequence():
    answer = answered(replace(SMALL, methods=("ssd",)))
    assert answer.best(1).key == "ssd"
    (change,) = (change for change in changes(answer, 1) if change.name == "batch")
    assert change.value == 1
    assert change.text == "it cannot serve more than one sequence here: each needs an engine of its own"


def test_a_method_that_is_left_out_is_named_once_with_its_batches():
    answer = Answer(replace(SMALL, batches=(1, 4, 8)))
    for method, batch in (
        ("SSD", 4),
        ("DSI", 4),
        ("SSD", 8),
        ("DSI", 8),
        ("EasySpec", 1),
        ("EasySpec", 4),
        ("EasySpec", 8),
    ):
        answer.left_out[method, batch] = "lockstep" if method != "EasySpec" else "memory"
    assert left_out(answer) == {"SSD and DSI at batch 4 and 8": "lockstep", "EasySpec": "memory"}


def test_the_reason_is_that_of_the_place_nearest_to_fitting():
    reasons = {}
    estimates(replace(LARGE, count=2), 1, reasons)
    assert "1 × 640 tokens" in reasons["PEARL", 1]
    question = replace(LARGE, card="A100-40G", count=4, methods=("pearl",))
    estimates(question, 1, reasons := {})
    own = [Estimate(question, way, 1) for way in ways(question, entrant("PEARL"))]
    assert min(own, key=lambda one: one.missing).way.target == 2
    assert "weights 70.6 GB" in reasons["PEARL", 1]
    estimates(SMALL, 4, reasons := {})
    assert reasons["SSD", 4] == reasons["DSI", 4]
    assert reasons["SSD", 4].startswith("sequences of a batch go in lockstep")


def test_the_answer_says_that_a_target_fills_the_cards_only_if_it_does():
    large, small = answered(LARGE), answered(SMALL)
    why = "because Llama 3.1 70B in bfloat16 needs both cards, which leaves none for a drafter of its own."
    assert headline(large, 1).endswith(why)
    assert "because" not in headline(small, 1)
    fixed = answered(replace(SMALL, target_cards=2, methods=("speculative",)))
    assert "because" not in headline(fixed, 1)


def test_notes_name_each_rival_once_and_the_largest_part():
    answer = answered(SMALL)
    assert answer.best(1).key != BASELINE
    *others, last = notes(answer, 1)
    best = answer.best(1)
    assert last.endswith(f"most of the range: {best.parts[best.dominant]} alone.")
    rivals = {
        o.title for o in answer.at(1) if o.speed.high > best.speed.low and o.title != best.title and o.parts
    }
    named = next(line for line in others if line.startswith("Their ranges overlap"))
    assert len(rivals) > 1
    assert all(named.count(f" {title}") >= 1 for title in rivals)


# -- what is typed


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2xH100", (2, "H100")),
        ("8 × A100-40G", (8, "A100-40G")),
        ("H200", (1, "H200")),
        ("0xH100", (0, "H100")),
    ],
)
def test_cards_are_typed_with_or_without_a_number(text, found):
    assert parse_gpus(text) == found


def test_rates_are_typed_in_four_forms():
    assert parse_rates("unknown").rates is UNKNOWN
    assert parse_rates("0.7").rates == (0.7, 0.7)
    assert parse_rates("0.6:0.8").rates == (0.6, 0.8)
    (rate, same), places, _ = parse_rates("0.9,0.8,0.7")
    assert places == (0.9, 0.8, 0.7)
    assert rate == same
    drafted = 0.9 + 0.9 * 0.8 + 0.9 * 0.8 * 0.7
    assert rate + rate**2 + rate**3 == pytest.approx(drafted, abs=1e-3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0.6:", "the acceptance rate is '0.6:'; write a rate as in 0.7"),
        ("0.6:0.7:0.8", "the acceptance rate is '0.6:0.7:0.8'"),
        ("0.9,,", "the acceptance rate is '0.9,,'"),
        ("much", "the acceptance rate is 'much'"),
        ("0.9,1.5", "the acceptance rate of a place is 1.5; it must be at least 0.01 and at most 0.99"),
        ("0.9" + ",0.9" * 64, "the number of places is 65; it must be at least 2 and at most 64"),
    ],
)
def test_a_rate_that_is_none_is_refused_with_its_value(text, words):
    with pytest.raises(UsageError) as caught:
        parse_rates(text)
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["", "1,", "two", "1.5", "9" * 5000])
def test_batches_are_whole_numbers(text):
    with pytest.raises(UsageError, match=r"the batch is .*; write whole numbers, as in 1,8"):
        parse_batches(text)
    assert parse_batches("8,1,8") == (1, 8)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"count": 65}, "the number of cards is 65; it must be at least 1 and at most 64"),
        ({"card": "9" * 5000 + "xH100"}, "choose one of H100, H200"),
        ({"dtype": "fp4"}, "the dtype is 'fp4'; choose one of bfloat16"),
        ({"drafter_dtype": "fp4"}, "the drafter's dtype is 'fp4'"),
        ({"engine": "fast"}, "the engine is 'fast'; choose one of graphs, eager"),
        ({"methods": ("medusa",)}, "the method is 'medusa'; choose one of speculative, pearl"),
        ({"rates": (0.8, 0.6)}, "the acceptance rate is 0.8:0.6; the lowest one comes first"),
        ({"rates": (float("nan"), 0.6)}, "the acceptance rate is nan"),
        ({"batches": ()}, "the number of batch sizes is 0"),
        ({"batches": (65,)}, "the batch is 65; it must be at least 1 and at most 64"),
        ({"context": 0}, "the context is 0"),
        ({"tokens": 513}, "new tokens is 513; it must be at least 16 and at most 512"),
        ({"target_cards": 3}, "a model's number of cards is 3; choose one of 1, 2, or 0"),
        (
            {"target_cards": 1, "drafter_cards": 2},
            "the drafter's number of cards is 2; it must be at most the target's, 1",
        ),
        ({"target": "nothing"}, "the target's shape is 'nothing'"),
        ({"drafter": {"title": "typed"}}, "models.drafter.dim is missing"),
    ],
)
def test_a_question_with_a_wrong_value_is_refused_with_its_range(given, words):
    with pytest.raises(UsageError) as caught:
        replace(SMALL, **given)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# -- the rate of a run


def test_the_rate_of_a_run_is_that_of_its_drafts_with_two_standard_errors():
    one = Estimate(replace(SMALL, tokens=256), Seating(entrant("SD"), 1, 1, 1), 1)
    trace = run(one, 0)
    low, high = acceptance_of(trace).rates
    levels = measure(trace).per_level
    tested, kept = sum(level.reached for level in levels), sum(level.accepted for level in levels)
    error = 2 * (kept / tested * (1 - kept / tested) / tested) ** 0.5
    assert (low, high) == pytest.approx((kept / tested - error, kept / tested + error), abs=1e-3)
    assert low < 0.7 < high


def test_rates_of_other_engines_logs_and_of_runs_that_tell_none():
    for name in ("vllm.jsonl", "aiperf.jsonl"):
        found = []
        for trace in read_traces(IMPORTED / name).traces:
            levels = measure(trace).per_level
            if levels:
                low, high = acceptance_of(trace).rates
                rate = sum(level.accepted for level in levels) / sum(level.reached for level in levels)
                assert LEAST_RATE <= low <= min(rate, 0.99) <= high
                found.append(rate)
        assert found
    plain = run(Estimate(SMALL, Seating(PLAIN, 1, 0, 1), 1), 0)
    with pytest.raises(
        UsageError, match="does not tell how many drafts were accepted by place; take a run of"
    ):
        acceptance_of(plain)
