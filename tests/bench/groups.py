"""ParallelSpec's Figure 4: tokens per forward and speed-up, for heads trained with different K.

`python -m tests.bench.groups DIR [--profile NAME] [-o F.svg] [--quick] [--json]`: DIR has a folder
for each head. Every head drafts a chain of K + 1 tokens and EAGLE's static tree of K + 1 levels.
Speed-ups are over autoregressive decoding of the same prompts, measured on one core or in virtual
time on the first pair of a profile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import specscope
from specscope.app.bench import speed
from specscope.app.bench.figures import FULL, QUICK, BenchPlan, Measurement, Note
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.drafting.static import tree
from specscope.engine.errors import UsageError
from specscope.engine.heads.config import HeadConfig
from specscope.engine.heads.files import check_head
from specscope.engine.heads.kinds import KINDS
from specscope.engine.methods import BASELINE
from specscope.engine.plot import Panel, PlotLine, draw
from specscope.traces.facts.metrics import measure as metrics
from tests.bench import script

if TYPE_CHECKING:
    from specscope import Cluster

TREE = "eagle"
SHAPES: Mapping[str, Callable[[int], tuple[tuple[int, ...], ...]]] = {
    "chain": lambda levels: _spine(levels),
    "tree": lambda levels: tuple(dict.fromkeys(tree(TREE).cut(levels).paths + _spine(levels))),
}
"""Number of levels -> tree nodes. Below EAGLE's last level, its most probable path continues."""


def find(folder: Path, pair: Pair) -> dict[Path, HeadConfig]:
    """Return the heads in the subfolders of a folder, sorted by K."""
    paths = [path.parent for path in sorted(folder.glob("*/model.safetensors"))]
    heads = {path: check_head(path, pair.target_path) for path in paths}
    kinds, masks = {c.kind for c in heads.values()}, {c.masks for c in heads.values()}
    parallel = {name for name, kind in KINDS.items() if kind.sized_by == "masks"}
    if len(kinds) != 1 or not kinds <= parallel or len(masks) < len(heads):
        raise UsageError(f"{folder} must have one head for each K, all of one kind of {', '.join(parallel)}")
    return dict(sorted(heads.items(), key=lambda row: row[1].masks))


class Runs(NamedTuple):
    """One head with one shape of drafts."""

    shape: str
    config: HeadConfig
    nodes: int
    contestant: script.Contestant

    @classmethod
    def of(cls, shape: str, config: HeadConfig, folder: Path, cluster: Cluster) -> Runs:
        nodes = SHAPES[shape](KINDS[config.kind].levels(config))
        file = folder / f"{shape}-{len(nodes)}.toml"
        file.write_text(f"paths = {json.dumps([[*node] for node in nodes])}\n", encoding="utf-8")
        return cls(
            shape, config, len(nodes), script.Contestant(cluster, config.kind, {"tree": str(file)}, [])
        )

    def tokens(self) -> float:
        rows = [metrics(trace) for trace in self.contestant.traces]
        return sum(m.tokens for m in rows) / sum(m.target_forwards for m in rows)


def measure(folder: Path, plan: BenchPlan, note: Note, profile: str | None = None) -> dict[str, Measurement]:
    """Decode the bench's prompts greedily with all heads of a folder; return the speed-ups."""
    pair = Pair.find()
    note("heads")
    with contextlib.ExitStack() as stack:
        trees = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if not profile:
            stack.enter_context(speed.one_core())
        runs = dict[str, Runs]()
        for path, config in find(folder, pair).items():
            runtime = "virtual" if profile else "local-thread"
            cluster = specscope.open(pair, runtime=runtime, profile=profile, device="cpu", head=path)
            stack.enter_context(cluster)
            for shape in SHAPES:
                runs[f"{shape} K = {config.masks}"] = Runs.of(shape, config, trees, cluster)
        first = next(iter(runs.values())).contestant.cluster
        contestants = {BASELINE: script.Contestant(first, BASELINE, {}, [])}
        contestants |= {name: run.contestant for name, run in runs.items()}
        found = script.race(contestants, BASELINE, plan, note, virtual=bool(profile))
    figures = dict[str, Measurement]()
    for name, run in runs.items():
        ratios, same, _ = found[name]
        detail = {
            "masks": run.config.masks,
            "shape": run.shape,
            "nodes": run.nodes,
            "tokens_per_target_forward": run.tokens(),
            "same_tokens": same,
        }
        unit = f"of {BASELINE}; {run.tokens():.2f} tokens per forward, {run.nodes} nodes"
        figures[name] = Measurement(ratios, unit if same else "other tokens: not comparable", same, detail)
    return figures


def chart(figures: Mapping[str, Measurement], clock: str) -> str:
    rows = {shape: [f for f in figures.values() if f.detail["shape"] == shape] for shape in SHAPES}
    tokens, ratios = list[PlotLine](), list[PlotLine]()
    for shape, found in rows.items():
        masks = [f.detail["masks"] for f in found]
        values = [f.detail["tokens_per_target_forward"] for f in found]
        tokens.append(PlotLine(shape, list(zip(masks, values, strict=True))))
        ratios.append(PlotLine(shape, list(zip(masks, [f.median for f in found], strict=True))))
    return draw((Panel("tokens per target forward", "K", tokens), Panel(f"speed-up, {clock}", "K", ratios)))


def _spine(levels: int) -> tuple[tuple[int, ...], ...]:
    return tuple((0,) * (level + 1) for level in range(levels))


def from_options(args: argparse.Namespace, note: Note) -> tuple[dict[str, Measurement], dict[str, Any]]:
    figures = measure(args.heads, QUICK if args.quick else FULL, note, args.profile)
    clock = f"virtual, {args.profile}" if args.profile else "measured, one core"
    if args.output:
        args.output.write_text(chart(figures, clock), encoding="utf-8")
    return figures, {"device": clock}


if __name__ == "__main__":
    options = script.options(__doc__)
    options.add_argument("heads", metavar="DIR", type=Path)
    options.add_argument("--profile", metavar="NAME", help="a latency profile")
    options.add_argument("-o", "--output", metavar="F.svg", type=Path, help="draw a chart, too")
    script.main(options, from_options, {})
