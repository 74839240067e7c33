"""The answer of `specscope advise` as HTML: sentences, bars, cards with their bytes, a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specscope.app.render.html import app_page, badge, run_address, scrolling, text
from specscope.app.render.table import Column, Table
from specscope.engine.checkpoints.progress import megabytes
from specscope.engine.simulate.shapes import data

COLUMNS = (
    Column("title", "method", width=-22),
    Column("place", "where", width=-72),
    Column("range", "speed-up", width=14),
    Column("tokens_per_second", "tokens/s", ",.0f", width=10),
    Column("tokens_per_second_per_card", "per card", ",.0f", width=10),
    Column("settings", "  settings"),
)


def table_of(part: Mapping[str, Any]) -> Table:
    """Return a row for each method and place of a batch size, the fastest first."""
    rows = [
        {
            **option,
            "range": f"{option['low']:.2f} to {option['high']:.2f}×" if option["parts"] else "1",
            "settings": "  " + ", ".join(f"{name} {value}" for name, value in option["config"].items()),
        }
        for option in part["options"]
    ]
    return Table(COLUMNS, rows)


def models_line(found: Mapping[str, Any]) -> str:
    """Return models, cards, acceptance and length of a question."""
    low, high = found["acceptance"]
    rate = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    if found["recorded"]:
        rate += f" (run {found['recorded']})"
    elif found["places"]:
        rate = f"{', '.join(f'{place:g}' for place in found['places'])} by place"
    dtype = found["drafter_dtype"]
    drafter = f"{named(found['drafter'])}{f' in {dtype}' if dtype != found['dtype'] else ''}"
    return (
        f"{named(found['target'])} in {found['dtype']} with {drafter} on {found['gpus'].replace('x', ' × ', 1)} · "
        f"acceptance {rate}{'' if found['acceptance_known'] else ' (unknown)'} · context {found['context']:,}"
    )


def named(shape: Any) -> str:
    """Return the name of a shape."""
    if isinstance(shape, str):
        return data("shapes")[shape]["title"] if shape in data("shapes") else shape
    return str(shape.get("title", "a typed shape"))


def html(found: Mapping[str, Any], *, links: bool = True) -> str:
    """Return the answers of all batch sizes that are done."""
    body = f'<p class="app-note">{badge(found["clock"])} {text(models_line(found))}</p>'
    body += "".join(_part(part, memory=_memory(found), links=links) for part in found["batches"])
    if found["left_out"]:
        rows = "".join(f"<li>{text(name)}: {text(why)}</li>" for name, why in found["left_out"].items())
        body += f'<details class="app-more"><summary>Left out ({len(found["left_out"])})</summary><ul>{rows}</ul></details>'
    return body


def page(found: Mapping[str, Any]) -> str:
    """Return the answer as a page of its own, which needs no server."""
    return app_page(f"{models_line(found)} · {found['clock']}", html(found, links=False))


def _memory(found: Mapping[str, Any]) -> float:
    _, _, card = found["gpus"].partition("x")
    return data("gpus")["cards"][card]["memory_gib"] * 2**30


def _part(part: Mapping[str, Any], *, memory: float, links: bool) -> str:
    more = "".join(f"<li>{text(change['text'])}</li>" for change in part["changes"])
    changes = f"<h3>What would change it</h3><ul>{more}</ul>" if more else ""
    notes = "".join(f"<p>{text(line)}</p>" for line in part["notes"])
    best = part["options"][0]
    table = table_of(part).html(f"Methods and places at batch {part['batch']}")
    return (
        f'<section class="app-advice"><p class="app-answer">{text(part["answer"])}</p>{notes}'
        f"{_bars(part['options'], links=links)}"
        f"<h3>Who sits where: {text(best['title'])}</h3>{_cards(best, memory)}{changes}"
        f"{table}</section>"
    )


def _bars(options: Sequence[Mapping[str, Any]], *, links: bool) -> str:
    """Return a bar for each method and place: its speed-up, with the range as a line."""
    most = max(option["high"] for option in options)
    rows = list[str]()
    for option in options:
        place = f"{option['title']}: {option['place']}"
        if links and option["runs"]:
            name = f'<a href="{run_address(option["runs"])}" title="open its virtual trace">{text(option["title"])}</a>'
        else:
            name = text(option["title"])
        low, mid, high = (100 * option[end] / most for end in ("low", "speedup", "high"))
        plain = "" if option["parts"] else " app-plain"
        line = f'<i style="left:{low:.1f}%;width:{max(0.0, high - low):.1f}%"></i>' if option["parts"] else ""
        value = f"{option['speedup']:.2f}×"
        rows.append(
            f'<tr><th scope="row">{name}<small>{text(option["place"])}</small></th>'
            f'<td><div class="app-bar{plain}" role="img" aria-label="{text(place)}: {value}">'
            f'<b style="width:{mid:.1f}%"></b>{line}</div></td><td>{value}</td></tr>'
        )
    title = "Speed-up over plain decoding in its best place (virtual); the line is the likely range"
    return (
        f'{scrolling(title)}<table class="app-bars" aria-label="{text(title)}"><caption>{text(title)}</caption>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cards(option: Mapping[str, Any], memory: float) -> str:
    """Return the cards of an option, filled with the bytes of its models."""
    cards, models = list[str](), [p["model"] for parts in option["memory"].values() for p in parts]
    colours = {model: i % 3 for i, model in enumerate(dict.fromkeys(models))}
    for name, parts in sorted(option["memory"].items(), key=lambda card: (len(card[0]), card[0])):
        filled = "".join(
            f'<b class="app-part-{colours[p["model"]]}" style="height:{100 * p["bytes"] / memory:.1f}%"></b>'
            for p in parts
        )
        words = [f"{part['model']} {part['dtype']}: {megabytes(part['bytes'])}" for part in parts]
        free = memory - sum(part["bytes"] for part in parts)
        listed = "".join(
            f'<li><span class="app-part-{colours[part["model"]]}"></span>{text(word)}</li>'
            for part, word in zip(parts, words, strict=True)
        )
        cards.append(
            f'<figure><div class="app-gpu" role="img" aria-label="{text(name)}: {text(", ".join(words))}">{filled}</div>'
            f"<figcaption><strong>{text(name)}</strong><ul>{listed}<li>free: {megabytes(int(free))}</li></ul></figcaption></figure>"
        )
    return f'<div class="app-gpus">{"".join(cards)}</div>'
