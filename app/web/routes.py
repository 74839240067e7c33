"""Routes beside Gradio's: the viewer's files and data, downloads, the import of a trace."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from tempfile import TemporaryFile
from typing import IO, Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from specscope.app.jobs.long import LongRuns
from specscope.app.jobs.service import Service
from specscope.app.jobs.stored import find_passes, find_traces, median_of, store_of
from specscope.app.render.addresses import EXPORTS, MAX_TURNS, PREFIX, SET
from specscope.app.shipped.demo import demo_document
from specscope.app.tabs.papers import papers_page
from specscope.app.web.guard import report_failure
from specscope.app.web.limits import CLOSE
from specscope.engine.errors import SpecScopeError, StoreError, UsageError, shown
from specscope.traces.export.assets import page_asset, plotly_script, viewer_script, viewer_style
from specscope.traces.export.report import render_report, render_set
from specscope.traces.imports.reading import read_traces
from specscope.traces.view.document import view_model
from specscope.traces.view.packed import delta, packed

IMPORT = f"{PREFIX}/import"
MAX_UPLOAD = 64 * 2**20
UPLOAD_SECONDS = 300.0
SCRIPTS = ("stream.js", "picker.js", "errors.js", "charts.js", "address.js", "demo.js", "app.js")
"""Of the page, in their order."""
FILES: dict[str, tuple[Callable[[], str], str]] = {
    "viewer.js": (viewer_script, "text/javascript"),
    "viewer.css": (viewer_style, "text/css"),
    "plotly.js": (plotly_script, "text/javascript"),
    **{name: (partial(page_asset, name), "text/javascript") for name in SCRIPTS},
    "app.css": (partial(page_asset, "app.css"), "text/css"),
    "papers.css": (partial(page_asset, "papers/papers.css"), "text/css"),
}


@cache
def _file(name: str) -> tuple[bytes, str]:
    content = FILES[name][0]().encode()
    return content, hashlib.sha256(content).hexdigest()[:12]


def address(name: str) -> str:
    """Return the address of one of FILES; it contains a hash, so browsers may cache the file."""
    return f"{PREFIX}/files/{name}?v={_file(name)[1]}"


ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Crect width='7' height='5' y='2' rx='1' fill='%23e69f00'/%3E"
    "%3Crect width='9' height='5' x='7' y='9' rx='1' fill='%230072b2'/%3E%3C/svg%3E"
)
"""Two bars: a draft and its verification."""


def head() -> str:
    """Return the HTML that Gradio adds to the page's head: icon and styles."""
    styles = (f'<link rel="stylesheet" href="{address(name)}">' for name in FILES if name.endswith(".css"))
    return f'<link rel="icon" href="{ICON}">' + "".join(styles)


def scripts() -> str:
    """Return the deferred scripts of viewer and page, which run before Gradio's."""
    plotly = f' data-plotly="{address("plotly.js")}"'
    return "".join(
        f'<script src="{address(name)}"{plotly if name == "app.js" else ""} defer></script>'
        for name in (*SCRIPTS, "viewer.js")
    )


