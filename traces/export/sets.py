"""Sets as lines of text, and as HTML without JavaScript, which page and report share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from specscope.traces.sets.sentences import interval, many, plural

if TYPE_CHECKING:
    from specscope.traces.sets.compared import ComparedView, SetsView, ToldSet
    from specscope.traces.sets.figures import Mean, One, SetPart

Link = Callable[["One"], str]
"""A request -> its address; empty for none."""
TABLES = (("categories", "category"), ("prompts", "prompt tokens"), ("times", "from"))
"""Key of a set's parts, and the heading of their names."""
PICTURE = '<span class="ss-sr">picture</span>'
WIDTH, HEIGHT, EDGE = 150, 16, 6
"""Of the picture of an interval."""


def lines(sets: SetsView) -> Iterator[str]:
    if sets["note"]:
        yield sets["note"]
    for one in sets["sets"]:
        yield f"{one['name']}: {_size(one)}."
        yield from (f"  {text}" for text in one["sentences"])
        if one["whole"]["requests"] > 1:
            yield f"  {_spread(one)}"
        for key, title in TABLES:
            yield from _table_lines(title, one[key])
        for title, rows in (("worst", one["worst"]), ("best", one["best"])):
            if rows:
                yield f"  {title}: {'; '.join(map(_named, rows))}"
    for compared in sets["compared"]:
        yield f"{compared['name']} against {compared['baseline']}"
        yield from (f"  {text}" for text in compared["sentences"])
        yield from (f"  {one['name']:24} {_times(one['speedup'])}" for one in compared["categories"])
    if not sets["sets"]:
        yield "there is no request in it"
    if sets["left_out"]:
        yield f"{plural(sets['left_out'], 'further setting')} left out"


def _size(one: ToldSet) -> str:
    return plural(one["members"], one["noun"])


def _spread(one: ToldSet) -> str:
    whole, shares = one["whole"], one["percentiles"]
    spread = ", ".join(f"{name} {value:.2f}" for name, value in shares.items())
    return f"pooled {interval(whole['length'])}, mean of the {many(one['noun'])} {interval(whole['mean'])}, {spread}"


def _named(row: One) -> str:
    place = "" if row["part"] is None else f":{row['part']}"
    category = f", {row['category']}" if row["category"] else ""
    return f"{row['length']:.2f} {row['name']}{category} (run {row['run']}{place}, {row['rounds']:,} rounds)"


def _table_lines(title: str, parts: Sequence[SetPart]) -> Iterator[str]:
    if not parts:
        return
    wide = max(len(title), *(len(part["name"]) for part in parts))
    yield f"  {title:{wide}} {'requests':>9} {'rounds':>9}  {'length':22} {'accepted':>9} {'tokens/s':>9}"
    for part in parts:
        yield (
            f"  {part['name']:{wide}} {part['members']:>9,} {part['rounds']:>9,}  {_length(part['length']):22} "
            f"{_percent(part['rate']):>9} {_number(part['speed']):>9}"
        )


def _length(figure: Mean) -> str:
    return "-" if figure["value"] is None else interval(figure)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}×"


def html(sets: SetsView, link: Link = lambda _: "") -> str:
    """Return the sets as HTML; empty without one."""
    note = f'<p class="ss-set-note">{_text(sets["note"])}</p>' if sets["note"] else ""
    left = (
        f'<p class="ss-note">{plural(sets["left_out"], "further setting")} left out.</p>'
        if sets["left_out"]
        else ""
    )
    cards = [*(_card(one, link) for one in sets["sets"]), *map(_compared, sets["compared"])]
    return f'<div class="specscope ss-sets">{note}{"".join(cards)}{left}</div>' if cards else ""


