"""A target larger than one device, and drafters `int4` and `int8`: the texts are the target's."""

import json
import shutil
from dataclasses import replace

import pytest
from safetensors import safe_open

import specscope
from specscope.engine.checkpoints.checkpoint import Checkpoint
from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.checkpoints.sizes import Size
from specscope.engine.cluster.fit import fit, layer_spans, split_by_memory
from specscope.engine.cluster.local_devices import devices_of, local_devices
from specscope.engine.cluster.memory import Memory
from specscope.engine.cluster.options import Options
from specscope.engine.cluster.placement import Placement
from specscope.engine.errors import ModelError, UsageError
from specscope.engine.run.serving import Load
from specscope.engine.trace.events import Device
from specscope.engine.types import Limits, Sampling
from tests.engine.checkpoints.gguf_files import write
from tests.engine.heads.random_heads import make_head, make_heads
from tests.engine.model import tiny
from tests.engine.runtimes.processes import six_cores

GPUS = tuple(Device(f"cuda:{i}", "", f"GPU {i}", "cuda") for i in range(4))
LAYERS = [Size(30, 1), *[Size(10, 1)] * 4, Size(40, 1)]
"""Six layers; the first has the embeddings, the last the LM head."""


@pytest.mark.parametrize(
    ("limits", "tokens", "spans"),
    [
        ([110], 0, {0: range(6)}),
        ([109], 0, {}),
        ([60, 50], 0, {0: range(4), 1: range(4, 6)}),
        ([60, 49], 0, {}),
        ([60, 49, 40], 0, {0: range(4), 1: range(4, 5), 2: range(5, 6)}),
        ([29, 60, 50], 0, {1: range(4), 2: range(4, 6)}),
        ([60, 50], 5, {}),
        ([80, 60], 5, {0: range(4), 1: range(4, 6)}),
        ([79, 60], 5, {}),
        ([79, 75], 5, {0: range(3), 1: range(3, 6)}),
        ([1000, 1000], 5, {0: range(6)}),
    ],
)
def test_devices_are_filled_in_order_and_no_layer_is_split(limits, tokens, spans):
    assert layer_spans(LAYERS, limits, tokens) == spans


def gpus(free, dtype="float32"):
    """Return the bundled pair on stand-ins for GPUs with these free bytes."""
    devices, by_name = GPUS[: len(free)], dict(zip((gpu.name for gpu in GPUS), free, strict=False))
    memory = Memory(measure=lambda device: by_name[device.name])
    return local_devices(Pair.find("bundled"), Options(dtype=dtype), devices, memory=memory)


def placed(pool, tokens=100):
    pool = split_by_memory(pool, tokens)
    assigned = pool.assign(pool.base)
    return {model: [d.name for d in each[0].devices] for model, each in assigned.items()}, pool.spans


MB = 10**6


@pytest.mark.parametrize(
    ("free", "drafter", "target", "sizes"),
    [
        ([50 * MB] * 2, "cuda:0", ["cuda:1"], []),
        ([50 * MB, 5 * MB, 60 * MB], "cuda:0", ["cuda:2"], []),
        ([40 * MB, 30 * MB, 30 * MB], "cuda:0", ["cuda:1", "cuda:2"], [4, 4]),
        ([40 * MB, 30 * MB, 3 * MB, 30 * MB], "cuda:0", ["cuda:1", "cuda:3"], [4, 4]),
        ([40 * MB, 30 * MB], "cuda:0/drafter", ["cuda:0/target", "cuda:1"], [4, 4]),
        ([60 * MB, 30 * MB], "cuda:1", ["cuda:0"], []),
        ([60 * MB, 5 * MB, 40 * MB, 30 * MB], "cuda:3", ["cuda:0"], []),
        ([60 * MB, 5 * MB], "cuda:0/target", ["cuda:0/target"], []),  # they take turns on one worker
    ],
)
def test_the_target_gets_the_devices_after_the_drafters_or_its_own_and_then_what_it_leaves(
    free, drafter, target, sizes
):
    devices, spans = placed(gpus(free))
    assert devices == {"drafter": [drafter], "target": target}
    assert [len(span) for span in spans] == sizes
    assert [i for span in spans for i in span] == list(range(sum(sizes)))


