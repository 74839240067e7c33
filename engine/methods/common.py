"""Settings, plans and loops that several methods share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from specscope.engine.drafting.copy import Copier
from specscope.engine.drafting.planner import best_tree
from specscope.engine.drafting.schedule import WINDOW, Ask, Average, Schedule, fixed
from specscope.engine.drafting.static import MOST_NODES, spelled, within
from specscope.engine.drafting.static import tree as tree_of
from specscope.engine.drafting.suffix import Budget, SuffixDraft, SuffixTree
from specscope.engine.drafting.tree import Static, TreeShape
from specscope.engine.errors import UsageError
from specscope.engine.layout import Layout, Separate
from specscope.engine.methods.registry import Role, Situation, setting
from specscope.engine.run.run import Run
from specscope.engine.trace.events import Forecast
from specscope.engine.types import CopySource, Draft, DraftToken, check_range

MOST_LEVELS = 32
"""Levels of a static tree that heads may be asked for."""
AUTO = "auto"
GAMMA = 5
"""Draft length where nothing is planned."""
LONGEST = 8
"""Draft length of runs that measure acceptance rates, and the longest planned one."""
UNSURE = 0.4
"""Probability below which a token is uncertain, as in transformers 5."""
PROBE = Static(
    (
        *((0,), (1,), (2,), (3,), (4,), (5,)),
        *((0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (2, 0)),
        *((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (1, 0, 0)),
        *((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 0, 0)),
    )
)
"""The tree of runs that measure acceptance rates: wide where accepted tokens are frequent."""


# Settings.


def chain_drafts() -> Any:
    return setting(
        "sampled",
        "How the drafter picks tokens when the temperature is above 0.",
        choices=("sampled", "greedy"),
        role="picks",
    )


def planned(doc: str, high: int, paper: int | None = None, role: Role = "") -> Any:
    """Declare a whole number that is planned where it is 0, else at least 1."""
    return setting(0, doc, low=1, high=high, auto="planned", paper=paper, role=role)


def draft_length(unit: str) -> Any:
    """Declare the setting `gamma`, in tokens or levels."""
    doc = f"Draft length: {unit} drafted before each verification; 0 plans it from measured cost, and is "
    return planned(f"{doc}{GAMMA} where nothing is planned.", 32, GAMMA, "length")


def chain_schedule(longest: str = "gamma / 2, gamma or 2 gamma") -> Any:
    """Declare the setting `schedule`, which `schedule_of` reads with the two below.

    Args:
        longest: The longest lengths of `average`, in words.
    """
    return setting(
        "fixed",
        "How the draft length follows gamma. fixed: gamma. threshold: at most gamma, and a draft ends after a token of "
        f"which the drafter is unsure. average: 1, ..., {longest}, the shortest that holds the moving "
        "average of accepted runs.",
        choices=("fixed", "threshold", "average"),
        role="schedule",
    )


def chain_confidence() -> Any:
    return setting(
        0.0,
        "End a draft after a token whose probability under the drafter is lower; 0 is the schedule's own: "
        f"{UNSURE} if threshold, else never.",
        low=0,
        high=1,
        role="cut",
    )


def chain_cut() -> Any:
    return setting(
        0.0,
        "End a draft after a token whose probability under the drafter is lower; 0 is never.",
        low=0,
        high=1,
        role="cut",
    )


def chain_off() -> Any:
    return setting(
        0.0,
        f"Stop drafting for good when the acceptance rate of {WINDOW} verifications is lower; 0 is never.",
        low=0,
        high=1,
        role="schedule",
    )


def tree_drafts() -> Any:
    return setting(
        "sampled",
        "How the drafter picks tokens when the temperature is above 0: "
        "sampled without replacement, or the most probable ones.",
        choices=("sampled", "greedy"),
    )


def static_tree(paper: str) -> Any:
    return setting(
        AUTO,
        "Static tree: eagle, medusa, the path of a file that ends in .toml, paths such as "
        f"[[0],[1],[0,0]], or auto: planned from measured cost, {paper} where nothing is planned.",
        high=900,
        paper=paper,
    )


def tree_heads() -> Any:
    return setting(
        0,
        "Heads that draft, one level of the tree each; 0 uses as many as the tree has levels.",
        low=1,
        high=MOST_LEVELS,
        auto="the tree's",
        role="shape",
    )


def tree_masks() -> Any:
    return setting(
        0,
        "K, mask tokens: the tree is cut to K + 1 levels; 0 uses as many as the tree needs.",
        low=1,
        high=16,
        auto="the tree's",
        role="shape",
    )


@dataclass(frozen=True, slots=True)
class SuffixSettings:
    """Settings of drafts from suffix trees."""

    depth: int = setting(
        24, "D, depth of the suffix trees: a match and its draft have at most D tokens.", low=2, high=128
    )
    copy: int = setting(32, "Most tokens drafted before each verification.", low=1, high=63, role="copies")
    factor: float = setting(1.0, "Alpha: tokens of a draft for each token of its match.", low=0, high=16)
    offset: float = setting(0.0, "Beta: tokens of a draft beyond alpha times the match.", low=-16, high=32)
    least: float = setting(
        0.1, "A draft ends before a token that is reached with a smaller probability.", low=0, high=1
    )
    finished: int = setting(
        16_384,
        "Most tokens of finished texts to draft from, the latest ones; 0 drafts from the own text only.",
        low=0,
        high=100_000,
    )


def check_nodes(width: int, levels: int, name: str, wide: str = "width") -> None:
    """Raise UsageError if width * levels exceeds `MOST_NODES`; `name`, `wide` are the settings."""
    if width * levels > MOST_NODES:
        raise UsageError(
            f"{wide} {width} times {name} {levels} is {width * levels} nodes; it must be at most "
            f"{MOST_NODES}: at this width {name} is at most {MOST_NODES // width}",
            name,
        )


def check_window(level: int, window: int, context: int) -> None:
    """Raise UsageError if the deepest row of a look-ahead window would lie beyond the context."""
    if level + window - 2 >= context:
        raise UsageError(
            f"window is {window}; with level {level} and a context of {context} tokens it must be at least 1 "
            f"and at most {context - level + 1}",
            "window",
        )


def window_rows(level: int, window: int) -> int:
    """Return the most rows of a look-ahead window: of n levels, each is `level` - 1 - n wider."""
    return max(levels * (window + level - 1 - levels) for levels in range(1, level))


# Schedules of draft lengths.


def own_confidence(cfg: Any) -> Any:
    """Replace a confidence of 0 by the schedule's own."""
    return replace(cfg, confidence=cfg.confidence or UNSURE) if cfg.schedule == "threshold" else cfg


