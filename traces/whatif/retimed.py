"""Runs of drafting heads, token trees and n-grams, timed anew: forwards, rounds and tokens stay.

A head reads hidden states, a tree holds tokens that a recording has no ranks of, and n-grams come
from tokens beside the text, so none can be drafted again. But drafter and target take turns: a
forward begins when the one before it ends, and its time depends on what its span records: its kind,
model, rows and cached rows.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from specscope.engine.errors import UsageError
from specscope.engine.layout import Colocated, Layout, Separate
from specscope.engine.trace.events import AFTER, Span
from specscope.traces.facts.imported import origin
from specscope.traces.facts.places import has_trees

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from specscope.engine.cluster.session import Cluster
    from specscope.engine.heads.work import Work
    from specscope.engine.methods import Method
    from specscope.engine.simulate.latency import Latency
    from specscope.engine.simulate.profile import Profile
    from specscope.engine.trace.events import Header
    from specscope.engine.trace.trace import Trace

    Works: TypeAlias = Callable[[int, int], Work]
    """(levels of the draft, number of the draft's forward) -> the work of a head's forward."""


def has_own_settings(trace: Trace, method: Method, changed: Mapping[str, Any]) -> bool:
    """Return whether a replay has the recorded settings; `changed` are those that were given."""
    header = trace.header
    if method.key != header.method or origin(header) is not None:
        return False
    recorded = method.configure(header.config)
    return asdict(method.configure({**header.config, **changed})) == asdict(recorded)


def has_own_times(trace: Trace, layout: Layout, profile: Profile, pair: str | None) -> bool:
    """Return whether a profile is the run's, and gives its forwards the times that they had.

    Times of a batch do not follow from their span, nor those of models that share a device.
    """
    header = trace.header
    if not header.virtual or (profile.name, pair) != (header.profile, header.environment.get("profile_pair")):
        return False
    latency, known = profile.latency(pair), defaultdict[str, bool](bool)
    fixed = {"sample": latency.sample_us, "communicate": latency.communicate_us}
    for span in trace.spans:
        if span.kind in fixed:
            us, what = fixed[span.kind], span.kind
        elif not span.rows or (layout.head and span.model == "drafter"):
            continue
        else:
            us, what = latency(span.model, span.rows, span.context), span.model
        known[what] |= span.end - span.start == 1000 * us
    each = all if isinstance(layout.arrangement, Separate) else any
    return each(known.values())


def is_kept(trace: Trace, method: Method) -> bool:
    """Return whether a run with the recorded settings cannot be drafted again."""
    head = method.layout(method.configure(trace.header.config)).head
    return bool(head or trace.pooled) or has_trees(trace.decisions)


def repeated(trace: Trace, plain: Trace | None) -> Trace:
    """Return the run as a run of its own, which `plain` decoding of its tokens compares with."""
    header = trace.header
    source = {name: plain.header.environment[name] for name in ("tokens", "pair")} if plain else {}
    environment = {**header.environment, **source}
    return replace(trace, header=replace(header, run_id=uuid.uuid4().hex[:12], environment=environment))


def check_times(trace: Trace, layout: Layout) -> None:
    """Raise UsageError unless the times of a run follow from its spans."""
    header, found = trace.header, layout.arrangement
    what = f"run {header.run_id} drafts with a head or trees"
    if len(header.prompt_ids) > 1 or "load" in header.environment:
        raise UsageError(
            f"{what} for several prompts, and a trace does not say which of them share a forward: "
            "choose a run of one prompt without a load"
        )
    at_once = isinstance(found, Separate) and found.drafters and not found.turns
    if at_once or isinstance(found, Colocated):
        raise UsageError(
            f"{what} while the target verifies, so its spans do not give times elsewhere: choose a run whose models "
            "take turns"
        )
    in_turn = isinstance(found, Separate) and found.targets == 1
    places = {(span.model, span.device) for span in trace.spans}
    if not in_turn or len(places) > len({model for model, _ in places}):
        raise UsageError(
            f"{what}, and several devices share a model, so its spans do not give times elsewhere: "
            "choose a run with each model on one device"
        )
    if any(span.step == 0 and span.kind != "prefill" for span in trace.spans):
        raise UsageError(
            f"{what}, and its drafter got the prompt's KV cache from the target, which a profile does not time: "
            "choose a run with a drafter that reads the prompt"
        )
    if layout.head and "head" not in header.environment:
        raise UsageError(f"{what}, and does not name its head, whose size decides its times: record it again")


def retimed(trace: Trace, layout: Layout, cluster: Cluster, latency: Latency, plain: Header) -> Trace:
    """Return a run that `check_times` accepts with the times that a virtual cluster gives it.

    `plain` is the header of a replay of plain decoding on this cluster.
    """
    from specscope.engine.cluster.assignment import labelled_devices

    header = trace.header
    assigned = {model: each for model, each in cluster.placement.pool.assign(layout).items() if each}
    works = _works(Path(header.environment["head"])) if layout.head else None
    if works is not None:
        assigned["drafter"] = assigned["target"]
    places = {model: each[0].devices[0].name for model, each in assigned.items()}
    spans = _spans(trace, latency, places, works)
    ends = defaultdict[int, int](int)
    for span in spans:
        ends[span.step] = max(ends[span.step], span.end)
    planned = {name: header.environment[name] for name in ("open",) if name in header.environment}
    new = replace(
        header,
        run_id=uuid.uuid4().hex[:12],
        created=plain.created,
        runtime=plain.runtime,
        profile=plain.profile,
        devices=labelled_devices(assigned, ["drafter"] * len(assigned.get("drafter", ()))),
        environment={**plain.environment, **planned},
    )
    return replace(
        trace,
        header=new,
        spans=spans,
        rounds=[replace(r, time=ends[r.step]) for r in trace.rounds],
        commits=[replace(c, time=ends[c.step]) for c in trace.commits],
        occupancy=[],
        footer=trace.footer and replace(trace.footer, time=max(ends.values(), default=0)),
    )


def _works(path: Path) -> Works:
    from specscope.engine.heads.files import check_head
    from specscope.engine.heads.kinds import KINDS

    config = check_head(path)
    return lambda levels, number: KINDS[config.kind].work(config, levels, number)


def _spans(trace: Trace, latency: Latency, places: Mapping[str, str], works: Works | None) -> list[Span]:
    levels, forwards = _levels(trace), defaultdict[int, int](int)
    spans, free = list[Span](), dict[str, int]()
    for span in _with_messages(trace):
        device = places[span.model]
        if span.kind in AFTER:
            us = latency.sample_us if span.kind == "sample" else latency.communicate_us
        elif works is not None and span.model == "drafter":
            work = works(levels.get(span.step, 1), forwards[span.step])
            us = latency.head(work, span.rows, span.context)
            forwards[span.step] += span.kind == "draft"
        else:
            us = latency(span.model, span.rows, span.context)
        # only prefills run at once
        start = max(free.values(), default=0) if span.step else free.get(device, 0)
        free[device] = start + 1000 * us
        spans.append(replace(span, device=device, start=start, end=free[device]))
    return spans


def _with_messages(trace: Trace) -> Iterator[Span]:
    """Yield the spans in order; before each judgement a message, which measured runs do not have.

    As in a virtual run, their ids follow the forward's, and plain decoding has neither.
    """
    forward = 0
    for span in sorted(trace.spans, key=lambda span: span.id):
        if span.kind == "sample" and span.rows:
            yield replace(span, id=forward + 1, kind="communicate")
            yield replace(span, id=forward + 2)
        elif span.kind not in AFTER:
            forward = span.id
            yield span


def _levels(trace: Trace) -> dict[int, int]:
    positions = defaultdict[int, list[int]](list)
    for d in trace.decisions:
        if d.node >= 0 or d.outcome == "discarded":
            positions[d.step].append(d.position)
    return {step: max(found) - min(found) + 1 for step, found in positions.items()}