@pytest.mark.parametrize(
    ("free", "message"),
    [
        ((20, 10), r"free are .* GPU 0, 10.0 MB on GPU 1; at most 5 million weights of float32"),
        ((30, 20), r"--dtype bfloat16 takes 26\.1 MB"),
    ],
)
def test_too_little_memory_on_all_devices_is_refused_with_what_would_fit(free, message):
    with pytest.raises(ModelError, match=message):
        placed(gpus([size * MB for size in free]))
    devices, spans = placed(gpus([30 * MB, 20 * MB], dtype="bfloat16"))
    assert (devices, spans) == ({"drafter": ["cuda:1"], "target": ["cuda:0"]}, ())


def names(path, span):
    """Return the names of the tensors that a stage needs, from the file's own names."""
    with safe_open(path / "model.safetensors", framework="pt") as file:
        keys = set(file.keys())
    tied = json.loads((path / "config.json").read_text())["tie_word_embeddings"]
    layers = {key for key in keys if any(key.startswith(f"model.layers.{i}.") for i in span)}
    first = {"model.embed_tokens.weight"} if span.start == 0 or (tied and span.stop == 3) else set()
    last = {"lm_head.weight"} & keys if span.stop == 3 else set()
    return {*layers, *first, *last, "model.norm.weight"}


@pytest.mark.parametrize("family", ["llama", "qwen2", "llama-gqa-tied-bias"])
def test_a_stage_reads_its_own_tensors_and_nothing_else(family, tmp_path, monkeypatch):
    tiny.save(tiny.reference(family), tmp_path)
    read, take = list[str](), Checkpoint.take
    record = lambda self, key, *more: read.append(key) or take(self, key, *more)  # noqa: E731
    monkeypatch.setattr(Checkpoint, "take", record)
    for span in (range(1), range(1, 3), range(2, 3)):
        load(tmp_path, stage=span)
        assert len(read) == len(set(read))
        assert set(read) == names(tmp_path, span)
        read.clear()


WHOLE = {"device": "cpu", "runtime": "local-thread"}


@pytest.fixture(scope="module")
def split():
    with specscope.open("bundled", **WHOLE, memory="0=75MB,1=60MB") as cluster:
        assert cluster.c > 1, "the time of the target is the sum of its stages"
        yield cluster


@pytest.fixture(scope="module")
def whole():
    with specscope.open("bundled", **WHOLE) as cluster:
        yield cluster


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("method", "config"),
    [
        ("autoregressive", {}),
        ("speculative", {"gamma": 3}),
        ("tree", {"width": 2, "depth": 2}),
        ("pearl", {"gamma": 2}),
        ("pearl", {"gamma": 2, "placement": "pipeline"}),
        ("lookahead", {}),
        ("dsi", {}),
        ("ems", {}),
    ],
)
def test_the_split_target_decodes_the_text_of_the_whole_one(split, whole, method, config, temperature):
    options = {"config": config, "sampling": Sampling(temperature, seed=3), "limits": Limits(6)}
    trace, expected = (c.run(method, "Tell me a story.", **options) for c in (split, whole))
    assert trace.token_ids(0) == expected.token_ids(0)
    assert trace.status == "done"
    targets = [d for d in trace.header.devices if "target" in d.role]
    assert [d.label.rpartition("layers ")[2] for d in targets] == ["0-3", "4-7"]
    assert trace.header.environment["stages"] == [4, 4]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["medusa", "hydra", "eagle2", "parallelspec_medusa"])
def test_heads_beside_the_last_stage_draft_what_they_draft_beside_the_whole_target(
    split, whole, method, temperature
):
    def ran(**more):
        prompts = ["Tell me a story."] * (3 if "load" in more else 1)
        return [c.run(method, *prompts, **more) for c in (split, whole)]

    trace, expected = ran(sampling=Sampling(temperature, seed=3), limits=Limits(12))
    assert trace.token_ids(0) == expected.token_ids(0)
    drafts = [[(r.drafted, r.accepted) for r in t.rounds] for t in (trace, expected)]
    assert drafts[0] == drafts[1]
    assert [device.role for device in trace.header.devices] == ["target", "drafter+target"]
    if temperature == 0:
        served, alone = ran(limits=Limits(6), load=Load((0.0,) * 3, batch=2))
        assert [served.token_ids(i) for i in range(3)] == [alone.token_ids(i) for i in range(3)]


