"""The plug-in in a real vLLM: nothing changes, and the recordings are what its API says."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from specscope.engine.trace.trace import Trace
from specscope.traces.facts.checks import check
from specscope.traces.imports.reading import read_traces
from specscope.traces.judge.audit import audit
from tests.engines.vllm_server import served

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1500)]
HERE = Path(__file__).parent
VLLM = Path(os.environ.get("SPECSCOPE_ENGINES", HERE / "absent")) / "vllm"
PROMPTS = ("List the numbers as words: one, two,", "What is love?", "Once upon a time", "A cat", "I like")
PROMPTS += ("Two plus two is", "The sun", "In the morning")
HOSTILE = ("engine", "app", "traces", "assets")


class Seen(NamedTuple):
    """A server's answers and recordings, and the packages before and after the installation."""

    greedy: list[dict[str, Any]]
    together: list[dict[str, Any]]
    hot: list[dict[str, Any]]
    others: list[dict[str, Any]]
    refused: dict[str, Any]
    """Of a grammar that refuses drafts."""
    folder: Path
    packages: tuple[list[str], list[str]]
    log: str

    def traces(self) -> list[Trace]:
        found = [trace for path in sorted(self.folder.glob("*.jsonl")) for trace in read_traces(path).traces]
        for trace in found:
            check(trace)
        return found


