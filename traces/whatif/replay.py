"""Replays of a recording: the methods' own code on a virtual cluster, with recorded tokens."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import specscope
from specscope.engine.drafting.suffix import Finished
from specscope.engine.errors import UsageError, shown
from specscope.engine.methods import BASELINE, METHODS, find
from specscope.engine.run.policies import FIXED
from specscope.engine.simulate.profile import Profile, profiles
from specscope.engine.simulate.records import MOST_GPUS
from specscope.engine.types import check_range
from specscope.traces.facts.requests import load_of
from specscope.traces.whatif.drawn import Outcome, outcome, unchanged
from specscope.traces.whatif.driven import check_drafts, check_method
from specscope.traces.whatif.own_times import Error, OwnTimes, own_times
from specscope.traces.whatif.own_times import check_method as check_own
from specscope.traces.whatif.recording import longest_draft, read
from specscope.traces.whatif.retimed import (
    check_times,
    has_own_settings,
    has_own_times,
    is_kept,
    repeated,
    retimed,
)
from specscope.traces.whatif.rules import way_of
from specscope.traces.whatif.script import script_of

if TYPE_CHECKING:
    from specscope.engine.cluster.session import Cluster
    from specscope.engine.methods import Method
    from specscope.engine.run.serving import Load
    from specscope.engine.trace.events import Header
    from specscope.engine.trace.trace import Trace
    from specscope.traces.whatif.script import Script

OF_OTHER_ENGINES = "speculative"


@dataclass(frozen=True, slots=True)
class Change:
    """The settings of a what-if; what is not given stays as recorded, what was planned is open."""

    profile: str = ""
    profile_pair: str = ""
    devices: int = 0
    """Devices of the cluster; 0 for the profile's number."""
    method: str = ""
    """Key of a method; another method than the recorded one begins with its default settings."""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    plain: Trace | None = None
    """Plain decoding of the same target, whose forwards serve a run's own times, too."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A replay, and the plain decoding of the same output on the same cluster."""

    recorded: Trace
    replay: Trace
    plain: Trace | None
    decided: int
    drawn: int
    """Tests of drafts that were drawn, from the recorded p and q or at the recorded rates."""
    differs: int | None
    """Index of the first token that a real run would draw anew; None if there is none."""
    notes: tuple[str, ...]
    seconds: float
    own: OwnTimes | None = None
    """The cluster, if it is the run's own times."""
    error: Error | None = None
    """Of these times under the run's own settings; None if these cannot be replayed."""

    @property
    def traces(self) -> tuple[Trace, ...]:
        return (self.replay,) if self.plain is None else (self.replay, self.plain)


def what_if(trace: Trace, change: Change) -> WhatIf:
    """Replay a stored run, SpecScope's own or imported, under other settings in virtual time.

    Raises:
        UsageError: A setting is wrong, the run has not ended, or it cannot drive the method.
    """
    if change.profile or trace.header.virtual:
        return _what_if(trace, change, *_cluster(trace.header, change))
    own = own_times(trace, change.plain)
    check_own(own, *method_of(trace, change))
    result = _what_if(trace, change, _with_devices(own.profile(), change.devices), None)
    notes, error = own.sentences(), None
    try:
        same = _what_if(trace, Change(config=_used(trace)), own.profile(), None)
    except UsageError as refused:
        notes.append(f"The error of these times is unknown: {refused}.")
    else:
        error = Error.of(trace, same.replay)
        notes.append(error.sentence)
    return replace(result, notes=(*notes, *result.notes), own=own, error=error)


def _what_if(trace: Trace, change: Change, profile: Profile, pair: str | None) -> WhatIf:
    began = time.perf_counter()
    method, config = method_of(trace, change)
    own = has_own_settings(trace, method, change.config)
    layout = method.layout(method.configure(trace.header.config if own else config))
    same = own and has_own_times(trace, layout, profile, pair)
    kept = same or (own and is_kept(trace, method))
    recording = read(trace, None if own else way_of(method.configure(config)))
    if kept:
        config = trace.header.config
    else:
        check_method(recording, method, config)
    if kept and not same:
        check_times(trace, layout)
    script = script_of(recording, method)
    with specscope.open(
        script.pair, runtime="virtual", profile=profile, profile_pair=pair, tokens=script.tokens
    ) as cluster:
        plain = _plain(script, cluster, method, config)
        if same:
            replay = repeated(trace, plain)
        elif kept and plain:
            replay = retimed(trace, layout, cluster, profile.latency(pair), plain.header)
        else:
            replay = _replay(script, cluster, method, config)
    found = unchanged(trace, same=same) if kept else outcome(script, replay)
    notes = (*recording.notes, *found.notes)
    group = uuid.uuid4().hex[:12]
    for rows in filter(None, (replay, plain)):
        _mark(rows, trace, found, notes, group)
    seconds = time.perf_counter() - began
    return WhatIf(trace, replay, plain, found.decided, found.drawn, found.differs, notes, seconds)