@pytest.fixture(scope="module")
def untied(tmp_path_factory):
    """Return a pair without a drafter whose target has an LM head of its own, with heads."""
    bundled, folder = Pair.find("bundled"), tmp_path_factory.mktemp("untied")
    for file in bundled.target_path.glob("*token*"):
        shutil.copy(file, folder)
    tiny.save(tiny.reference("llama", vocab_size=bundled.vocab_size, eos_token_id=None), folder)
    heads = make_heads(folder / "heads", folder, ("eagle", "hydra"))
    make_head(heads / "eagle3", "eagle3", folder)
    return replace(Pair.of(folder), heads_path=heads)


def opened(pair, spans, heads=()):
    """Open a pair on two threads, with its target split into these layers."""
    pool = local_devices(pair, Options("local-thread"), devices_of("cpu")[:2], spans)
    return specscope.Cluster(pair, Placement(pool), heads)


@pytest.mark.parametrize("method", ["eagle", "hydra"])
def test_a_head_beside_the_last_stage_reads_embeddings_that_only_the_first_one_has(untied, method):
    texts = []
    for spans in ((), (range(1), range(1, 3))):
        with opened(untied, spans) as cluster:
            trace = cluster.run(method, [5, 6, 7], limits=Limits(8))
            texts.append((trace.token_ids(0), len(trace.rounds)))
    assert texts[0] == texts[1]


def test_a_head_that_reads_inner_layers_is_refused_on_a_split_target(untied):
    heads = (untied.heads_path / "eagle3",)
    message = r"reads the target's states \[.*\], and this target is split by layers: split it by tensors"
    with opened(untied, (range(1), range(1, 3)), heads) as cluster:
        with pytest.raises(UsageError, match=message):
            cluster.run("eagle", [5, 6, 7], limits=Limits(4))
        assert cluster.run("autoregressive", [5, 6, 7], limits=Limits(4)).status == "done"
        pool = cluster.placement.pool
        assert "reads the target's states" in fit(pool, heads).methods["eagle"]
        assert fit(replace(pool, spans=()), heads).methods["eagle"] == ""


TARGET = Pair.find("bundled").target_path
PROMPT, NEW = "Tell me a story about a dragon.", Limits(20)
GREEDY, WARM = Sampling(), Sampling(temperature=0.9, top_k=60, top_p=0.95, seed=11)
THREADS = {"runtime": "local-thread", "device": "cpu"}
METHODS = {
    "speculative": {"gamma": 4},
    "dsi": {},
    "easyspec": {"size": 2, "gamma": 3, "calibrate": False},
    "tree": {"width": 3, "depth": 3},
}


def text(cluster, method, sampling=GREEDY, **config):
    trace = cluster.run(method, PROMPT, config=config, sampling=sampling, limits=NEW)
    assert trace.status == "done"
    return tuple(trace.token_ids())


@pytest.fixture(scope="module")
def expected():
    """Whether the text is greedy -> the target's own text."""
    with specscope.open(target=TARGET, **THREADS) as cluster:
        texts = {s.greedy: text(cluster, "autoregressive", s) for s in (GREEDY, WARM)}
    assert texts[True] != texts[False]
    return texts


@pytest.fixture(scope="module", params=["int4", "int8"])
def threads(request):
    with specscope.open(target=TARGET, drafter=request.param, **THREADS) as cluster:
        assert cluster.pair.drafter_path == TARGET / request.param
        yield cluster


@pytest.mark.parametrize("method", METHODS)
def test_greedy_texts_are_the_targets(method, threads, expected):
    assert text(threads, method, **METHODS[method]) == expected[True]


def test_most_drafts_are_accepted(threads):
    trace = threads.run("speculative", PROMPT, config={"gamma": 6}, limits=Limits(60))
    assert 0.6 < sum(r.accepted for r in trace.rounds) / sum(r.drafted for r in trace.rounds) <= 1
    again = Pair.of(trace.header.target_path, trace.header.drafter_path)
    assert again.models == threads.pair.models, "a header opens the same models again"


