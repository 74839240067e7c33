"""The acceptance audit: faults that it finds, sound runs, and what it may not conclude."""

from __future__ import annotations

import random
from dataclasses import replace
from math import exp, inf, log, nan
from time import process_time

import pytest

import specscope
from specscope.app.pairs import able
from specscope.engine.trace.appended import KeptLines
from specscope.engine.trace.events import Decision
from specscope.engine.trace.jsonl import from_json
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.facts.imported import origin
from specscope.traces.judge import audit as auditing
from specscope.traces.judge.audit import ALPHA, TILTS, AuditPart, Test, audit
from specscope.traces.judge.health import health
from specscope.traces.view.audit import audit_view
from tests.engine.methods.lossless import ONE_EACH
from tests.traces.samples import bundled, sample_trace, shown, with_header

RECORDED = {"recorded": {"start_ns": 0}}
VLLM = """.734/.431- .000/.001- .365/.900- .003/.126- .416/.290+ .012/.079- .015/.166- .005/.014- .001/.090- .042/.043- .008/.042-
.180/.566- .804/.360- .003/.011- .569/.565+ .001/.134- .006/.018- .755/.444- .909/.945- .399/.641- .280/.317- .001/.001- .112/.292-
.000/.001- .968/.337+ .001/.005- .358/.520- .101/.017- .001/.003-"""
"""p / q, and whether the draft was kept: vLLM 0.32 on CPUs at 0.8, the first real fault found."""


def run_of(*tests, temperature=0.8, size=4, **facts) -> Trace:
    """Return a run of chains; a test is (p, q, accepted), then the rule if it is not `ratio`.

    A draft ends with a rejection, or with `size` tokens.
    """
    sample = with_header(sample_trace("speculative"), sampling={"temperature": temperature}, **facts)
    trace, step, node = Trace(sample.header), 1, 0
    for place, (p, q, accepted, *rule) in enumerate(tests):
        where = (step, 0, node, node - 1, 10 + place, 7)
        outcome = "accepted" if accepted else "rejected"
        trace.add(Decision(*where, p, q, None, *(rule or ["ratio"]), outcome, 0, 1))
        step, node = (step, node + 1) if accepted and node + 1 < size else (step + 1, 0)
    trace.footer = trace.new_footer("done", reasons=("length",))
    return trace


def tree_of(*levels, rule, **facts) -> Trace:
    """Return rounds of siblings of the prefix; a sibling is (p, q, outcome)."""
    trace = Trace(with_header(sample_trace("tree"), sampling={"temperature": 0.8}, **facts).header)
    for step, siblings in enumerate(levels, 1):
        for node, (p, q, outcome) in enumerate(siblings):
            named = "" if outcome == "discarded" else rule
            trace.add(Decision(step, 0, node, -1, 10, 7 + node, p, q, None, named, outcome, 0, 1))
    trace.footer = trace.new_footer("done", reasons=("length",))
    return trace


def sentence(*traces) -> str:
    found = audit(*traces)
    return found.sentence if found else ""


def drawn(count, seed, rule="ratio", keep=lambda chance, draw: draw < chance):
    """Return tests with random p and q, kept by `keep`."""
    dice = random.Random(seed)
    for _ in range(count):
        p, q = dice.random() ** 2, dice.random()
        chance = p if rule == "match" else min(1, p / q)
        yield p, q, keep(chance, dice.random()), rule