def build_router(service: Service) -> APIRouter:
    router = APIRouter(prefix=PREFIX)

    @router.get("/files/{name}")
    def file(name: str) -> Response:
        if name not in FILES:
            return _refusal(UsageError(f"there is no file {name!r}"))
        kept = {"Cache-Control": "public, max-age=31536000, immutable"}
        return Response(_file(name)[0], media_type=FILES[name][1], headers=kept)

    long = LongRuns(service)

    @router.get("/model")
    def model(runs: str, whole: bool = False) -> Response:
        def document() -> dict[str, Any]:
            early = None if whole else long.document(runs)
            return early or packed(view_model(*median_of(find_passes(service, runs))))

        return _answer(document)

    @router.get("/spans")
    def spans(run: str) -> Response:
        return _answer(lambda: long.spans(run))

    @router.get("/rounds")
    def rounds(run: str, first: int, last: int) -> Response:
        return _answer(lambda: long.rounds(run, first, last))

    @router.get("/live")
    def live(run: str, cursor: int = 0) -> Response:
        found = service.find(run)
        if found is None:
            return _refusal(UsageError(f"run {shown(run)} is not in memory; open it in the history"))
        ended = found.ended  # before the events: no event follows the last one that is sent
        events, after = found.since(cursor)
        return _answer(lambda: delta(found.run_id, events, after, ended=ended))

    @router.get("/recordings")
    def recordings() -> Response:
        return _answer(lambda: {"files": service.follower.recordings.listed()})

    @router.get("/demo")
    def demo() -> Response:
        return _json(demo_document())

    @router.get("/papers.html")
    def papers() -> Response:
        return Response(papers_page(), media_type="text/html", headers=FRESH)

    @router.get("/report.html")
    def report(runs: str, redact_prompt: bool = False, earlier: str = "") -> Response:
        try:
            if runs.startswith(SET):
                names = runs.removeprefix(SET).split(",")
                page = render_set(store_of(service), names, redact_prompt=redact_prompt)
                return _download(page, "text/html", "specscope-set.html")
            turns = [turn for turn in earlier.split(";")[:MAX_TURNS] if turn]
            *before, now = [median_of(find_passes(service, turn)) for turn in (*turns, runs)]
            page = render_report(*now, earlier=before, redact_prompt=redact_prompt)
        except SpecScopeError as error:
            return _refusal(error)
        return _download(page, "text/html", f"specscope-{runs.replace(',', '-')}.html")

    @router.get("/export/{run_id}/{form}")
    def export(run_id: str, form: str) -> Response:
        if form not in EXPORTS:
            return _refusal(UsageError(f"there is no download {form!r}; choose one of {', '.join(EXPORTS)}"))
        try:
            trace = find_traces(service, run_id)[0]
            (write, media), file = EXPORTS[form], io.StringIO(newline="")
            write(trace, file)
        except SpecScopeError as error:
            return _refusal(error)
        return _download(file.getvalue(), media, f"specscope-{trace.header.run_id}-{form}")

    importing = asyncio.Lock()

    @router.post("/import")
    async def import_run(request: Request) -> Response:
        if importing.locked():  # a trace needs many times its file size in memory
            return _refusal(UsageError("another import is running; try again when it has ended"), 503)
        async with importing:
            with TemporaryFile() as file:  # without a name: no other program can open it
                try:
                    async with asyncio.timeout(UPLOAD_SECONDS):
                        await receive_file(request, file)
                    run_id, name = await asyncio.to_thread(import_trace, service, file)
                except TimeoutError:
                    late = UsageError(f"sending the file took longer than {UPLOAD_SECONDS:g} s")
                    return _refusal(late, 408, CLOSE)
                except SpecScopeError as error:
                    return _refusal(error, 422, CLOSE)
        return _json(json.dumps({"run": run_id, "set": name}))

    return router


async def receive_file(request: Request, file: IO[bytes]) -> None:
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_UPLOAD:
            raise UsageError(f"the file has more than {MAX_UPLOAD >> 20} MB, which is the limit")
        file.write(chunk)
    file.flush()


def import_trace(service: Service, file: IO[bytes]) -> tuple[str, str]:
    """Store the traces in an open file.

    Returns the run id with the number of other runs and what was left out, and the name of the set.
    """
    path = f"/dev/fd/{file.fileno()}"
    try:
        found = read_traces(path, MAX_UPLOAD)
    except UsageError as error:
        raise UsageError(str(error).replace(path, "the file")) from None
    store_of(service).insert(*found.traces)
    first, others = found.traces[0].header.run_id, len(found.traces) - 1
    more = [f"and {others:,} more" if others else "", *found.notes]
    return f"{first} ({'; '.join(filter(None, more))})" if any(more) else first, found.set


FRESH = {"Cache-Control": "no-store"}


def _answer(document: Callable[[], Mapping[str, Any]]) -> Response:
    """Return a document as JSON, or the error that making it raised."""
    try:
        text = json.dumps(document(), allow_nan=False, separators=(",", ":"))
    except SpecScopeError as error:
        return _refusal(error)
    except Exception as error:  # noqa: BLE001 - the page shows one line, and stays
        report_failure("a document", error)
        what = f"the server could not make this document ({type(error).__name__}); please report it"
        return _refusal(SpecScopeError(what), 500)
    return _json(text)


def _json(text: str, status: int = 200, more: Mapping[str, str] | None = None) -> Response:
    return Response(text, status, {**FRESH, **(more or {})}, "application/json")


def _refusal(error: SpecScopeError, status: int = 404, more: Mapping[str, str] | None = None) -> Response:
    status = 503 if isinstance(error, StoreError) else status
    return _json(json.dumps({"error": str(error)}), status, more)


def _download(text: str, media: str, name: str) -> Response:
    safe = "".join(c if c.isalnum() or c in "-._" else "_" for c in name)
    plain = "".join(c if c.isascii() else "_" for c in safe)  # for clients that read ASCII only
    disposition = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(safe)}"
    headers = {**FRESH, "Content-Disposition": disposition}
    return Response(text.encode("utf-8", "replace"), media_type=media, headers=headers)
