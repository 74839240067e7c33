"""A what-if under a run's own settings is the run, for every method, or says what it drew."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import specscope
from specscope.app.pairs import able
from specscope.engine.errors import ModelError, UsageError
from specscope.engine.methods import METHODS
from specscope.engine.run.serving import Load
from specscope.engine.simulate.profile import FOLDER, Profile
from specscope.engine.trace.trace import Trace
from specscope.traces.facts.comparable import comparisons
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.places import has_trees
from specscope.traces.whatif.replay import Change, WhatIf, what_if
from tests.traces.samples import bundled, with_header

PROFILE = "pearl-4xA100"
PROMPTS = ("Explain gravity.", "Tell me a story.", "Hi")
THRESHOLD, AVERAGE = {"schedule": "threshold"}, {"schedule": "average", "off_below": 0.6}
GREEDY = {"drafts": "greedy"}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "assisted": [{"schedule": "constant"}, GREEDY],
    "dsi": [{"acceptance": "rejection"}, {"drafts": "sampled"}],
    "ems": [{"base": "speculative"}],
    "hybrid": [{"weigh": "seconds", "offset": 2.0}],
    "medusa": [{"acceptance": "typical"}],
    "pearl": [THRESHOLD, {**AVERAGE, "gamma": 4}, *({"placement": p} for p in ("co-located", "pipeline"))],
    "specbranch": [GREEDY, {"branches": 1}, {"placement": "co-located", "threshold": 0.7}],
    "speculative": [GREEDY, {**THRESHOLD, "confidence": 0.6}, AVERAGE],
    "ssd": [{"backup": "none"}, {"forks": 6}, THRESHOLD, {"saguaro": 0.5, "fanout": "geometric"}],
    "tree": [GREEDY],
}
SAMPLING = [
    specscope.Sampling(0.0),
    specscope.Sampling(1.0, seed=1),
    specscope.Sampling(0.7, top_k=3, top_p=0.9, seed=2),
]
SETTINGS_OF_ALL = [(key, config) for key in METHODS for config in SETTINGS.get(key, ())]
CASES = [
    *(
        (key, {}, sampling)
        for i, key in enumerate(able("bundled"))
        for sampling in (SAMPLING[0], SAMPLING[1 + i % 2])
    ),
    *((key, config, SAMPLING[i % 3]) for i, (key, config) in enumerate(SETTINGS_OF_ALL)),
]
"""Each method greedily and sampled; each setting once, with every third of the samplings."""
LIMITS = specscope.Limits(14)
ROWS = ("spans", "rounds", "commits", "copies", "chains", "forecasts", "pooled", "forks")


def check_same(result: WhatIf, trace: Trace) -> None:
    for name in ROWS:
        assert getattr(result.replay, name) == getattr(trace, name), name
    assert measure(result.replay) == measure(trace)
    assert (result.drawn, result.differs) == (0, None)


@pytest.mark.parametrize(("method", "config", "sampling"), CASES, ids=str)
def test_under_its_own_settings_a_run_is_repeated(
    method: str, config: dict[str, Any], sampling: specscope.Sampling, like: str
):
    """Also on a copy of its profile, where times are computed and chains are drafted again."""
    trace = bundled().run(method, PROMPTS[0], config=config, sampling=sampling, limits=LIMITS)
    result = what_if(trace, Change())
    check_same(result, trace)
    assert result.notes == ("Nothing is changed: the rows and times are those of the run.",)
    assert result.replay.header.run_id != trace.header.run_id
    assert result.replay.header.clock == f"what-if of {trace.header.run_id} · {trace.header.clock}"
    if result.plain:
        assert [c.baseline for c in comparisons([[result.replay], [result.plain]])] == [1, 1]
    if method == "specbranch" and has_trees(trace.decisions):
        with pytest.raises(UsageError, match="trees while the target verifies"):
            what_if(trace, Change(profile=like))
        return
    result = what_if(trace, Change(profile=like))
    if any(note.startswith("Drawn from the recorded q") for note in result.notes):
        assert config.get("schedule") or method in ("specbranch", "assisted")
        assert measure(result.replay).decode_seconds == pytest.approx(measure(trace).decode_seconds, rel=0.05)
    else:
        check_same(result, trace)


@pytest.mark.parametrize("method", able("bundled"))
def test_several_requests_are_repeated(method: str):
    """Every second method greedily: which rows are repeated does not depend on the temperature."""
    load = Load((0.0, 0.1, 0.5), batch=2, chunk=16)
    sampling = specscope.Sampling(float(able("bundled").index(method) % 2), seed=3)
    options: dict[str, Any] = {"sampling": sampling, "limits": LIMITS}
    runs = list[Trace]()
    for more in ({}, {"load": load}):
        try:
            runs.append(bundled().run(method, *PROMPTS, **options, **more))
        except UsageError:
            continue
    for trace in runs:
        result = what_if(trace, Change())
        check_same(result, trace)
        assert result.replay.header.environment["whatif"]["run"] == trace.header.run_id
    assert runs or method in ("dsi", "ssd")


def test_the_runs_profile_by_its_path_keeps_the_runs_pair():
    name, pair = "8xA100", "vicuna-7b-alpaca"
    with specscope.open("bundled", runtime="virtual", profile=name, profile_pair=pair) as other:
        trace = other.run("speculative", PROMPTS[0], limits=LIMITS)
    check_same(what_if(trace, Change(profile=str(FOLDER / f"{name}.toml"))), trace)


def test_a_profile_whose_times_have_changed_is_another_cluster(tmp_path: Path):
    text = (FOLDER / f"{PROFILE}.toml").read_text(encoding="utf-8")
    path = tmp_path / f"{PROFILE}.toml"
    path.write_text(text.replace("communicate_ms = ", "communicate_ms = 1", 1), encoding="utf-8")
    trace = bundled().run("speculative", PROMPTS[0], limits=LIMITS)
    changed = Profile.load(str(path))
    assert changed.latency(None).communicate_us != Profile.load(PROFILE).latency(None).communicate_us
    result = what_if(trace, Change(profile=str(path)))
    assert measure(result.replay).decode_seconds > measure(trace).decode_seconds
    assert result.notes == ()


def test_copied_tokens_are_as_easy_for_the_drafter_as_they_are_for_the_target():
    """At the rate of the drafter's own tests the second text was 52 % slower than a real run."""
    limits, errors = specscope.Limits(64), list[float]()
    for prompt in PROMPTS[:2]:
        trace = bundled().run("hybrid", prompt, limits=limits)
        result = what_if(trace, Change(method="speculative", config={"gamma": 5}))
        real = bundled().run("speculative", prompt, config={"gamma": 5}, limits=limits)
        assert result.replay.token_ids() == real.token_ids()
        seconds = [measure(t).decode_seconds or 0 for t in (result.replay, real)]
        errors.append(seconds[0] / seconds[1] - 1)
    assert max(map(abs, errors)) < 0.2, errors