def replayed(
    trace: Trace, profile: Profile, key: str, config: Mapping[str, Any], context: int, group: str
) -> Trace:
    """Return the replay of a stored run by a method on a cluster, after a prompt of so many tokens.

    Raises:
        UsageError: The run cannot drive the method.
    """
    method = find(key)
    recording = read(trace, way_of(method.configure(config)))
    check_method(recording, method, config)
    script = script_of(recording, method, context)
    with specscope.open(script.pair, runtime="virtual", profile=profile, tokens=script.tokens) as cluster:
        replay = _replay(script, cluster, method, config)
    found = outcome(script, replay)
    _mark(replay, trace, found, (*recording.notes, *found.notes), group)
    return replay


def _replay(script: Script, cluster: Cluster, method: Method, config: Mapping[str, Any]) -> Trace:
    options: dict[str, Any] = {"limits": script.limits, "load": _load(script.recording.trace.header)}
    options["finished"] = Finished(script.finished)
    replay = script.restored(cluster.run(method.key, *script.prompts, config=config, **options))
    check_drafts(script.recording, replay)
    return replay


def _mark(rows: Trace, trace: Trace, found: Outcome, notes: Sequence[str], group: str) -> None:
    """Let a replay say what it is of."""
    facts = {"run": trace.header.run_id, "decided": found.decided, "drawn": found.drawn, "notes": [*notes]}
    rows.header = replace(rows.header, environment={**rows.header.environment, "whatif": facts}, group=group)


def _plain(script: Script, cluster: Cluster, method: Method, config: Mapping[str, Any]) -> Trace | None:
    """Decode the same output plainly; None if the method with these settings does just that."""
    load, sequences = _load(script.recording.trace.header), len(script.prompts)
    key, settings = BASELINE, dict[str, Any]()
    if sequences > 1 and not load:
        key, settings = method.key, {**config, **method.plain}
    if (key, settings) == (method.key, config):
        return None
    fixed = replace(load, policy=FIXED) if load else None
    asked: dict[str, Any] = {"config": settings, "limits": script.limits, "load": fixed}
    return script.restored(cluster.run(key, *script.prompts, **asked))


def method_of(trace: Trace, change: Change) -> tuple[Method, dict[str, Any]]:
    """Return the method and its settings: the recorded ones with the changes."""
    header = trace.header
    known = header.method in METHODS
    method, config = (
        find(change.method or (header.method if known else OF_OTHER_ENGINES)),
        dict(change.config),
    )
    if method.key == header.method:
        config = {**header.config, **header.environment.get("open", {}), **config}
    elif not known and not change.method:
        config = {method.length: min(32, max(1, longest_draft(trace))), **config}
    return method, config


def _load(header: Header) -> Load | None:
    from specscope.engine.run.serving import Load

    known = load_of(header)
    if known is None:
        return None
    return Load(tuple(t / 1e9 for t in known.arrivals), known.batch, known.chunk, known.policy)


def _used(trace: Trace) -> dict[str, Any]:
    """Return the settings of the run itself, planned ones as they were used."""
    return dict(trace.header.config) if trace.header.method in METHODS else {}


def _cluster(header: Header, change: Change) -> tuple[Profile, str | None]:
    if not change.profile and header.profile not in profiles():  # never a file that a trace names
        raise UsageError(
            f"run {header.run_id} is of the profile {shown(header.profile)}: name a cluster for the what-if with "
            "--profile, such as pearl-4xA100, or this machine's own from `specscope calibrate`"
        )
    profile = Profile.load(change.profile or header.profile)
    recorded = header.environment.get("profile_pair") if profile.name == header.profile else None
    return _with_devices(profile, change.devices), change.profile_pair or recorded


def _with_devices(profile: Profile, devices: int) -> Profile:
    if not devices:
        return profile
    check_range("devices", devices, 1, MOST_GPUS)
    kept = profile.gpus[:devices]
    new = [name for i in range(2 * devices) if (name := f"gpu{i}") not in kept]
    more = new[: devices - len(kept)]
    return replace(profile, name=f"{profile.name} with {devices} devices", gpus=(*kept, *more))
