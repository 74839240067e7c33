"""The form of the viewer's document; `traces.view.document` makes it."""

from __future__ import annotations

from typing import Any, TypedDict

from traces.race import Spread
from traces.verdict import Verdict
from traces.view.aligned import AlignedView
from traces.view.caches import CacheView, PackingView
from traces.view.figures import FigureView
from traces.view.layers import LayersView
from traces.view.ngrams import CopyView, NgramsView, SourceView
from traces.view.servers import ServersView
from traces.view.tokens import GhostView, TokenView, TreeView
from traces.view.tracks import RoundView, ShareOfTime, TrackView

VERSION = 1
"""Version of the document; the viewer refuses another one."""


class IdentityView(TypedDict):
    """How a run's token ids compare with the baseline's."""

    same: bool
    at: int | None
    """Index of the first difference; null if there is none."""
    length: int
    final: bool


class Heading(TypedDict):
    """What a run is called and how it went."""

    id: str
    title: str
    config: str
    drafter: str
    planned: str
    badge: str
    virtual: bool
    lossy: str
    """A sentence if the run is lossy, else empty."""
    status: str
    error: str
    reasons: list[str]
    prompts: list[str]
    redacted: bool
    greedy: bool
    imported: bool
    """Whether another engine made the run; then its rule of acceptance is unknown."""
    busy: str
    """A sentence if other programs loaded the machine during the run, else empty."""
    timed: bool
    """Whether the times are facts; if not, all of them are 0."""


Extent = TypedDict("Extent", {"from": float, "to": float})
"""The first and the last time of a run."""


class Sections(Extent):
    """What the viewer draws of a run."""

    tracks: list[TrackView]
    band: list[tuple[str, float, float]]
    """(kind, start, end), see `traces.view.tracks`."""
    headline: list[ShareOfTime]
    note: str
    """Why nothing was drafted, or what is unknown of an imported run; may be empty."""
    sequences: list[int]
    tokens: list[TokenView]
    ghosts: list[GhostView]
    pieces: dict[str, str]
    """Texts of the token ids in top lists and n-grams, by id."""
    rounds: list[RoundView]
    copies: list[CopyView]
    ngrams: list[NgramsView]
    """Empty if redacted: a window begins with tokens of the prompt."""
    caches: list[CacheView]
    layers: LayersView | None
    packings: list[PackingView]
    pool: ServersView | None
    trees: list[TreeView]
    sources: list[SourceView]


class Compared(TypedDict):
    """A run's figures, and how it compares with its baseline."""

    baseline: bool
    """Whether it drafts nothing and runs are compared with it, see `traces.comparable`."""
    over: str | None
    """Id of the run's baseline; null without one."""
    reason: str
    """Why the run has no baseline; empty with one, and for a run that is shown alone."""
    batch: int
    """Sequences decoded at once, at most."""
    metrics: dict[str, Any]
    figures: dict[str, str]
    passes: Spread | None
    """The speeds of all passes; the other figures are the drawn pass's. Null for one pass."""
    verdict: Verdict
    """How fast the run is, why, and what would help. Redacted, it names no run to start."""
    identity: IdentityView | None


class RunView(Heading, Sections, Compared):
    """A run."""


class Axis(TypedDict):
    """The first and the last time of all runs."""

    min: float
    max: float


class Document(TypedDict):
    """Everything that the viewer shows."""

    model: int
    state: str
    """`empty` without runs, `live` while one of them is in progress, else `ready`."""
    axis: Axis
    clocks: list[str]
    figures: list[FigureView]
    aligned: list[AlignedView]
    """For each sequence of the first run; empty for a single run."""
    race: str
    """Which run is the fastest, or that these times do not show it; empty for a single run."""
    runs: list[RunView]
