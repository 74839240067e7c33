"""What the page shows of files that other processes write: state, figures, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specscope.app.render.addresses import names_of
from specscope.app.render.html import run_address, text
from specscope.traces.following.growing import Counting

if TYPE_CHECKING:
    from specscope.app.jobs.recordings import Followed
    from specscope.traces.following.follow import Tally

PICKER = (
    '<select class="app-recordings" aria-label="Follow a file that is being written">'
    '<option value="">Follow a file…</option></select>'
)
"""Constant, so that Gradio never renders it again; `app.js` fills in the files."""


def following(followed: Sequence[Followed]) -> str:
    """Return a line for each file; its buttons hold the file's name for `app.js`."""
    files = text(names_of([one.run.name for one in followed]))
    return f'<div class="app-follow" data-files="{files}">{"".join(map(_line, followed))}</div>'


def _line(one: Followed) -> str:
    run = one.run
    name, note = text(run.name), run.note or ("Following." if not run.ended else "")
    if run.state == "failed" and getattr(one.source, "footer", None) is None:
        note = f"No longer followed: {run.error}."
    servers = dict(one.source.titles) if isinstance(one.source, Counting) else {}
    shown = servers.pop(run.run_id, "")
    if servers and shown:
        note = f"Shown: {shown}, one of {1 + len(servers)} servers. {note}"
    others = [
        _button("show", f"Show {text(title)}", run_id) if not run.ended else _link(run_id, title)
        for run_id, title in servers.items()
    ]
    buttons = [_button("stop", "Stop", name)] if not run.ended else [_button("again", "Follow again", name)]
    if run.state == "cancelled" and run.run_id and one.source.unfinished:
        buttons.insert(0, _button("keep", "Import what is there", name))
    return (
        f'<div class="app-turn" data-state="{run.state}" data-file="{name}"><span class="app-lamp"></span><b>{name}</b>'
        f"<span>{text(figures(one.tally))}</span>"
        f'<span role="status">{text(note)}</span><span class="app-links">{"".join([*others, *buttons])}</span></div>'
    )


def _link(run_id: str, title: str) -> str:
    return f'<a href="{run_address([run_id])}">{text(title)}</a>'


def _button(action: str, title: str, name: str) -> str:
    return f'<button type="button" class="ss-button" data-{action}="{name}">{title}</button>'


def figures(tally: Tally) -> str:
    """Return the figures so far; empty before the first round."""
    if not tally.rounds:
        return ""
    rate, speed = tally.acceptance_rate, tally.tokens_per_second
    counts = (tally.rounds, "round"), (tally.tokens, "token")
    parts = [f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts if count]
    if rate is not None:
        parts.append(f"{100 * rate:.0f}% of drafts accepted")
    if speed is not None:
        parts.append(f"{speed:.1f} tokens/s")
    return " · ".join(parts)