def schedule_of(cfg: Any) -> Schedule:
    """Return the schedule of a Config with gamma, `schedule`, `confidence` and `off_below`."""
    rule = Average(cfg.gamma) if cfg.schedule == "average" else fixed
    return Schedule(cfg.gamma, rule, stop_below=cfg.confidence, off_below=cfg.off_below)


# Layouts and plans of methods with a drafting head.


def head_layout(kind: str, *, at_once: bool = False) -> Layout:
    return Layout(Separate(drafters=0), head=kind, at_once=at_once)


def planned_tree(tree: str, paper: str, levels: int, situation: Situation, **settings: Any) -> str:
    """Return the setting `tree`, with `auto` replaced by the fastest tree, or by the paper's.

    A head with fewer levels than the paper's tree gets the tree's first levels. `levels` is the
    most of a planned tree, 0 for any; further settings are those of the runs that measure.
    """
    if tree != AUTO:
        return tree
    probe = PROBE.cut(levels or PROBE.depth)
    plan = situation.planned({"tree": spelled(probe.paths), **settings}, best_tree)
    if plan is not None:
        return spelled(plan.paths)
    whole = tree_of(paper)
    return spelled(whole.cut(levels).paths) if 0 < levels < whole.depth else paper


def plan_heads(cfg: Any, situation: Situation, head: str, paper: str) -> Any:
    """Choose the tree, and the number of heads that draft: by default one per level of the tree.

    `cfg` has `tree` and `heads`; `paper` is the tree where nothing is planned. UsageError if the
    drafting head is missing or has fewer levels, or the tree is wrong.
    """
    levels = situation.head_levels(head)
    tree = planned_tree(cfg.tree, paper, min(cfg.heads or levels, levels), situation)
    check_range("heads", cfg.heads, 0, levels)
    return replace(cfg, tree=tree, heads=within(tree, levels, cfg.heads, "the head").depth)


