"""The viewer's model: traces in, one plain JSON document out. The page draws it and derives nothing but pixels.

All times are milliseconds since decoding began (the end of the last prefill), so runs share one axis and prefill
lies at negative times. A run that is still going on has a model too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from statistics import fmean
from typing import TYPE_CHECKING, Any

from engine.errors import UsageError
from engine.methods import METHODS
from traces import metrics, waiting
from traces.batches import packings
from traces.figures import LOSSY, figure_rows, figure_texts
from traces.layers import layers
from traces.ngrams import ngrams
from traces.pool import pool
from traces.sources import copies, sources
from traces.tokens import committed, decoding_clock, ghosts, span_fates, working_devices
from traces.trees import trees

if TYPE_CHECKING:
    from engine.trace.events import Device, Header, Span
    from engine.trace.trace import Trace
    from traces.metrics import Metrics

MODEL = 1
"""Version of the document; the viewer refuses another one."""
METERS = {"cpu": "psutil", "cuda": "NVML"}
"""Who is asked for the load of a device of that kind."""


def view_model(traces: Sequence[Trace], *, redact_prompt: bool = False) -> dict[str, Any]:
    """Return everything the viewer shows of these runs, as plain JSON values.

    Args:
        traces: The runs compared, in the order shown. Runs without a footer are still going on.
        redact_prompt: Leave out the prompts, the texts in settings, and lost drafts that were copied from either.
    """
    baseline = next((t for t in traces if not _drafts(t)), None)
    measured = [metrics.measure(t) for t in traces]
    reference = measured[traces.index(baseline)] if baseline else None
    runs: list[dict[str, Any]] = [
        _run(t, redact_prompt)
        | {
            "baseline": t is baseline,
            "metrics": m.to_dict(),
            "figures": _figures(t, m, reference),
            "identity": _identity(t, baseline) if baseline and t is not baseline else None,
        }
        for t, m in zip(traces, measured, strict=True)
    ]
    return {
        "model": MODEL,
        "state": _state(traces),
        "axis": {
            "min": min((r["from"] for r in runs), default=0.0),
            "max": max((r["to"] for r in runs), default=0.0),
        },
        "clocks": sorted({t.header.clock for t in traces}),
        "figures": figure_rows(),
        "runs": runs,
    }


def _figures(trace: Trace, measured: Metrics, reference: Metrics | None) -> dict[str, str]:
    speedup = metrics.speedup(measured, reference) if reference else None
    return figure_texts(measured, speedup, {d.name: d.label for d in working_devices(trace)})


def _state(traces: Sequence[Trace]) -> str:
    if not traces:
        return "empty"
    return "live" if any(t.status == "running" for t in traces) else "ready"


def _run(trace: Trace, redact_prompt: bool) -> dict[str, Any]:
    tokens, lost, rounds = list(committed(trace)), list(ghosts(trace)), _rounds(trace)
    copied = copies(trace)
    grams = [] if redact_prompt else ngrams(trace)  # a window begins with tokens of the prompt
    if redact_prompt:
        lost = _without_copies(lost, copied)
    clock = decoding_clock(trace)
    times = [clock(time) for s in trace.spans for time in (s.start, s.end)]
    times += [row["t"] for row in (*tokens, *lost, *rounds)]
    return _heading(trace, redact_prompt) | {
        "from": min(times, default=0.0),
        "to": max(times, default=0.0),
        "tracks": _tracks(trace),
        "band": _band(trace),
        "headline": _headline(trace),
        "note": _note(trace),
        "sequences": list(range(len(trace.header.prompts))),
        "tokens": tokens,
        "ghosts": lost,
        "pieces": _pieces(trace, [*tokens, *lost], grams),
        "rounds": rounds,
        "copies": copied,
        "ngrams": grams,
        "layers": layers(trace),
        "packings": packings(trace),
        "pool": pool(trace),
        "trees": trees(trace),
        "sources": [] if redact_prompt else sources(trace),
    }


def _without_copies(lost: Sequence[dict[str, Any]], copied: Sequence[dict[str, int]]) -> list[dict[str, Any]]:
    """Blank the drafts of copying rounds that the text does not hold: they would tell the prompt."""
    rounds = {(c["sequence"], c["step"]) for c in copied}
    blank = {"id": None, "text": "▒"}
    return [row | blank if (row["sequence"], row["step"]) in rounds else row for row in lost]


def _heading(trace: Trace, redact_prompt: bool) -> dict[str, Any]:
    header, footer = trace.header, trace.footer
    return {
        "id": header.run_id,
        "title": header.title,
        "config": config_text(header.method, shown_config(header, redact_prompt)),
        "badge": header.clock,
        "virtual": header.virtual,
        "lossy": "" if header.lossless else LOSSY,
        "status": trace.status,
        "error": footer.error if footer else "",
        "reasons": list(footer.reasons) if footer else [],
        "prompts": [] if redact_prompt else list(header.prompts),
        "redacted": redact_prompt,
        "greedy": header.sampling.get("temperature", 0) == 0,
    }


def _rounds(trace: Trace) -> list[dict[str, Any]]:
    clock = decoding_clock(trace)
    keep = ("step", "sequence", "mode", "drafted", "accepted", "emitted", "span")
    return [{name: getattr(r, name) for name in keep} | {"t": clock(r.time)} for r in trace.rounds]


def shown_config(header: Header, redact_prompt: bool) -> dict[str, Any]:
    """Return a run's settings; redacted, without texts that a person wrote."""
    known = METHODS[header.method].settings() if header.method in METHODS else ()
    named = {s.name for s in known if not s.free_text}
    return {
        k: v for k, v in header.config.items() if not redact_prompt or k in named or not isinstance(v, str)
    }


