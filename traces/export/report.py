"""The report: runs, figures and the viewer in one HTML file without outside requests.

The summary is at the top and needs no JavaScript. All texts of a run are escaped: as HTML in the
summary, as JSON without `<`, `>` and `&` in the viewer's document. The page's content policy
forbids outside requests.
"""

from __future__ import annotations

import json
import re
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from specscope.engine.checkpoints.forms import model_name
from specscope.engine.errors import UsageError
from specscope.traces.export.assets import report_template, viewer_script, viewer_style
from specscope.traces.export.sets import html
from specscope.traces.facts.comparable import lacks_load, other_load
from specscope.traces.facts.settings import shown_config
from specscope.traces.sets.compared import sets_of
from specscope.traces.sets.members import members_of
from specscope.traces.view.document import RunView, ViewDocument, view_model
from specscope.traces.view.figures import acceptance
from specscope.traces.view.packed import packed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specscope.engine.trace.trace import Trace
    from specscope.traces.database.store import Store
    from specscope.traces.sets.compared import SetsView

Turn: TypeAlias = "tuple[Sequence[Trace], Sequence[Sequence[Trace]]]"
"""The runs of a turn, and the passes of each."""
LONG = 300
"""Characters from which on a prompt is folded; its beginning is shown."""
_UNSAFE = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


MOST_DRAWN = 8
"""Runs of a set that a report draws: those of its named requests."""


def render_set(store: Store, names: Sequence[str], *, redact_prompt: bool = False) -> str:
    """Return the report of runs as one set; it draws those of least and most acceptance."""
    sets = sets_of([list(members_of(store.outlines(names)))])
    ends = [(view["worst"], view["best"]) for view in sets["sets"]]
    most = MOST_DRAWN // (2 * max(1, len(ends))) or 1
    named = [row["run"] for rows in ends for part in rows for row in part[:most]]
    drawn = list(dict.fromkeys(named or [trace.header.run_id for trace in islice(store.outlines(names), 1)]))
    traces = [store.load(run) for run in drawn[:MOST_DRAWN]]
    return render_report(traces, redact_prompt=redact_prompt, sets=sets)


def render_report(
    traces: Sequence[Trace],
    passes: Sequence[Sequence[Trace]] = (),
    *,
    earlier: Sequence[Turn] = (),
    redact_prompt: bool = False,
    spans: int | None = None,
    sets: SetsView | None = None,
) -> str:
    """Return the report as the text of one HTML file (UTF-8), of at least one run.

    `passes`, `redact_prompt` and `spans` are those of `view_model`; the viewer can show the turns
    of `earlier`. Redacted, the answers stay; they may repeat a prompt. `sets` are shown above the
    viewer, else what the runs are together, see `_set_of`.
    """
    if not traces:
        raise UsageError("a report needs at least one run; 0 were given")
    model = view_model(traces, passes, redact_prompt=redact_prompt, spans=spans)
    before = [view_model(*turn, redact_prompt=redact_prompt) for turn in earlier]
    summaries = [
        f"<h2>Turn {number}</h2>{_summary(turn[0], document)}"
        for number, (turn, document) in enumerate(zip(earlier, before, strict=True), 1)
    ]
    now = f"<h2>Turn {len(before) + 1}</h2>" if before else ""
    parts = {
        "title": _text("SpecScope: " + ", ".join(run["title"] for run in model["runs"])),
        "head": _head(model),
        "summary": "\n".join([*summaries, now + _summary(traces, model)]),
        "sets": html(sets) if sets else _set_of(traces),
        "model": inline_json(packed(model) | ({"earlier": [*map(packed, before)]} if before else {})),
        "style": viewer_style(),
        "script": viewer_script(),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], report_template())


def _set_of(traces: Sequence[Trace]) -> str:
    """Return the sets that runs are; empty if no setting has requests of several prompts."""
    found = sets_of([list(members_of(traces))])
    several = [view for view in found["sets"] if view["members"] - view["repeated"] > 1]
    return html({**found, "note": ""}) if several else ""  # a race is of several settings


def inline_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_UNSAFE)


def _text(value: Any) -> str:
    """Return a value as HTML text; lone surrogates become question marks."""
    return escape(str(value).encode("utf-8", "replace").decode("utf-8"))


def _summary(traces: Sequence[Trace], model: ViewDocument) -> str:
    runs = model["runs"]
    main = [f for f in model["figures"] if f["main"]]
    rows = [[_name(run), *(run["figures"][f["key"]] for f in main), _output(run)] for run in runs]
    parts = [
        _prompts(runs[0]),
        _figures("Figures", ["method", *(f["label"] for f in main), "output"], rows),
        *(_section(trace, run) for trace, run in zip(traces, runs, strict=True)),
        _figures(
            "Acceptance by definition",
            ["figure", *map(_name, runs), "used by", "definition"],
            [[d.label, *d.values, d.used_by, d.definition] for d in acceptance(traces)],
            "report-figures",
        ),
        _figures(
            "All figures",
            ["figure", *map(_name, runs), "definition"],
            [
                [f["label"], *(r["figures"][f["key"]] for r in runs), f["definition"]]
                for f in model["figures"]
            ],
            "report-figures",
        ),
    ]
    return "\n".join(parts)


