"""HTML about open runs: acceptance, the difference of two runs, closed forms, what-if."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.render.html import badge, table, text
from traces.acceptance import acceptance
from traces.closed_forms import best_gamma, dsi_speedup, pearl_speedup, speculative_speedup
from traces.whatif.result import rows, sentences

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from engine.trace.trace import Trace
    from traces.diff import Diff, FirstDifference, Step, Waterfall
    from traces.whatif.replay import WhatIf

LONGEST = 16
"""The largest gamma of the chart."""
CURVES: tuple[tuple[str, str, Callable[[float, int, float], float]], ...] = (
    ("speculative", "Speculative decoding", speculative_speedup),
    ("pearl", "PEARL", pearl_speedup),
    ("dsi", "DSI, lookahead 1", lambda rate, gamma, c: dsi_speedup(rate, c)),  # noqa: ARG005
)
"""(class in the style sheet, title, (acceptance rate, gamma, c) -> speed-up)."""


def acceptance_table(traces: Sequence[Trace], names: Sequence[str]) -> str:
    """Return all definitions of acceptance with a column per run."""
    head = ["", *names, "used by", "definition"]
    lines = [
        [text(d.label), *(f"<b>{text(value)}</b>" for value in d.values), text(d.used_by), text(d.definition)]
        for d in acceptance(traces)
    ]
    return table(head, lines, "Acceptance by definition")


def chart(rate: float, gamma: int, c: float) -> str:
    """Return the expected speed-ups over gamma, by closed forms.

    Args:
        rate: Acceptance rate of a tested token.
        gamma: The marked draft length.
        c: T(target) / T(drafter), at least 1.
    """
    lengths = range(1, LONGEST + 1)
    values = {name: [form(rate, g, c) for g in lengths] for name, _, form in CURVES}
    top = max(1.25, 1.05 * max(max(curve) for curve in values.values()))

    def place(g: float, value: float) -> tuple[float, float]:
        """Return a point's place in percent, from the left and from the top."""
        return 100 * (g - 1) / (LONGEST - 1), 100 * (1 - value / top)

    lines = "".join(
        f'<polyline class="app-{name}" points="'
        + " ".join("{:.2f},{:.2f}".format(*place(g, v)) for g, v in zip(lengths, curve, strict=True))
        + '"/>'
        for name, curve in values.items()
    )
    x, one = place(gamma, 0)[0], place(1, 1)[1]
    marks = "".join(
        f'<i class="app-dot app-{name}" style="left:{x:.2f}%;top:{place(gamma, curve[gamma - 1])[1]:.2f}%"></i>'
        for name, curve in values.items()
    )
    legend = "".join(_legend(name, title, form, rate, gamma, c) for name, title, form in CURVES)
    step = next(s for s in (0.25, 0.5, 1, 2, 4, 8) if top / s <= 6)
    ticks = "".join(
        f'<span style="top:{place(1, n * step)[1]:.2f}%">{n * step:g}×</span>'
        for n in range(int(top / step) + 1)
    )
    label = (
        f"Expected speed-up over plain decoding for gamma 1 to {LONGEST}, acceptance {rate:.2f}, c {c:.1f}"
    )
    return (
        f'<div class="app-chart" role="img" aria-label="{text(label)}"><div class="app-ticks">{ticks}</div>'
        f'<div class="app-plot"><svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">'
        f'<line class="app-one" x1="0" x2="100" y1="{one:.2f}" y2="{one:.2f}"/>'
        f'<line class="app-at" x1="{x:.2f}" x2="{x:.2f}" y1="0" y2="100"/>{lines}</svg>{marks}</div>'
        f'<div class="app-lengths"><span>gamma 1</span><span>{LONGEST}</span></div></div>'
        f'<ul class="app-legend">{legend}</ul>'
    )


