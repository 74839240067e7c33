"""PEARL with shared devices over PEARL with separate devices, as in its Tables 8, 17 and 18.

`python -m tests.bench.placements [--profile NAME] [--quick] [--json]`: measured on this machine, or
in virtual time on the pairs of a profile. `specscope papers` has the published figures.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import specscope
from specscope.app.bench.figures import FULL, QUICK, BenchPlan, Measurement, Note
from specscope.engine.errors import UsageError
from specscope.engine.simulate.profile import Profile
from tests.bench import script

if TYPE_CHECKING:
    from specscope import Cluster

ALONE = "separate"
MAX_STAGES = 16
"""Upper bound of the method's setting `stages`."""


def places(cluster: Cluster) -> dict[str, dict[str, Any]]:
    most = min(MAX_STAGES, len(cluster.placement.pool.devices))
    settings: dict[str, dict[str, Any]] = {ALONE: {}, "co-located": {"placement": "co-located"}}
    for stages in sorted({cluster.stages(0), *([most] if cluster.placement.profile else [])}):
        settings[f"pipeline, {stages} stages"] = {"placement": "pipeline", "stages": stages}
    return settings


def figures_of(cluster: Cluster, plan: BenchPlan, note: Note, *, virtual: bool) -> dict[str, Measurement]:
    contestants = {
        name: script.Contestant(cluster, "pearl", config, []) for name, config in places(cluster).items()
    }
    figures = dict[str, Measurement]()
    for name, found in script.race(contestants, ALONE, plan, note, virtual=virtual).items():
        header = contestants[name].traces[0].header
        detail = {
            "same_tokens": found.same,
            "tokens_per_second": round(found.speed, 2),
            "gamma": header.config["gamma"],
            "devices": [device.name for device in header.devices],
        }
        unit = f"of {ALONE}" if found.same else "other tokens: not comparable"
        figures[name] = Measurement(found.ratios, unit, found.same, detail)
    return figures


def virtual(profile: str, plan: BenchPlan, note: Note) -> tuple[dict[str, Measurement], dict[str, str]]:
    """Decode the bench's prompts on the clusters of a profile's pairs.

    The second value is the reason why a pair has no figures, by pair.
    """
    figures, left_out = dict[str, Measurement](), dict[str, str]()
    for key in Profile.load(profile).pairs:
        note(key)
        try:
            with specscope.open("bundled", runtime="virtual", profile=profile, profile_pair=key) as cluster:
                rows = figures_of(cluster, plan, note, virtual=True)
        except UsageError as error:
            left_out[key] = str(error)
        else:
            figures |= {f"{key} {name}": figure for name, figure in rows.items()}
    return figures, left_out


def measure(args: argparse.Namespace, note: Note) -> tuple[dict[str, Measurement], dict[str, Any]]:
    """Return the figures; with a profile, also the pairs left out."""
    plan = QUICK if args.quick else FULL
    if not args.profile:
        note("placements")
        with specscope.open("bundled", runtime="local-process", device="cpu") as workers:
            return figures_of(workers, plan, note, virtual=False), {}
    figures, left_out = virtual(args.profile, plan, note)
    return figures, {"device": f"virtual · {args.profile}", "left_out": left_out}


if __name__ == "__main__":
    options = script.options(__doc__)
    options.add_argument("--profile", metavar="NAME", help="a latency profile")
    script.main(options, measure, {})
