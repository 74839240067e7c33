"""Bytes of models and of KV caches before they are made, compared with real ones; refusals."""

import gc
import re
from dataclasses import replace
from functools import partial
from types import FunctionType, ModuleType

import pytest
import torch

import specscope
from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.checkpoints.sizes import Split, model_size, shape_of
from specscope.engine.cluster import memory
from specscope.engine.cluster.memory import MACHINE, Memory, ModelBytes, RunSize, check_caches, parse_limits
from specscope.engine.errors import ModelError, OutOfMemory, UsageError
from specscope.engine.layout import Packing
from specscope.engine.model.cache import Cache
from specscope.engine.model.shard import SplitHead
from specscope.engine.model.weights import LayerNorm, Linear, Norm
from specscope.engine.run.serving import Load
from specscope.engine.trace.events import Device
from specscope.engine.types import Limits, Sampling
from specscope.engine.worker import memory as worker_memory
from specscope.engine.worker.jobs import Begin, CacheMemory
from tests.app.commands import call
from tests.engine.heads.random_heads import with_heads
from tests.engine.model import tiny
from tests.engine.model.together import on_ranks
from tests.engine.worker.harness import AnsweredWorker

CORES = tuple(Device(f"cpu:{i}", "", f"CPU core {i}", "cpu") for i in range(3))


def held(decoder):
    """Return the bytes of a loaded decoder's weights; a tied head is a view of the embeddings."""
    layers = [getattr(layer, name) for layer in decoder.layers for name in layer.__slots__]
    linears = [x for x in layers if isinstance(x, Linear)]
    norms = [x for x in [*layers, decoder.norm] if isinstance(x, Norm | LayerNorm)]
    heads = decoder.head._linear if isinstance(decoder.head, SplitHead) else decoder.head
    tensors = [decoder.embedding, heads.transposed.t(), *(norm.weight for norm in norms)]
    tensors += [t for x in linears for t in (x.transposed, x.bias) if t is not None]
    tensors += [norm.bias for norm in norms if isinstance(norm, LayerNorm)]
    tensors += [] if decoder.learned is None else [decoder.learned]
    storages = {t.untyped_storage().data_ptr(): t.nbytes for t in tensors if t.numel()}
    repeated = sum(norm.weight.nbytes for norm in norms if norm.weight.ndim > 1)
    per_head = sum(2 * norm.size * norm.weight.element_size() for norm in norms if norm.weight.ndim > 1)
    return sum(storages.values()) - repeated + per_head


@pytest.fixture(params=["llama-gqa-tied-bias", "qwen3", "gemma2", "opt", "gpt2"])
def path(request, tmp_path):
    tiny.save(tiny.reference(request.param), tmp_path)
    return tmp_path


def check_size(path, decoder, **split):
    size = model_size(path, decoder.dtype, on_cpu=True, split=Split(**split))
    assert size.weights == held(decoder)
    assert size.per_token == decoder.new_cache(1, 1).tensor[:, :, :, 0].nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sizes_are_those_of_the_loaded_model_its_stages_and_its_ranks(path, dtype):
    for layers in (None, range(2), range(2, 3), (1, 2)):
        check_size(path, load(path, dtype=dtype, stage=layers or (0, 1)), layers=layers)
    for ways in (2, 3) if dtype == torch.float32 else ():
        for rank, decoder in enumerate(on_ranks(ways, lambda ranks: load(path, ranks=ranks))):
            check_size(path, decoder, rank=rank, ways=ways)


def tensor_bytes(decoder):
    """Return the bytes of all tensors that a decoder reaches, packed ones included."""
    seen, found, todo = set[int](), dict[int, int](), list[object]([decoder])
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, type | ModuleType):
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(thing, torch.ScriptObject):
            matrix, _ = torch.ops.quantized.linear_unpack(thing)
            found[id(thing)] = matrix.numel() + 4 * len(matrix)
        elif isinstance(thing, FunctionType):
            todo += [cell.cell_contents for cell in thing.__closure__ or ()]
        else:
            todo += gc.get_referents(thing)
    return sum(found.values())


