"""Compiled layers and `flex_attention` equal the eager forward, and are compiled in time."""

import time
from functools import partial

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import flex_attention

import specscope
from specscope.engine.checkpoints import loader
from specscope.engine.checkpoints.loader import load
from specscope.engine.model import attention, compiler, flex
from specscope.engine.model.compiled import compile_layers
from specscope.engine.model.compiler import Compiler
from specscope.engine.model.slots import Rows
from specscope.engine.model.static import StaticSteps, read_length
from tests.engine.model.test_static import WAYS, check_chains, check_static_steps
from tests.engine.model.tiny import DENSE, reference, save

torch.set_num_threads(1)
AS_THEY_ARE = {"wrap": lambda function: function}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    save(reference("llama"), folder)
    return folder


pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.fixture(autouse=True)
def flexible(monkeypatch):
    """Let attention choose `flex_attention`, which runs uncompiled."""
    monkeypatch.setattr(flex, "compiled_flex", lambda: flex_attention)
    monkeypatch.setattr(attention, "fastest", lambda ways, device: "flex")
    monkeypatch.setattr(attention, "FROM_LENGTH", 1)


def counted(decoder):
    """Count the compiled runs of a decoder's layers."""
    runs, run = [], decoder.compiled.run
    decoder.compiled.run = lambda x, *given: (runs.append(len(x)), run(x, *given))[1]
    return runs


@pytest.mark.parametrize("family", DENSE)
def test_the_functions_of_layers_and_flex_attention_equal_the_eager_forward(family, tmp_path):
    """With windows, caps, two rotations, norms of heads, biases, and trees of four slots."""
    save(reference(family), tmp_path)
    decoder = load(tmp_path)
    compile_layers(decoder, waits=True, **AS_THEY_ARE)
    runs = counted(decoder)
    check_static_steps(decoder, tolerance=1e-5)
    assert sorted(set(runs)) == [1, 4, 8, 16, 64]
    assert not decoder.compiler.failed


def test_chains_of_compiled_layers_equal_a_loop(llama):
    decoder = load(llama)
    compile_layers(decoder, waits=True, **AS_THEY_ARE)
    runs = counted(decoder)
    check_chains(decoder, WAYS["warm"])
    assert set(runs) == {4}, "four slots with a row each; the first forward has no steps"


def test_a_number_of_rows_is_compiled_once_for_all_layers_and_caches(llama):
    """By dynamo, whose graphs run as they are: three functions for each number of rows."""
    decoder = load(llama)
    compile_layers(decoder, waits=True, wrap=partial(torch.compile, dynamic=False, backend="eager"))
    decoder.compiler.get = partial(_without_attention, decoder.compiler.get)
    counters.clear()
    check_static_steps(decoder, tolerance=1e-5)
    made = counters["stats"]["unique_graphs"]
    assert made == 3 * len({1, 4, 8, 16, 64})
    for capacity in (60, 44):
        cache = decoder.new_cache(1, capacity)
        decoder.forward(cache, Rows.chain(0, np.arange(4), 0), np.arange(4))
    assert counters["stats"]["unique_graphs"] == made


def _without_attention(get, key, make):
    return None if key[0] == "attention" else get(key, make)


def test_torch_compiles_layers_for_this_processor(llama):
    decoder = load(llama)
    compile_layers(decoder, waits=True)
    decoder.compiler.get = partial(_without_attention, decoder.compiler.get)
    expected = load(llama)
    caches = [model.new_cache(1, 20) for model in (decoder, expected)]
    decoder.steps = StaticSteps(decoder)
    logits = [
        model.forward(cache, Rows.chain(0, np.arange(5), 0), np.arange(5)).logits
        for model, cache in zip((decoder, expected), caches, strict=True)
    ]
    if decoder.compiler.failed:
        pytest.skip(f"no compiler is installed here: {decoder.compiler.failed}")
    torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-5)


