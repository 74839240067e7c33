"""A run's KV caches against free memory: exact sizes, refusals, and what would fit."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster import memory
from specscope.engine.cluster.memory import Memory, RunSize, check_caches
from specscope.engine.errors import OutOfMemory
from specscope.engine.layout import Packing
from specscope.engine.model.cache import Cache
from specscope.engine.run.serving import Load
from specscope.engine.types import Limits, Sampling
from specscope.engine.worker.jobs import Begin, CacheMemory
from tests.app.commands import call
from tests.engine.heads.random_heads import with_heads
from tests.engine.worker.harness import AnsweredWorker

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
    heard, row = [], sum(TOKEN.values())
    rows = len(PROMPT) + NEW + 96 + 1
    leave(cluster, rows * row - 1)
    message = (
        f"a sequence of {rows} tokens need .* in the memory of this machine, of which .* what fits: (.*)"
    )
    with pytest.raises(OutOfMemory, match=message) as error:
        run(cluster, listener=heard.append)
    assert not heard, "no run began"
    assert "\n" not in str(error.value)
    assert error.match(rf"--max-new-tokens {NEW - 1} or --dtype bfloat16$")
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


def test_without_any_room_no_number_is_promised(cluster):
    leave(cluster, 10_000)
    with pytest.raises(OutOfMemory, match=r"of which 0.0 MB are free; try a shorter prompt or a smaller"):
        run(cluster)


def test_the_second_run_of_the_same_size_needs_no_more(cluster):
    row = sum(TOKEN.values())
    assert run(cluster, sampling=Sampling()).status == "done"
    leave(cluster, (96 + NEW) * row)  # the first run's rows take memory already
    assert run(cluster, sampling=Sampling()).status == "done"


ASKED = RunSize(Begin(Sampling(), 1, 99, 9, Packing()), 50)


def test_devices_have_their_own_memory_and_workers_of_one_device_share_it():
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


def test_workers_of_a_node_share_its_memory():
    workers = [AnsweredWorker(f"cpu:{i}", CacheMemory(0, more, 6)) for i, more in enumerate((600, 600, 399))]
    free = {"node 1": 999, "node 2": 600}

    def node(device):
        return "node 2" if device.name == "cpu:1" else "node 1"

    memory = Memory(measure=lambda device: free[node(device)], name_of=node)
    check_caches(workers, {}, memory, (), ASKED)
    workers[2].value = workers[2].value._replace(more=400)
    with pytest.raises(OutOfMemory, match="memory of node 1, of which"):
        check_caches(workers, {}, memory, (), ASKED)


def test_a_limit_refuses_a_run_of_the_command_with_exit_code_1(capsys, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Tell me a story."}\n' * 8)
    words = ["run", "--method", "ems", "--set", "base=plain", "--stop", ".", "--max-new-tokens", "400"]
    words += ["--runtime", "local-thread", "--device", "cpu", "--memory", "0=60MB,1=100MB"]
    words += ["--prompt-file", str(prompts), "--db", str(tmp_path / "db")]
    code, _, err = call(capsys, *words)
    assert code == 1
    assert err.count("\n") == 1
    fits = re.search(r"8 sequences of .* memory of cpu:\d+, .* --set batch=(\d+) or --dtype bfloat16", err)
    assert fits, err
    assert call(capsys, *words, "--set", f"batch={fits[1]}")[0] == 0
    code, _, err = call(capsys, *words, "--set", f"batch={int(fits[1]) + 1}")
    assert code == 1
    assert f"--set batch={fits[1]}" in err
