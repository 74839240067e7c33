"""All methods on a GPU: `pytest -m gpu`. Other tests need none, and `make test` leaves these out.

`SPECSCOPE_GPU_TESTS=cpu` runs their logic on a CPU.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
import torch

import specscope
from specscope.app.bench.cuda import CPU, GPU
from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import OutOfMemory, WorkerDied
from specscope.engine.model.attention import attend
from specscope.engine.model.compiled import compile_layers
from specscope.engine.model.flex import Flex
from specscope.engine.model.int4 import GROUP, int4_product, quantised
from specscope.engine.model.slots import Rows
from specscope.engine.types import Limits, Sampling
from specscope.engine.worker import rounds
from specscope.traces.facts.metrics import measure
from tests.bench.attention import CASES, Ragged
from tests.engine.heads.random_heads import with_heads
from tests.engine.model.test_static import check_static_steps
from tests.engine.model.tiny import DENSE, MIXTURES, reference, save
from tests.engine.run.rounds_on_host import check, counting, on_the_host
from tests.engine.runtimes.processes import at_span, servers
from tests.engine.runtimes.test_contract import CONFIGS, PROMPT, WARM, facts
from tests.engine.trace.watched import CALLS, check_rounds, generated, pair_of, set_up
from tests.engine.trace.watched import PROMPT as WATCHED
from tests.engine.worker.test_shortage import limited

pytestmark = pytest.mark.gpu
DEVICE = os.environ.get("SPECSCOPE_GPU_TESTS", "cuda")
LIMITS = Limits(24)
BY_MODELS = ("speculative", "assisted", "tree")
BY_HEADS = ("eagle", "eagle2", "medusa", "hydra", "parallelspec_eagle", "parallelspec_medusa", "mtp")
ALL = CONFIGS | {"dsi": {}, "ems": {"base": "speculative", "batch": 2}}
GREEDY = Sampling()
MODES = {
    "threads": {"runtime": "local-thread", "forward": "eager"},
    "threads, static": {"runtime": "local-thread", "forward": "static"},
    "threads, compiled": {"runtime": "local-thread", "forward": "compiled"},
    "processes": {"runtime": "local-process", "forward": "eager"},
    "processes, static": {"runtime": "local-process", "forward": "static"},
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return with_heads(Pair.find("bundled"), tmp_path_factory.mktemp("pair") / "heads")


@pytest.fixture(scope="module")
def opened(pair):
    """Return a function that opens the cluster of a mode, in float32; the next one closes it."""
    current: dict[str, specscope.Cluster] = {}

    def open_(mode: str) -> specscope.Cluster:
        if mode not in current:
            for cluster in current.values():
                cluster.close()
            current.clear()
            current[mode] = specscope.open(pair, device=DEVICE, dtype="float32", **MODES[mode])
        return current[mode]

    yield open_
    for cluster in current.values():
        cluster.close()


@pytest.fixture(scope="module")
def plain(opened):
    """Return a function that decodes the prompt without drafts, on threads."""

    @cache
    def text(sampling: Sampling) -> str:
        return opened("threads").run("autoregressive", PROMPT, sampling=sampling, limits=LIMITS).text

    return text


def test_this_machine_has_a_gpu():
    assert DEVICE == "cpu" or torch.cuda.is_available(), "pytest -m gpu needs a CUDA device"


@pytest.mark.parametrize("mode", MODES)
def test_every_method_writes_the_text_of_plain_decoding(mode, plain, opened):
    expected = plain(GREEDY)
    for name, config in ALL.items():
        if config.get("acceptance") == "typical" or config.get("placement") == "pipeline":
            continue
        run = opened(mode).run(name.split()[0], PROMPT, config=config, limits=LIMITS)
        assert run.text == expected, name


@pytest.mark.parametrize("name", ["speculative", "pearl", "tree", "medusa", "eagle", "lookahead"])
def test_static_and_compiled_forwards_decide_as_eager_ones_do(name, opened):
    runs = [
        opened(mode).run(name, PROMPT, config=CONFIGS[name], sampling=WARM, limits=LIMITS)
        for mode in ("threads", "threads, static", "threads, compiled")
    ]
    assert facts(runs[1]) == facts(runs[0]) == facts(runs[2])


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("name", ["autoregressive", *BY_MODELS, *BY_HEADS])
def test_rounds_of_the_device_decide_as_rounds_with_a_host(name, sampling, opened, monkeypatch):
    """Over several graphs: one for each size of the cache that attention reads.

    Of tokens with nearly equal probabilities a tree may have another one: only texts are compared.
    """
    monkeypatch.setattr(rounds, "AHEAD", {DEVICE})
    how = {"config": CONFIGS[name], "sampling": sampling, "limits": Limits(130)}
    cluster = opened("threads, static")
    expected = on_the_host(cluster, name, PROMPT, **how)
    for _ in range(2):  # the second time all graphs are there
        with counting() as counts:
            trace = cluster.run(name, PROMPT, **how)
        if name in BY_HEADS or name == "tree":
            assert trace.token_ids() == expected.token_ids()
            assert 0.9 < len(trace.rounds) / len(expected.rounds) < 1.1, "it drafts as well"
        else:
            check(trace, expected, tolerance=1e-3)
        on_one_device = DEVICE == "cuda" and torch.cuda.device_count() == 1
        assert counts[1] > 5 or (name in BY_MODELS and not on_one_device)


@pytest.mark.parametrize("mode", ["threads", "threads, static"])
def test_requests_under_load_have_the_texts_of_their_prompts_alone(mode, opened):
    cluster, load = opened(mode), specscope.Load((0.0, 0.0, 0.01), batch=2, chunk=8)
    prompts = [PROMPT, f"{PROMPT} Why?", "Hello"]
    for name in ("speculative", "pearl", "ouroboros", "medusa", "eagle"):
        trace = cluster.run(name, *prompts, config=CONFIGS[name], limits=LIMITS, load=load)
        alone = [cluster.run(name, prompt, config=CONFIGS[name], limits=LIMITS) for prompt in prompts]
        assert [trace.token_ids(i) for i in range(3)] == [run.token_ids() for run in alone], name


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_ways_of_attention_have_one_result(case):
    times = Ragged(GPU[1] if DEVICE == "cuda" else CPU[1], case, torch.device(DEVICE)).times(1)
    assert {way: figure.detail for way, figure in times.items() if not figure.valid} == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [(1, 5, 4, 2, 640, 64), (3, 8, 2, 4, 577, 128), (1, 16, 5, 1, 1024, 32)])
def test_flex_attention_sees_what_a_mask_shows(size, dtype):
    """Of (slots, rows, KV heads, groups, cached rows, head size); a row sees half of the cache."""
    slots, rows, kv_heads, groups, length, width = size
    torch.manual_seed(0)
    queries = torch.randn((slots, kv_heads, groups * rows, width), dtype=dtype, device=DEVICE) / width**0.5
    keys, values = torch.randn((2, slots, kv_heads, length + 9, width), dtype=dtype, device=DEVICE)[
        ..., :length, :
    ]
    seen = torch.rand((slots, rows, length), device=DEVICE) < 0.5
    seen[:, 0, 1:] = False
    seen[:, 0, 0] = True
    hidden = torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, -torch.inf).repeat(1, groups, 1)
    with torch.inference_mode():
        found = Flex(seen, groups, 0.0)(queries, keys, values)
        expected = attend(queries, keys, values, hidden[:, None], 0.0)
    near = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, expected, atol=near, rtol=near)


@pytest.mark.parametrize("family", DENSE)
def test_a_graph_equals_the_eager_forward(family, tmp_path):
    save(reference(family), tmp_path)
    check_static_steps(load(tmp_path, device=DEVICE), tolerance=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "opt"])
def test_a_graph_of_compiled_layers_equals_the_eager_forward(family, tmp_path):
    save(reference(family), tmp_path)
    decoder = load(tmp_path, device=DEVICE)
    compile_layers(decoder, waits=True)
    check_static_steps(decoder, tolerance=1e-4)
    assert not decoder.compiler.failed
    assert decoder.compiler.get(("layers", 1), pytest.fail)


def test_a_run_of_auto_begins_statically_and_the_next_one_after_a_pause_is_compiled(pair):
    with specscope.open(pair, runtime="local-thread", device=DEVICE, dtype="float32") as cluster:
        runs = [cluster.run("autoregressive", PROMPT, limits=LIMITS)]
        time.sleep(20 if DEVICE == "cuda" else 2)
        runs.append(cluster.run("autoregressive", PROMPT, limits=LIMITS))
    assert runs[0].token_ids() == runs[1].token_ids()
    assert ["compiled" in run.header.environment for run in runs] == [False, DEVICE == "cuda"]


@pytest.mark.parametrize("family", [*MIXTURES, "bundled"])
def test_logits_on_the_gpu_equal_the_cpu_s(family, pair, tmp_path):
    if family != "bundled":
        save(reference(family), tmp_path)
    path = pair.target_path if family == "bundled" else tmp_path
    models = [load(path, device=device) for device in ("cpu", DEVICE)]
    rows = Rows.chain(0, np.arange(10, 42), 0)
    logits = [
        model.forward(model.new_cache(1, 64), rows, np.arange(len(rows))).logits.cpu() for model in models
    ]
    torch.testing.assert_close(logits[1], logits[0], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("size", [(256, 512), (128, 96)], ids=str)
def test_int4_products_are_those_of_the_rounded_weights(size):
    """(128, 96) has tiles of a smaller number of columns."""
    torch.manual_seed(0)
    weight, x = torch.randn(size), torch.randn(5, size[1])
    q, scale, zero = quantised(weight.bfloat16())
    rounded = ((q - 8).unflatten(1, (-1, GROUP)) * scale[..., None] + zero[..., None]).flatten(1)
    product = int4_product(weight.bfloat16().to(DEVICE) if DEVICE == "cuda" else weight.bfloat16().float())
    found = product(x.bfloat16().to(DEVICE)).float().cpu()
    expected = x.bfloat16().double() @ rounded.double().t()
    assert (found - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize("forward", ["eager", "static"])
def test_drafts_of_int4_weights(forward, pair):
    """In bf16, where a row's logits depend on the rows beside it: texts part at near ties only."""
    with specscope.open(pair, drafter="int4", device=DEVICE, dtype="bfloat16", forward=forward) as cluster:
        runs = [cluster.run(key, PROMPT, limits=Limits(64)) for key in ("autoregressive", "speculative")]
        assert measure(runs[1]).acceptance_rate > 0.5
    texts = [run.token_ids() for run in runs]
    if texts[0] != texts[1]:
        first = next(i for i, (a, b) in enumerate(zip(*texts, strict=True)) if a != b)
        pinned = next(d for d in runs[0].decisions if d.position == len(runs[0].header.prompt_ids[0]) + first)
        best, second = (p for _, p in pinned.top_p[:2])
        # of two logits near 16, whose bf16 grid has steps of 1/8
        assert second > np.exp(-2 / 8) * best, (first, pinned.top_p)


