"""HTML about open runs: acceptance, the difference of two runs, closed forms, what-if."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from specscope.app.render.html import badge, curve, figure, table, text
from specscope.engine.trace.trace import Trace
from specscope.traces.facts.closed_forms import best_gamma, dsi_speedup, pearl_speedup, speculative_speedup
from specscope.traces.judge.diff import Diff, FirstDifference, Waterfall, WaterfallStep
from specscope.traces.view.figures import acceptance
from specscope.traces.whatif.result import rows, sentences

if TYPE_CHECKING:
    from specscope.traces.whatif.replay import WhatIf

LONGEST = 16
CURVES: tuple[tuple[str, str, Callable[[float, int, float], float]], ...] = (
    ("speculative", "Speculative decoding", speculative_speedup),
    ("pearl", "PEARL", pearl_speedup),
    ("dsi", "DSI, lookahead 1", lambda rate, gamma, c: dsi_speedup(rate, c)),  # noqa: ARG005
)
"""(class in the style sheet, title, (acceptance rate, gamma, c) -> speed-up)."""


def acceptance_table(traces: Sequence[Trace], names: Sequence[str]) -> str:
    head = ["figure", *names, "used by", "definition"]
    lines = [
        [text(d.label), *(f"<b>{text(value)}</b>" for value in d.values), text(d.used_by), text(d.definition)]
        for d in acceptance(traces)
    ]
    return table(head, lines, "Acceptance by definition")


def chart(rate: float, gamma: int, c: float) -> str:
    """Return the expected speed-ups over gamma by closed forms; c = T(target) / T(drafter) >= 1."""
    lengths = [*range(1, LONGEST + 1)]
    label = (
        f"Expected speed-up over plain decoding for gamma 1 to {LONGEST}, acceptance {rate:.2f}, c {c:.1f}"
    )
    curves = [
        curve(name, title, lengths, [form(rate, g, c) for g in lengths]) for name, title, form in CURVES
    ]
    marks = [{"type": "line", "x0": gamma, "x1": gamma, "yref": "paper", "y0": 0, "y1": 1}]
    marks += [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1}]
    axes = {
        "xaxis": {"title": {"text": "gamma"}, "dtick": 1},
        "yaxis": {"rangemode": "tozero", "ticksuffix": "×"},
    }
    legend = "".join(_legend(name, title, form, rate, gamma, c) for name, title, form in CURVES)
    drawn = figure(curves, label, 260, shapes=marks, showlegend=False, hovermode="x unified", **axes)
    return f'{drawn}<ul class="app-legend">{legend}</ul>'


def _legend(
    name: str, title: str, form: Callable[[float, int, float], float], rate: float, gamma: int, c: float
) -> str:
    now = form(rate, gamma, c)
    best = best_gamma(form, rate, c, LONGEST)
    depends = form(rate, best, c) > form(rate, LONGEST, c) or form(rate, best, c) > form(rate, 1, c)
    more = f" · best {form(rate, best, c):.2f}× at gamma {best}" if depends else " · for any gamma"
    return f'<li><i class="app-{name}"></i>{text(title)} <b>{now:.2f}×</b><span>{text(more)}</span></li>'


def what_if_result(result: WhatIf) -> str:
    head = ["figure", "recorded", "what-if", "plain decoding"]
    lines = [
        [text(row.label), text(row.recorded), f"<b>{text(row.replay)}</b>", text(row.plain)]
        for row in rows(result)
    ]
    notes = "".join(f"<li>{text(sentence)}</li>" for sentence in sentences(result))
    return (
        f'<div class="app-replayed">{badge(result.replay.header.clock)}'
        f'{table(head, lines, "Figures of the what-if")}<ul class="app-notes">{notes}</ul></div>'
    )


def difference(found: Diff, names: Sequence[str], *, drawn: bool = True) -> str:
    """Return the difference of two runs; `drawn` with a chart, for a page that has its script."""
    worse, size = found.difference > 0, abs(found.difference) / 1e6
    verdict = (
        f"{names[1]} decoded {size:,.1f} ms {'longer' if worse else 'shorter'} than {names[0]}."
        if found.difference
        else "Both runs decoded equally long."
    )
    notes = [*found.notes]
    if found.not_comparable:
        notes.insert(0, f"Their speeds cannot be compared: different {', '.join(found.not_comparable)}.")
    reason = "".join(f'<p class="app-note">{text(one)}</p>' for one in notes)
    falls = "".join(_waterfall(w, found.difference) for w in found.waterfalls)
    over_time = _tokens_over_time(found, names) if drawn else ""
    key = '<p class="app-note">Green: time won by the second run. Hatched: time lost. The changes of a device sum to the difference.</p>'
    return (
        f'<div class="app-diff"><p><b>{text(verdict)}</b></p>{reason}{over_time}<h3>Waterfalls</h3>{key}{falls}'
        f"{_first_token(found.first_difference, names)}</div>"
    )


def _tokens_over_time(found: Diff, names: Sequence[str]) -> str:
    """Return a chart of the tokens of the first sequence that both runs have, over time."""
    count = len(found.by_token)
    if not any(map(any, found.by_token)):
        return ""
    counts = [*range(count + 1)]
    curves = [
        curve(
            kind,
            f"{order}: {name}",
            [0.0, *(pair[side] / 1e6 for pair in found.by_token)],
            counts,
            line={"shape": "hv"},
        )
        for side, (name, order, kind) in enumerate(
            zip(names, ("first", "second"), ("speculative", "pearl"), strict=True)
        )
    ]
    axes = {"xaxis": {"title": {"text": "ms"}}, "yaxis": {"title": {"text": "tokens"}, "rangemode": "tozero"}}
    return f"<h3>Tokens over time</h3>{figure(curves, 'Tokens over time', 220, **axes)}"


def _waterfall(waterfall: Waterfall, total: int) -> str:
    """Return the changes of two devices; each bar begins where the one before it ends."""
    steps = [step for step in waterfall.steps if step.first or step.second]
    ends, at = [0], 0
    for step in steps:
        at += step.change
        ends.append(at)
    low, high = min(ends), max(ends)
    span = (high - low) or 1
    lines, at = list[list[str]](), 0
    for step in steps:
        lines.append(
            _line(step, 100 * (min(at, at + step.change) - low) / span, 100 * abs(step.change) / span)
        )
        at += step.change
    start = 100 * (min(0, total) - low) / span
    lines.append(
        ["<b>sum</b>", "", "", f"<b>{total / 1e6:+,.1f}</b>", _bar("sum", start, 100 * abs(total) / span)]
    )
    one, other = waterfall.devices
    title = one if one == other else f"{one} / {other}"
    head = ["ms", "first", "second", "change", ""]
    return f"<h3>{text(title)}</h3>{table(head, lines, f'Waterfall of {title}')}"


def _line(step: WaterfallStep, start: float, width: float) -> list[str]:
    kind = "lost" if step.change > 0 else "won"
    times = [f"{step.first / 1e6:,.1f}", f"{step.second / 1e6:,.1f}", f"{step.change / 1e6:+,.1f}"]
    return [text(step.label), *times, _bar(kind, start, width)]


def _bar(kind: str, start: float, width: float) -> str:
    return (
        f'<div class="app-fall"><i class="app-{kind}" style="left:{start:.2f}%;width:{width:.2f}%"></i></div>'
    )


def _first_token(found: FirstDifference | None, names: Sequence[str]) -> str:
    if found is None:
        return '<p class="app-note">No token is known to differ.</p>'
    head = ["", "token", "origin", "target's p", "drafter's q"]
    lines = [
        [
            text(name),
            "has ended" if side.token is None else f"<code>{text(side.name)}</code>",
            text(side.origin),
            *(
                "<br>".join(f"<code>{text(one.name)}</code> {one.p:.3f}" for one in top) or "–"
                for top in (side.p, side.q)
            ),
        ]
        for name, side in zip(names, found.sides, strict=True)
    ]
    where = f" of sequence {found.sequence}" if found.sequence else ""
    rows = table(head, lines, "First differing token")
    note = f'<p class="app-note">{text(found.sentence)}</p>' if found.sentence else ""
    return f"<h3>First differing token: number {found.index + 1}{where}</h3>{rows}{note}"
