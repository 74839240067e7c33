"""The routes beside Gradio's, the guards of all routes, and windows of long runs."""

from __future__ import annotations

import asyncio
import io
import re
from dataclasses import replace
from types import SimpleNamespace

import gradio as gr
import pytest
from fastapi.testclient import TestClient

from specscope.app.jobs import long
from specscope.app.jobs.runs import RunRequest
from specscope.app.jobs.service import Service
from specscope.app.render.addresses import report_address
from specscope.app.tabs import papers
from specscope.app.tabs.papers import ADDRESS, fill
from specscope.app.web import routes
from specscope.app.web.guard import HEADERS
from specscope.app.web.routes import address
from specscope.app.web.server import build_app
from specscope.engine.errors import UsageError
from specscope.engine.trace.jsonl import read_jsonl
from specscope.traces.database.store import Store
from specscope.traces.facts.waiting import decoding_clock
from specscope.traces.view import all_sections
from specscope.traces.view.aligned import aligned
from tests.app.fakes import FakeOpen
from tests.traces.samples import sample_trace

HOST = "http://127.0.0.1"


@pytest.fixture(scope="module")
def opener():
    return FakeOpen()


@pytest.fixture(scope="module")
def service(tmp_path_factory, opener):
    """One service for all tests: none of them changes it."""
    service = Service(tmp_path_factory.mktemp("routes") / "traces.db", opener)
    yield service
    opener.gate.set()
    service.close()


@pytest.fixture(scope="module")
def client(service):
    with TestClient(build_app(service), base_url=HOST) as client:
        yield client


@pytest.fixture(scope="module")
def guarded(service):
    """An application with a login, at an address that others can reach."""
    app = build_app(service, host="10.1.2.3", auth="ada:s3cret")
    with TestClient(app, base_url="http://10.1.2.3") as client:
        yield client


def document(client, *runs: str, **more):
    """Return the document of some runs."""
    answer = client.get("/specscope/model", params={"runs": ",".join(runs), **more})
    assert answer.status_code == 200
    return answer.json()


def test_models_of_finished_runs_of_passes_and_the_report_of_a_conversation(client, run) -> None:
    first, second, third = (run(m, group="g") for m in ("speculative", "speculative", "pearl"))
    found = document(client, first.ticket, third.run_id)
    assert [r["id"] for r in found["runs"]] == [first.run_id, third.run_id]
    (passes,) = document(client, f"{first.run_id}~{second.run_id}")["runs"]
    assert passes["passes"]["count"] == 2
    assert "(mean of " in passes["figures"]["tokens_per_second"]
    address = report_address([third.run_id], [[first.run_id]]).replace("&amp;", "&")
    text = client.get(address).text
    assert all(part in text for part in ("<h2>Turn 1</h2>", first.run_id, third.run_id))


def test_the_page_loads_its_scripts_from_this_server_only_and_before_gradios(client) -> None:
    answer = client.get("/")
    assert int(answer.headers["content-length"]) == len(answer.content)
    for name, part in (("viewer.js", "SpecScope"), ("viewer.css", ""), ("app.js", ""), ("app.css", "")):
        assert address(name) in answer.text
        script = client.get(address(name))
        assert (script.status_code, part in script.text) == (200, True)
        assert "immutable" in script.headers["cache-control"]
    sources = re.findall(r'([\w-]+)=\\?"' + re.escape(address("plotly.js")), answer.text)
    assert sources == ["data-plotly"], "plotly.js has 4.8 MB; the first chart loads it"
    assert "Plotly" in client.get(address("plotly.js")).text
    head = answer.text.partition("</head>")[0]
    sources = re.findall(r"<script ([^>]*)src=\"([^\"]*)\"([^>]*)>", head)
    deferred = [src for before, src, after in sources if "defer" in after or 'type="module"' in before]
    ours = ("stream", "picker", "errors", "charts", "address", "demo", "app", "viewer")
    assert deferred[:8] == [address(f"{name}.js") for name in ours]
    assert deferred[8].startswith("./assets/index-"), "Gradio's"
    assert client.head("/").content == b""
    demo = client.get("/specscope/demo").json()
    assert len(demo["model"]["runs"]) == len(demo["looks"]) == 3


def test_deltas_of_a_run_have_its_new_spans_and_tokens_once(client, run) -> None:
    finished = run("speculative")
    trace = finished.trace()
    first = client.get("/specscope/live", params={"run": finished.ticket}).json()
    assert (first["run"], first["ended"]) == (finished.run_id, True)
    assert first["spans"]["id"] == [s.id for s in trace.spans]
    assert [t["text"] for t in first["tokens"]] == [c.text for c in trace.commits]
    again = client.get("/specscope/live", params={"run": finished.run_id, "cursor": first["cursor"]}).json()
    assert (again["cursor"], again["spans"]["id"], again["tokens"]) == (first["cursor"], [], [])