def config_text(method: str, config: Mapping[str, Any]) -> str:
    """Return the settings worth a place in a heading: a drafter's draft length, and whatever is not at its default."""
    known = METHODS[method].settings() if method in METHODS else ()
    always = "gamma" if _asks_drafter(method, config) else ""
    usual = {s.name: s.default for s in known if s.name != always}
    shown = {k: v for k, v in config.items() if k not in usual or usual[k] != v}
    return " · ".join(f"{'γ' if k == 'gamma' else k} {_plain(v)}" for k, v in shown.items())


def _asks_drafter(method: str, config: Mapping[str, Any]) -> bool:
    """Whether a method with these settings drafts with a model; where it is not known here, it may."""
    try:
        found = METHODS[method]
        return found.layout(found.configure(config)).needs_drafter
    except (KeyError, UsageError):
        return True


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    text = " ".join(str(value).split())
    return text if len(text) <= 32 else text[:31].rstrip() + "…"


def _drafts(trace: Trace) -> bool:
    """Whether anything was drafted, by a model or otherwise."""
    return any(r.drafted for r in trace.rounds) or any(_by_drafter(s) for s in trace.spans)


def _by_drafter(span: Span) -> bool:
    return span.model == "drafter" and span.kind != "prefill"


def _note(trace: Trace) -> str:
    """Return why nothing was drafted; empty where something was, or the run is young."""
    if _drafts(trace) or (trace.status == "running" and not trace.rounds):
        return ""
    if not trace.rounds:
        return "no drafts in this run: it ended before its first round"
    method = METHODS.get(trace.header.method)
    if method and method.baseline:
        return "no drafts in this run: the method has no drafter, every token is one target forward"
    if method and "drafter" not in method.uses:
        return "no drafts in this run: the method found none to make, every round was a plain target forward"
    if not trace.header.drafter_path and "head" not in trace.header.environment:
        return "no drafts in this run: speculation inactive because no drafter was given"
    return "no drafts in this run: speculation inactive because every round was a plain target forward"


def _tracks(trace: Trace) -> list[dict[str, Any]]:
    clock, fates, waits = decoding_clock(trace), span_fates(trace), waiting.waits(trace)
    tracks: list[dict[str, Any]] = []
    for device in working_devices(trace):
        spans = sorted(
            (s for s in trace.spans if s.device == device.name), key=lambda s: (s.start, s.end, s.id)
        )
        tracks.append(
            {
                "device": device.name,
                "label": device.label,
                "role": device.role,
                "lanes": max(_lanes(spans), default=0) + 1,
                "spans": {
                    "id": [s.id for s in spans],
                    "kind": [s.kind for s in spans],
                    "start": [clock(s.start) for s in spans],
                    "end": [clock(s.end) for s in spans],
                    "lane": _lanes(spans),
                    "step": [s.step for s in spans],
                    "rows": [s.rows for s in spans],
                    "context": [s.context for s in spans],
                    "fate": [fates[s.id] for s in spans],
                },
                "waits": [[clock(w.start), clock(w.end), w.reason] for w in waits if w.device == device.name],
                "measured": _measured(trace, device),
            }
        )
    return tracks


