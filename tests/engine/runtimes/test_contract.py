"""The contract of all runtimes and of static forwards: the same rows; only times differ."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import UsageError
from specscope.engine.model import weights
from specscope.engine.trace.events import Span
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from tests.engine.heads.random_heads import with_eagle3, with_heads
from tests.engine.runtimes.processes import at_span

RUNTIMES = {
    "local-thread": {"runtime": "local-thread"},
    "local-process": {"runtime": "local-process"},
    "virtual": {"runtime": "virtual", "profile": "pearl-4xA100"},
}
PROMPT = "Tell me a story about a fox who lost its hat."
WARM = Sampling(temperature=0.9, top_k=50, top_p=0.95, seed=3)
SHORT = Limits(6)
CONFIGS = {
    "autoregressive": {},
    "speculative": {"gamma": 4},
    "pearl": {"gamma": 3},
    "pearl in a pipeline": {"gamma": 3, "placement": "pipeline"},
    "pearl co-located": {"gamma": 3, "placement": "co-located"},
    "ssd": {"gamma": 3},
    "ssd without a backup": {"gamma": 2, "backup": "none", "saguaro": 0.5},
    "specbranch": {"gamma": 3, "length": 3, "threshold": 0.5},
    "tree": {"width": 3, "depth": 4},
    "easyspec": {"gamma": 4},
    "prompt_lookup": {"ngram": 2, "copy": 5},
    "assisted": {"start": 3},
    "suffix": {"offset": 1.0},
    "hybrid": {"gamma": 3, "offset": 2.0},
    "lookahead": {"level": 4, "window": 6},
    "ouroboros": {"gamma": 4},
    "medusa": {},
    "medusa with typical acceptance": {"acceptance": "typical"},
    "hydra": {"heads": 2},
    "eagle": {},
    "eagle2": {"depth": 3, "total": 20},
    "parallelspec_medusa": {},
    "parallelspec_eagle": {"masks": 3},
    "dflash": {"confidence": 0.02},
    "mtp": {"gamma": 3},
    "llma": {"match": 1, "reference": "The fox was very sad. It wanted to find its hat."},
}
"""Settings by name; the name's first word is the method."""
GREEDY = (
    *("autoregressive", "speculative", "pearl", "pearl in a pipeline", "pearl co-located"),
    *("ssd", "specbranch", "eagle"),
)
"""Also run at temperature 0: chains, branches, a head, and each placement."""
ONE_SPAN_EACH = (
    *("pearl", "pearl in a pipeline", "tree", "assisted", "lookahead", "ouroboros"),
    *("eagle", "parallelspec_eagle"),
)
"""Methods whose draft spans all have decisions, and whose devices run one forward at a time."""
PROCESSES = (
    *(n for n in CONFIGS if n.startswith(("pearl", "ssd"))),
    *("autoregressive", "speculative", "specbranch", "tree", "easyspec", "assisted", "lookahead"),
    *("ouroboros", "medusa", "hydra", "eagle2", "parallelspec_eagle", "dflash", "llma", "suffix", "hybrid"),
)
"""Run on worker processes, above temperature 0: each layout, and each kind of job and of head."""
RUNS = [(name, WARM) for name in CONFIGS] + [(name, Sampling()) for name in GREEDY]

Runs = dict[tuple[str, float], Trace]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return with_heads(Pair.find("bundled"), tmp_path_factory.mktemp("pair") / "heads")