FAULTS = {
    "exact match for a sampled draft": (
        [(0.55, 0.6, i % 14 == 0) for i in range(99)],
        "Of 99 tested drafts, 90.8 were expected to be kept and 8 were (z = -30",
    ),
    "kept with p for a draft from q": ([*drawn(300, 1, keep=lambda a, u: u < a * 0.55)], "min(1, p/q), or used"),
    "always kept": ([*drawn(60, 2, keep=lambda a, u: True)], "60 were (z = "),
    "a point that is never kept": ([(0.5, None, False)] * 40, "at least 20.0 were expected to be kept and 0 were"),
    "a match that is drawn from another p": (
        [*drawn(300, 3, "match", keep=lambda a, u: u < a * 0.4)],
        "the match with the target's own draw",
    ),
    "sure drafts that are rejected": ([(0.9, 0.3, i % 5 > 0) for i in range(40)], "40.0 were expected to be kept and 32 were:"),
    "impossible drafts that are kept": ([(0.0, 0.3, i % 5 == 0) for i in range(40)], "0.0 were expected to be kept and 8"),
    "at one place only": (
        [row for i in range(300) for row in ((0.3, 0.5, True), (0.3, 0.5, i % 5 > 1), (0.3, 0.5, False))],
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("tests", "words"), FAULTS.values(), ids=FAULTS)
def test_a_verification_that_does_not_follow_its_rule_is_told(tests, words):
    assert words in sentence(run_of(*tests)) != ""
    assert health(run_of(*tests)).startswith(sentence(run_of(*tests)))


def test_a_fault_that_begins_late_or_at_one_place_names_it():
    late = [*drawn(9000, 1), *drawn(300, 2, keep=lambda a, u: u < a * 0.3)]
    assert "tested drafts, steps 5" in sentence(run_of(*late, size=2))
    dice = random.Random(5)
    rows = list[tuple[float, float, bool]]()
    for _ in range(600):  # the first ten places are sound
        draft = [(0.45, 0.5, dice.random() < 0.9) for _ in range(10)]
        stop = next((i for i, row in enumerate(draft) if not row[2]), 10)
        rows += draft[: stop + 1] if stop < 10 else [*draft, (0.45, 0.5, dice.random() < 0.5)]
    assert "tested drafts, place 11, 1" in sentence(run_of(*rows, size=11))


def test_the_evidence_is_the_mean_likelihood_ratio_of_tilted_chances():
    tests = [Test(1, 1, "ratio", a, a, kept) for a, kept in ((0.25, True), (0.5, False), (0.75, False))]
    ratios = []
    for tilt in TILTS:
        chances = [t.low + (-0.001 if tilt < 0 else 0.001) for t in tests]
        tilted = [a * exp(tilt) / (1 - a + a * exp(tilt)) for a in chances]
        one, two, three = ((b / a, (1 - b) / (1 - a)) for a, b in zip(chances, tilted, strict=True))
        ratios.append(one[0] * two[1] * three[1])
    assert AuditPart("", tests).evidence == pytest.approx(log(sum(ratios) / len(ratios)))


@pytest.mark.parametrize("rule", ["ratio", "match"])
def test_of_10000_sound_runs_none_is_told(rule):
    """The bound is 1e-4 by Ville's inequality; mixture and moved bounds make it far smaller."""
    lengths = (1, 20, 60, 120)
    told = [seed for seed in range(5000) if sentence(run_of(*drawn(lengths[seed % 4], seed, rule)))]
    assert told == []


@pytest.mark.parametrize(
    ("method", "config"), [one for one in ONE_EACH if one[0] in able("bundled")], ids=str
)
@pytest.mark.parametrize(
    "sampling", [Sampling(0), Sampling(0.8, top_k=20), Sampling(1.2, top_p=0.9)], ids=["0", "top-k", "top-p"]
)
def test_a_sound_run_of_every_method_is_not_told(method, config, sampling):
    run = bundled().run(method, "Tell me a story.", config=config, sampling=sampling, limits=Limits(60))
    found = audit(run)
    assert found is None or (found.sentence, found.whole.unknown) == (
        "",
        found.whole.unknown * sampling.greedy,
    )
    assert found is not None or not any(row.outcome in ("accepted", "rejected") for row in run.decisions)


def test_typical_acceptance_must_keep_what_is_above_epsilon():
    config = {"acceptance": "typical", "epsilon": 0.2}
    run = bundled().run("medusa", "Hi", config=config, sampling=Sampling(1.0), limits=Limits(40))
    assert sentence(run) == ""
    assert any(t.low == 1 for t in audit(run).whole.tests)
    turned = {"accepted": "rejected"}
    wrong = [replace(d, outcome=turned.get(d.outcome, d.outcome)) for d in run.decisions]
    assert sentence(replace(run, decisions=wrong)).endswith(
        "typical acceptance, or used other p and q than the recorded ones."
    )


def test_a_loop_that_cuts_its_output_hides_rejections_and_is_not_told():
    """Short outputs of a sound loop, each cut by its length: a cut test shows acceptances only."""

    def recorded(seed: int) -> Trace:
        dice, memory, left = random.Random(seed), KeptLines(), 10
        with specscope.record(memory, rule="ratio", sampling={"temperature": 0.8}) as rec:
            while left:
                accepted = next(i for i in range(5) if i == 4 or dice.random() > 0.8)
                emitted = [*[7] * accepted, 9][:left]
                left -= len(emitted)
                reason = "" if left else "length"
                rec.round([7] * 4, accepted, emitted, p=[0.4] * 4, q=[0.5] * 4, reason=reason)
        return Trace.of(from_json(line.decode()) for line in bytes(memory.content).split(b"\n") if line)

    assert sentence(*map(recorded, range(1500))) == ""


SILENT = {
    "p of accepted drafts only, as log-probabilities of the output tell it": [
        (p if kept else None, q, kept) for p, q, kept, _ in drawn(800, 7)
    ],
    "p of rejected drafts only": [(None if kept else p, q, kept) for p, q, kept, _ in drawn(800, 8)],
    "q unknown, and the drafts were sampled": [(p, None, kept) for p, _, kept, _ in drawn(800, 9)],
    "one test": [(1.0, 0.2, False)],
    "no rule is claimed": [(0.9, 0.1, False, "")] * 60,
    "p a little above 1": [(1.0009, 0.5, True, "match")] * 60,
    "not a number, no q": [(nan, 0.5, False), (0.5, nan, False), (inf, 0.5, False), (0.5, inf, True)] * 30,
    "q = 0 of a kept draft": [(0.3, 0.0, True)] * 60,
}


@pytest.mark.parametrize("tests", SILENT.values(), ids=SILENT)
def test_what_says_nothing_is_not_told(tests):
    assert sentence(run_of(*tests)) == ""


def test_a_fault_among_drafts_without_p_is_told_and_they_count_against_it():
    some = [
        (p if i % 3 else None, q, kept)
        for i, (p, q, kept, _) in enumerate(drawn(300, 4, keep=lambda a, u: u < a / 4))
    ]
    found = audit(run_of(*some))
    assert (found.whole.tested, found.whole.unknown) == (300, 100)
    assert found.whole.high - found.whole.low == pytest.approx(100)
    assert "Of 300 tested drafts (100 without a known chance), at least" in found.sentence


@pytest.mark.parametrize("temperature", [None, "unknown"])
def test_nothing_is_known_without_the_temperature(temperature):
    run = run_of(*[(0.5, 0.5, False)] * 90, temperature=temperature)
    assert audit(run) is None
    assert audit(run, run_of(*drawn(9, 1))).whole.unknown == 90


def test_siblings_that_match_are_one_test():
    """Of two siblings with p 0.4 each the target draws one in 80 %."""
    kept, other, none = (
        [(0.4, 0.3, "accepted"), (0.4, 0.3, "discarded")],
        [(0.4, 0.3, "rejected"), (0.4, 0.3, "accepted")],
        [(0.4, 0.3, "rejected"), (0.4, 0.3, "rejected")],
    )
    found = audit(tree_of(*[kept, other, kept, other, none] * 20, rule="match"))
    assert (found.whole.tested, found.whole.low, found.sentence) == (100, pytest.approx(80), "")
    assert found.whole.kept == 80
    assert "z = -" in sentence(tree_of(*[kept, none, none] * 30, rule="match"))


def test_the_second_sibling_of_a_recorded_tree_has_no_known_chance():
    """The recorder is given p, while the rule compares what the first rejection left of p and q."""
    levels = [[(0.1, 0.5, "rejected"), (0.9, 0.5, "rejected")]] * 60
    assert "expected" in sentence(tree_of(*levels, rule="ratio"))
    recorded = tree_of(*levels, rule="ratio", environment=RECORDED)
    assert origin(recorded.header) is not None
    assert audit(recorded).whole.unknown == 60


@pytest.mark.parametrize("rule", ["match", "ratio"])
def test_at_temperature_0_the_most_probable_token_is_kept_and_no_other(rule):
    best, other = ((7, 0.6), (8, 0.3)), ((8, 0.6), (7, 0.3))
    tie = ((7, 0.3), (8, 0.3001))

    def greedy(top, kept) -> str:
        run = run_of(*[(dict(top)[7], None, kept, rule)] * 30, temperature=0)
        return sentence(replace(run, decisions=[replace(d, top_p=top) for d in run.decisions]))

    assert greedy(best, kept=True) == greedy(other, kept=False) == greedy(tie, kept=True) == ""
    assert greedy(tie, kept=False) == ""
    assert "30.0 were expected to be kept and 0 were" in greedy(best, kept=False)
    assert "0.0 were expected to be kept and 30 were" in greedy(other, kept=True)


def test_runs_that_are_too_small_alone_are_told_together():
    tests = [(*map(float, one[:-1].split("/")), one[-1] == "+") for one in VLLM.split()]
    runs = [run_of(*tests[i : i + 4], run_id=f"r{i}") for i in range(0, 29, 4)]
    assert [sentence(run) for run in runs] == [""] * 8
    assert sentence(*runs) == sentence(run_of(*tests)) != ""
    assert sentence(*runs).startswith("Of 29 tested drafts, ")
    assert sentence(*(run_of(*drawn(11, i)) for i in range(300))) == ""
    assert [part.name for part in audit(*runs).stretches] == [f"run r{i}" for i in range(0, 29, 4)]


def test_the_audit_of_a_million_drafts_takes_seconds():
    tests = list(drawn(200_000, 1))
    start = process_time()
    assert sentence(run_of(*tests)) == ""
    assert process_time() - start < 20


def test_a_document_has_one_audit_of_a_run(monkeypatch):
    calls, tests = list[int](), auditing.tests_of
    monkeypatch.setattr(auditing, "tests_of", lambda t: calls.append(1) or tests(t))
    run = shown(run_of(*[(0.9, 0.3, False)] * 60))
    assert run["verdict"]["health"].startswith(run["audit"]["sentence"]) != ""
    assert calls == [1]


def test_the_view_has_the_audit_without_prompts():
    run = run_of(*drawn(100, 1))
    view = shown(run, redact_prompt=True)["audit"]
    assert view == audit_view(run)
    assert sum(part["tested"] for part in view["places"]) == view["whole"]["tested"] == 100
    assert sum(part["kept"] for part in view["stretches"]) == view["whole"]["kept"]
    assert audit_view(run_of(*[(None, None, True, "match")] * 30)) is None


def test_the_bound_is_shared_by_the_whole_and_its_parts():
    found = audit(run_of(*drawn(100, 3, keep=lambda a, u: u < a * 0.3)))
    assert found.whole.evidence > log(2 / ALPHA)
    assert found.contradicted is found.whole
