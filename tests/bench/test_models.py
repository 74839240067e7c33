"""The scripts that measure drafters, llama.cpp and what-ifs. Times are not tested."""

from __future__ import annotations

import json
import os
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import specscope
from specscope.app.bench import speed
from specscope.app.bench.figures import BenchPlan
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.drafting.planner import LONGEST
from specscope.engine.errors import ModelError, UsageError
from specscope.engine.model.slots import Rows
from specscope.engine.training.measure import LoadedPair
from specscope.engine.types import Sampling
from specscope.traces.facts.closed_forms import pearl_speedup, speculative_speedup
from tests.bench import drafters, peers, script, whatif
from tests.bench.drafters import (
    Agreement,
    Answer,
    Size,
    agreement,
    answers,
    drafters_of,
    load_noisy,
    with_noise,
)


def run(module, monkeypatch, *argv: str) -> None:
    """Run a script with options."""
    monkeypatch.setattr(sys, "argv", ["bench", *argv])
    options = script.model_options(None)
    options.add_argument("--noise", action="store_true")
    script.main(options, module.from_options, {})


# The drafters of a target.


PROMPTS = ("Tell me a story about a whale.", "Hi!", "Why is the sky blue?")


@pytest.fixture(scope="module")
def loaded() -> LoadedPair:
    return LoadedPair.load(Pair.find())


def test_answers_of_a_batch_are_those_of_one_prompt_at_a_time(loaded):
    prompts = [loaded.pair.encode(text) for text in PROMPTS]
    written = answers(loaded.target, loaded.pair, prompts, 40)
    alone = [loaded.write(prompt, 40, Sampling())[0] for prompt in prompts]
    assert [answer.ids for answer in written] == alone
    assert len({len(ids) for ids in alone}) > 1, "some answers end before the others"


def test_a_target_agrees_with_itself_and_less_with_its_drafter_as_defined(loaded):
    prompts = [loaded.pair.encode(text) for text in PROMPTS]
    written = answers(loaded.target, loaded.pair, prompts, 24)
    same = agreement(loaded.target, loaded.target, loaded.pair, written)
    assert same == (1, pytest.approx(1, abs=1e-5), sum(len(answer.ids) for answer in written))
    other = agreement(loaded.target, loaded.drafter, loaded.pair, written)
    assert 0.3 < other.agreement < 0.95
    assert 0.3 < other.overlap < 0.95
    prompt, ids = loaded.pair.encode("Hi!"), loaded.pair.encode_text("Hello, how are you?")
    found = agreement(loaded.target, loaded.drafter, loaded.pair, [Answer(prompt, ids)])
    p, q = (
        loaded.read(model, [*prompt, *ids])[len(prompt) - 1 : -1].softmax(1)
        for model in (loaded.target, loaded.drafter)
    )
    assert found.agreement == pytest.approx((q.argmax(1) == torch.tensor(ids)).float().mean().item())
    assert found.overlap == pytest.approx(torch.minimum(p, q).sum(1).mean().item(), abs=1e-5)


def test_noise_is_at_most_half_a_step_and_changes_layers_only(loaded):
    matrix = torch.randn(4, 64)
    noisy = with_noise(matrix, "a")
    groups = matrix.unflatten(1, (2, 32))
    half = (groups.amax(2) - groups.amin(2)) / 30
    moved = (noisy - matrix).abs().unflatten(1, (2, 32)).amax(2)
    assert (moved <= half + 1e-6).all()
    assert (moved > 0.5 * half).all()
    assert torch.equal(noisy, with_noise(matrix, "a"))
    assert not torch.equal(noisy, with_noise(matrix, "b"))
    odd = torch.randn(4, 48)
    assert with_noise(odd, "a") is odd
    noisy = load_noisy(loaded.pair.target_path)
    assert torch.equal(noisy.embedding, loaded.target.embedding)
    rows, want = Rows.chain(0, [5, 6, 7], 0), np.array([2])
    one, other = (model.forward(model.new_cache(1, 3), rows, want).logits for model in (noisy, loaded.target))
    assert 0 < (one - other).abs().max() < 20


@pytest.mark.parametrize(("rate", "c"), [(0.5, 3.0), (0.8, 5.0), (0.95, 2.0)])
def test_with_free_rows_the_predictions_are_the_closed_forms(rate, c):
    """Forwards of one to sixteen rows take the same time, as the closed forms assume."""
    verify = (1, 0.2), (32, 0.2)
    speculative, pearl = drafters._plans(verify, 0.1, 0.1 / c, Agreement(rate, rate, 1))
    gammas = range(1, LONGEST + 1)
    assert speculative.speedup == pytest.approx(max(speculative_speedup(rate, g, c) for g in gammas))
    assert pearl.speedup == pytest.approx(max(pearl_speedup(rate, g, c) for g in gammas))


def test_a_pairs_own_drafter_is_listed_after_the_forms_of_its_target(tmp_path):
    pair = Pair.find()
    target = pair.target_path
    assert drafters_of(pair) == {
        "int8": target / "int8",
        "int4": target / "int4",
        "drafter": pair.drafter_path,
    }
    forms = Pair.of(target, "int4", pair.drafter_path / "int8")
    assert list(drafters_of(forms)) == ["int8", "int4", "drafter/int8"]


