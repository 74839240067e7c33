"""The bench beside llama.cpp, with a stand-in for its server. Times are not tested."""

from __future__ import annotations

import json
import os
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

import specscope
from specscope.app.bench import peers, speed
from specscope.app.bench.figures import Plan
from specscope.engine.errors import ModelError, UsageError
from tests.app.commands import run_bench

PLAN = Plan(1, 1, 1.0, 1, 8, 1)
ANSWER = {"tokens": [5, 6, 2], "content": "hi"}


@pytest.fixture
def server():
    """Return what a server of llama.cpp was given, and let it answer `answer`."""
    given = SimpleNamespace(answer=ANSWER, requests=[], servers=[])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            given.requests.append((self.path, json.loads(content)))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(given.answer).encode())

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        given.address = f"http://127.0.0.1:{http.server_port}"
        yield given
        http.shutdown()
        thread.join()


@pytest.fixture
def module(server, monkeypatch):
    """Replace xllamacpp; a file named broken.gguf cannot be loaded."""

    def params():
        threads = {"cpuparams": SimpleNamespace(), "cpuparams_batch": SimpleNamespace()}
        return SimpleNamespace(model=SimpleNamespace(), **threads)

    def start(given):
        if "broken" in given.model.path:
            raise RuntimeError("Failed to init server\nsecond line")
        server.servers.append((given, os.sched_getaffinity(0)))
        return SimpleNamespace(listening_address=server.address)

    stand_in = SimpleNamespace(CommonParams=params, Server=start)
    monkeypatch.setitem(sys.modules, "xllamacpp", stand_in)


def test_llama_cpp_decodes_greedily_with_nothing_kept(server, module, tmp_path):
    cores = os.sched_getaffinity(0)
    llama = peers.Llama(tmp_path / "x.gguf", 1, 50, 8)
    assert llama.generate((1, 2, 3)) == [5, 6, 2]
    ((params, pinned),) = server.servers
    assert pinned == {min(cores)}
    assert os.sched_getaffinity(0) == cores
    assert (params.n_ctx, params.n_parallel, params.cpuparams.n_threads) == (50, 1, 1)
    assert (params.cpuparams_batch.n_threads, params.cache_prompt, params.cache_ram_mib) == (1, False, 0)
    ((path, body),) = server.requests
    assert path == "/completion"
    assert (body["prompt"], body["n_predict"], body["temperature"], body["top_k"]) == ([1, 2, 3], 8, 0, 1)
    assert body["return_tokens"]
    assert not body["cache_prompt"]


def test_errors_of_llama_cpp_have_one_line(server, module, tmp_path):
    cores = os.sched_getaffinity(0)
    with pytest.raises(ModelError, match=r"llama.cpp cannot load broken.gguf: Failed to init server") as seen:
        peers.Llama(tmp_path / "broken.gguf", 1, 50, 8)
    assert "\n" not in str(seen.value)
    assert os.sched_getaffinity(0) == cores
    llama = peers.Llama(tmp_path / "x.gguf", 1, 50, 8)
    server.answer = {"error": "no"}
    with pytest.raises(ModelError, match=r"llama\.cpp does not answer"):
        llama.generate((1,))


def test_a_race_counts_texts_that_are_equal(server, module, monkeypatch, tmp_path):
    texts = {"autoregressive": [5, 6, 2], "speculative": [5, 6, 2], "pearl": [5, 7, 2]}
    monkeypatch.setattr(speed, "decode", lambda cluster, plan, key: lambda ids: texts[key])
    figures = peers.measure(None, tmp_path / "x.gguf", [(1, 2)], list(texts), PLAN, lambda text: None)
    names = [f"llama.cpp_{n}" for n in ("1_thread", "2_threads")][: os.cpu_count()]
    assert list(figures) == [*texts, *names]
    assert {name: figure.detail["equal_texts"] for name, figure in figures.items()} == {
        **dict.fromkeys(figures, 1),
        "pearl": 0,
    }
    assert not figures["pearl"].valid
    assert figures["speculative"].valid
    assert figures["autoregressive"].detail["over_autoregressive"] == 1
    server.answer = {"tokens": [5, 9]}
    figures = peers.measure(None, tmp_path / "x.gguf", [(1, 2)], list(texts), PLAN, lambda text: None)
    assert figures["llama.cpp_1_thread"].valid, "another distribution may write another text"
    *rows, note = peers.lines(figures)
    assert rows[2].endswith("0% of the texts are equal (another text than the target's: not comparable)")
    assert rows[3].endswith("0% of the texts are equal")
    assert "activations of 8 bits: another distribution" in note


def test_the_command_races_the_methods_of_a_pair(server, module, monkeypatch, capsys):
    """On threads, which start faster."""
    monkeypatch.setattr(specscope, "open", partial(specscope.open, runtime="local-thread"), raising=False)
    monkeypatch.setattr(peers, "gguf_of", lambda model, folder, progress: folder / f"{model}.gguf")
    monkeypatch.setattr("specscope.app.bench.figures.METHODS_QUICK", PLAN)
    assert run_bench("--peers", "--pair", "bundled", "--quick", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert server.servers[0][0].model.path.endswith("bundled.gguf")
    assert result["lines"][-1] == peers.NOTE
    assert (result["bars"], result["left_out"], result["runtime"]) == ({}, {}, "local-process")
    for name in ("autoregressive", "speculative", "pearl"):
        assert result[name]["equal_texts"] == 1
        assert result[name]["median"] > 0
    assert result["llama.cpp_1_thread"]["equal_texts"] == 0


def test_without_llama_cpp_or_a_gguf_file_one_line_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(UsageError, match=r"--peers needs llama.cpp: pip install 'specscope\[peers\]'"):
        run_bench("--peers", "--pair", "smollm2")
    assert peers.gguf_of("x/model.GGUF", tmp_path).name == "model.GGUF"
    with pytest.raises(
        UsageError, match=r"bundled has no GGUF file; give --pair smollm2, or --target X\.gguf"
    ):
        peers.gguf_of("bundled", tmp_path)
    with pytest.raises(UsageError, match="smollm2 is not downloaded"):
        peers.gguf_of("smollm2", tmp_path)