def _measured(trace: Trace, device: Device) -> dict[str, Any] | None:
    """Return what the device said of itself: who asked it, its samples [ms, share, bytes, watts], and their sums."""
    rows = [o for o in trace.occupancy if o.device == device.name]
    if not rows:
        return None
    clock, powers = decoding_clock(trace), [o.power for o in rows if o.power is not None]
    return {
        "label": " ".join(["measured", *([f"({METERS[device.kind]})"] if device.kind in METERS else [])]),
        "samples": [[clock(o.time), o.busy, o.memory, o.power] for o in rows],
        "busy": metrics.measured_occupancy(trace).get(device.name),
        "memory": max(o.memory for o in rows),
        "power": fmean(powers) if powers else None,
    }


def _lanes(spans: Sequence[Span]) -> list[int]:
    """Return a lane per span, so that spans which overlap on one device (streams) lie below each other."""
    free: list[int] = []
    lanes: list[int] = []
    for span in spans:
        lane = next((i for i, end in enumerate(free) if end <= span.start), len(free))
        free[lane : lane + 1] = [span.end]
        lanes.append(lane)
    return lanes


def _band(trace: Trace) -> list[list[Any]]:
    clock = decoding_clock(trace)
    return [[b.kind, clock(b.start), clock(b.end)] for b in waiting.band(trace)]


def _headline(trace: Trace) -> list[dict[str, Any]]:
    """Return the four shares of the decoding time in whole percent, which sum to 100."""
    start, end = waiting.decode_window(trace)
    if start == end:
        return []
    drafts = any(_by_drafter(s) for s in trace.spans)
    names = {
        "both": "both busy",
        "draft": "target waits for drafter",
        "target": "drafter waits for target" if drafts else "target busy",
        "none": "neither busy" if drafts else "target idle",
    }
    shares = waiting.overlap(trace)
    percent = whole_percent([shares[k] for k in names])
    rows = [{"kind": k, "label": names[k], "percent": n} for k, n in zip(names, percent, strict=True)]
    return [r for r in rows if drafts or r["percent"] or r["kind"] in ("target", "none")]


def whole_percent(shares: Sequence[float]) -> list[int]:
    """Return shares as integers that sum to 100 (largest remainder); all 0 when there is nothing to share."""
    total = sum(shares)
    if total <= 0:
        return [0] * len(shares)
    exact = [100 * s / total for s in shares]
    whole = [int(e) for e in exact]
    for i in sorted(range(len(exact)), key=lambda i: whole[i] - exact[i])[: 100 - sum(whole)]:
        whole[i] += 1
    return whole


def _identity(trace: Trace, baseline: Trace) -> dict[str, Any] | None:
    """Compare token ids with the baseline's: `same` up to `length` tokens, or the first difference `at`."""
    if trace.header.prompt_ids != baseline.header.prompt_ids:
        return None
    ours, theirs = trace.token_ids(), baseline.token_ids()
    length = min(len(ours), len(theirs))
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
    ended = trace.status == baseline.status == "done"
    differs = same < length or (ended and len(ours) != len(theirs))
    return {"same": not differs, "at": same if differs else None, "length": length, "final": ended}


def _pieces(
    trace: Trace, rows: Sequence[Mapping[str, Any]], grams: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Return the texts of all token ids that appear in a top list, or as ids in an n-gram or a window."""
    ids = {int(token) for row in rows for key in ("top_p", "top_q") for token, _ in row.get(key, ())}
    for row in grams:
        ids.update(*row["window"], *row["gained"], *(tried["ids"] for tried in row["tried"]))
    return {str(i): trace.pieces[i] for i in sorted(ids) if i in trace.pieces}
