"""Small pieces of HTML. All text of models and users is escaped by `text`."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from traces.view.figures import LOSSY
from traces.view.settings import drafter_text

if TYPE_CHECKING:
    from engine.trace.events import Header


def text(value: Any) -> str:
    """Return a value as HTML text; lone surrogates become question marks."""
    return escape(str(value).encode("utf-8", "replace").decode("utf-8"))


def badge(value: Any, kind: str = "", title: str = "") -> str:
    """Return a small rounded label; `kind` is good, warn or bad."""
    classes = " ".join(filter(None, ("ss-badge", kind and f"ss-{kind}")))
    hint = f' title="{text(title)}"' if title else ""
    return f'<span class="{classes}"{hint}>{text(value)}</span>'


def alert(message: str) -> str:
    """Return an error message that screen readers announce; empty without a message."""
    return f'<p class="app-alert" role="alert">{text(message)}</p>' if message else ""


def note(message: str) -> str:
    """Return a status line; empty without a message."""
    return f'<p class="app-note" role="status">{text(message)}</p>' if message else ""


def clock(runtime: str, profile: str | None, pair: str | None = None) -> str:
    """Return the text of the badge for the source of times, as in `Header.clock`."""
    if not profile:
        return f"measured · {runtime}"
    return " · ".join(filter(None, ("virtual", profile, pair)))


def lossy(header: Header) -> str:
    """Return the badge of a lossy run; empty for a lossless one."""
    return "" if header.lossless else badge("lossy", "warn", LOSSY)


def drafter(header: Header) -> str:
    """Return the badge of a drafter that is the target in fewer bits; empty for another one."""
    name = drafter_text(header)
    return badge(f"drafter {name}", title="The target's own weights in fewer bits.") if name else ""


def scrolling(label: str) -> str:
    """Return the opening tag of a box that scrolls sideways, also by keyboard."""
    return f'<div class="app-scroll" tabindex="0" role="group" aria-label="{text(label)}">'


def table(head: list[str], rows: list[list[str]], label: str) -> str:
    """Return a table of HTML cells, without a heading row if all headings are empty."""
    top = "".join(f'<th scope="col">{text(h)}</th>' for h in head) if any(head) else ""
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'{scrolling(label)}<table class="app-table" aria-label="{text(label)}">'
        f"{top and f'<thead><tr>{top}</tr></thead>'}<tbody>{body}</tbody></table></div>"
    )
