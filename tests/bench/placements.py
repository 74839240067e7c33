"""PEARL with shared devices over PEARL with separate devices, as in its Tables 8, 17 and 18.

`python -m tests.bench.placements [--profile NAME] [--quick] [--json]`: measured on this machine, or
in virtual time on the pairs of a profile. `specscope papers` has the published figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import specscope
from specscope.app.bench import speed
from specscope.app.bench.figures import FULL, QUICK, Figure, Note, Plan
from specscope.app.bench.speed import Race
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import UsageError
from specscope.engine.simulate.profile import Profile
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits
from specscope.traces.metrics import measure as metrics
from tests.bench import script

if TYPE_CHECKING:
    from specscope import Cluster

ALONE = "separate"
MAX_STAGES = 16
"""Upper bound of the method's setting `stages`."""


def places(cluster: Cluster) -> dict[str, dict[str, Any]]:
    most = min(MAX_STAGES, cluster.placement.pool.stage_limits().devices)
    settings: dict[str, dict[str, Any]] = {ALONE: {}, "co-located": {"placement": "co-located"}}
    for stages in sorted({cluster.stages(0), *([most] if cluster.placement.profile else [])}):
        settings[f"pipeline, {stages} stages"] = {"placement": "pipeline", "stages": stages}
    return settings


def measured(plan: Plan, note: Note) -> dict[str, Figure]:
    pair = Pair.find()
    note("placements")
    with specscope.open(pair, runtime="local-process", device="cpu") as workers:
        traces: dict[str, list[Trace]] = {name: [] for name in places(workers)}
        contestants = {
            name: speed.decode(workers, plan, "pearl", traces[name], **config)
            for name, config in places(workers).items()
        }
        prompts = [pair.encode(question) for question in plan.questions()]
        race = Race(contestants, prompts).run(plan.rounds, plan.seconds, lambda: note(""))
    return {
        name: _figure(race.ratio(name, ALONE), race.speed(name), traces[name], race.same(name, ALONE))
        for name in contestants
    }


def virtual(profile: str, plan: Plan, note: Note) -> tuple[dict[str, Figure], dict[str, str]]:
    """Decode the bench's prompts on the clusters of a profile's pairs.

    The second value is the reason why a pair has no figures, by pair.
    """
    figures, left_out = dict[str, Figure](), dict[str, str]()
    for key in Profile.load(profile).pairs:
        note(key)
        try:
            with specscope.open("bundled", runtime="virtual", profile=profile, profile_pair=key) as cluster:
                rows = _virtual(cluster, plan)
        except UsageError as error:
            left_out[key] = str(error)
        else:
            figures |= {f"{key} {name}": figure for name, figure in rows.items()}
    return figures, left_out


def _virtual(cluster: Cluster, plan: Plan) -> dict[str, Figure]:
    limits = Limits(plan.new_tokens)
    traces = {
        name: [cluster.run("pearl", text, config=config, limits=limits) for text in plan.questions()]
        for name, config in places(cluster).items()
    }
    alone = traces[ALONE]
    return {
        name: _figure(
            tuple(decoding_speed(a) / decoding_speed(b) for a, b in zip(runs, alone, strict=True)),
            decoding_speed(*runs),
            runs,
            all(a.token_ids() == b.token_ids() for a, b in zip(runs, alone, strict=True)),
        )
        for name, runs in traces.items()
    }


def _figure(
    ratios: tuple[float, ...], tokens_per_second: float, traces: Sequence[Trace], same: bool
) -> Figure:
    header = traces[0].header
    detail = {
        "same_tokens": same,
        "tokens_per_second": round(tokens_per_second, 2),
        "gamma": header.config["gamma"],
        "devices": [device.name for device in header.devices],
    }
    return Figure(ratios, f"of {ALONE}" if same else "other tokens: not comparable", same, detail)


def decoding_speed(*traces: Trace) -> float:
    rows = [metrics(trace) for trace in traces]
    return sum(m.tokens for m in rows) / sum(m.decode_seconds or 0.0 for m in rows)


def measure(args: argparse.Namespace, note: Note) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Return the figures; with a profile, also the pairs left out."""
    plan = QUICK if args.quick else FULL
    if not args.profile:
        return measured(plan, note), {}
    figures, left_out = virtual(args.profile, plan, note)
    return figures, {"device": f"virtual · {args.profile}", "left_out": left_out}


if __name__ == "__main__":
    options = script.options(__doc__)
    options.add_argument("--profile", metavar="NAME", help="a latency profile")
    script.main(options, measure, {})
