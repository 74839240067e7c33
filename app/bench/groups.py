"""What the size of the parallel group is worth: ParallelSpec's Figure 4, from heads that were trained with different K.

Every head drafts a chain of K + 1 tokens and EAGLE's static tree of K + 1 levels. Beside each stands autoregressive
decoding of the same prompts: measured on this machine, or in virtual time on a profile.
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
from app.bench.plan import Plan
from app.bench.race import Generate, Race
from engine.drafters.static import tree
from engine.errors import UsageError
from engine.heads.config import HeadConfig
from engine.heads.files import check_head
from engine.heads.kinds import KINDS
from engine.methods import BASELINE
from engine.model.pair import Pair
from engine.trace.trace import Trace
from engine.training.heads.plot import Line, Panel, draw

if TYPE_CHECKING:
    from engine import Cluster

TREE = "eagle"
SHAPES: Mapping[str, Callable[[int], tuple[tuple[int, ...], ...]]] = {
    "chain": lambda levels: _spine(levels),
    "tree": lambda levels: tuple(dict.fromkeys(tree(TREE).cut(levels).paths + _spine(levels))),
}
"""Nodes of so many levels; below EAGLE's last level the tree goes on along its most probable path."""
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Group:
    """One head with one shape of drafts."""

    masks: int
    """K."""
    shape: str
    nodes: int
    tokens: float
    """Per forward of the target."""
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
    """All heads of a folder."""

    kind: str
    clock: str
    groups: Sequence[Group]
    """By K, then by shape."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "kind": self.kind,
            "clock": self.clock,
            "groups": [group.to_dict() for group in self.groups],
        }

    def chart(self) -> str:
        """Return it as SVG: tokens per forward, and speed-up, over K."""
        tokens = [Line(name, [(g.masks, g.tokens) for g in self._of(name)]) for name in SHAPES]
        ratios = [Line(name, [(g.masks, g.speedup.median) for g in self._of(name)]) for name in SHAPES]
        return draw(
            (
                Panel(f"{self.kind}: tokens per target forward", "K", tokens),
                Panel(f"speed-up, {self.clock}", "K", ratios),
            )
        )

    def lines(self) -> list[str]:
        """Return it as a person reads it."""
        found = [
            f"{self.kind} · {self.clock} · speed-up over {BASELINE}",
            f"{'K':>3}  {'drafts':8}{'nodes':>6}{'tokens/forward':>16}{'speed-up':>10}{'from':>8}{'to':>8}",
        ]
        for g in self.groups:
            row = g.speedup.to_dict()
            note = "" if g.speedup.valid else "  other tokens: not comparable"
            ratio = f"{g.speedup.median:>10.2f}{row['min']:>8.2f}{row['max']:>8.2f}"
            found.append(f"{g.masks:>3}  {g.shape:8}{g.nodes:>6}{g.tokens:>16.2f}{ratio}{note}")
        return found

    def _of(self, shape: str) -> list[Group]:
        return [group for group in self.groups if group.shape == shape]


def find(folder: Path, pair: Pair) -> dict[Path, HeadConfig]:
    """Return the heads in the folders of a folder, by K.

    Raises:
        UsageError: There is none, or they are of several kinds, or one has no masks to count, or two have as many.
        ModelError: One is broken.
    """
    paths = [path.parent for path in sorted(folder.glob("*/model.safetensors"))]
    found = {path: check_head(path, pair.target_path) for path in paths}
    if not found:
        raise UsageError(f"{folder} has no folders with heads in them; give one that holds a head for each K")
    kinds = sorted({config.kind for config in found.values()})
    parallel = [name for name, kind in KINDS.items() if kind.sized_by == "masks"]
    if len(kinds) > 1 or kinds[0] not in parallel:
        raise UsageError(
            f"{folder} holds heads of kind {', '.join(kinds)}; they must all be of one of {', '.join(parallel)}"
        )
    masks = [config.masks for config in found.values()]
    if twice := [k for k in masks if masks.count(k) > 1]:
        raise UsageError(f"{folder} holds two heads with K = {twice[0]}; give one for each K")
    return dict(sorted(found.items(), key=lambda row: row[1].masks))


def measure(folder: Path, plan: Plan, note: Note, profile: str | None = None) -> Report:
    """Let all heads of a folder decode the bench's prompts greedily.

    Args:
        folder: See `find`.
        plan: Its prompts, tokens and rounds.
        note: Told what begins, and called with an empty text after every round.
        profile: Measure virtual time on that profile's first pair; without one, this machine, one core.

    Raises:
        UsageError: The heads are no such heads, or there is no such profile.
    """
    pair = Pair.find()
    heads = find(folder, pair)
    ask = _virtual if profile else _measured
    with contextlib.ExitStack() as stack:
        trees = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs = [
            _Runs(shape, config, _write(trees / f"{shape}-{config.levels}.toml", nodes), len(nodes), cluster)
            for config, cluster in _open(stack, pair, heads, profile)
            for shape in SHAPES
            for nodes in [SHAPES[shape](config.levels)]
        ]
        found = ask(runs, [pair.encode(question) for question in plan.questions()], plan, note)
        clock = runs[0].traces[0].header.clock
    groups = [
        Group(run.config.masks, run.shape, run.nodes, _tokens(run.traces), figure)
        for run, figure in zip(runs, found, strict=True)
    ]
    return Report(runs[0].config.kind, clock, groups)


class _Runs:
    """Of one head and one shape: where it runs, and its traces."""

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
    plain, figures = list[Trace](), list[Figure]()
    decode = speed.decode(runs[0].cluster, plan, BASELINE, plain)
    for ids in prompts:
        decode(ids)
    for run in runs:
        note(run.name)
        decode = speed.decode(run.cluster, plan, run.config.kind, run.traces, tree=str(run.tree))
        for ids in prompts:
            decode(ids)
        ratios = [decoding_speed(a) / decoding_speed(b) for a, b in zip(run.traces, plain, strict=True)]
        same = all(a.token_ids() == b.token_ids() for a, b in zip(run.traces, plain, strict=True))
        figures.append(_figure(tuple(ratios), same))
        note("")
    return figures


def _figure(ratios: tuple[float, ...], same: bool) -> Figure:
    return Figure(ratios, f"of {BASELINE}", same, {"same_tokens": same})


def _tokens(traces: Sequence[Trace]) -> float:
    from traces.metrics import measure as metrics

    found = [metrics(trace) for trace in traces]
    return sum(m.tokens for m in found) / sum(m.target_forwards for m in found)


def _spine(levels: int) -> tuple[tuple[int, ...], ...]:
    """Return a chain."""
    return tuple((0,) * (level + 1) for level in range(levels))


def _write(path: Path, nodes: Sequence[Sequence[int]]) -> Path:
    path.write_text(f"paths = {json.dumps([[*node] for node in nodes])}\n", encoding="utf-8")
    return path
