"""The list of stored runs, and the heading above an open run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from specscope.app.render.addresses import EXPORTS, SET, export_address, report_address
from specscope.app.render.html import badge, drafter, lossy, name_of, run_address, text
from specscope.engine.checkpoints.forms import model_name
from specscope.engine.trace.events import Header
from specscope.engine.trace.trace import Trace
from specscope.traces.database.store import Summary
from specscope.traces.export.sets import html as sets_html
from specscope.traces.facts.imported import is_foreign
from specscope.traces.sets.compared import SetsView, sets_of
from specscope.traces.sets.figures import One
from specscope.traces.sets.members import members_of
from specscope.traces.sets.sentences import plural

KINDS = {"damaged": "bad", "failed": "bad", "incomplete": "warn", "cancelled": "warn", "running": "good"}
HEAD = (
    ('<span class="ss-sr">Select</span>', "", ""),
    ("Run", "", "When the run began, and its id."),
    ("Method", "", "The method with its settings, and the models: target and drafter."),
    ("Prompt", "", ""),
    ("T", "app-n", "Sampling temperature; 0 takes the most probable token."),
    ("Times", "", "Source of the times."),
    ("Tokens", "app-n", "New tokens of all sequences."),
    ("Tok/s", "app-n", "Tokens per second of decoding, without prefill."),
    ("Speed-up", "app-n", "This pass over the plain decoding of its race, under the same conditions."),
    ("Race", "", "Runs that were compared with each other, or that one file has."),
    ("Status", "", ""),
    ('<span class="ss-sr">Actions</span>', "", ""),
)
"""Heading, class and explanation of each column."""


def runs_table(
    rows: Sequence[Summary],
    total: int,
    offset: int,
    size: int,
    selected: Collection[str] = (),
    query: str = "",
) -> str:
    """Return a page of runs; boxes and buttons hold the run id for `app.js`."""
    if not rows:
        return f'<div data-state="empty"><p class="ss-empty">{_nothing(query)}</p></div>'
    head = "".join(
        f'<th scope="col" class="{kind}" title="{text(hint)}">{name}</th>' for name, kind, hint in HEAD
    )
    body = "".join(_row(row, row.header.run_id in selected) for row in rows)
    return (
        f'<div data-state="ready" data-total="{total}"><div class="app-scroll">'
        f'<table class="app-table app-runs" aria-label="Stored runs"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{_pager(len(rows), total, offset, size)}</div>"
    )


def _nothing(query: str) -> str:
    if query:
        return f"No run contains “{text(query)}”."
    return "No run yet. Runs of the playground and of the command line appear here."


def _row(row: Summary, selected: bool) -> str:
    header = row.header
    run_id, prompt = text(header.run_id), header.prompts[0] if header.prompts else ""
    speed = f"{row.tokens_per_second:.1f}" if row.tokens_per_second else "–"
    tokens = "–" if row.tokens is None else str(row.tokens)  # an imported run may not tell it
    faster = f"{row.speedup:.2f}×" if row.speedup else "–"
    heat = header.sampling.get("temperature")
    status = badge(row.status, KINDS.get(row.status, ""), row.error)
    load = f" {badge('load', 'warn', row.load)}" if row.load else ""
    return (
        f'<tr data-run="{run_id}"><td><input type="checkbox" value="{run_id}" {"checked" if selected else ""} '
        f'aria-label="Select run {run_id}"></td>'
        f'<td class="app-when">{moment(header.created)}<small>{run_id}</small></td>'
        f"<td>{text(name_of(header))} {drafter(header)}{lossy(header)}<small>{text(models_of(header))}</small></td>"
        f'<td class="app-cut" title="{text(prompt[:2000])}">{text(prompt[:200])}</td>'
        f'<td class="app-n">{text(f"{heat:g}" if isinstance(heat, int | float) else "–")}</td>'
        f'<td>{badge(header.clock)}</td><td class="app-n">{tokens}</td><td class="app-n">{speed}</td>'
        f'<td class="app-n">{faster}</td><td>{_race(header)}</td><td>{status}{load}</td><td class="app-acts">'
        f'<button type="button" class="ss-button" data-open="{run_id}" aria-label="Open run {run_id}">open</button></td></tr>'
    )


def _race(header: Header) -> str:
    """Return a button that opens the runs of a race or of a set; a dash without one."""
    if not header.group:
        return "–"
    if is_foreign(header):
        name = text(header.group)
        return (
            f'<button type="button" class="ss-button" data-set="{name}" title="All requests of the file of this one">'
            f"{name[:12]}</button>"
        )
    return (
        f'<button type="button" class="ss-button" data-group="{text(header.run_id)}" '
        f'aria-label="Compare run {text(header.run_id)} with its race" title="Open with the other runs of race {text(header.group)}">'
        f"{text(header.group[:8])}</button>"
    )


def models_of(header: Header) -> str:
    names = [model_name(path) for path in (header.target_path, header.drafter_path) if path]
    pairs = [name.rpartition("/")[0] for name in names if name.rpartition("/")[2] in ("target", "drafter")]
    if len(pairs) == len(names) and len(set(pairs)) == 1:
        return pairs[0]
    return " + ".join(names)


def _pager(shown: int, total: int, offset: int, size: int) -> str:
    def button(name: str, to: int, on: bool) -> str:
        return f'<button type="button" class="ss-button" data-offset="{to}" {"" if on else "disabled"}>{name}</button>'

    return (
        f'<div class="app-pager"><span>{offset + 1} to {offset + shown} of {total}</span>'
        f"{button('newer', max(0, offset - size), offset > 0)}"
        f"{button('older', offset + size, offset + shown < total)}</div>"
    )


def opened(headers: Sequence[Header], names: Sequence[str] = ()) -> str:
    """Return the heading above the viewer: title, time and downloads of the open runs."""
    ids = list(names) or [header.run_id for header in headers]
    files = "".join(
        f"<li>{text(name_of(h))}: {''.join(_export(h.run_id, form) for form in EXPORTS)}</li>"
        for h in headers
    )
    title = name_of(headers[0]) if len(headers) == 1 else f"{len(headers)} runs compared"
    mark = drafter(headers[0]) + lossy(headers[0]) if len(headers) == 1 else ""
    return (
        f'<div class="app-opened" data-runs="{text(",".join(ids))}"><h2>{text(title)}</h2>{mark}'
        f'<span class="app-note">{moment(headers[0].created)}</span>'
        f'<span class="app-links"><a href="{run_address(ids)}">Permalink</a>'
        f'<a href="{report_address(ids)}" download>Download report</a>'
        f'<a href="{report_address(ids)}&amp;redact_prompt=true" download>Download it without the prompt</a></span>'
        f'<details class="app-past"><summary>Download the data</summary><ul>{files}</ul></details></div>'
    )


def opened_set(names: Sequence[str], sets: SetsView, message: str = "") -> str:
    """Return the heading of runs that are shown as one set, and the set."""
    ids = [SET + names[0], *names[1:]]
    number = sum(one["members"] for one in sets["sets"])
    said = f'<p class="app-note app-wide" role="status">{text(message)}</p>' if message else ""
    return (
        f'<div class="app-opened" data-runs="{text(",".join(ids))}"><h2>One set of {number:,}</h2>'
        f'<span class="app-links"><a href="{run_address(ids)}">Permalink</a>'
        f'<a href="{report_address(ids)}" download>Download report</a>'
        f'<button type="button" class="ss-button" data-remove="{text(",".join(names))}">Delete the set</button></span>{said}</div>'
        f"{sets_html(sets, _request_address)}"
    )


def folded_set(traces: Sequence[Trace]) -> str:
    """Return the set that one run with several requests is; empty for another one."""
    members = list(members_of(traces)) if len(traces) == 1 else []
    if len(members) < 2:
        return ""
    opened = " open" if traces[0].windows else ""
    what = f"Its {plural(len(members), members[0].noun)} as one set"
    return f'<details class="app-past app-set"{opened}><summary>{what}</summary>{sets_html(sets_of([members]), _request_address)}</details>'


def _request_address(row: One) -> str:
    return run_address([row["run"]], row["part"])


def _export(run: str, form: str) -> str:
    return f'<a href="{export_address(run, form)}" download>{form}</a>'


def moment(created: str) -> str:
    """Return a time stamp that `app.js` shows in the reader's own time zone."""
    return f'<time datetime="{text(created)}">{text(when(created))} UTC</time>'


def when(created: str) -> str:
    """Return a time stamp without fractions of a second and time zone."""
    try:
        return datetime.fromisoformat(created).strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return created