def test_functions_are_compiled_in_a_pause_and_the_next_run_has_them(monkeypatch, llama):
    monkeypatch.setattr(compiler, "QUIET_S", 0.05)
    decoder = load(llama)
    compile_layers(decoder, waits=False, **AS_THEY_ARE)
    decoder.steps, runs = StaticSteps(decoder), counted(decoder)
    cache = decoder.new_cache(1, 40)

    def forward(rows):
        decoder.compiler.begin()
        for _ in range(3):
            cache.reset(0)
            decoder.forward(cache, Rows.chain(0, np.arange(rows), 0), np.arange(rows))

    forward(2)
    assert not runs
    assert decoder.steps.count(cache) == 1
    wait_for(lambda: decoder.compiler._thread is None)
    decoder.forward(cache, Rows.chain(0, np.arange(2), 2), np.arange(2))
    assert not runs, "a run has forwards of one kind"
    forward(2)
    assert set(runs) == {2}
    assert decoder.steps.count(cache) == 1, "static steps are made anew"


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_forwards_put_compiling_off(monkeypatch):
    monkeypatch.setattr(compiler, "QUIET_S", 0.5)
    made, busy = Compiler(torch.device("cpu"), waits=False), []
    made.get("a", lambda: busy.append(time.monotonic() - Compiler.last_used))
    for _ in range(10):
        made.used()
        time.sleep(0.1)
    wait_for(lambda: busy)
    assert busy[0] >= 0.5


def test_a_failure_leaves_static_forwards_and_is_named(llama, capsys):
    def broken(function):
        def call(*given):
            raise RuntimeError("no compiler\n  is installed")

        return call

    decoder, plain = load(llama), load(llama)
    compile_layers(decoder, waits=True, wrap=broken)
    outputs = []
    for model in (decoder, plain):
        model.steps = StaticSteps(model)
        cache = model.new_cache(1, 20)
        outputs.append(model.forward(cache, Rows.chain(0, np.arange(3), 0), np.arange(3)).logits)
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-5)
    assert decoder.compiler.failed == "RuntimeError: no compiler is installed"
    assert capsys.readouterr().err == (
        "specscope: layers are not compiled, static forwards go on: RuntimeError: no compiler is installed\n"
    )
    assert decoder.compiler.get("another", pytest.fail) is None


def test_steps_read_at_most_half_as_many_rows_again():
    assert [read_length(n, 5000) for n in (1, 64, 65, 96, 97, 129, 193, 3073)] == [
        64, 64, 96, 96, 128, 192, 256, 4096,
    ]  # fmt: skip
    assert read_length(3073, 3500) == 3500


def test_the_fastest_way_that_works_is_chosen():
    def broken():
        raise NotImplementedError

    slow, quick = partial(time.sleep, 2e-3), partial(time.sleep, 0)
    cpu = torch.device("cpu")
    assert flex.fastest({"a": slow, "b": quick, "c": broken}, cpu) == "b"
    assert flex.fastest({"c": broken, "a": slow}, cpu) == "a"


def test_the_header_names_the_forwards_whose_layers_are_compiled(monkeypatch):
    monkeypatch.setattr(loader, "compile_layers", partial(compile_layers, **AS_THEY_ARE))
    with specscope.open("bundled", runtime="local-thread", forward="compiled") as cluster:
        first, second = (
            cluster.run("speculative", "A fox", config={"gamma": 3}, max_new_tokens=9).header.environment
            for _ in range(2)
        )
    assert first["forward"] == second["forward"] == "compiled"
    assert "compiled" not in first
    assert set(second["compiled"]) == {"target", "drafter"}
    assert {1, 4} & set(second["compiled"]["target"])


def test_nothing_is_compiled_for_a_closed_cluster(monkeypatch):
    monkeypatch.setattr(compiler, "QUIET_S", 3600.0)
    made = []
    monkeypatch.setattr(Compiler, "_make", lambda self, key, make: made.append(key))
    waiting = Compiler(torch.device("cpu"), waits=False)
    waiting.get("a", list)
    waiting.used()
    monkeypatch.setattr(
        loader, "compile_layers", lambda decoder, waits: setattr(decoder, "compiler", waiting)
    )
    with specscope.open("bundled", runtime="local-thread", forward="compiled"):
        assert waiting._thread is not None
    assert not made
    assert waiting._thread is None