def _legend(
    name: str, title: str, form: Callable[[float, int, float], float], rate: float, gamma: int, c: float
) -> str:
    now = form(rate, gamma, c)
    best = best_gamma(form, rate, c, LONGEST)
    depends = form(rate, best, c) > form(rate, LONGEST, c) or form(rate, best, c) > form(rate, 1, c)
    more = f" · best {form(rate, best, c):.2f}× at gamma {best}" if depends else " · for any gamma"
    return f'<li><i class="app-{name}"></i>{text(title)} <b>{now:.2f}×</b><span>{text(more)}</span></li>'


def what_if_result(result: WhatIf) -> str:
    """Return the figures of a replay beside the recorded ones."""
    head = ["", "recorded", "what-if", "plain decoding"]
    lines = [
        [text(row.label), text(row.recorded), f"<b>{text(row.replay)}</b>", text(row.plain)]
        for row in rows(result)
    ]
    notes = "".join(f"<li>{text(sentence)}</li>" for sentence in sentences(result))
    return (
        f'<div class="app-replayed">{badge(result.replay.header.clock)}'
        f'{table(head, lines, "Figures of the what-if")}<ul class="app-notes">{notes}</ul></div>'
    )


def difference(found: Diff, names: Sequence[str]) -> str:
    """Return the waterfalls of two runs, and the first token that differs."""
    worse, size = found.difference > 0, abs(found.difference) / 1e6
    verdict = (
        f"{names[1]} decoded {size:,.1f} ms {'longer' if worse else 'shorter'} than {names[0]}."
        if found.difference
        else "Both runs decoded equally long."
    )
    reason = (
        f'<p class="app-note">Their speeds cannot be compared: different {text(", ".join(found.not_comparable))}.</p>'
        if found.not_comparable
        else ""
    )
    falls = "".join(_waterfall(w, found.difference) for w in found.waterfalls)
    key = '<p class="app-note">Green: time won by the second run. Hatched: time lost. The changes of a device sum to the difference.</p>'
    return (
        f'<div class="app-diff"><p><b>{text(verdict)}</b></p>{reason}{_tokens_over_time(found, names)}<h3>Waterfalls</h3>{key}{falls}'
        f"{_first_token(found.first_difference, names)}</div>"
    )


def _tokens_over_time(found: Diff, names: Sequence[str]) -> str:
    """Return a chart of the tokens of the first sequence that both runs have, over time."""
    count = len(found.by_token)
    longest = max((time for pair in found.by_token for time in pair), default=0)
    if not longest:
        return ""
    lines = legend = ""
    kinds = (("first", "speculative"), ("second", "pearl"))
    for side, (name, (order, kind)) in enumerate(zip(names, kinds, strict=True)):
        points = ["0,100"]
        for i, pair in enumerate(found.by_token):
            x = 100 * pair[side] / longest
            points += [f"{x:.2f},{100 * (1 - i / count):.2f}", f"{x:.2f},{100 * (1 - (i + 1) / count):.2f}"]
        lines += f'<polyline class="app-{kind}" points="{" ".join(points)}"/>'
        legend += f'<li><i class="app-{kind}"></i>{order}: {text(name)}</li>'
    return (
        f'<h3>Tokens over time</h3><div class="app-chart app-low" role="img" aria-label="Tokens over time">'
        f'<div class="app-ticks"><span style="top:0">{count}</span><span style="top:100%">0</span></div>'
        f'<div class="app-plot"><svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">{lines}</svg></div>'
        f'<div class="app-lengths"><span>0</span><span>{longest / 1e6:,.0f} ms</span></div></div>'
        f'<ul class="app-legend">{legend}</ul>'
    )


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


def _line(step: Step, start: float, width: float) -> list[str]:
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
            "has ended" if side.token is None else f"<code>{text(repr(side.text))}</code>",
            text(side.origin),
            *(
                "<br>".join(f"<code>{text(repr(t))}</code> {p:.3f}" for t, p in top) or "–"
                for top in (side.p, side.q)
            ),
        ]
        for name, side in zip(names, found.sides, strict=True)
    ]
    where = f" of sequence {found.sequence}" if found.sequence else ""
    return f"<h3>First differing token: number {found.index + 1}{where}</h3>{table(head, lines, 'First differing token')}"
