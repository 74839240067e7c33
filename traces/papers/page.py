"""The page of `specscope papers -o`: all rows and charts in one HTML file without requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby

from traces.papers.charts import chart, charted, heat_map, words
from traces.papers.report import Summary
from traces.papers.rows import FOLDER, WITHIN, Paper, Row

_FILTERS = {
    "exact": "exact",
    "copied": "copied",
    "arithmetic": "arithmetic",
    "closed form": "closed form",
    "simulated": "simulated",
    "measured": "measured",
    "published only": "published only",
    "fitted": "fitted",
    "easy": "can hardly miss",
    "missed": f"off by more than {WITHIN:.0%}",
}
"""Words of a row's `data-is`, and their names."""
_STATES = {"fitted": "fitted", "easy": "can hardly miss"}
_KEY = (
    '<p class="key"><span><svg viewBox="0 0 12 12" aria-hidden="true"><circle class="published" cx="6" cy="6" r="5"/>'
    '</svg>published</span><span><svg viewBox="0 0 12 12" aria-hidden="true"><circle class="ours" cx="6" cy="6" r="4"/>'
    '</svg>ours</span><span><svg viewBox="0 0 12 12" aria-hidden="true"><circle class="missed" cx="6" cy="6" r="4"/>'
    f"</svg>ours, predicted, and off by more than {WITHIN:.0%}</span></p>"
)


def render_page(papers: Sequence[Paper], rows: Sequence[Row]) -> str:
    """Return the page as the text of one HTML file (UTF-8).

    Args:
        papers: The papers, in the order shown.
        rows: Their rows.
    """
    page, style = ((FOLDER / name).read_text(encoding="utf-8") for name in ("page.html", "papers.css"))
    return page.replace("{{style}}", style).replace("{{body}}", render_body(papers, rows))


def render_body(papers: Sequence[Paper], rows: Sequence[Row]) -> str:
    """Return the page's content as HTML; its filters need `assets/papers/papers.css`, no script.

    Args:
        papers: The papers, in the order shown.
        rows: Their rows.
    """
    summary = Summary.of(rows)
    parts = [
        f'<p class="muted">{escape(_INTRODUCTION)}</p>',
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{n}</b>{text}</div>' for n, text in summary.tiles())
        + "</div>",
        _filters(papers),
        _KEY,
        *(_paper(paper, [row for row in rows if row.paper == paper.key]) for paper in papers),
    ]
    return f'<div class="papers">{"".join(parts)}</div>'


def _filters(papers: Sequence[Paper]) -> str:
    """Return the choices of a paper and of a kind, with the rules that hide all other rows."""
    titles = {paper.key: paper.title.partition(":")[0] for paper in papers}
    rules = [
        f'.papers:has([name="papers-paper"][value="{key}"]:checked) .paper:not([data-paper="{key}"])'
        for key in titles
    ]
    for kind in _FILTERS:
        chosen, has = f'.papers:has([name="papers-kind"][value="{kind}"]:checked)', f'[data-is*="{kind}"]'
        rules += [
            f"{chosen} :is(.item, .paper):not(:has({has}))",
            f"{chosen} [data-is]:not({has})",
            f"{chosen} .chart:not(:has({has}))",
        ]
    one = _choice("Paper", titles) if len(titles) > 1 else ""
    return f"<style>{','.join(rules)}{{display:none}}</style>{one}{_choice('Rows', _FILTERS, 'kind')}"


def _choice(legend: str, values: Mapping[str, str], name: str = "") -> str:
    boxes = "".join(
        f'<label><input type="radio" name="papers-{name or legend.lower()}" value="{escape(value)}"'
        f"{'' if value else ' checked'}>{escape(title)}</label>"
        for value, title in {"": "all", **values}.items()
    )
    return f"<fieldset><legend>{legend}</legend>{boxes}</fieldset>"


_INTRODUCTION = (
    "Each number of the papers that can be computed, beside the computed one. A parameter without a source is fitted "
    "once, on rows that are marked. Numbers that repeat the print, and predictions that can hardly miss, count apart; all "
    "other computed rows are predictions. Rows beyond the limit have their reason."
)


def _paper(paper: Paper, rows: Sequence[Row]) -> str:
    sentences = "".join(f"<li>{escape(sentence)}</li>" for sentence in paper.inconsistencies)
    parts = [
        f"<h2>{escape(paper.title)}</h2>",
        f'<p class="muted">{escape(Summary.of(rows).sentence())}.</p>',
        f"<details><summary>Numbers of the paper that contradict each other</summary><ul>{sentences}</ul></details>",
    ]
    for item, group in groupby(rows, lambda row: row.item):
        parts.append(_item(paper, item, list(group)))
    return f'<section class="paper" data-paper="{paper.key}">{"".join(parts)}</section>'


def _item(paper: Paper, item: str, rows: Sequence[Row]) -> str:
    summary, name = Summary.of(rows), escape(item)
    n = summary.counts
    counts = [
        f"{summary.exact_equal} of {n['exact']} exact" if n["exact"] else "",
        f"{summary.within} of {n['predicted']} predicted within {WITHIN:.0%}" if n["predicted"] else "",
        f"{n['easy']} can hardly miss" if n["easy"] else "",
        f"{n['repeated']} repeat the print" if n["repeated"] else "",
        f"{n['published only']} as published" if n["published only"] else "",
    ]
    about = ", ".join(filter(None, counts)) or "no published number"
    heats = "".join(map(heat_map, paper.maps[item]())) if item in paper.maps else ""
    maps = (
        f'<div class="maps">{heats}</div><p class="muted">Across: drafter latency from 0.01 to 1 target forwards. '
        "Up: acceptance rate from 0 to 1. White is 1, blue is faster (darkest from 4), pink is slower.</p>"
        if heats
        else ""
    )
    return (
        f'<div class="item"><h3>{name} <span class="muted">· {about}</span></h3>{maps}{chart(f"{paper.key}, {item}", rows)}'
        f'<div class="scroll rows" tabindex="0" role="region" aria-label="{escape(paper.key)}, {name}">{_table(rows)}</div>'
        f"{_assumptions(name, rows)}</div>"
    )


def _table(rows: Sequence[Row]) -> str:
    head = '<th class="number">in chart</th><th>row</th><th class="number">published</th><th class="number">ours</th><th class="number">difference</th><th>kind</th>'
    numbers = iter(range(1, len(rows) + 1))
    lines = [_line(row, str(next(numbers)) if charted(row) else "") for row in rows]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _line(row: Row, number: str) -> str:
    missed = " bad" if row.predicted and not row.hit else ""
    difference = "" if row.difference is None else f"{row.difference:+.1%}"
    kind = f"{row.kind}, {_STATES[row.group]}" if row.group in _STATES else row.kind
    return (
        f'<tr data-is="{words(row)}"><td class="number">{number}</td><td>{escape(row.row)}</td><td class="number">{_number(row.published)}</td>'
        f'<td class="number">{_number(row.ours)}</td><td class="number{missed}">{difference}</td><td>{kind}</td></tr>'
    )


def _assumptions(name: str, rows: Sequence[Row]) -> str:
    texts = dict.fromkeys(str(row.to_dict()["assumption"]) for row in rows)
    lines = "".join(f"<li>{escape(text)}</li>" for text in texts if text)
    return f"<details><summary>{name}: assumptions and reasons</summary><ul>{lines}</ul></details>"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"
