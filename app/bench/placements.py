"""PEARL with shared devices over PEARL with separate devices: its Tables 8, 17 and 18.

Measured on this machine, or in virtual time on a profile, beside the figures that the paper prints.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import engine
from app.bench import speed
from app.bench.figures import Figure
from app.bench.plan import Note, Plan
from app.bench.race import Race
from engine.errors import UsageError
from engine.pairs.pair import Pair
from engine.simulate.profile import Profile
from engine.trace.trace import Trace
from engine.types import Limits

if TYPE_CHECKING:
    from engine import Cluster

PUBLISHED = Path(__file__).resolve().parents[2] / "assets" / "papers" / "pearl-rc.toml"
ALONE = "separate"
MAX_STAGES = 16
"""Upper bound of the method's setting `stages`."""


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of one pair under all placements."""

    title: str
    clock: str
    """`Header.clock`."""
    gamma: int
    figures: Mapping[str, Figure]
    """Decoding speed over the speed of `separate`, by placement."""
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Published share of `separate` that `pipeline` retains, by table and column."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        figures = {name: figure.to_dict() for name, figure in self.figures.items()}
        return {
            "title": self.title,
            "clock": self.clock,
            "gamma": self.gamma,
            "placements": figures,
            "published": self.published,
        }


def places(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Return the settings of each placement; pipelines have default and, virtually, all stages.

    Raises:
        UsageError: The target cannot be split on this cluster.
    """
    most = min(MAX_STAGES, cluster.placement.pool.stage_limits().devices)
    settings: dict[str, dict[str, Any]] = {ALONE: {}, "co-located": {"placement": "co-located"}}
    for stages in sorted({cluster.stages(0), *([most] if cluster.placement.profile else [])}):
        settings[f"pipeline, {stages} stages"] = {"placement": "pipeline", "stages": stages}
    return settings


def measured(plan: Plan, note: Note) -> Report:
    """Measure the bundled pair on worker processes, a core each."""
    pair = Pair.find()
    prompts = [pair.encode(question) for question in plan.questions()]
    note("placements")
    with engine.open(pair, runtime="local-process", device="cpu") as workers:
        traces: dict[str, list[Trace]] = {name: [] for name in places(workers)}
        contestants = {
            name: speed.decode(workers, plan, "pearl", traces[name], **config)
            for name, config in places(workers).items()
        }
        race = Race(contestants, prompts).run(plan.rounds, plan.seconds, lambda: note(""))
    figures = {
        name: _figure(race.ratio(name, ALONE), race.speed(name), traces[name], race.same(name, ALONE))
        for name in contestants
    }
    return _report("bundled pair", traces, figures)


def virtual(profile: str, plan: Plan, note: Note) -> tuple[list[Report], dict[str, str]]:
    """Decode the bench's prompts on the clusters of a profile's pairs.

    Returns:
        Reports, and by pair the reason why it has none.

    Raises:
        UsageError: The profile is unknown, or none of its pairs can run in a pipeline.
    """
    pair, reports, left_out = Pair.find(), list[Report](), dict[str, str]()
    for key, row in Profile.load(profile).pairs.items():
        note(key)
        try:
            with engine.open(pair, runtime="virtual", profile=profile, profile_pair=key) as cluster:
                reports.append(_virtual(cluster, key, row.title, plan, note))
        except UsageError as error:
            left_out[key] = str(error)
    if not reports:
        raise UsageError(
            f"no pair of the profile {profile} runs in a pipeline: {next(iter(left_out.values()))}"
        )
    return reports, left_out


def _virtual(cluster: Cluster, key: str, title: str, plan: Plan, note: Note) -> Report:
    traces: dict[str, list[Trace]] = {name: [] for name in places(cluster)}
    for question in plan.questions():
        for name, config in places(cluster).items():
            limits = Limits(plan.new_tokens)
            traces[name].append(cluster.run("pearl", question, config=config, limits=limits))
        note("")
    speeds = {name: [decoding_speed(trace) for trace in runs] for name, runs in traces.items()}
    figures = {
        name: _figure(
            tuple(a / b for a, b in zip(speeds[name], speeds[ALONE], strict=True)),
            decoding_speed(*runs),
            runs,
            _ids(runs) == _ids(traces[ALONE]),
        )
        for name, runs in traces.items()
    }
    return _report(
        title, traces, figures, _retained(key) if cluster.placement.profile.startswith("pearl") else {}
    )


def _report(
    title: str,
    traces: Mapping[str, Sequence[Trace]],
    figures: Mapping[str, Figure],
    published: Mapping[str, Mapping[str, Any]] | None = None,
) -> Report:
    header = traces[ALONE][0].header
    return Report(title, header.clock, header.config["gamma"], figures, published or {})


def _figure(
    ratios: tuple[float, ...], tokens_per_second: float, traces: Sequence[Trace], same: bool
) -> Figure:
    devices = [device.name for device in traces[0].header.devices]
    detail = {"same_tokens": same, "tokens_per_second": round(tokens_per_second, 2), "devices": devices}
    return Figure(ratios, f"of {ALONE}", same, detail)


def decoding_speed(*traces: Trace) -> float:
    """Return decoded tokens per second over all runs."""
    from traces.metrics import measure

    rows = [measure(trace) for trace in traces]
    return sum(m.tokens for m in rows) / sum(m.decode_seconds or 0.0 for m in rows)


def _ids(traces: Iterable[Trace]) -> list[list[int]]:
    return [trace.token_ids() for trace in traces]


@cache
def published() -> dict[str, Any]:
    """Return the paper's tables by pair of the profile."""
    return tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))


def _retained(key: str) -> dict[str, dict[str, Any]]:
    tables: Mapping[str, Any] = published().get(key, {})
    return {
        name: {
            column: round(with_it / without, 3)
            for column, without, with_it in zip(
                table["columns"], table["separate"], table["pipeline"], strict=True
            )
        }
        for name, table in tables.items()
    }


def lines(reports: Sequence[Report], left_out: Mapping[str, str]) -> list[str]:
    """Return the reports as lines of text."""
    text = list[str]()
    for report in reports:
        text.append(f"{report.title} · {report.clock} · PEARL, gamma {report.gamma}")
        text.append(f"  {'placement':22}{'tokens/s':>10}{'of separate':>13}{'from':>8}{'to':>8}  devices")
        for name, figure in report.figures.items():
            row = figure.to_dict()
            shares = f"{figure.median:>13.3f}{row['min']:>8.3f}{row['max']:>8.3f}"
            note = "" if figure.valid else " (other tokens: not comparable)"
            devices = ", ".join(row["devices"])
            text.append(f"  {name:22}{row['tokens_per_second']:>10.1f}{shares}  {devices}{note}")
        for table, columns in report.published.items():
            values = [share for column, share in columns.items() if column != "average"]
            shares = f"{fmean(values):>13.3f}{min(values):>8.3f}{max(values):>8.3f}"
            text.append(f"  {f'published, {table}':32}{shares}")
        text.append("")
    return text + [f"left out: {why}" for why in left_out.values()]
