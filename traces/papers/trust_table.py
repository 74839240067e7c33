"""The first table of the papers' page: what may be trusted of a method, what is missed, why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby

from specscope.engine.methods import METHODS
from specscope.traces.papers.rows import WITHIN, Paper, PaperRow, anchor
from specscope.traces.papers.trust import Trust, trusts, unjudged

_HEAD = "".join(f"<th>{title}</th>" for title in ("method", f"within {WITHIN:.0%}", "missed", "why"))


def trust_table(papers: Sequence[Paper], rows: Sequence[PaperRow]) -> str:
    """Return a row per method with judged predictions; methods without any in one sentence."""
    names = {paper.key: paper.name for paper in papers}
    lines = "".join(_line(trust, names) for trust in trusts(rows))
    others = ", ".join(METHODS[key].title for key in unjudged(rows))
    none = f'<p class="muted">No number of a paper is predicted for {escape(others)}.</p>' if others else ""
    return (
        '<h2 class="first">What may be trusted, by method</h2><p class="muted">Of the numbers that papers print for a '
        f"method, how many does SpecScope predict within {WITHIN:.0%}? Rows to which something was fitted, and rows that "
        "can hardly miss, do not count.</p>"
        f'<table class="trust"><thead><tr>{_HEAD}</tr></thead><tbody>{lines}</tbody></table>{none}'
    )


def _line(trust: Trust, names: Mapping[str, str]) -> str:
    good, all_of = len(trust.predicted) - len(trust.missed), len(trust.predicted)
    exact = f' <span class="muted">and {trust.exact} exact</span>' if trust.exact else ""
    return (
        f'<tr><th scope="row">{escape(trust.title)}</th>'
        f'<td><span class="share"><i style="width:{100 * trust.share:.0f}%"></i></span>{good} of {all_of}<span class="narrow"> within {WITHIN:.0%}</span>{exact}</td>'
        f"<td>{_missed(trust, names)}</td><td>{_why(trust.reasons())}</td></tr>"
    )


def _missed(trust: Trust, names: Mapping[str, str]) -> str:
    """Return links to the tables with misses, by paper, and how far the numbers are off."""
    if not trust.missed:
        return '<span class="muted">nothing</span>'
    groups = list[str]()
    for paper, places in groupby(trust.places().items(), lambda place: place[0][0]):
        links = (
            f'<a href="#{anchor(paper, item)}">{escape(item)}</a>{f" ({n})" if n > 1 else ""}'
            for (_, item), n in places
        )
        groups.append(f"{escape(names[paper])}: {', '.join(links)}")
    return f"{len(trust.missed)}, off by {escape(trust.span())}. {'; '.join(groups)}"


def _why(reasons: Sequence[str]) -> str:
    """Return the first sentence of the most frequent reason; all of them are folded."""
    if not reasons:
        return ""
    texts = [escape(f"{reason[:1].upper()}{reason[1:]}") for reason in reasons]
    first, stop, rest = texts[0].partition(". ")
    if len(texts) == 1 and not rest:
        return first
    folded = "".join(f"<li>{text}</li>" for text in texts)
    title = f"all {len(texts)} reasons" if len(texts) > 1 else "more"
    return f"{first}{stop}<details><summary>{title}</summary><ul>{folded}</ul></details>"