def test_each_drafter_has_a_figure(capsys, monkeypatch):
    monkeypatch.setattr(drafters, "QUICK", Size(6, 2))
    run(drafters, monkeypatch, "--quick", "--json", "--noise", "--limit", "2")
    result = json.loads(capsys.readouterr().out)
    assert (result["pair"], result["prompts"], result["quick"]) == ("bundled", 2, True)
    rows = {name: row for name, row in result.items() if isinstance(row, dict) and "agreement" in row}
    assert list(rows) == ["int8", "int4", "drafter", "int8, noise", "int4, noise"]
    for name, row in rows.items():
        assert row["noise"] == name.endswith("noise")
        assert 0 < row["bytes"] < result["target_bytes"]
        assert 0 < row["min"] <= row["median"]
        assert row["c"] == pytest.approx(row["target_ms"] / row["median"])
        assert row["positions"] <= 12
        assert row["speculative"]["speedup"] > 0
        assert f"agrees {row['agreement']:.3f}" in row["unit"]
    assert rows["int8"]["agreement"] >= rows["drafter"]["agreement"]


# llama.cpp, with a stand-in for its server.


PLAN = BenchPlan(1, 1, 1.0, 1, 8, 1)
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
    wanted = {"prompt": [1, 2, 3], "n_predict": 8, "temperature": 0, "top_k": 1, "return_tokens": True}
    assert (path, body) == ("/completion", body | wanted | {"cache_prompt": False})


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
    equal = {name: figure.detail["equal_texts"] for name, figure in figures.items()}
    assert list(figures) == [*texts, *names]
    assert equal == {**dict.fromkeys(figures, 1), "pearl": 0}
    assert (figures["pearl"].valid, figures["speculative"].valid) == (False, True)
    assert figures["autoregressive"].detail["over_autoregressive"] == 1
    server.answer = {"tokens": [5, 9]}
    figures = peers.measure(None, tmp_path / "x.gguf", [(1, 2)], list(texts), PLAN, lambda text: None)
    assert figures["llama.cpp_1_thread"].valid, "another distribution may write another text"
    units = [figure.unit for figure in figures.values()]
    assert units[2].endswith("0% of the texts are equal: not comparable")
    assert units[3].endswith("0% of the texts are equal")


def test_the_command_races_the_methods_of_a_pair(server, module, monkeypatch, capsys):
    """On threads, which start faster."""
    monkeypatch.setattr(specscope, "open", partial(specscope.open, runtime="local-thread"), raising=False)
    monkeypatch.setattr(peers, "gguf_of", lambda model, folder, progress: folder / f"{model}.gguf")
    monkeypatch.setattr(peers, "QUICK", PLAN)
    run(peers, monkeypatch, "--pair", "bundled", "--quick", "--json")
    result = json.loads(capsys.readouterr().out)
    assert server.servers[0][0].model.path.endswith("bundled.gguf")
    assert result["lines"][-1] == peers.NOTE
    assert (result["bars"], result["left_out"], result["runtime"]) == ({}, {}, "local-process")
    for name in ("autoregressive", "speculative", "pearl"):
        assert result[name]["equal_texts"] == 1
        assert result[name]["median"] > 0
    assert result["llama.cpp_1_thread"]["equal_texts"] == 0


def test_without_llama_cpp_or_a_gguf_file_one_line_says_what_to_do(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    for options, message in {
        ("--pair", "smollm2"): "this bench needs llama.cpp: pip install 'specscope[peers]'",
        (): "give --pair or --target, a model with a GGUF file",
    }.items():
        with pytest.raises(SystemExit):
            run(peers, monkeypatch, *options)
        assert message in capsys.readouterr().err
    assert peers.gguf_of("x/model.GGUF", tmp_path).name == "model.GGUF"
    for model, message in (
        ("bundled", r"bundled has no GGUF file; give --pair smollm2, or --target X\.gguf"),
        ("smollm2", "smollm2 is not downloaded"),
    ):
        with pytest.raises(UsageError, match=message):
            peers.gguf_of(model, tmp_path)


# What-ifs beside real runs.


CLASSES = {c.name: c for c in whatif.CLASSES}


def test_predictions_are_exact_where_nothing_is_drawn_and_counted_where_something_is():
    names = ("T 0, nothing drawn", "T 1, other rule: ratio to match", "T 1, to SSD, SpecBranch or a tree")
    figures, refused = whatif.measure(1, lambda _: None, tuple(CLASSES[name] for name in names), tokens=16)
    exact, other = figures.values()
    assert list(figures) == [*names[:2]]
    assert (exact.values, exact.detail["drawn"]) == ((0.0,) * 6, 0)
    assert exact.detail["decided"] > 0
    assert len(other.values) == 2
    assert other.detail["drawn"] > 0
    assert other.detail["mean"] == pytest.approx(sum(other.values) / 2, abs=1e-4)
    assert refused == {names[2]: ["ssd", "specbranch", "tree"]}
