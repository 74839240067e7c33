"""The papers' points: speed-ups that a paper prints for a draft length or an acceptance rate.

They are in `assets/papers/points.toml`, with the table of each number. A point belongs to one
method, field, profile and modelled pair. A coordinate that the paper does not give is None.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specscope.engine.simulate.profile import Profile
from specscope.traces.facts.closed_forms import rate_of_share

if TYPE_CHECKING:
    from specscope.traces.lab.sweep import Sweep

FILE = Path(__file__).resolve().parents[2] / "assets" / "papers" / "points.toml"


@dataclass(frozen=True, slots=True)
class Point:
    """One number of a paper."""

    field: str
    value: int | None
    rate: float | None
    speedup: float | None
    source: str
    label: str


def points_of(plan: Sweep, profile: str | None, pair: str | None) -> list[Point]:
    """Return the papers' points that belong to a sweep on a virtual cluster.

    An axis must be the points' field; where acceptance is the other axis, points without a draft
    length count, too. A profile in a file of the user's own has no points; the pair is the
    profile's default if None or empty.
    """
    if not profile or profile not in {series["profile"] for series in _series()}:
        return []
    chosen = pair or Profile.load(profile).default
    names = {plan.columns.name, *([plan.rows.name] if plan.rows else [])}
    place = {"method": plan.method, "profile": profile, "pair": chosen}
    found = [s for s in _series() if s["field"] in names and place.items() <= s.items()]
    every = [_point(series, row) for series in found for row in series["points"]]
    return [p for p in every if plan.scripted or (p.value is not None and p.rate is None)]


@cache
def _series() -> list[dict[str, Any]]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))["series"]


def _point(series: dict[str, Any], row: dict[str, Any]) -> Point:
    value, rate, facts = row.get("value"), row.get("rate"), list[str]()
    if value is not None:
        facts.append(f"{series['field']} {value}")
    if (share := row.get("share")) is not None:
        rate = rate_of_share(share, row["value"])
        facts.append(f"{share:.0%} of the drafted tokens accepted, which is {rate:.3f} for a tested token")
    elif rate is not None:
        facts.append(f"acceptance {rate:g}")
    speedup = None
    if "speed" in row:
        plain, own = row["speed"]
        speedup = own / plain
    elif "seconds" in row:
        plain, own = row["seconds"]
        speedup = plain / own
    if speedup is not None:
        facts.append(f"{speedup:.2f} times plain decoding")
    if "over" in row:
        ratio, other = row["over"]
        facts.append(f"{ratio:.2f} times {other}")
    if value is None:
        facts.append(f"{series['field']} not printed")
    if rate is None:
        facts.append("acceptance not printed")
    facts += filter(None, [series.get("note")])
    source = ", ".join(filter(None, [series["source"], row.get("about", "")]))
    return Point(series["field"], value, rate, speedup, source, f"{source}: {', '.join(facts)}")
