"""A what-if under a run's own settings is the run, for every method, or says what it drew."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import specscope
from specscope.engine.errors import UsageError
from specscope.engine.methods import METHODS
from specscope.engine.run.serving import Load
from specscope.engine.simulate.profile import FOLDER
from specscope.engine.trace.trace import Trace
from specscope.traces.metrics import measure
from specscope.traces.whatif.replay import Change, WhatIf, what_if
from specscope.traces.whatif.rules import recorded_way, way_of

PROFILE = "pearl-4xA100"
PROMPTS = ("Explain gravity.", "Tell me a story.", "Hi")
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "assisted": [{"schedule": "constant"}, {"drafts": "greedy"}],
    "dsi": [{"acceptance": "rejection"}, {"drafts": "sampled"}],
    "ems": [{"base": "speculative"}],
    "hybrid": [{"weigh": "seconds", "offset": 2.0}],
    "medusa": [{"acceptance": "typical"}],
    "pearl": [
        {"schedule": "threshold"},
        {"schedule": "average", "off_below": 0.6, "gamma": 4},
        {"placement": "co-located"},
        {"placement": "pipeline"},
    ],
    "specbranch": [{"drafts": "greedy"}, {"branches": 1}, {"placement": "co-located", "threshold": 0.7}],
    "speculative": [
        {"drafts": "greedy"},
        {"schedule": "threshold", "confidence": 0.6},
        {"schedule": "average", "off_below": 0.6},
    ],
    "ssd": [{"backup": "none"}, {"schedule": "threshold"}, {"saguaro": 0.5, "fanout": "geometric"}],
    "tree": [{"drafts": "greedy"}],
}
CASES = [(key, config) for key in METHODS for config in ({}, *SETTINGS.get(key, ()))]
SAMPLING = [
    specscope.Sampling(0.0),
    specscope.Sampling(1.0, seed=1),
    specscope.Sampling(0.7, top_k=3, top_p=0.9, seed=2),
]
LIMITS = specscope.Limits(24)


@cache
def cluster(profile: str = PROFILE) -> specscope.Cluster:
    return specscope.open("bundled", runtime="virtual", profile=profile)


@pytest.fixture(scope="module", autouse=True)
def close() -> Any:
    yield
    cluster().close()
    cluster.cache_clear()


def same_rows(result: WhatIf, trace: Trace) -> bool:
    replay = result.replay
    rows = ("spans", "rounds", "commits", "copies", "chains", "forecasts")
    return all(getattr(replay, name) == getattr(trace, name) for name in rows) and (
        measure(replay) == measure(trace)
    )


@pytest.mark.parametrize("sampling", SAMPLING, ids=lambda s: f"T {s.temperature}")
@pytest.mark.parametrize(("method", "config"), CASES, ids=str)
def test_under_its_own_settings_a_run_is_repeated(
    method: str, config: dict[str, Any], sampling: specscope.Sampling
):
    trace = cluster().run(method, PROMPTS[0], config=config, sampling=sampling, limits=LIMITS)
    result = what_if(trace, Change())
    assert same_rows(result, trace)
    assert (result.drawn, result.differs) == (0, None)
    assert result.notes == ("Nothing is changed: the rows and times are those of the run.",)
    assert result.replay.header.run_id != trace.header.run_id


@pytest.mark.parametrize("sampling", SAMPLING, ids=lambda s: f"T {s.temperature}")
@pytest.mark.parametrize(("method", "config"), CASES, ids=str)
def test_on_a_like_cluster_a_run_is_repeated_by_replaying_it(
    method: str, config: dict[str, Any], sampling: specscope.Sampling, tmp_path: Path
):
    """A copy of the profile has another name: times are computed, chains drafted again."""
    profile = copied_profile(tmp_path)
    trace = cluster().run(method, PROMPTS[0], config=config, sampling=sampling, limits=LIMITS)
    with refused(trace) if XX else nullcontext():
def copied_profile(folder: Path) -> str:
    text = (FOLDER / f"{PROFILE}.toml").read_text(encoding="utf-8")
    path = folder / "mine.toml"
    path.write_text(text.replace(f'name = "{PROFILE}"', 'name = "mine"', 1), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_several_requests_are_repeated(method: str, temperature: float):
    load = Load((0.0, 0.1, 0.5), batch=2, chunk=16)
    options: dict[str, Any] = {"sampling": specscope.Sampling(temperature, seed=3), "limits": LIMITS}
    runs = list[Trace]()
    for more in ({}, {"load": load}):
        try:
            runs.append(cluster().run(method, *PROMPTS, **options, **more))
        except UsageError:
            continue
    for trace in runs:
        result = what_if(trace, Change())
        assert same_rows(result, trace)
        assert result.replay.header.environment["whatif"]["run"] == trace.header.run_id
    assert runs or method in ("dsi", "ssd")