@pytest.fixture(scope="module")
def untied(tmp_path_factory):
    folder = tmp_path_factory.mktemp("untied")
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 4096}
    tiny.save(tiny.reference("llama", **sizes), folder)
    return folder


@pytest.mark.parametrize("form", ["int4", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sizes_of_forms_are_nearly_those_of_the_loaded_drafter(untied, form, dtype):
    bundled = Pair.find("bundled").target_path
    for folder, layers in ((bundled, None), (bundled, range(2)), (bundled, range(6, 8)), (untied, None)):
        decoder = load(folder / form, dtype=dtype, stage=layers or (0, 1))
        size = model_size(folder / form, dtype, on_cpu=True, split=Split(layers))
        assert size.weights == pytest.approx(tensor_bytes(decoder), rel=0.03)


def test_forms_on_a_gpu_pack_layers_of_bfloat16_in_int4_only(monkeypatch):
    monkeypatch.setattr("specscope.engine.checkpoints.sizes.PACKED_FROM", 0)
    folder, on_gpu = Pair.find("bundled").target_path, partial(model_size, on_cpu=False)
    whole = on_gpu(folder, torch.bfloat16).weights
    assert on_gpu(folder / "int8", torch.bfloat16).weights == whole
    shape = shape_of(folder)
    kept = 2 * shape.width * (shape.vocab + 2 * shape.layers + 1)
    assert on_gpu(folder / "int4", torch.bfloat16).weights == kept + (whole - kept) * 5 / 16
    assert on_gpu(folder / "int4", torch.float32).weights == 2 * whole


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3=1GiB", "3 must name a device from 0 to 2; specscope plan takes more"),
        ("cpu=1GiB", "must name a device from 0 to 2"),
        ("0=1GiB,00=2GiB", "which names device 0 twice; name it once"),
        *((f"0={size}", f"'{size}' must be a size with a unit") for size in ("4", "-1GB", "infGB")),
    ],
)
def test_wrong_limits_are_refused(text, message):
    with pytest.raises(UsageError, match=message):
        parse_limits(text, CORES)


def test_limits_are_per_device_and_other_cores_share_the_machine():
    limited = Memory(parse_limits("0=1GiB, 2=5MB", CORES), lambda _: 77)
    assert [limited.free(core) for core in CORES] == [2**30, 77, 5_000_000]
    assert [limited.name(core) for core in CORES] == ["cpu:0", MACHINE, "cpu:2"]
    held_there = [ModelBytes("target", CORES[2], "all", 4_000_000, 1)]
    assert limited.free(CORES[2], held_there) == 1_000_000
    assert limited.free(CORES[1], held_there) == 77, "a measurement has loaded models already"


