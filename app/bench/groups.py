"""ParallelSpec's Figure 4: tokens per forward and speed-up, for heads trained with different K.

Every head drafts a chain of K + 1 tokens and EAGLE's static tree of K + 1 levels. Speed-ups are
over autoregressive decoding of the same prompts, measured or in virtual time on a profile.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import engine
from app.bench import speed
from app.bench.figures import Figure
from app.bench.placements import decoding_speed
from app.bench.plan import Note, Plan
from app.bench.race import Generate, Race
from engine.drafters.static import tree
from engine.errors import UsageError
from engine.heads.config import HeadConfig
from engine.heads.files import check_head
from engine.heads.kinds import KINDS
from engine.methods import BASELINE
from engine.pairs.pair import Pair
from engine.plot import Line, Panel, draw
from engine.trace.trace import Trace

if TYPE_CHECKING:
    from engine import Cluster

TREE = "eagle"
SHAPES: Mapping[str, Callable[[int], tuple[tuple[int, ...], ...]]] = {
    "chain": lambda levels: _spine(levels),
    "tree": lambda levels: tuple(dict.fromkeys(tree(TREE).cut(levels).paths + _spine(levels))),
}
"""Number of levels -> tree nodes. Below EAGLE's last level, its most probable path continues."""


@dataclass(frozen=True, slots=True)
class Group:
    """Figures of one head with one shape of drafts."""

    masks: int
    """K, the number of masks."""
    shape: str
    nodes: int
    tokens: float
    """Tokens per target forward."""
    speedup: Figure
    """Over autoregressive decoding."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        sizes = {"masks": self.masks, "shape": self.shape, "nodes": self.nodes}
        return sizes | {
            "tokens_per_target_forward": round(self.tokens, 3),
            "speedup": self.speedup.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of all heads in a folder."""

    kind: str
    clock: str
    groups: Sequence[Group]
    """Sorted by K, then by shape."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "kind": self.kind,
            "clock": self.clock,
            "groups": [group.to_dict() for group in self.groups],
        }

    def chart(self) -> str:
        """Return an SVG chart: tokens per forward and speed-up over K."""
        tokens = [Line(name, [(g.masks, g.tokens) for g in self._of(name)]) for name in SHAPES]
        ratios = [Line(name, [(g.masks, g.speedup.median) for g in self._of(name)]) for name in SHAPES]
        return draw(
            (
                Panel(f"{self.kind}: tokens per target forward", "K", tokens),
                Panel(f"speed-up, {self.clock}", "K", ratios),
            )
        )

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        lines = [
            f"{self.kind} · {self.clock} · speed-up over {BASELINE}",
            f"{'K':>3}  {'drafts':8}{'nodes':>6}{'tokens/forward':>16}{'speed-up':>10}{'from':>8}{'to':>8}",
        ]
        for g in self.groups:
            row = g.speedup.to_dict()
            note = "" if g.speedup.valid else "  other tokens: not comparable"
            ratio = f"{g.speedup.median:>10.2f}{row['min']:>8.2f}{row['max']:>8.2f}"
            lines.append(f"{g.masks:>3}  {g.shape:8}{g.nodes:>6}{g.tokens:>16.2f}{ratio}{note}")
        return lines

    def _of(self, shape: str) -> list[Group]:
        return [group for group in self.groups if group.shape == shape]


def find(folder: Path, pair: Pair) -> dict[Path, HeadConfig]:
    """Return the heads in the subfolders of a folder, sorted by K.

    Raises:
        UsageError: No head, heads of several kinds, a kind without masks, or two heads with one K.
        ModelError: A head is broken.
    """
    paths = [path.parent for path in sorted(folder.glob("*/model.safetensors"))]
    heads = {path: check_head(path, pair.target_path) for path in paths}
    if not heads:
        raise UsageError(f"{folder} has no subfolders with heads; give a folder with a head for each K")
    kinds = sorted({config.kind for config in heads.values()})
    parallel = [name for name, kind in KINDS.items() if kind.sized_by == "masks"]
    if len(kinds) > 1 or kinds[0] not in parallel:
        raise UsageError(
            f"{folder} has heads of kind {', '.join(kinds)}; all must be of one kind of {', '.join(parallel)}"
        )
    masks = [config.masks for config in heads.values()]
    if repeated := [k for k in masks if masks.count(k) > 1]:
        raise UsageError(f"{folder} has two heads with K = {repeated[0]}; give one for each K")
    return dict(sorted(heads.items(), key=lambda row: row[1].masks))


def measure(folder: Path, plan: Plan, note: Note, profile: str | None = None) -> Report:
    """Decode the bench's prompts greedily with all heads of a folder.

    Args:
        folder: See `find`.
        plan: Prompts, tokens and rounds.
        note: See `app.bench.plan.Note`.
        profile: Virtual time on the first pair of this profile; None for one core of this machine.

    Raises:
        UsageError: The heads cannot be compared (see `find`), or the profile is unknown.
    """
    pair = Pair.find()
    heads = find(folder, pair)
    decode = _virtual if profile else _measured
    with contextlib.ExitStack() as stack:
        trees = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs = [
            _Runs(shape, config, _write(trees / f"{shape}-{len(nodes)}.toml", nodes), len(nodes), cluster)
            for config, cluster in _open(stack, pair, heads, profile)
            for shape in SHAPES
            for nodes in [SHAPES[shape](KINDS[config.kind].levels(config))]
        ]
        figures = decode(runs, [pair.encode(question) for question in plan.questions()], plan, note)
        clock = runs[0].traces[0].header.clock
    groups = [
        Group(run.config.masks, run.shape, run.nodes, _tokens(run.traces), figure)
        for run, figure in zip(runs, figures, strict=True)
    ]
    return Report(runs[0].config.kind, clock, groups)


class _Runs:
    """One head with one shape: its cluster and its traces."""

    def __init__(self, shape: str, config: HeadConfig, tree: Path, nodes: int, cluster: Cluster) -> None:
        self.shape, self.config, self.tree, self.nodes, self.cluster = shape, config, tree, nodes, cluster
        self.name = f"K = {config.masks}, {shape}"
        self.traces: list[Trace] = []


def _open(
    stack: contextlib.ExitStack, pair: Pair, heads: Mapping[Path, HeadConfig], profile: str | None
) -> Iterator[tuple[HeadConfig, Cluster]]:
    if not profile:
        stack.enter_context(speed.one_core())
    for path, config in heads.items():
        runtime = "virtual" if profile else "local-thread"
        cluster = engine.open(pair, runtime=runtime, profile=profile, device="cpu", head=path)
        yield config, stack.enter_context(cluster)


def _measured(
    runs: Sequence[_Runs], prompts: Sequence[Sequence[int]], plan: Plan, note: Note
) -> list[Figure]:
    note("heads")
    contestants: dict[str, Generate] = {BASELINE: speed.decode(runs[0].cluster, plan, BASELINE)}
    for run in runs:
        contestants[run.name] = speed.decode(
            run.cluster, plan, run.config.kind, run.traces, tree=str(run.tree)
        )
    race = Race(contestants, prompts).run(plan.rounds, plan.seconds, lambda: note(""))
    return [_figure(race.ratio(run.name, BASELINE), race.same(run.name, BASELINE)) for run in runs]


def _virtual(runs: Sequence[_Runs], prompts: Sequence[Sequence[int]], plan: Plan, note: Note) -> list[Figure]:
    baseline, figures = list[Trace](), list[Figure]()
    decode = speed.decode(runs[0].cluster, plan, BASELINE, baseline)
    for ids in prompts:
        decode(ids)
    for run in runs:
        note(run.name)
        decode = speed.decode(run.cluster, plan, run.config.kind, run.traces, tree=str(run.tree))
        for ids in prompts:
            decode(ids)
        pairs = list(zip(run.traces, baseline, strict=True))
        ratios = [decoding_speed(a) / decoding_speed(b) for a, b in pairs]
        same = all(a.token_ids() == b.token_ids() for a, b in pairs)
        figures.append(_figure(tuple(ratios), same))
        note("")
    return figures


def _figure(ratios: tuple[float, ...], same: bool) -> Figure:
    return Figure(ratios, f"of {BASELINE}", same, {"same_tokens": same})


def _tokens(traces: Sequence[Trace]) -> float:
    from traces.metrics import measure as metrics

    rows = [metrics(trace) for trace in traces]
    return sum(m.tokens for m in rows) / sum(m.target_forwards for m in rows)


def _spine(levels: int) -> tuple[tuple[int, ...], ...]:
    """Return the nodes of a chain."""
    return tuple((0,) * (level + 1) for level in range(levels))


def _write(path: Path, nodes: Sequence[Sequence[int]]) -> Path:
    path.write_text(f"paths = {json.dumps([[*node] for node in nodes])}\n", encoding="utf-8")
    return path
