"""Bytes of models before they are loaded, compared with the loaded ones; limits and refusals."""

from __future__ import annotations

import gc
from functools import partial
from math import prod
from types import FunctionType, ModuleType

import pytest
import torch

from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.checkpoints.sizes import Split, layer_sizes, model_size, shape_of
from specscope.engine.cluster import memory
from specscope.engine.cluster.memory import MACHINE, Memory, Part, parse_limits
from specscope.engine.errors import ModelError, UsageError
from specscope.engine.model.shard import SplitHead
from specscope.engine.model.weights import LayerNorm, Linear, Norm
from specscope.engine.trace.events import Device
from specscope.engine.worker import memory as worker_memory
from tests.engine.model import tiny
from tests.engine.model.together import on_ranks

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sizes_are_those_of_the_loaded_model_and_its_stages(path, dtype):
    for layers in (None, range(2), range(2, 3), (1, 2)):
        decoder = load(path, dtype=dtype, stage=layers or (0, 1))
        size = model_size(path, dtype, on_cpu=True, split=Split(layers))
        assert size.weights == held(decoder)
        assert size.per_token == decoder.new_cache(1, 1).tensor[:, :, :, 0].nbytes


def test_layers_add_up_to_the_model(path):
    sizes = layer_sizes(shape_of(path), torch.float32, on_cpu=True)
    whole = model_size(path, torch.float32, on_cpu=True)
    shape = shape_of(path)
    again = 2 * 32 * 4 * (1 + shape.layer_norm) + (97 * 32 * 4 if shape.tied else 0)
    assert sum(size.weights for size in sizes) == whole.weights + again, "each stage has the last norm"
    assert sum(size.per_token for size in sizes) == whole.per_token


@pytest.mark.parametrize("ways", [2, 3])
def test_sizes_of_ranks(path, ways):
    decoders = on_ranks(ways, lambda ranks: load(path, ranks=ranks))
    for rank, decoder in enumerate(decoders):
        size = model_size(path, torch.float32, on_cpu=True, split=Split(rank=rank, ways=ways))
        assert size.weights == held(decoder)
        assert size.per_token == decoder.new_cache(1, 1).tensor[:, :, :, 0].nbytes


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


@pytest.mark.parametrize(("form", "part"), [("int8", 1 / 4), ("int4", 5 / 32)])
def test_large_matrices_of_a_form_take_their_part_of_float32(form, part):
    folder = Pair.find("bundled").target_path
    shape = shape_of(folder / form)
    layers = [size for name, size in shape.tensors().items() if "layers" in name and len(size) > 1]
    # Of the 4 matrices of a layer, attention's output is too small to be packed.
    small = shape.layers * shape.width**2
    expected = 4 * (small + part * (sum(map(prod, layers)) - small) + 5 / 4 * shape.vocab * shape.width)
    size = model_size(folder / form, torch.float32, on_cpu=True)
    assert size.weights == pytest.approx(expected, rel=0.01), "embeddings whole, the LM head in int8"
    assert size.per_token == model_size(folder, torch.float32, on_cpu=True).per_token


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
        ("0=4", "'4' must be a size with a unit"),
        ("0=-1GB", "'-1GB' must be a size with a unit"),
        ("0=infGB", "'infGB' must be a size with a unit"),
    ],
)
def test_wrong_limits_are_refused(text, message):
    with pytest.raises(UsageError, match=message):
        parse_limits(text, CORES)


def test_limits_are_per_device_and_other_cores_share_the_machine():
    limited = Memory(parse_limits("0=1GiB, 2=5MB", CORES), lambda _: 77)
    assert [limited.free(core) for core in CORES] == [2**30, 77, 5_000_000]
    assert [limited.name(core) for core in CORES] == ["cpu:0", MACHINE, "cpu:2"]
    held_there = [Part("target", CORES[2], "all", 4_000_000, 1)]
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
    parts = [
        Part("drafter", CORES[0], "all", 20_000_000, 1, dtype),
        Part("target", CORES[1], "all", 80_000_000, 1, dtype),
    ]
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