def ask(address: str, prompt: str, **more: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 40, "temperature": 0, "return_token_ids": True, **more}
    body |= {"skip_special_tokens": False}
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), kind)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def abort(address: str) -> None:
    """Go away after the first words of a stream."""
    body = {"prompt": "A", "max_tokens": 400, "temperature": 0, "stream": True, "ignore_eos": True}
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), kind)
    with urllib.request.urlopen(request, timeout=300) as answer:
        answer.readline()


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> tuple[Path, tuple[list[str], list[str]]]:
    """Install this tree beside vLLM as a user does, in an environment that sees vLLM's packages."""
    if not (VLLM / ".done").exists():
        pytest.skip("vLLM is not set up: make engines")
    home = tmp_path_factory.mktemp("beside")
    subprocess.run([str(VLLM / "bin" / "python"), "-m", "venv", "--without-pip", str(home)], check=True)
    mine, site = home / "bin" / "python", ("-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    (Path(told(mine, *site)) / "vllm.pth").write_text(told(VLLM / "bin" / "python", *site))
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(home)]
    subprocess.run([*wheel, str(HERE.parents[1])], check=True)
    (built,) = home.glob("*.whl")
    before = told(mine, "-m", "pip", "freeze").splitlines()
    told(mine, "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(built))
    return mine, (before, told(mine, "-m", "pip", "freeze").splitlines())


def told(python: Path, *words: str) -> str:
    """Return what a command prints where this tree is not on Python's path."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.check_output([str(python), *words], text=True, env=variables).strip()


def seen(python: Path, folder: Path, record: str, installed: Any) -> Seen:
    """Ask one by one, eight at once, hot, with a stop string, two answers, a grammar; abort."""
    for name in HOSTILE:
        (folder / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    drafts = json.dumps({"draft_sample_method": "probabilistic"})
    more = {"SPECSCOPE_RECORD": record} if record else {}
    with served(VLLM, folder, "--max-num-seqs", "8", python=python, drafts=drafts, **more) as address:
        greedy = [ask(address, prompt) for prompt in PROMPTS]
        with ThreadPoolExecutor(8) as pool:
            together = [*pool.map(lambda prompt: ask(address, prompt), PROMPTS)]
            hot = [*pool.map(lambda prompt: ask(address, prompt, temperature=0.8, seed=7), PROMPTS)]
        others = [ask(address, PROMPTS[0], stop=[","]), ask(address, PROMPTS[1], n=2, temperature=0.8)]
        refused = ask(address, PROMPTS[0], structured_outputs={"regex": "[a-m0-9]{30,40}"})
        abort(address)
        others.append(ask(address, PROMPTS[2], max_tokens=1))
        time.sleep(3)
    log = (folder / "server.log").read_text()
    return Seen(greedy, together, hot, others, refused, Path(record), installed, log)


@pytest.fixture(scope="module")
def watched(python, tmp_path_factory) -> Seen:
    folder = tmp_path_factory.mktemp("watched")
    return seen(python[0], folder, str(folder / "rec"), python[1])


def recorded(traces: list[Trace], answer: dict[str, Any]) -> Trace:
    """Return the trace with the ids of an answer; equal prompts may have several, equal in all."""
    choice = answer["choices"][0]
    key = ((*choice["prompt_token_ids"],), choice["token_ids"])
    return next(trace for trace in traces if (trace.header.prompt_ids[0], trace.token_ids()) == key)


def test_only_the_package_is_added(watched):
    before, after = watched.packages
    assert {line.split(" @ ")[0] for line in {*after} ^ {*before}} == {"specscope"}
    assert "the wrong module" not in watched.log


def test_the_recordings_are_what_the_api_says(watched):
    traces = watched.traces()
    assert len(traces) == 3 * len(PROMPTS) + 6
    for answer in (*watched.greedy, *watched.together, *watched.hot, watched.refused):
        trace, counts = recorded(traces, answer), answer["metrics"]["speculative_decoding"]
        assert [r.accepted for r in trace.rounds if r.drafted] == counts["per_step_accepted"]
        assert [r.drafted for r in trace.rounds if r.drafted] == counts["per_step_drafted"]
        reason = {"stop": "eos"}.get(answer["choices"][0]["finish_reason"], "length")
        assert trace.footer.reasons == (reason,)
        rejected = [d for d in trace.decisions if d.outcome == "rejected"]
        assert all(d.p is not None for d in rejected)
        if answer in watched.hot:
            assert all(d.q is not None for d in rejected)
        else:  # the API leaves out the token that ends a text
            assert trace.text.startswith(answer["choices"][0]["text"])
    assert [trace.status for trace in traces].count("cancelled") == 1
    assert "SpecScope stops" not in watched.log
    assert "SpecScope records nothing" not in watched.log


def test_the_audit_finds_the_fault_of_vllm_on_cpus(watched):
    """At 0.8 too few drafts are accepted for p and q (docs/vllm.md); at 0 nothing is said."""
    traces = watched.traces()
    cold = [recorded(traces, answer) for answer in (*watched.greedy, *watched.together)]
    assert not any(found.sentence for found in map(audit, cold) if found)
    found = audit(*(recorded(traces, answer) for answer in watched.hot))
    assert found is not None
    assert found.whole.z is not None
    assert found.whole.z < -4
    assert "does not follow min(1, p/q)" in found.sentence


def test_asynchronous_scheduling(python, tmp_path):
    """Refused drafts, preemptions, outputs that are dropped; vLLM's own switch is changed."""
    mine, folder = python[0], tmp_path / "rec"
    site = Path(told(mine, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    shutil.copy(HERE / "async_on_cpu.py", site)
    (site / "async_on_cpu.pth").write_text("import async_on_cpu\n")
    words = ["--async-scheduling", "--max-num-seqs", "8", "--block-size", "32", "--max-model-len", "256"]
    more = {"SPECSCOPE_ASYNC": "1", "SPECSCOPE_RECORD": str(folder), "VLLM_SERVER_DEV_MODE": "1"}
    few = ("--num-gpu-blocks-override", "12")
    with served(VLLM, tmp_path, *words, *few, python=mine, **more) as address, ThreadPoolExecutor(8) as pool:
        answers = [ask(address, PROMPTS[0], structured_outputs={"regex": "[a-m0-9]{30,40}"})]
        answers += pool.map(lambda prompt: ask(address, prompt, max_tokens=80, ignore_eos=True), PROMPTS)
        begun = [pool.submit(ask, address, prompt, max_tokens=200, ignore_eos=True) for prompt in PROMPTS[:3]]
        for _ in range(5):
            time.sleep(0.3)
            reset = f"{address}/reset_prefix_cache?reset_running_requests=true"
            urllib.request.urlopen(urllib.request.Request(reset, method="POST"), timeout=60)
        answers += [one.result() for one in begun]
        time.sleep(3)
    found = [trace for path in sorted(folder.glob("*.jsonl")) for trace in read_traces(path).traces]
    done = [trace for trace in found if trace.status == "done"]
    for answer in answers[: 1 + len(PROMPTS)]:
        counts = answer["metrics"]["speculative_decoding"]
        assert sum(r.drafted for r in recorded(done, answer).rounds) == counts["num_draft_tokens"]
    assert 0 in answers[0]["metrics"]["speculative_decoding"]["per_step_drafted"], "no draft was refused"
    assert any(sum(span.kind == "prefill" for span in trace.spans) > 1 for trace in done)
    dropped = [trace for trace in found if trace.status == "failed"]
    assert dropped
    assert all("vLLM dropped sampled tokens" in trace.footer.error for trace in dropped)
    texts = [answer["choices"][0]["token_ids"] for answer in answers]
    assert all(trace.token_ids() in texts for trace in done)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"top_k": 5}, "max(): Expected reduction dim"),
        ({"top_k": 5, "top_p": 0.9}, "is out of bounds for dimension 1"),
    ],
)
def test_top_k_ends_vllm_on_cpus(python, tmp_path, more, error):
    """Without the plug-in (docs/vllm.md): how many tokens it keeps is whatever was in memory."""
    with served(VLLM, tmp_path, "--max-num-seqs", "8", python=python[0]) as address:
        ask(address, PROMPTS[0], temperature=0.8, top_p=0.9)
        with suppress(urllib.error.URLError, ConnectionError):
            for seed in range(20):
                ask(address, PROMPTS[0], temperature=0.8, seed=seed, **more)
    assert error in (tmp_path / "server.log").read_text()


def test_the_cost_is_small_and_told(watched):
    """CPU time of the hooks against the time of the steps, at batch 1 and 8."""
    assert "SpecScope: 100 steps; " in watched.log
    (table,) = watched.folder.glob("*.csv")
    names, *rows = [line.split(",") for line in table.read_text().splitlines()]
    for size in (1, 8):
        steps = [dict(zip(names, map(int, row), strict=True)) for row in rows if row[1] == str(size)]
        cost = statistics.median(step["recorder_us"] for step in steps)
        whole = statistics.median(step["forward_us"] + step["sample_us"] + step["draft_us"] for step in steps)
        print(f"batch {size}: {cost} us of {whole} us a step, {len(steps)} steps")
        assert cost < 0.1 * whole


def test_texts_are_those_of_the_unwatched_server(watched, python, tmp_path):
    alone = seen(python[0], tmp_path, "", python[1])
    for mine, theirs in zip(
        (*watched.greedy, watched.others[0], watched.refused),
        (*alone.greedy, alone.others[0], alone.refused),
        strict=True,
    ):
        assert mine["choices"][0] == theirs["choices"][0]
    assert "SpecScope" not in alone.log