@pytest.mark.parametrize(
    ("dtype", "free", "advice"),
    [
        (torch.float32, 60_000_000, "--dtype bfloat16 takes 50.0 MB"),
        (torch.float32, 40_000_000, "at most 10 million weights of float32 fit"),
        (torch.bfloat16, 60_000_000, "at most 30 million weights of bfloat16 fit"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(dtype, free, advice):
    sizes = {"drafter": (CORES[0], 20_000_000), "target": (CORES[1], 80_000_000)}
    parts = [ModelBytes(model, core, "all", size, 1, dtype) for model, (core, size) in sizes.items()]
    Memory(measure=lambda _: 100_000_000).check(parts, ())
    message = f"drafter and target: the weights take 100.0 MB in the memory of this machine, .*{advice}"
    with pytest.raises(ModelError, match=message) as error:
        Memory(measure=lambda _: free).check(parts, ())
    assert "\n" not in str(error.value)


def test_a_containers_limit_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_memory, "CONTAINER", tmp_path)
    free = memory.measured(CORES[0])
    for name, content in (("max", "3000\n"), ("current", "2500\n"), ("stat", "anon 1\ninactive_file 400\n")):
        (tmp_path / f"memory.{name}").write_text(content)
    assert memory.measured(CORES[0]) == 900
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.measured(CORES[0]) > 900 < free


PROMPT = [5, 6, 7, 8]
NEW = 12
TOKEN = {"target": 20480, "drafter": 6144}
"""Bytes of a token's keys and values in the bundled models, as `specscope plan` shows them."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return with_heads(Pair.find("bundled"), tmp_path_factory.mktemp("pair") / "heads")


@pytest.fixture
def cluster(pair):
    with specscope.open(pair, runtime="local-thread", device="cpu") as opened:
        yield opened


def leave(cluster, size):
    """Leave the machine `size` free bytes."""
    cluster.placement.pool = replace(cluster.placement.pool, memory=Memory(measure=lambda _: size))


def run(cluster, method="speculative", new=NEW, prompts=1, **options):
    return cluster.run(method, *[PROMPT] * prompts, limits=Limits(new), **options)


def needed(cluster, monkeypatch, method, **options):
    """Return what the workers' caches hold and need before a run, which then runs."""
    found = list[CacheMemory]()
    real = memory.caches_of
    with monkeypatch.context() as patch:
        patch.setattr(memory, "caches_of", lambda *asked: found.extend(real(*asked)) or list(found))
        assert run(cluster, method, **options).status == "done"
    return found


def allocated(cluster):
    """Return the bytes of all tensors of all KV caches."""
    held = [c for w in cluster.placement.workers for c in w._host.forwards.caches.values()]
    tensors = [t for c in held if isinstance(c, Cache) for t in (c.tensor, c.features) if t is not None]
    return sum(t.nbytes for t in tensors)


@pytest.mark.parametrize(
    ("method", "config"),
    [
        ("autoregressive", {}),
        ("speculative", {"gamma": 2}),
        ("pearl", {"gamma": 2, "placement": "pipeline"}),
        ("medusa", {}),
        ("eagle", {}),
    ],
)
def test_the_need_is_the_size_of_the_tensors_that_the_run_makes(cluster, monkeypatch, method, config):
    taken = needed(cluster, monkeypatch, method, config=config)
    need, made = sum(t.more for t in taken), allocated(cluster)
    row = sum(t.row for t in taken)
    assert made <= need <= made + row, "kept states have one row less than keys and values"
    assert need % row == 0
    again = needed(cluster, monkeypatch, method, config=config)
    assert 0 < sum(t.held for t in again) <= made
    assert 0 <= sum(t.more for t in again) <= made


def test_caches_that_are_replaced_count_as_free_and_batches_do_not_multiply_long_runs(cluster, monkeypatch):
    needed(cluster, monkeypatch, "ems", prompts=4, config={"batch": 4, "base": "plain"})
    (batch,) = {c.tensor.shape[1] for c in cluster.placement.workers[1]._host.forwards.caches.values()}
    assert batch == 4
    longer = needed(cluster, monkeypatch, "autoregressive", new=NEW + 1)
    rows = len(PROMPT) + NEW + 1 + 96 + 1
    held = sum(t.held for t in longer)
    assert sum(t.more for t in longer) == rows * TOKEN["target"] - held
    assert held >= 4 * len(PROMPT) * TOKEN["target"]
    assert allocated(cluster) == rows * TOKEN["target"]


def test_a_run_that_does_not_fit_is_refused_with_what_would(cluster):
    heard, row, rows = [], sum(TOKEN.values()), len(PROMPT) + NEW + 96 + 1
    for left, message in (
        (10_000, r"of which 0.0 MB are free; try a shorter prompt or a smaller"),
        (
            rows * row - 1,
            f"a sequence of {rows} tokens need .* in the memory of this machine, of which .* what fits: "
            rf"--max-new-tokens {NEW - 1} or --dtype bfloat16$",
        ),
    ):
        leave(cluster, left)
        with pytest.raises(OutOfMemory, match=message) as error:
            run(cluster, listener=heard.append)
        assert not heard, "no run began"
        assert "\n" not in str(error.value)
    assert run(cluster, new=NEW - 1).status == "done"
    leave(cluster, (96 + NEW) * row)  # the first run's rows take memory already
    assert run(cluster, new=NEW - 1).status == "done"


def test_a_batch_is_refused_with_a_number_of_sequences_that_fits(cluster):
    rows, row = len(PROMPT) + NEW + 96 + 1, TOKEN["target"]
    leave(cluster, 2 * rows * row)
    config = {"base": "plain", "batch": 4}
    with pytest.raises(OutOfMemory, match=r"4 sequences of \d+ tokens .* --set batch=2 or --dtype bfloat16$"):
        run(cluster, "ems", prompts=4, config=config)
    load = Load((0.0,) * 4, batch=4)
    with pytest.raises(OutOfMemory, match=r"fits: --batch 2 or --dtype bfloat16$"):
        run(cluster, "autoregressive", prompts=4, load=load)
    assert run(cluster, "ems", prompts=4, config={**config, "batch": 2}).status == "done"


ASKED = RunSize(Begin(Sampling(), 1, 99, 9, Packing()), 50)


def test_devices_have_their_own_memory_and_workers_of_a_device_or_a_node_share_it():
    workers = [
        AnsweredWorker("cuda:0", CacheMemory(0, 600, 6)),
        AnsweredWorker("cuda:0/drafter", CacheMemory(0, 400, 4)),
        AnsweredWorker("cuda:1", CacheMemory(500, 1000, 10)),
    ]
    free = {"cuda:0": 1000, "cuda:1": 1000}
    measured = Memory(measure=lambda device: free[device.name.split("/")[0]])
    limited = replace(measured, limits={"cuda:1": 1000})
    models = {"cuda:0": ("target",), "cuda:0/drafter": ("drafter",)}
    check_caches(workers, models, measured, (), ASKED)
    assert [w.prepared[-1].models for w in workers] == [("target",), ("drafter",), ()]
    free["cuda:0"] = 999
    with pytest.raises(OutOfMemory, match=r"memory of cuda:0, .* fits: --max-new-tokens 49$"):
        check_caches(workers, models, measured, (), ASKED)
    free["cuda:0"] = 1000
    workers[1].value = CacheMemory(0, 401, 4, spare=1)  # torch reserved it and does not use it
    check_caches(workers, models, measured, (), ASKED)
    with pytest.raises(OutOfMemory, match="memory of cuda:1"):  # a limit counts the caches held there
        check_caches(workers, models, limited, (), ASKED)
    node = Memory(measure=lambda _: 2000, name_of=lambda _: "node 1")
    check_caches(workers, models, node, (), ASKED)
    with pytest.raises(OutOfMemory, match="memory of node 1, of which"):
        check_caches(workers, models, replace(node, measure=lambda _: 1999), (), ASKED)


def test_a_limit_refuses_a_run_of_the_command_with_exit_code_1(capsys, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Tell me a story."}\n' * 8)
    words = "run --method ems --set base=plain --stop . --max-new-tokens 400 --runtime local-thread"
    words = f"{words} --device cpu --memory 0=60MB,1=100MB --prompt-file {prompts} --db {tmp_path / 'db'}"

    def said(*more):
        code, _, err = call(capsys, *words.split(), *more)
        assert (code, err.count("\n")) in ((0, 1), (1, 1))
        return err if code else ""

    message = r"8 sequences of .* memory of cpu:\d+, .* --set batch=(\d+) or --dtype bfloat16"
    fits = int(re.search(message, said())[1])
    assert not said("--set", f"batch={fits}")
    assert f"--set batch={fits}" in said("--set", f"batch={fits + 1}")