@pytest.fixture(scope="module")
def clusters(pair):
    """Return a function that opens the cluster of a runtime at its first call."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(specscope.open(pair, device="cpu", **RUNTIMES[name])))


@pytest.fixture(scope="module", params=RUNTIMES)
def cluster(request, clusters):
    return clusters(request.param)


@pytest.fixture(scope="module")
def runs(clusters):
    """Return a function that executes RUNS on a runtime at its first call: traces by (name, T)."""

    @cache
    def execute(runtime):
        run = clusters(runtime).run
        return {
            (name, sampling.temperature): run(
                name.split()[0], PROMPT, config=CONFIGS[name], sampling=sampling, limits=SHORT
            )
            for name, sampling in RUNS
            if runtime != "local-process" or (name in PROCESSES and sampling == WARM)
        }

    return execute


def facts(trace):
    """Return the rows of a trace without times, spans and probabilities."""
    timeless = {"time": 0, "verify_span": 0, "span": 0, "draft_span": 0}
    inexact = {"p": 0, "q": 0, "top_p": (), "top_q": ()}
    forks = [replace(fork, q=0, length=0) for fork in trace.forks]  # a verdict ends the branches

    def strip(row, **more):
        return replace(row, **{k: v for k, v in timeless.items() if hasattr(row, k)}, **more)

    tables = (trace.rounds, trace.commits, trace.documents, trace.copies, trace.pooled, trace.forecasts)
    decisions = [strip(d, **inexact) for d in trace.decisions]
    return decisions, forks, *(list(map(strip, rows)) for rows in tables)


def _probabilities(trace):
    return np.array([(d.p, d.q) for d in trace.decisions], dtype=float)


@pytest.mark.parametrize("runtime", ["local-process", "virtual"])
def test_every_runtime_writes_the_rows_of_the_thread_runtime(runtime, runs):
    for name, trace in runs(runtime).items():
        expected = runs("local-thread")[name]
        assert trace.status == "done"
        for rows, expected_rows in zip(facts(trace), facts(expected), strict=True):
            assert rows == expected_rows, name
        np.testing.assert_allclose(
            _probabilities(trace), _probabilities(expected), atol=1e-4, err_msg=str(name)
        )
        assert trace.text == expected.text


def test_an_eagle_3_head_drafts_the_same_on_every_runtime(pair, tmp_path):
    pair, runs = replace(with_eagle3(pair, tmp_path / "eagle3"), drafter_path=None), {}
    settings = [
        ("eagle2", WARM),
        ("autoregressive", WARM),
        ("eagle", Sampling()),
        ("autoregressive", Sampling()),
    ]
    for runtime, count in (("local-thread", 4), ("virtual", 4), ("local-process", 1)):
        with specscope.open(pair, device="cpu", **RUNTIMES[runtime]) as opened:
            runs[runtime] = [
                opened.run(method, PROMPT, sampling=sampling, limits=SHORT)
                for method, sampling in settings[:count]
            ]
    for traces in runs.values():
        for trace, expected in zip(traces, runs["local-thread"], strict=False):
            assert facts(trace) == facts(expected), trace.header.method
    virtual = runs["virtual"]
    for drafted, plain in zip(virtual[::2], virtual[1::2], strict=True):
        assert drafted.token_ids() == plain.token_ids(), "lossless"
        assert max(r.accepted for r in drafted.rounds) > 0, "some drafts are accepted"
    drafts = [s for s in virtual[2].spans if s.kind == "draft"]
    assert all(s.end > s.start and s.model == "drafter" for s in drafts)


def test_a_placement_changes_no_row(runs):
    for temperature in (0.0, WARM.temperature):
        separate, *others = (
            facts(runs("local-thread")[name, temperature])
            for name in ("pearl", "pearl in a pipeline", "pearl co-located")
        )
        assert all(other == separate for other in others)


def test_dsi_writes_the_same_text_at_any_timing(cluster, runs):
    for sampling in (Sampling(), WARM):
        trace = cluster.run("dsi", PROMPT, sampling=sampling, limits=SHORT)
        assert trace.status == "done"
        assert trace.text == runs("local-thread")["autoregressive", sampling.temperature].text
    config = {"acceptance": "rejection"}
    one, two = (cluster.run("dsi", PROMPT, config=config, sampling=WARM, limits=SHORT) for _ in range(2))
    assert (one.status, one.text) == (two.status, two.text) == ("done", two.text)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_trace_is_complete(runtime, clusters, runs):
    dsi = clusters(runtime).run("dsi", PROMPT, limits=SHORT)
    for trace in (dsi, *(trace for (name, _), trace in runs(runtime).items() if name in ONE_SPAN_EACH)):
        check_complete(trace)


def check_complete(trace):
    name, spans = trace.header.method, {s.id: s for s in trace.spans}
    assert len(spans) == len(trace.spans), f"{name}: span ids are unique"
    drafts = {s.id for s in trace.spans if s.kind == "draft" and s.outcome == "done"}
    decided = {d.draft_span for d in trace.decisions if d.draft_span >= 0}
    assert drafts == decided, f"{name}: every drafted token has a decision"
    verified = {spans[d.verify_span].kind for d in trace.decisions if d.verify_span >= 0}
    assert verified <= {"verify", "pre-verify"}, name
    assert sum(r.emitted for r in trace.rounds) == len(trace.commits), name
    assert {p for d in trace.decisions for p, _ in (*d.top_p, *d.top_q)} <= set(trace.pieces), name
    assert {s.kind for s in trace.spans if s.step == 0} == {"prefill"}, name
    forwards = [s for s in trace.spans if s.kind not in ("sample", "communicate")]
    for device in {s.device for s in trace.spans}:
        times = sorted((s.start, s.end) for s in forwards if s.device == device)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(times)), f"{name}: one forward at a time"


def test_a_cancelled_run_leaves_a_trace_with_this_status(cluster):
    stop = threading.Event()
    trace = cluster.run(
        "pearl",
        PROMPT,
        config={"gamma": 3},  # a long first draft alone could be 12 spans
        limits=Limits(2000),
        listener=at_span(12, stop.set),
        cancel=stop,
    )
    assert trace.status == "cancelled"
    assert 0 < len(trace.commits) < 2000
    assert cluster.run("pearl", PROMPT, limits=Limits(8)).status == "done"


def test_a_listener_that_fails_ends_the_run_and_the_next_one_works(cluster):
    def full(event):
        if isinstance(event, Span):
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        cluster.run("speculative", PROMPT, limits=Limits(8), listener=full)
    assert cluster.run("speculative", PROMPT, limits=Limits(8)).status == "done"


def test_one_run_at_a_time(cluster):
    started, refused = threading.Event(), threading.Event()

    def hold(_):
        started.set()
        refused.wait(60)

    def run(**more):
        cluster.run("autoregressive", PROMPT, limits=Limits(8), **more)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run, listener=hold)
        assert started.wait(60)
        try:
            with pytest.raises(UsageError):
                run()
        finally:
            refused.set()
        first.result()


@pytest.mark.parametrize(
    ("method", "config", "prompt", "message"),
    [
        ("nonsense", {}, PROMPT, "there is no method 'nonsense'; choose one of"),
        ("speculative", {"gama": 3}, PROMPT, "no field 'gama'"),
        ("speculative", {"gamma": 33}, PROMPT, "gamma is 33; it must be at least 1 and at most 32"),
        ("speculative", {"gamma": "x"}, PROMPT, "gamma is 'x'; it must be a whole number of at least 1"),
        ("speculative", {"drafts": "x"}, PROMPT, "choose one of sampled, greedy"),
        ("pearl", {"pre_verify": "perhaps"}, PROMPT, "pre_verify is 'perhaps'"),
        ("speculative", {}, "", "empty"),
        ("speculative", {}, "word " * 4000, "context"),
        ("speculative", {}, [1, 99999], "token id 99999"),
    ],
)
def test_bad_input_is_refused_before_a_run_begins(clusters, method, config, prompt, message):
    with pytest.raises(UsageError, match=message):
        clusters("virtual").run(method, prompt, config=config, listener=pytest.fail)


BATCH = ["Hello!", "Name a colour.", "Tell me a story about a fox who lost its hat."]


@pytest.fixture(scope="module")
def eager_and_static(tmp_path_factory):
    """Return two clusters of threads; a product in int8 would round their q differently."""
    pair = with_heads(Pair.find("bundled"), tmp_path_factory.mktemp("pair") / "heads")
    options = {"runtime": "local-thread", "device": "cpu"}
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(weights, "PACKED_FROM", 1 << 40)
        places = (options, {**options, "forward": "static"})
        yield [stack.enter_context(specscope.open(pair, **place)) for place in places]


JOBS = ("speculative", "tree", "easyspec", "lookahead", "medusa with typical acceptance", "eagle2")
"""Each kind of a worker's jobs and of heads, also in static forwards."""


