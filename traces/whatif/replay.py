"""Replays of a recording: the methods' own code on a virtual cluster, with recorded tokens."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import specscope
from specscope.engine.drafting.suffix import Finished
from specscope.engine.errors import UsageError, shown
from specscope.engine.methods import BASELINE, METHODS, find
from specscope.engine.run.policies import FIXED
from specscope.engine.sampling.draws import TOP
from specscope.engine.simulate.profile import Profile, profiles
from specscope.engine.simulate.records import MOST_GPUS
from specscope.engine.types import check_range
from specscope.traces.requests import load_of
from specscope.traces.view.tokens import has_trees
from specscope.traces.whatif.recording import longest_draft, read
from specscope.traces.whatif.retimed import check, is_kept, kept, retimed
from specscope.traces.whatif.rules import FIRST, way_of
from specscope.traces.whatif.script import script_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specscope.engine.methods import Method
    from specscope.engine.run.serving import Load
    from specscope.engine.trace.events import Decision, Header
    from specscope.engine.trace.trace import Trace
    from specscope.traces.whatif.recording import Recording

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

    @property
    def traces(self) -> tuple[Trace, ...]:
        return (self.replay,) if self.plain is None else (self.replay, self.plain)


def what_if(trace: Trace, change: Change) -> WhatIf:
    """Replay a stored run, SpecScope's own or imported, under other settings in virtual time.

    Raises:
        UsageError: A setting is wrong, the run has not ended, or it cannot drive the method.
    """
    began = time.perf_counter()
    method, config = _method(trace, change)
    again = is_kept(trace, method, change.config)
    recording = read(trace, None if again else way_of(asdict(method.configure(config))))
    profile, pair = _cluster(trace.header, change)
    if again:
        config = trace.header.config
        check(trace, method.layout(method.configure(config)))
    else:
        _check(recording, method, config)
    script = script_of(recording)
    plain: Trace | None = None
    with specscope.open(
        script.pair, runtime="virtual", profile=profile, profile_pair=pair, tokens=script.tokens
    ) as cluster:
        load = _load(trace.header)
        options: dict[str, Any] = {"limits": script.limits, "load": load}
        key, settings = (BASELINE, {}) if load else _baseline(method, config, len(script.prompts))
        if (key, settings) != (method.key, config):
            fixed = replace(load, policy=FIXED) if load else None
            asked: dict[str, Any] = {"config": settings, "limits": script.limits, "load": fixed}
            plain = script.restored(cluster.run(key, *script.prompts, **asked))
        if again and plain:
            layout = method.layout(method.configure(config))
            replay = retimed(trace, layout, cluster, profile.latency(pair), plain.header)
        else:
            options["finished"] = Finished(script.finished)
            replay = script.restored(cluster.run(method.key, *script.prompts, config=config, **options))
            _check_drafts(recording, replay)
    decided, drawn, differs = (
        (sum(map(_is_test, replay.decisions)), 0, None) if again else _outcome(recording, replay)
    )
    notes = (*recording.notes, *(kept(trace) if again else _assumptions(recording, replay, differs)))
    facts = {"run": trace.header.run_id, "decided": decided, "drawn": drawn, "notes": [*notes]}
    group = uuid.uuid4().hex[:12]
    for rows in filter(None, (replay, plain)):
        environment = {**rows.header.environment, "whatif": facts}
        rows.header = replace(rows.header, environment=environment, group=group)
    return WhatIf(trace, replay, plain, decided, drawn, differs, notes, time.perf_counter() - began)


def _method(trace: Trace, change: Change) -> tuple[Method, dict[str, Any]]:
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
        config = {"gamma": min(32, max(1, longest_draft(trace))), **config}
    return method, config


def _load(header: Header) -> Load | None:
    from specscope.engine.run.serving import Load

    known = load_of(header)
    if known is None:
        return None
    return Load(tuple(t / 1e9 for t in known.arrivals), known.batch, known.chunk, known.policy)


def _cluster(header: Header, change: Change) -> tuple[Profile, str | None]:
    if not change.profile and header.profile not in profiles():  # never a file that a trace names
        what = f"of the profile {shown(header.profile)}" if header.virtual else header.clock.partition(" ")[0]
        raise UsageError(
            f"run {header.run_id} is {what}: name a cluster for the what-if with --profile, "
            "such as pearl-4xA100, or this machine's own from `specscope calibrate`"
        )
    same = change.profile in ("", header.profile)
    recorded = header.environment.get("profile_pair") if same else None
    profile = Profile.load(change.profile or header.profile)
    if change.devices:
        check_range("devices", change.devices, 1, MOST_GPUS)
        kept = profile.gpus[: change.devices]
        more = (f"gpu{i}" for i in range(len(kept), change.devices))
        profile = replace(profile, name=f"{profile.name} with {change.devices} devices", gpus=(*kept, *more))
    return profile, change.profile_pair or recorded


def _check(recording: Recording, method: Method, config: Mapping[str, Any]) -> None:
    cfg = method.configure(config)
    layout = method.layout(cfg)
    if layout.head:
        raise UsageError(
            f"{method.key} drafts with a head, which reads hidden states; {recording.name} has none: "
            "choose a method with a drafter, or one that copies, or a run of this method with its own settings"
        )
    if layout.needs_drafter and not recording.rates.known:
        raise UsageError(
            f"{recording.name} tested no draft of a drafter, so {method.key} has none to replay: "
            "record a method with a drafter"
        )
    plain = bool(method.plain) and all(getattr(cfg, name) == value for name, value in method.plain.items())
    copies = not (layout.needs_drafter or method.baseline or plain)
    if copies and not recording.has_ids:
        raise UsageError(
            f"{method.key} copies from the text, and the token ids of {recording.name} are unknown: "
            "choose a method with a drafter"
        )
    for s in method.settings():
        if s.free_text and not s.default and getattr(cfg, s.name):  # a document
            raise UsageError(f"{s.name} is a text, and a recording has no tokenizer: leave it empty")


def _baseline(method: Method, config: Mapping[str, Any], sequences: int) -> tuple[str, dict[str, Any]]:
    if sequences > 1:
        return method.key, {**config, **method.plain}
    return BASELINE, {}


# The result.


def _check_drafts(recording: Recording, replay: Trace) -> None:
    title = replay.header.title
    if replay.pooled:
        raise UsageError(
            f"{title} drafts n-grams that the models write beside the text; {recording.name} has only the text: "
            "choose another method"
        )
    bounds = [name for name in ("confidence", "threshold") if replay.header.config.get(name)]
    if bounds and not any(test.q for output in recording.outputs for test in output.tests.values()):
        raise UsageError(
            f"{title} ends a draft at an uncertain token, and {recording.name} has no probabilities of its drafts: "
            f"choose settings without a {bounds[0]}, or another method"
        )
    if replay.forks and not recording.has_ranks:
        raise UsageError(
            f"{title} guesses the target's own tokens, and {recording.name} has no ranks of tokens that were not drafted: "
            "choose another method, or a run at temperature 0"
        )
    if has_trees(replay.decisions) and not recording.has_ranks:
        raise UsageError(
            f"{title} drafts trees, and {recording.name} has no ranks of tokens that were not drafted: choose a chain, "
            "such as width 1, another method, a run at temperature 0, or one of such trees with its own settings"
        )


def _outcome(recording: Recording, replay: Trace) -> tuple[int, int, int | None]:
    """Return the numbers of `_tests`, and the index of a first token with other draws."""
    same = _same_text(recording, replay)
    return *_tests(recording, replay, same), min((i for i in same if i is not None), default=None)


def _tests(recording: Recording, replay: Trace, same: Sequence[int | None]) -> tuple[int, int]:
    """Return how many tests of drafts the recording decided, and how many were drawn.

    A draft without a drafter's span is copied, and the text decides about it. On tokens that a real
    run would draw anew, nothing is decided.
    """
    decided, tested = 0, [d for d in replay.decisions if _is_test(d)]
    for d in tested:
        output, end = recording.outputs[d.sequence], same[d.sequence]
        index = d.position - len(output.prompt)
        known = d.draft_span < 0 or (recording.old == recording.new and index in output.tests)
        decided += known and (end is None or index < end)
    return decided, len(tested) - decided


def _same_text(recording: Recording, replay: Trace) -> list[int | None]:
    """Return the index of the first token of each output that a real run would draw anew, or None.

    A token has the same draws if both runs test a draft for it by rule 1, or neither does.
    """
    ratio = [
        {
            (d.sequence, d.position - len(recording.outputs[d.sequence].prompt))
            for d in trace.decisions
            if _is_test(d) and rule(d) == "ratio"
        }
        for trace, rule in (
            (recording.trace, lambda d: d.rule),
            (replay, lambda d: recording.new.rule if recording.new and d.draft_span >= 0 else FIRST),
        )
    ]
    changed = ratio[0] ^ ratio[1]
    return [
        min((i for s, i in changed if s == number and i < len(output.tokens)), default=None)
        for number, output in enumerate(recording.outputs)
    ]


def _is_test(d: Decision) -> bool:
    return d.node >= 0 and d.outcome in ("accepted", "rejected")


def _assumptions(recording: Recording, replay: Trace, differs: int | None) -> Iterator[str]:
    if differs is not None:
        yield (
            f"A real run would draw another text from token {differs + 1} on: the recorded text is one sample, and so "
            "are the outcomes of its drafts."
        )
    if recording.old != recording.new:
        yield (
            "The acceptance rule or the drafting is another one: agreement is drawn from the recorded p and q."
        )
    was, now = recording.trace.header.config, replay.header.config
    if recording.trace.header.method == replay.header.method and (
        anew := [n for n in recording.trace.header.environment.get("open", ()) if was.get(n) != now.get(n)]
    ):
        yield f"Planned anew: {', '.join(f'{n} {now.get(n)} (recorded {was.get(n)})' for n in anew)}."
    if has_trees(replay.decisions):
        yield (
            f"Siblings are the drafter's next choices where the run tested a draft, at most {TOP - 1}; elsewhere there are none."
        )
    if replay.parts and not recording.trace.parts:
        yield "A layer-parallel drafter drafts worse than the recorded one; its drafts are taken as recorded."
