"""The bench of methods, of drafters, and beside llama.cpp. Times are not tested."""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import specscope
from specscope.app.bench import drafters, peers, speed
from specscope.app.bench.drafters import (
    Agreement,
    Answer,
    Size,
    Times,
    agreement,
    answers,
    drafters_of,
    load_noisy,
    with_noise,
)
from specscope.app.bench.figures import Bar, Figure, Plan
from specscope.app.bench.methods import COPYING, Comparison, figures
from specscope.app.bench.speed import Race
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.drafting.planner import LONGEST
from specscope.engine.errors import ModelError, UsageError
from specscope.engine.model.slots import Rows
from specscope.engine.trace.trace import Trace
from specscope.engine.training.measure import LoadedPair
from specscope.engine.types import Sampling
from specscope.traces.closed_forms import pearl_speedup, speculative_speedup
from specscope.traces.waiting import decode_window
from tests.app.commands import run_bench
from tests.traces.samples import sample_trace

BASE = "autoregressive"


def test_a_comparison_of_different_tokens_meets_no_bar():
    for bar in (Bar(at_least=1.4), Bar(at_most=1.4)):
        assert [bar.met(Figure((1.4,), "", valid=valid)) for valid in (True, False)] == [True, False]


def _race(seconds: dict[str, float], ids=(5, 6)) -> Race:
    """Return a race of one round in which each method takes its time for one prompt."""
    now = [0.0]

    def generate(name, _):
        now[0] += seconds[name]
        return ids

    contestants = {name: partial(generate, name) for name in seconds}
    return Race(contestants, [(1,)], clock=lambda: now[0]).run(1, 1e9)


def _comparison(races: dict[str, Race], expected=(5, 6)) -> Comparison:
    keys = next(iter(races.values())).seconds
    traces = {key: {category: [sample_trace()] for category in races} for key in keys}
    return Comparison(races, traces, {category: [list(expected)] for category in races})


def test_the_overall_ratio_is_all_tokens_over_all_seconds_of_equal_texts():
    races = {
        "chat": _race({BASE: 4.0, "speculative": 2.0}),
        COPYING: _race({BASE: 8.0, "speculative": 8.0}),
    }
    comparison = _comparison(races)
    assert comparison.overall("speculative").values == (pytest.approx(12 / 10),)
    assert comparison.on("speculative", "chat").values == (2.0,)
    assert comparison.overall("speculative").detail["categories"]["chat"]["median"] == 2.0
    assert comparison.overall("speculative").valid
    comparison = _comparison({"chat": _race({BASE: 4.0, "llma": 2.0})}, expected=(5, 7))
    assert not comparison.overall("llma").valid
    assert not comparison.on("llma", "chat").valid


def test_prefill_can_be_left_out():
    decode_seconds = {BASE: (8.0, 6.0), "pearl": (2.0, 3.0)}
    race = _race({BASE: 20.0, "pearl": 19.0})
    for rounds in (*race.seconds.values(), *race.tokens.values()):
        rounds.append(rounds[0])
    traces = {key: {"chat": [_decoded(seconds) for seconds in each]} for key, each in decode_seconds.items()}
    comparison = Comparison({"chat": race}, traces, {"chat": [[5, 6]]})
    assert comparison.after_prefill("pearl").values == pytest.approx((4, 2))
    result = figures(comparison)
    assert result["pearl_over_autoregressive_after_prefill"].median == pytest.approx(3)
    assert result["pearl_over_autoregressive"].median == pytest.approx(20 / 19)
    assert not replace(comparison, expected={"chat": [[5, 7]]}).after_prefill("pearl").valid


def _decoded(seconds: float) -> Trace:
    """Return a trace of four tokens; the last one is written `seconds` after prefill."""
    trace = sample_trace(tokens=4)
    start, _ = decode_window(trace)
    commits = [replace(c, time=start + int(seconds * 1e9)) for c in trace.commits]
    return replace(trace, commits=commits)


def test_the_best_head_and_the_best_copier_have_figures_of_their_own():
    times = {BASE: 8.0, "eagle": 8.0, "medusa": 4.0, "llma": 4.0, "prompt_lookup": 8.0, "speculative": 1.0}
    result = figures(_comparison({"chat": _race(times), COPYING: _race(times | {"prompt_lookup": 2.0})}))
    assert result["best_head_over_autoregressive"].detail == {"method": "medusa"}
    assert result["best_head_over_autoregressive"].median == 2.0
    assert result["copying_over_autoregressive"].detail["method"] == "prompt_lookup"
    assert result["copying_over_autoregressive"].median == 4.0
    assert set(result) >= {f"{key}_over_autoregressive" for key in times if key != BASE}


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ((), ("local-process", None)),
        (("--runtime", "ray", "--address", "10.0.0.1:6379"), ("ray", "10.0.0.1:6379")),
    ],
)
def test_the_pair_is_opened_where_the_options_say(given, place, monkeypatch):
    def opened(pair, *, runtime, address, **_):
        raise UsageError(f"opened {pair}: {(runtime, address)}")

    monkeypatch.setattr("specscope.open", opened, raising=False)
    with pytest.raises(UsageError) as seen:
        run_bench("--pair", "bundled", *given)
    assert str(seen.value) == f"opened bundled: {place}"


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
    verify, target, drafter = ((1, 0.2), (32, 0.2)), Times(90, 100), Times(1, 100 / c)
    speculative, pearl = drafters._plans(verify, target, drafter, Agreement(rate, rate, 1))
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


def test_the_command_measures_each_drafter(capsys, monkeypatch):
    monkeypatch.setattr(drafters, "QUICK", Size(6, 2))
    assert run_bench("--drafters", "--quick", "--json", "--noise", "--limit", "2") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["pair"], result["prompts"], result["quick"]) == ("bundled", 2, True)
    rows = {(row["drafter"], row["noise"]): row for row in result["drafters"]}
    assert list(rows) == [
        *(("int8", False), ("int4", False), ("drafter", False)),
        *(("int8", True), ("int4", True)),
    ]
    for row in rows.values():
        assert 0 < row["bytes"] < result["target_bytes"]
        assert 0 < row["ms_min"] <= row["ms_median"]
        assert row["c"] == pytest.approx(row["target_ms_median"] / row["ms_median"])
        assert row["positions"] <= 12
        assert row["speculative"]["speedup"] > 0
    assert rows["int8", False]["agreement"] >= rows["drafter", False]["agreement"]
    assert run_bench("--drafters", "--quick", "--limit", "1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("bundled · fp32 target of ")
    assert [line.split()[0] for line in lines[2:]] == ["drafter", "int8", "int4", "drafter"]


# llama.cpp, with a stand-in for its server.


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
    for model, message in (
        ("bundled", r"bundled has no GGUF file; give --pair smollm2, or --target X\.gguf"),
        ("smollm2", "smollm2 is not downloaded"),
    ):
        with pytest.raises(UsageError, match=message):
            peers.gguf_of(model, tmp_path)
