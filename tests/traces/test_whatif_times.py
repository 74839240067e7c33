"""What-if of measured and recorded runs, whose own times are the cluster, and of imported ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import specscope
from specscope.engine.drafting.pace import seconds_at
from specscope.engine.errors import UsageError
from specscope.engine.trace.events import Routed
from specscope.engine.trace.trace import Trace
from specscope.traces.facts.imported import NO_TOKEN, UNKNOWN_TEXT
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.rates import rates_of
from specscope.traces.imports.reading import read_traces
from specscope.traces.whatif.own_times import own_times
from specscope.traces.whatif.recording import read
from specscope.traces.whatif.replay import Change, what_if
from specscope.traces.whatif.result import facts, sentences
from tests.traces.samples import MS, with_header

FILES, PROFILE = Path(__file__).parent / "imported", "pearl-4xA100"
ACCEPTED = (3, 0, 1, 2, 0, 5, 1, 0, 2, 1)
TEXT = range(10, 10 + sum(ACCEPTED) + len(ACCEPTED))
NEAR = 1e-3
"""Error of methods in turns under their own settings: times are whole microseconds."""


def loop(
    path: Path,
    drafts: Sequence[int] = ACCEPTED,
    gamma: int = 7,
    *,
    rows: bool = True,
    once: bool = False,
    draft_ms: float = 1.5,
) -> Trace:
    """Record a loop: a verification takes 6 ms and 3/7 ms for each draft, then 0.5 ms pass."""
    with specscope.record(path, "my loop", sampling={"temperature": 0}) as rec:
        rec.prompt("A prompt", ids=[1, 2, 3])
        rec.start(1)
        now, done = 1, 0

        def work(kind: str, ms: float, width: int) -> None:
            nonlocal now
            end = now + round(ms * MS)
            rec.add(kind, now, end, rows=width if rows else -1)
            now = end

        work("prefill", 4, 3)
        for accepted in drafts:
            for _ in range(min(gamma, 1) if once else gamma if draft_ms else 0):
                work("draft", draft_ms, 1)
            work("verify", 6 + 3 * gamma / 7, gamma + 1)
            drafted = [TEXT[done + i] if i < accepted else 9 for i in range(gamma)]
            rec.round(drafted, accepted, TEXT[done : done + accepted + 1], time=now)
            done, now = done + accepted + 1, now + MS // 2
    return read_traces(path).traces[0]


def plain(path: Path) -> Trace:
    return loop(path, [0] * len(TEXT), gamma=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def test_a_recorded_loops_own_times_answer_for_another_draft_length(path):
    """Case 22: 7 drafts of 1.5 ms, a verification of 9 ms for 8 rows and of 6 ms for 1."""
    trace, baseline = loop(path), plain(path.with_name("plain.jsonl"))
    own = own_times(trace, baseline)
    assert own.drafter is not None
    assert (own.drafter.us, own.target.us) == pytest.approx((1500, 9000))
    assert own.target.more == pytest.approx(3000 / 7)
    assert own.after == pytest.approx(500, abs=60)
    result = what_if(trace, Change(config={"gamma": 2}, plain=baseline))
    assert result.plain is not None
    assert result.error is not None
    found, known = measure(result.replay), measure(baseline)
    round_ms = 2 * 1.5 + 6 + 6 / 7 + own.after / 1e3
    assert found.decode_seconds == pytest.approx(found.target_forwards * round_ms / 1e3, rel=0.02)
    assert measure(result.plain).decode_seconds == pytest.approx(known.decode_seconds, rel=0.02)
    assert abs(result.error.share) < NEAR
    said = " ".join(sentences(result))
    for words in (
        "From this run's own times: 9.0 ms per target forward (the mean of 10; 8 rows, 0.43 ms each",
        "1.5 ms per drafter forward (the mean of 70; 1 row)",
        "an error of",
    ):
        assert words in said
    assert "another clock" not in said
    times = facts(result)["own_times"]
    assert (times["target"]["ms"], times["error"]) == (pytest.approx(9.0), result.error.share)
    run = trace.header.run_id
    assert result.replay.header.clock == f"what-if of {run} · virtual · own times of {run} · recorded"


def test_the_rows_of_a_mixture_share_experts(path):
    """Of 8 rows a verification takes 9 ms, of one 6. If a row chooses 1 of 4 experts, 3 rows
    take as much of the 3 ms as they read of the experts."""
    trace, baseline = loop(path), plain(path.with_name("plain.jsonl"))
    verified = [span for span in trace.spans if span.kind == "verify"]
    reads = [Routed(span.id, round(1e6 * (1 - 0.75**span.rows)), 10**6) for span in verified]
    mixed = replace(trace, routed=reads)
    target = own_times(mixed, baseline).target
    assert target.chosen == pytest.approx(0.25, abs=1e-5)
    assert (target(1, 0, 1), target(8, 0, 1)) == pytest.approx((6000, 9000))
    three = 6000 + 3000 * (0.75 - 0.75**3) / (0.75 - 0.75**8)
    assert target(3, 0, 1) == pytest.approx(three, rel=1e-4)
    rates = rates_of(mixed, measure(mixed), baseline)
    assert rates is not None
    assert 1e6 * seconds_at(rates.probe.verify, 3) == pytest.approx(three, rel=1e-3), (
        "for the best draft length"
    )
    change = Change(config={"gamma": 2}, plain=baseline)
    dense, shared = (measure(what_if(t, change).replay).decode_seconds for t in (trace, mixed))
    assert shared > 1.05 * dense, "the first further rows cost most"
    assert "ms each further row that shares no expert" in " ".join(sentences(what_if(mixed, change)))


@pytest.mark.parametrize("held", [8, 0])
def test_forwards_that_read_all_experts_tell_nothing_of_a_rows_share(path, held):
    trace, baseline = loop(path), plain(path.with_name("plain.jsonl"))
    whole = replace(
        trace, routed=[Routed(span.id, held, held) for span in trace.spans if span.kind == "verify"]
    )
    for other in (None, baseline):
        assert own_times(whole, other) == own_times(trace, other)
        assert rates_of(whole, measure(whole), other) == rates_of(trace, measure(trace), other)


def test_rows_that_cost_an_unknown_time_are_named(path):
    result = what_if(loop(path), Change(config={"gamma": 2}))
    said = " ".join(sentences(result))
    assert "a target forward of other rows is taken to need the same time" in said
    assert "named with --plain" in said
    assert result.error is not None
    assert abs(result.error.share) < NEAR


@pytest.mark.parametrize("runtime", ["local-thread", "local-process"])
def test_own_settings_of_a_measured_run_come_out_near_its_time(runtime: str):
    """In turns the mean forwards add up to the run, on a busy machine, too."""
    with specscope.open("bundled", runtime=runtime) as cluster:
        run = {"limits": specscope.Limits(24)}
        baseline = cluster.run("autoregressive", "Once upon a time", **run)
        for method, config in (("speculative", {"gamma": 3}), ("tree", {"width": 2})):
            trace = cluster.run(method, "Once upon a time", config=config, **run)
            result = what_if(trace, Change(plain=baseline))
            assert result.error is not None
            assert abs(result.error.share) < NEAR
            assert result.replay.header.clock.endswith("· measured")
        at_once = cluster.run("pearl", "Once upon a time", config={"gamma": 3}, **run)
    error = what_if(at_once, Change()).error
    assert error is not None
    assert abs(error.share) < 0.5  # a mean forward is shorter than the later one of two
    shorter = what_if(trace, Change(method="speculative", config={"gamma": 1}, plain=baseline))
    assert shorter.replay.header.config["gamma"] == 1
    assert shorter.plain is not None


@pytest.mark.parametrize(
    ("given", "change", "message"),
    [
        ({"once": True}, Change(), "drafts several tokens in one forward"),
        ({"draft_ms": 0}, Change(), "has no times of a drafter's forwards, which speculative needs"),
        ({}, Change(method="pearl"), "need 2 GPUs; the profile own times of"),
        (
            {},
            Change(method="pearl", config={"placement": "pipeline"}),
            "has times of whole forwards, and pearl",
        ),
        ({}, Change(method="eagle"), "drafts with a head"),
    ],
)
def test_what_own_times_do_not_say_is_refused(path, given, change, message):
    with pytest.raises(UsageError, match=message) as error:
        what_if(loop(path, **given), change)
    assert "\n" not in str(error.value)


def test_runs_without_times_or_under_load_need_a_profile(path):
    trace = loop(path)
    *others, last = trace.spans
    for spans in (
        [],
        [*others, replace(last, kind="prefill", step=0)],
        [replace(s, end=s.start) for s in trace.spans],
    ):
        with pytest.raises(UsageError, match=r"no times of its target's forwards: name a cluster .* --pr"):
            what_if(replace(trace, spans=spans), Change())
    environment = {**trace.header.environment, "load": {"arrivals": [0], "batch": 1}}
    with pytest.raises(UsageError, match=r"is under load, .* --profile"):
        what_if(with_header(trace, environment=environment), Change())


def test_rows_that_a_recording_does_not_know_cost_the_same(path):
    own = own_times(loop(path, rows=False), plain(path.with_name("plain.jsonl")))
    assert (own.target.more, own.target.known) == (0, False)


def test_more_devices_have_names_of_their_own(path):
    result = what_if(loop(path), Change(method="dsi", devices=4))
    names = [device.name for device in result.replay.header.devices]
    assert len({*names}) == len(names) > 1


def test_a_replay_with_the_imported_draft_length_has_the_files_rounds():
    trace = read_traces(FILES / "vllm.jsonl").traces[0]
    replay = what_if(trace, Change(profile=PROFILE)).replay
    first, *others = [(r.drafted, r.accepted) for r in trace.rounds]
    assert first
    assert [r.accepted for r in replay.rounds][-len(others) :] == [accepted for _, accepted in others]
    assert replay.token_ids() == trace.token_ids()
    assert replay.header.prompt_ids == trace.header.prompt_ids
    assert [c.position for c in replay.commits] == [c.position for c in trace.commits]
    assert "imported" not in replay.header.environment


def test_unknown_ids_and_prompts_are_assumed_in_words():
    trace = read_traces(FILES / "vllm.jsonl").traces[1]
    result = what_if(trace, Change(method="pearl", profile=PROFILE))
    assert result.notes[:2] == (
        "The prompt is unknown: its length is taken as one token.",
        "The token ids are unknown: nothing can be copied from the text.",
    )
    assert [note[:27] for note in result.notes[2:]] == ["Drawn at the recorded rates"]
    assert result.replay.token_ids() == [NO_TOKEN] * 5
    assert {c.text for c in result.replay.commits} == {f"{UNKNOWN_TEXT} "}


@pytest.mark.parametrize("file", ["speculation_profile.json", "sglang.json"])
def test_counts_are_replayed_in_a_drawn_order(file: str):
    trace = read_traces(FILES / file).traces[0]
    result = what_if(trace, Change(profile=PROFILE))
    assert result.decided == 0 < result.drawn
    assert any("the order is drawn" in note for note in result.notes)
    assert len(result.replay.commits) == len(read(trace).outputs[0].tokens)
    assert result.replay.header.prompts == ("",)


def test_a_long_profile_is_a_sample_of_its_verifications():
    trace = read_traces(FILES / "speculation_profile.json").traces[0]
    entry = dict(trace.header.environment["imported"])
    counts = dict(entry["counts"], histogram=[n * 1000 for n in entry["counts"]["histogram"]])
    recording = read(with_header(trace, environment={"imported": {**entry, "counts": counts}}))
    assert any("256 are drawn" in note for note in recording.notes)