@pytest.mark.parametrize("call", ["plain", "constant", "lookup"])
def test_watch_times_transformers_by_events(call):
    """Without SQLModel, which a machine with a GPU need not have."""
    arguments, settings = CALLS[call]
    target, drafter = (model.to(DEVICE) for model in pair_of("GPTNeoX", **settings))
    more = arguments | ({"assistant_model": drafter} if settings else {})
    ids = torch.tensor([WATCHED], device=DEVICE)
    alone = generated(target, ids, **more)
    set_up(drafter, **settings)
    with specscope.watch(target, drafter) as trace:
        tokens = generated(target, ids, **more)
    check_rounds(trace)
    assert tokens == alone == trace.token_ids()
    assert {d.kind for d in trace.header.devices} == {DEVICE}
    assert all(span.end > span.start for span in trace.spans)


def test_occupancy_is_sampled(opened):
    trace = opened("processes").run("autoregressive", PROMPT, limits=Limits(400))
    samples = [row for row in trace.occupancy if row.device.startswith(DEVICE)]
    assert samples
    assert all(0 <= row.busy <= 1 and row.memory > 0 for row in samples)


def test_a_killed_worker_ends_its_run_and_the_next_run_works(pair):
    with specscope.open(pair, device=DEVICE) as cluster:
        pid = servers(cluster)["target"].pid
        kill = at_span(8, lambda: os.kill(pid, signal.SIGKILL))
        with pytest.raises(WorkerDied, match="was killed by SIGKILL"):
            cluster.run("speculative", PROMPT, limits=Limits(200), listener=kill)
    with specscope.open(pair, device=DEVICE) as cluster:
        trace = cluster.run("speculative", PROMPT, limits=Limits(4))
        assert trace.status == "done"
        assert trace.header.environment["forward"] == ("eager" if DEVICE == "cpu" else "auto")


@contextmanager
def little_memory(cluster: specscope.Cluster, more: int) -> Iterator[None]:
    """Let the target's device take `more` bytes: of a GPU's memory by torch, else by the kernel."""
    if DEVICE == "cpu":
        with limited(servers(cluster)["target"].pid, more):
            yield
        return
    gpu = servers(cluster)["target"].devices[0].name.split("/")[0]
    gc.collect()
    torch.cuda.empty_cache()  # what earlier tests have freed would do
    total = torch.cuda.get_device_properties(gpu).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(gpu) + more) / total, gpu)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, gpu)


def test_out_of_memory_is_one_line_with_what_would_fit_and_the_next_run_works(opened, plain):
    cluster = opened("processes" if DEVICE == "cpu" else "threads")
    batch = {"config": {"base": "plain", "batch": 16}, "limits": Limits(2000)}
    message = r"no memory for a forward of the target: [\d.]+ MB more were asked for, .* free; try --max-new"
    with little_memory(cluster, 100 << 20), pytest.raises(OutOfMemory, match=message) as error:
        cluster.run("ems", *[PROMPT] * 16, **batch)
    assert "\n" not in str(error.value)
    assert cluster.run("autoregressive", PROMPT, limits=LIMITS).text == plain(GREEDY)