def _card(one: ToldSet, link: Link) -> str:
    name = _text(one["name"])
    body = [_list(one["sentences"])]
    if one["whole"]["requests"] > 1:
        body.append(f'<p class="ss-detail">{_text(_spread(one))}.</p>')
    most = max((_reach(part) for key, _ in TABLES for part in one[key]), default=1.0)
    body += [_parts(title, one[key], most, name) for key, title in TABLES if one[key]]
    ends = (("lowest acceptance", one["worst"]), ("highest acceptance", one["best"]))
    ranked = "".join(_ranked(title, rows, link) for title, rows in ends if rows)
    body.append(f'<div class="ss-set-ranked">{ranked}</div>' if ranked else "")
    return (
        f'<section class="ss-card ss-set" aria-label="Set {name}"><h3>{name}</h3>'
        f'<span class="ss-badge">{_size(one)}</span>{"".join(body)}</section>'
    )


def _compared(one: ComparedView) -> str:
    title = f"{_text(one['name'])} against {_text(one['baseline'])}"
    rows = [
        [_text(part["name"]), f"{part['requests']:,}", _times(part["speedup"]), _number(part["length"])]
        for part in one["categories"]
    ]
    table = _table(["category", "requests", "speed-up", "acceptance length"], rows, title) if rows else ""
    return f'<section class="ss-card ss-set" aria-label="{title}"><h3>{title}</h3>{_list(one["sentences"])}{table}</section>'


def _parts(title: str, parts: Sequence[SetPart], most: float, name: str) -> str:
    rows = [
        [
            _text(part["name"]),
            _picture(part["length"], most),
            _text(_length(part["length"])),
            f"{part['members']:,}",
            f"{part['rounds']:,}",
            _percent(part["rate"]),
            _number(part["speed"]),
        ]
        for part in parts
    ]
    head = [title, PICTURE, "acceptance length", "requests", "rounds", "accepted", "tokens/s"]
    known = [i for i in range(len(head)) if any(row[i] not in ("", "-") for row in rows)]
    return _table([head[i] for i in known], [[row[i] for i in known] for row in rows], f"{name} by {title}")


def _reach(part: SetPart) -> float:
    """Return how far the picture of a part reaches; a very wide interval does not set the scale."""
    value, high = part["length"]["value"] or 1.0, part["length"]["high"] or 1.0
    return max(value, min(high, 2 * value))


def _picture(figure: Mean, most: float) -> str:
    """Return a point with its interval, from 1 to `most`; its numbers stand beside it."""
    if figure["value"] is None:
        return ""

    def x(value: float) -> float:
        return EDGE + (WIDTH - 2 * EDGE) * min(1.0, (value - 1) / max(1e-9, most - 1))

    middle = HEIGHT / 2
    low, high = figure["low"], figure["high"]
    whisker = (
        ""
        if low is None or high is None
        else f'<line class="ss-set-interval" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{middle}" y2="{middle}"/>'
    )
    return (
        f'<svg aria-hidden="true" width="{WIDTH}" height="{HEIGHT}">'
        f'<line class="ss-set-scale" x1="{EDGE}" x2="{WIDTH - EDGE}" y1="{middle}" y2="{middle}"/>{whisker}'
        f'<circle class="ss-set-value" cx="{x(figure["value"]):.1f}" cy="{middle}" r="4"/></svg>'
    )


def _ranked(title: str, rows: Sequence[One], link: Link) -> str:
    cells: list[list[str]] = []
    several = any(row["category"] for row in rows)
    for row in rows:
        address = link(row)
        name = f'<a href="{_text(address)}">{_text(row["name"])}</a>' if address else _text(row["name"])
        category = [_text(row["category"])] if several else []
        cells.append([name, f"{row['length']:.2f}", f"{row['rounds']:,}", *category])
    return _table([title, "length", "rounds", *(["category"] if several else [])], cells, title)


def _list(sentences: Sequence[str]) -> str:
    return f'<ul class="ss-set-sentences">{"".join(f"<li>{_text(text)}</li>" for text in sentences)}</ul>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], label: str) -> str:
    """Return a table; all texts are HTML."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return (
        f'<div class="ss-scroll" tabindex="0" role="group" aria-label="{label}"><table class="ss-table">'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _text(value: Any) -> str:
    return escape(str(value).encode("utf-8", "replace").decode())