CHANGES = [
    ("speculative", {"gamma": 8}),
    ("speculative", {"schedule": "threshold"}),
    ("pearl", {"gamma": 4}),
    *((method, {}) for method in ("dsi", "hybrid")),
]


@pytest.mark.parametrize(
    ("source", "temperature"),
    [
        ("speculative", 0),
        ("speculative", 1),
        ("pearl", 0),
        ("dsi", 1),
        ("hybrid", 0),
        ("ssd", 1),
        ("specbranch", 0),
    ],
)
def test_every_draw_is_named(source: str, temperature: float):
    sampling = specscope.Sampling(temperature, seed=1)
    trace = bundled().run(source, PROMPTS[0], sampling=sampling, limits=LIMITS)
    names = ("Drawn at the recorded rates", "drawn from the recorded p and q", "another text from token")
    for method, config in CHANGES:
        result = what_if(trace, Change(method=method, config=config))
        text = " ".join(result.notes)
        assert any(name in text for name in names) == bool(result.drawn), (method, text)
        assert result.replay.token_ids() == trace.token_ids()


@cache
def real(method: str, profile: str, temperature: float, load: bool = False, **config: Any) -> Trace:
    """Return a run of the bundled models; without a profile it is measured.

    Each on a new cluster: with rows of an earlier run in its caches the floats differ a little.
    """
    sampling = specscope.Sampling(temperature=temperature, seed=1)
    options = {"sampling": sampling, "limits": specscope.Limits(16), "load": Load((0.0,)) if load else None}
    runtime = "virtual" if profile else "local-thread"
    with specscope.open("bundled", runtime=runtime, profile=profile or None) as cluster:
        return cluster.run(method, "Tell me about the sea", config=config, **options)