def plan_masks(
    cfg: Any, situation: Situation, head: str, paper: str, masked_tail: int = 0, **settings: Any
) -> Any:
    """Choose the tree and K, `masks`: by default one fewer than the tree has levels.

    Arguments as for `plan_heads` and `planned_tree`; `masked_tail` masks replace known tokens
    and draft no level.
    """
    levels = situation.head_levels(head)  # K + 1 with its largest K
    if masked_tail and levels == masked_tail:
        raise UsageError("first is mask; the head has no masks: choose token", "first")
    most = min((cfg.masks or levels) + 1, levels) - masked_tail
    tree = planned_tree(cfg.tree, paper, most, situation, **settings)
    check_range("masks", cfg.masks, 0, levels - 1)
    asked = cfg.masks and cfg.masks + 1 - masked_tail
    return replace(
        cfg, tree=tree, masks=within(tree, levels - masked_tail, asked, "the head").depth - 1 + masked_tail
    )


# Loops.


async def decode_trees(run: Run, shape: TreeShape, *, sampled: bool, masked_tail: int = 0) -> None:
    """Draft a tree, verify it in one target forward, commit; until the run is done."""
    while not run.done:
        draft = await run.drafter.grow(run.x, shape, sampled=sampled, masked_tail=masked_tail)
        run.commit(await run.target.verify(run.x, draft))


async def decode_chains(run: Run, cfg: Any) -> None:
    """Draft a chain, verify it in one target forward, commit; until the run is done.

    `cfg` has `gamma`, `confidence` and `drafts`.
    """
    ask = Ask(cfg.gamma, cfg.confidence)
    while not run.done:
        draft = await run.drafter.propose(run.x, ask, sampled=cfg.drafts == "sampled")
        run.commit(await run.target.verify(run.x, draft))


async def decode_copies(run: Run, copier: Copier) -> None:
    """Draft by copying, verify in one target forward, commit; until the run is done.

    A round without a match is one plain target forward.
    """
    while not run.done:
        draft = copier.draft(run.x.tokens, run.remaining)
        run.commit(await run.target.verify(run.x, draft))


class Suffixes:
    """Drafts for one sequence of a run: from its own suffix tree, and from that of finished texts.

    The texts that are finished when the sequence begins are recorded in the trace, later ones when
    a draft is copied from them.
    """

    def __init__(self, run: Run, cfg: SuffixSettings) -> None:
        self._run, self._cfg, self._known = run, cfg, 0
        self._own = SuffixTree(cfg.depth)
        self._finished = run.finished.tree(cfg.depth, cfg.finished) if cfg.finished else SuffixTree(2)
        for text in run.finished.texts.values() if cfg.finished else ():
            run.record(text)

    def draft(self, least: float = 0.0, *, drafter: float | None = None) -> Draft:
        """Return the draft with the larger score, of equal ones that from the own text.

        Args:
            least: The draft is empty if its score is smaller.
            drafter: Accepted tokens that are expected of a draft of the drafter, for the trace.
        """
        run, cfg = self._run, self._cfg
        self._own.extend(0, run.x.tokens[self._known :].tolist())
        self._known = len(run.x)
        end = run.x.tokens[-cfg.depth :].tolist()
        budget = Budget(cfg.factor, cfg.offset, min(cfg.copy, run.remaining - 1), cfg.least)
        own, finished = self._own.draft(end, budget), self._finished.draft(end, budget)
        found = max(own, finished, key=lambda one: one.score)
        tree = "" if not found.tokens else "own" if found is own else "finished"
        facts = {"match": found.match, "occurrences": found.occurrences, "score": found.score}
        rows = (partial(Forecast, tree=tree, drafter=drafter, **facts),)
        if not tree or found.score < least:
            return Draft(rows=rows)
        tokens = tuple(DraftToken(token, i - 1) for i, token in enumerate(found.tokens))
        return Draft(tokens, source=self._source(tree, found), rows=rows)

    def _source(self, tree: str, found: SuffixDraft) -> CopySource:
        run = self._run
        document = -1 if tree == "own" else run.record(run.finished.texts[found.text])
        return CopySource(document, found.start, found.match)

    def finish(self) -> None:
        """Give the sequence's output to later sequences."""
        if self._cfg.finished:
            self._run.finished.add(self._run.output, self._cfg.finished)
