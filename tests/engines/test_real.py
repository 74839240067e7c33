"""Real llama.cpp and vLLM: the counts of a run are the server's own, token for token.

`make engines` sets both up in the folder of SPECSCOPE_ENGINES and runs these tests.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import specscope
from specscope.engine.servers.session import Server
from specscope.engine.types import Limits, Sampling
from specscope.traces.facts.checks import check
from specscope.traces.facts.metrics import measure
from specscope.traces.imports.reading import read_traces
from specscope.traces.judge.health import health
from tests.engines.vllm_server import served

pytestmark = pytest.mark.engines
HERE = Path(__file__).parent
ENGINES = Path(os.environ.get("SPECSCOPE_ENGINES", HERE / "absent"))
PROMPT = "List the numbers as words: one, two, three,"
START_S = 600


@pytest.fixture(scope="module")
def gguf() -> str:
    found = next((ENGINES / "llama").rglob("SmolLM2*.gguf"), None)
    if found is None:
        pytest.skip("llama.cpp is not set up: make engines")
    return str(found)


def llama(gguf: str, drafts: str, log: Path) -> tuple[subprocess.Popen[str], Server]:
    words = [str(ENGINES / "llama" / "bin" / "python"), str(HERE / "llama_server.py"), gguf, drafts]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log.open("w")}
    process = subprocess.Popen(words, text=True, **pipes)
    assert process.stdout is not None
    return process, specscope.connect(process.stdout.readline().strip())


@pytest.fixture(scope="module", params=["draft", "ngram", "plain"])
def llama_cpp(request, gguf, tmp_path_factory) -> Iterator[tuple[str, Server, Path]]:
    log = tmp_path_factory.mktemp("llama") / "server.log"
    process, server = llama(gguf, request.param, log)
    yield request.param, server, log
    process.communicate()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_llama_cpp_agrees_with_the_steps(llama_cpp, temperature):
    drafts, server, _ = llama_cpp
    trace = server.run(PROMPT, PROMPT, sampling=Sampling(temperature, seed=7), limits=Limits(24))
    check(trace)
    found, notes = measure(trace), trace.header.environment["server"]["notes"]
    assert notes == [
        f"The server's totals and counters agree: {found.drafted} drafted, {found.accepted} accepted."
    ]
    assert bool(found.drafted) == (drafts == "draft") or drafts == "ngram"
    assert all(-1 not in ids for ids in trace.outputs())


def test_the_log_of_llama_cpp_has_the_counts_of_its_runs(llama_cpp):
    drafts, server, log = llama_cpp
    if drafts != "draft":
        pytest.skip("it drafts nothing, or not always")
    trace = server.run(PROMPT, limits=Limits(24))
    time.sleep(1)
    (printed,) = read_traces(log).traces
    last, found = printed.windows[-1], measure(trace)
    assert (last.drafted, last.accepted, last.tokens) == (found.drafted, found.accepted, found.tokens)


def test_the_text_with_drafts_is_the_text_without(gguf, tmp_path):
    texts = []
    for drafts in ("draft", "plain"):
        process, server = llama(gguf, drafts, tmp_path / drafts)
        texts.append(server.run(PROMPT, limits=Limits(16)).token_ids())
        process.communicate()
    assert texts[0] == texts[1]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory) -> Iterator[Server]:
    """Serve the bundled pair, which is written without int8."""
    home, folder = ENGINES / "vllm", tmp_path_factory.mktemp("vllm")
    if not (home / ".done").exists():
        pytest.skip("vLLM is not set up: make engines")
    with served(home, folder, "--max-num-seqs", "4") as address:
        yield specscope.connect(address)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("chat", [False, True])
def test_vllm_agrees_with_the_steps(vllm, chat):
    prompt = [{"role": "user", "content": PROMPT}] if chat else PROMPT
    trace = vllm.run(prompt, limits=Limits(40))
    check(trace)
    found = measure(trace)
    assert trace.header.environment["server"] | {"address": ""} == {
        "kind": "vLLM",
        "version": "0.32.0",
        "address": "",
        "unknown": [],
        "notes": [
            f"The server's totals and counters agree: {found.drafted} drafted, {found.accepted} accepted."
        ],
    }
    assert found.tokens == 40
    assert trace.header.prompt_ids[0]
    assert trace.decisions[0].p is not None
    assert health(trace) == "" or "repeats" in health(trace)


def test_requests_at_once_agree_although_events_are_merged(vllm):
    trace = vllm.run(*[PROMPT] * 4, limits=Limits(32))
    check(trace)
    assert "agree" in trace.header.environment["server"]["notes"][0]


def test_a_stop_string_leaves_the_draft_lengths_unknown(vllm):
    trace = vllm.run(PROMPT, limits=Limits(32, stop=(",",)))
    check(trace)
    assert trace.status == "done"