HEADS = [
    ("eagle", {"tree": "eagle"}),
    ("eagle2", {"top": 4, "depth": 4, "total": 12}),
    ("hydra", {"tree": "medusa"}),
    ("medusa", {"tree": "medusa"}),
    ("parallelspec_eagle", {"tree": "[[0],[1],[0,0]]"}),
    ("parallelspec_medusa", {"tree": "[[0],[1],[0,0]]", "first": "mask"}),
    ("tree", {"width": 3, "depth": 4}),
    ("easyspec", {"width": 3, "devices": 1}),
]


@pytest.mark.parametrize("source", ["8xA100", PROFILE, ""])
@pytest.mark.parametrize("number", range(len(HEADS)), ids=lambda i: HEADS[i][0])
def test_a_tree_or_head_is_replayed_as_a_real_run_on_the_other_profile(number: int, source: str):
    """Each method greedily and sampled."""
    (method, config), temperature = HEADS[number], float((number + len(source)) % 2)
    expected = real(method, "8xA100", temperature, **config)
    result = what_if(real(method, source, temperature, **config), Change(profile="8xA100"))
    for name in ("spans", "rounds", "commits", "decisions", "footer"):
        assert getattr(result.replay, name) == getattr(expected, name)
    assert result.replay.header.devices == expected.header.devices
    assert measure(result.replay) == measure(expected)
    assert result.drawn == 0 < result.decided
    assert result.plain is not None
    assert result.plain.token_ids() == expected.token_ids()


def test_settings_that_name_the_recorded_values_change_nothing(like: str):
    trace = real("tree", "8xA100", 0.0)
    assert trace.header.environment["open"] == {"width": 0, "depth": 0}
    result = what_if(trace, Change(config={"width": trace.header.config["width"]}, profile=like))
    assert result.replay.spans == what_if(trace, Change(profile=like)).replay.spans
    assert result.notes[-1] == "Not planned anew: width, depth."


def test_what_spans_do_not_time_is_refused_and_a_head_that_is_gone_is_named(like: str):
    trace, head = real("tree", "8xA100", 0.0), real("medusa", "8xA100", 0.0)
    moved = replace(trace.spans[0], kind="communicate")
    ranks = [replace(s, device="gpu7") if s.id % 2 else s for s in trace.spans]
    gone = with_header(head, environment={**head.header.environment, "head": "gone/head"})
    for run, error, message in [
        (real("tree", "8xA100", 0.0, load=True), UsageError, "does not say which of them share a forward"),
        (replace(trace, spans=[moved, *trace.spans[1:]]), UsageError, "KV cache from the target"),
        (replace(trace, spans=ranks), UsageError, "several devices share a model"),
        (real("specbranch", "8xA100", 0.0, threshold=0.9), UsageError, "while the target verifies"),
        (with_header(head, environment={}), UsageError, "does not name its head"),
        (gone, ModelError, "gone/head"),
    ]:
        with pytest.raises(error, match=message):
            what_if(run, Change(profile=like))
    with pytest.raises(UsageError, match="or a run of this method with its own"):
        what_if(head, Change(config={"heads": 1}))


def test_fewer_heads_of_medusa_draft_near_the_end():
    """Their number is not in the span."""
    trace = real("medusa", "8xA100", 0.0, tree="medusa")
    assert len({s.end - s.start for s in trace.spans if s.kind == "draft"}) > 1
    assert what_if(trace, Change()).replay.spans == trace.spans