def compared(clusters, *run, **more):
    eager, static = (cluster.run(*run, **more) for cluster in clusters)
    assert facts(static) == facts(eager)
    assert static.footer.texts == eager.footer.texts
    assert static.header.environment["forward"] == "static"


@pytest.mark.parametrize("name", JOBS)
def test_a_method_decides_the_same_in_static_forwards(name, eager_and_static):
    more = {"config": CONFIGS[name], "sampling": WARM, "limits": Limits(5)}
    compared(eager_and_static, name.split()[0], PROMPT, **more)


@pytest.mark.parametrize("unpad", [True, False])
def test_a_batch_decides_the_same_in_static_forwards(unpad, eager_and_static):
    config = {"unpad_inputs": unpad, "unpad_kv": unpad}
    compared(eager_and_static, "ems", *BATCH, config=config, limits=Limits(8))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"runtime": "virtual", "profile": "pearl-4xA100", "forward": "static"},
            "runtime virtual takes auto only",
        ),
        ({"forward": "compiled", "tp": 2}, "forward is compiled, .* use static, or leave forward out"),
        ({"forward": "fast"}, "no forward 'fast'; choose one of auto, eager, static, compiled"),
        ({"dtype": "int4"}, "no dtype 'int4'; choose one of auto, float32, bfloat16"),
    ],
)
def test_wrong_forwards_are_refused(given, message):
    with pytest.raises(UsageError, match=message):
        specscope.open("bundled", **given)