@pytest.mark.parametrize("most", [5, 1000], ids=["a long prompt's rows move in parts", "all at once"])
def test_int4_drafts_from_the_targets_rows_of_the_prompt(threads, expected, monkeypatch, most):
    monkeypatch.setattr("specscope.engine.run.models.PREFILL_ROWS", most)
    trace = threads.run("speculative", PROMPT, limits=NEW)
    assert tuple(trace.token_ids()) == expected[True]
    spans = [s for s in trace.spans if s.step == 0]
    prefills = {s.model for s in spans if s.kind == "prefill"}
    moved = [(s.model, s.rows, s.context) for s in spans if s.kind == "communicate"]
    rows = len(threads.pair.encode(PROMPT)) - 1
    parts = [(min(most, rows - start), start) for start in range(0, rows, most)]
    if threads.pair.drafter_path == TARGET / "int4":
        assert prefills == {"target"}
        assert sorted(moved) == sorted((model, *part) for model in ("target", "drafter") for part in parts)
    else:  # its values are rotated
        assert (prefills, moved) == ({"target", "drafter"}, [])
    assert sum(r.accepted for r in trace.rounds) > 8, "the rows are the prompt's"


VIRTUAL = {"runtime": "virtual", "profile": "pearl-4xA100"}


@pytest.mark.parametrize(
    ("form", "place"),
    [
        ("int8", VIRTUAL),
        ("int4", VIRTUAL),
        ("int4", {**THREADS, "forward": "static"}),
        ("int8", {**THREADS, "memory": "0=75MB,1=60MB"}),
        ("int8", {**THREADS, "dtype": "bfloat16"}),
    ],
    ids=str,
)
def test_texts_do_not_depend_on_the_runtime(form, place, expected, monkeypatch):
    monkeypatch.setattr("specscope.engine.cluster.open.devices_of", six_cores)
    with specscope.open(target=TARGET, drafter=form, **place) as cluster:
        if place.get("dtype") == "bfloat16":
            assert text(cluster, "speculative") == text(cluster, "autoregressive")
            return
        assert text(cluster, "speculative") == expected[True]
        assert text(cluster, "pearl", gamma=2) == expected[True]
        assert text(cluster, "tree", WARM, width=2, depth=2, drafts="greedy") == expected[False]


def test_processes_that_split_a_form_draft_for_the_targets_text(expected, monkeypatch):
    monkeypatch.setattr("specscope.engine.cluster.open.devices_of", six_cores)
    with specscope.open(target=TARGET, drafter="int4", device="cpu", drafter_tp=2) as cluster:
        trace = cluster.run("speculative", PROMPT, config={"gamma": 3}, limits=Limits(8))
    assert tuple(trace.token_ids()) == expected[True][:8]
    assert sum(r.accepted for r in trace.rounds) > 3


def test_several_forms_race(expected, monkeypatch):
    monkeypatch.setattr("specscope.engine.cluster.open.devices_of", six_cores)
    with specscope.open(target=TARGET, drafter=["int4", "int8"], **THREADS) as cluster:
        trace = cluster.run("dsi", PROMPT, config={"drafters": 2, "lookahead": 2}, limits=NEW)
        assert tuple(trace.token_ids()) == expected[True]
        assert trace.header.environment["further_drafters"] == [str(TARGET / "int8")]
        assert len({s.device for s in trace.spans if s.model == "drafter"}) == 2


def test_a_gguf_file_drafts_for_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("specscope.engine.model.weights.PACKED_FROM", 0)
    file = write(tmp_path / "a.gguf", "Q4_0")
    with specscope.open(target=file, drafter=["int8", "int4"], **THREADS) as cluster:
        plain = text(cluster, "autoregressive")
        assert text(cluster, "speculative") == text(cluster, "pearl") == plain
        folder = cluster.pair.target_path
        assert cluster.pair.drafter_paths == (folder / "int8", folder / "int4")
        header = cluster.run("speculative", PROMPT, limits=Limits(2)).header
    assert Pair.of(header.target_path, header.drafter_path).drafter_path == folder / "int8"
    assert sorted(file.name for file in folder.iterdir() if file.is_dir()) == []
