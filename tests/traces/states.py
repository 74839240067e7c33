"""Replay: what a run looked like at a moment. The viewer computes the same in JavaScript from its model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traces import waiting
from traces.view.clock import decoding_clock, working_devices
from traces.view.ghosts import ghosts
from traces.view.ngrams import ngrams
from traces.view.sources import copies
from traces.view.trees import trees

if TYPE_CHECKING:
    from engine.trace.trace import Trace


def state_at(trace: Trace, t: float) -> dict[str, Any]:
    """Return the run's state `t` ms after decoding began; a pure function of both.

    An event of time t has happened at t. A span runs from its start up to, not including, its end.

    Returns:
        `texts` (one per sequence), `tokens` committed, drafted tokens `lost` so far, the last round's `step`,
        the `copies` that it judged (see `traces.sources.copies`), the step of the last draft `tree` judged (0: none
        yet), that of the last one with `ngrams`, ids of the spans `running`, the number `ended`, and per device that takes part what it is `doing`: a kind
        of span, `waits: <reason>`, or nothing (before decoding and after the end).
    """
    clock = decoding_clock(trace)
    step = max((r.step for r in trace.rounds if clock(r.time) <= t), default=0)
    commits = [c for c in trace.commits if clock(c.time) <= t]
    doing = {d.name: "" for d in working_devices(trace)}
    spans = sorted((s for s in trace.spans if s.device in doing), key=lambda s: s.id)
    running = [s for s in spans if clock(s.start) <= t < clock(s.end)]
    waits = [w for w in waiting.waits(trace) if clock(w.start) <= t < clock(w.end)]
    doing |= {w.device: f"waits: {w.reason}" for w in waits if w.device in doing}
    doing |= {s.device: s.kind for s in running}
    return {
        "texts": [
            "".join(c.text for c in commits if c.sequence == i) for i in range(len(trace.header.prompts))
        ],
        "tokens": len(commits),
        "lost": sum(1 for g in ghosts(trace) if g["t"] <= t),
        "step": step,
        "tree": max((tree["step"] for tree in trees(trace) if tree["t"] <= t), default=0),
        "ngrams": max((row["step"] for row in ngrams(trace) if row["t"] <= t), default=0),
        "copies": [c for c in copies(trace) if c["step"] == step],
        "running": [s.id for s in running],
        "ended": sum(1 for s in spans if clock(s.end) <= t),
        "doing": doing,
    }