def _head(model: ViewDocument) -> str:
    run = model["runs"][0]
    prompt = "prompt left out" if run["redacted"] else next(filter(None, run["prompts"]), "")
    prompt = prompt or ("prompt unknown" if run["imported"] else "")
    clocks = "".join(f'<span class="ss-badge">{_text(clock)}</span>' for clock in model["clocks"])
    start = _text(beginning(prompt))
    return f'<span class="ss-prompt" title="{start}">{start}</span>{clocks}'


def _prompts(run: RunView) -> str:
    if run["redacted"]:
        return "<h2>Prompt</h2><p>(left out on request)</p>"
    if run["imported"] and not any(run["prompts"]):
        return "<h2>Prompt</h2><p>unknown</p>"
    return "<h2>Prompt</h2>" + "".join(map(_folded, run["prompts"]))


def beginning(prompt: str) -> str:
    return prompt if len(prompt) <= LONG else " ".join(prompt[:LONG].split()) + "…"


def _folded(prompt: str) -> str:
    whole = f"<pre>{_text(prompt)}</pre>"
    if len(prompt) <= LONG:
        return whole
    head = f"{_text(beginning(prompt))} <em>{len(prompt):,} characters</em>"
    return f'<details class="report-prompt"><summary>{head}</summary>{whole}</details>'


def _name(run: RunView) -> str:
    return f"{run['title']} · {run['config']}" if run["config"] else run["title"]


def _output(run: RunView) -> str:
    compared = _compared(run)
    return f"lossy, {compared}" if run["lossy"] else compared


def _compared(run: RunView) -> str:
    identity = run["identity"]
    if identity is None:
        return "baseline" if run["baseline"] else "–"
    if identity["at"] is None:
        return "identical"
    return f"differs at {identity['at'] + 1}" if run["greedy"] or run["lossy"] else "other draws"


def _section(trace: Trace, run: RunView) -> str:
    header = trace.header
    texts = trace.footer.texts if trace.footer else (trace.text,)
    shares = " · ".join(f"{part['label']} {part['percent']} %" for part in run["headline"])
    load = other_load(trace)
    nothing = "nothing was decoded" if run["timed"] else "unknown"
    facts = {
        "status": f"{trace.status}: {run['error']}" if run["error"] else trace.status,
        "time": header.clock,
        "other programs": f"{load.text}. {load.warning}".rstrip()
        if load
        else "not recorded" * lacks_load(trace),
        "who waited": shares or nothing,
        "speculation": run["note"],
        "health": run["verdict"]["health"],
        "lossy": run["lossy"],
        "method": f"{header.method} {_settings(shown_config(header, run['redacted']))}",
        "draft": run["planned"],
        "sampling": _settings(header.sampling),
        "limits": _settings(header.limits),
        "devices": ", ".join(f"{d.name} ({d.label})" for d in header.devices),
        "target": model_name(header.target_path),
        "drafter": model_name(header.drafter_path),
        "run": f"{header.run_id}, {header.created}, {header.runtime}, schema {header.schema}",
        "environment": _settings(_without_folders(header.environment)),
    }
    rows = [[name, value] for name, value in facts.items() if value]
    return (
        f"<h2>{_text(_name(run))}</h2>"
        + "".join(f"<pre>{_text(text)}</pre>" for text in texts if text or not run["imported"])
        + _table([], rows, "report-facts")
    )


def _without_folders(value: Any) -> Any:
    """Return a value whose absolute paths are shortened: they name folders of one machine."""
    if isinstance(value, str):
        return model_name(value)
    if isinstance(value, dict):
        return {key: _without_folders(part) for key, part in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [_without_folders(part) for part in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())


def _figures(title: str, head: Iterable[str], rows: Iterable[Sequence[Any]], kind: str = "") -> str:
    scrolls = f'class="ss-scroll" tabindex="0" role="group" aria-label="{title}"'
    return f"<h2>{title}</h2><div {scrolls}>{_table(head, rows, kind)}</div>"


def _table(head: Iterable[str], rows: Iterable[Sequence[Any]], kind: str = "") -> str:
    columns = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{_text(first)}</th>{"".join(f"<td>{_text(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    top = f"<thead><tr>{columns}</tr></thead>" if columns else ""
    return f'<table class="ss-table {kind}">{top}<tbody>{body}</tbody></table>'