def test_a_long_run_opens_with_its_spans_and_its_rounds_follow(client, run, monkeypatch) -> None:
    finished = run("speculative")
    trace = finished.trace()
    monkeypatch.setattr(long, "LONG", len(trace.spans) - 1)
    monkeypatch.setattr(long, "OPENING", 2)
    (part,), (whole,) = (document(client, finished.run_id, whole=one)["runs"] for one in (False, True))
    assert part["long"] == {"spans": len(trace.spans), "tokens": len(trace.commits)}
    for ours, theirs in zip(part["tracks"], whole["tracks"], strict=True):
        assert all(ours["spans"][name] == theirs["spans"][name] for name in ("id", "start", "end", "step"))
    assert (part["tokens"]["rows"] < whole["tokens"]["rows"], "long" in whole) == (True, False)
    last = trace.rounds[-1].step
    asked = {"run": finished.run_id, "first": 0, "last": last}
    found = client.get("/specscope/rounds", params=asked).json()
    assert (found["part"], found["tokens"]) == ({"first": 0, "last": last}, whole["tokens"])
    told = client.get("/specscope/spans", params=asked).json()
    assert (told["band"], told["caches"]) == (whole["band"], whole["caches"])
    monkeypatch.setattr(long, "MOST_ROUNDS", len(trace.rounds) - 1)
    for kind, params, message in (
        ("rounds", {**asked, "run": "nobody"}, "there is no run"),
        ("spans", {"run": "nobody"}, "there is no run"),
        ("rounds", asked, f"have more than {len(trace.rounds) - 1} rounds; ask for fewer"),
        ("rounds", {**asked, "first": last + 1}, "are not a range; the first one is at least 0"),
        ("rounds", {**asked, "last": 10**30}, "are not a range"),
    ):
        answer = client.get(f"/specscope/{kind}", params=params)
        assert (answer.status_code, message in answer.json()["error"]) == (404, True), answer.text


MISSING = {
    "/specscope/live?run=nobody": "nobody",
    "/specscope/model?runs=nobody": "nobody",
    "/specscope/model?runs=": "0 runs are requested; choose 1 to 8",
    "/specscope/model?runs=a,b,c,d,e,f,g,h,i": "9 runs are requested; choose 1 to 8",
    "/specscope/model?runs=a~b~c~d~e~f~g~h~i~j": "10 passes of a run are requested; choose 1 to 9",
    "/specscope/report.html?runs=nobody": "nobody",
    "/specscope/export/nobody/trace.jsonl": "nobody",
    "/specscope/export/nobody/x.exe": "there is no download 'x.exe'; choose one of trace.jsonl",
    "/specscope/files/secret": "there is no file 'secret'",
}


def test_papers_are_served_and_the_tab_is_filled_once(client, monkeypatch) -> None:
    monkeypatch.setattr(papers, "KEYS", ("parallelspec",))
    answer = client.get(ADDRESS)
    assert (answer.status_code, answer.headers["content-type"][:9]) == (200, "text/html")
    assert 'data-paper="parallelspec"' in answer.text
    assert ".papers .chart" in client.get(address("papers.css")).text
    progress, content = fill(False)
    assert "Computing ParallelSpec, 1 of 1" in progress[1]
    assert ADDRESS in content[1]
    assert content[2].startswith('<div class="papers">')
    (again,) = fill(True)
    assert all(value == gr.skip() for value in again)


def test_an_unknown_run_or_file_is_a_404_and_a_run_that_has_not_begun_has_no_model(
    client, service, opener
) -> None:
    for path, message in MISSING.items():
        answer = client.get(path)
        assert answer.status_code == 404, path
        assert message in answer.json()["error"]
    opener.gate.clear()
    place = {"runtime": "virtual", "profile": "8xA100"}  # a new cluster, which has to load
    waiting = service.start(RunRequest(method="pearl", prompt="Hi", **place))
    assert "has not begun" in client.get(f"/specscope/model?runs={waiting.ticket}").json()["error"]
    opener.gate.set()
    assert waiting.wait(20)


def test_downloads(client, run) -> None:
    finished = run("pearl", prompt="</script><b>hi</b>")
    export, report = f"/specscope/export/{finished.run_id}", f"/specscope/report.html?runs={finished.run_id}"
    answer = client.get(f"{export}/trace.jsonl")
    assert read_jsonl(answer.text.splitlines()).commits == finished.trace().commits
    assert f'filename="specscope-{finished.run_id}-trace.jsonl"' in answer.headers["content-disposition"]
    assert "accepted" in client.get(f"{export}/tokens.csv").text
    assert client.get(f"{export}/perfetto.json").json()["traceEvents"]
    page, secret = client.get(report), client.get(f"{report}&redact_prompt=true")
    assert page.headers["content-disposition"].startswith("attachment")
    assert ["&lt;b&gt;hi" in one.text for one in (page, secret)] == [True, False]
    assert "<b>hi</b>" not in page.text


def test_every_answer_has_the_security_headers(client) -> None:
    for path in ("/", "/config", "/specscope/model?runs=x", "/nowhere"):
        headers = client.get(path).headers
        assert {name: headers.get(name) for name in HEADERS} == HEADERS
        assert "access-control-allow-origin" not in headers
    assert "frame-ancestors 'none'" in HEADERS["Content-Security-Policy"]


def test_a_login_guards_every_address_and_the_servers_own_is_allowed(guarded) -> None:
    for path in ("/", "/config", "/specscope/model?runs=x", "/specscope/files/app.js"):
        guarded.cookies.clear()
        answer = guarded.get(path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Basic")
        assert guarded.get(path, auth=("ada", "wrong")).status_code == 401
        assert guarded.get(path, headers={"Authorization": "Basic %%%"}).status_code == 401
        assert guarded.get(path, auth=("ada", "s3cret")).status_code in (200, 404)
    login = ("ada", "s3cret")
    assert guarded.get("/", auth=login).status_code == 200
    assert guarded.get("/", auth=login, headers={"Host": "evil.example"}).status_code == 400


@pytest.mark.parametrize("origin", ["http://evil.example", f"{HOST}:9999", "null"])
def test_another_site_or_port_and_another_name_of_the_server_are_refused(client, origin) -> None:
    for path in ("/config", "/specscope/model?runs=x"):
        assert client.get(path, headers={"Origin": origin}).status_code == 403
    assert client.post("/specscope/import", content=b"{}", headers={"Origin": origin}).status_code == 403
    assert client.get("/config", headers={"Host": "evil.example"}).status_code == 400
    assert client.get("/config", headers={"Origin": HOST}).status_code == 200


def test_the_parts_of_a_sent_file_count_together(monkeypatch) -> None:
    monkeypatch.setattr(routes, "MAX_UPLOAD", 10)

    class Sent:
        async def stream(self):
            yield b"123456"
            yield b"789012"

    with pytest.raises(UsageError, match="which is the limit"):
        asyncio.run(routes.receive_file(Sent(), io.BytesIO()))


def failing(*_: object) -> None:
    raise IndexError("4 of 3")


def test_a_view_that_fails_is_left_out_with_a_line(client, run, monkeypatch) -> None:
    name = run("speculative").run_id
    (whole,) = document(client, name)["runs"]
    for view in ("caches", "trees"):
        monkeypatch.setitem(all_sections(), view, all_sections()[view]._replace(make=failing))
    (found,) = document(client, name)["runs"]
    fault = "Not shown, because of a fault of SpecScope"
    assert found["note"] == f"{fault}: KV caches (IndexError), trees (IndexError). Please report it."
    assert (found["caches"], found["trees"]) == ([], [])
    assert (found["tokens"], found["band"]) == (whole["tokens"], whole["band"])


def test_a_document_that_cannot_be_made_is_an_error_in_json(client, run, monkeypatch, capsys) -> None:
    monkeypatch.setattr("specscope.traces.view.document.committed", failing)
    answer = client.get("/specscope/model", params={"runs": run("speculative").run_id})
    error = "the server could not make this document (IndexError); please report it"
    assert (answer.status_code, answer.json()) == (500, {"error": error})
    assert capsys.readouterr().err == "specscope: a document failed: IndexError: 4 of 3\n"


# Long runs beside each other.


def named(trace, name, **changes):
    return replace(trace, header=replace(trace.header, run_id=name), **changes)


def test_the_first_document_of_long_runs_tells_how_far_their_texts_agree(tmp_path, monkeypatch):
    """A run, the same text until token 20, another text, another prompt."""
    monkeypatch.setattr(long, "LONG", 0)
    first = named(sample_trace("pearl", tokens=40), "first")
    turned = [c if i < 20 else replace(c, token=c.token + 1) for i, c in enumerate(first.commits)]
    other = sample_trace("autoregressive", tokens=40)
    prompt = replace(other, header=replace(other.header, run_id="prompt", prompt_ids=((1, 2),)))
    traces = [first, named(first, "turned", commits=turned), named(other, "other"), prompt]
    with Store(tmp_path / "traces.db") as store:
        store.insert(*traces)
        server = long.LongRuns(SimpleNamespace(store=store, find=lambda _: None))
        (found,) = server.document(",".join(trace.header.run_id for trace in traces))["aligned"]
        (views,) = aligned(traces)
        clock = decoding_clock(first)
        sizes = [(0, 0.0) if view["reason"] else (40, clock(first.commits[0].time)) for view in views["rows"]]
        assert sizes[0][1] > 0
        assert found["rows"] == [
            {**view, "length": length, "begin": begin}
            for view, (length, begin) in zip(views["rows"], sizes, strict=True)
        ]
        assert [row["same"] for row in found["rows"]][:2] == [40, 20]
        assert server.document("first")["aligned"] == []
        with pytest.raises(UsageError, match="more than 8 runs"):
            server.document("first," * 9)
