"""`specscope plan`: sizes before loading, what fits, and the exit codes."""

from __future__ import annotations

import json

import pytest

from specscope.engine.checkpoints.catalog import PAIRS
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.fit import fit
from specscope.engine.cluster.local_devices import LocalDevices
from specscope.engine.cluster.memory import Memory
from specscope.engine.cluster.options import Options
from specscope.engine.methods import METHODS
from specscope.engine.runtimes.process import ProcessWorker
from specscope.engine.trace.events import Device
from specscope.engine.worker import memory as worker_memory
from tests.app.commands import call
from tests.engine.heads.random_heads import with_heads


@pytest.fixture(autouse=True)
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a worker starts: a plan loads nothing."""
    monkeypatch.setattr(ProcessWorker, "__init__", lambda *_: pytest.fail("a worker was started"))
    free(monkeypatch, 10**9)


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Leave the machine `size` free bytes."""
    monkeypatch.setattr(worker_memory, "_container", lambda: [size])


def plan(capsys, *words: str) -> tuple[int, dict]:
    code, out, _ = call(capsys, "plan", "--device", "cpu", *words, "--json")
    return code, json.loads(out)


def test_the_bundled_pair_fits_and_all_methods_run(capsys):
    code, found = plan(capsys, "--context", "100")
    assert code == 0
    assert found["fits"] is True
    assert [(p["model"], p["part"]) for p in found["parts"]] == [("drafter", "all"), ("target", "all")]
    for part in found["parts"]:
        assert part["kv_cache"] == 100 * part["kv_per_token"]
    (use,) = found["memory"]
    assert use["weights"] == sum(part["weights"] for part in found["parts"])
    assert use["tokens_that_fit"] == found["tokens_that_fit"] > 100
    assert {head["kind"] for head in found["heads"]} >= {"eagle", "medusa", "hydra"}
    assert set(found["methods"]) == set(METHODS)
    assert [key for key, method in found["methods"].items() if not method["runs"]] == []


def test_a_drafter_in_fewer_bits_counts_its_own_bytes(capsys):
    found = dict[str, int]()
    target = str(PAIRS / "bundled" / "target")
    for drafter in (target, "int8", "int4"):
        _, document = plan(capsys, "--target", target, "--drafter", drafter)
        assert document["methods"]["speculative"]["runs"]
        found[drafter] = next(p["weights"] for p in document["parts"] if p["model"] == "drafter")
    assert found["int4"] < found["int8"] < 0.4 * found[target]


def test_the_table_names_devices_parts_and_reasons(capsys):
    code, out, _ = call(capsys, "plan", "--device", "cpu", "--memory", "0=75MB,1=60MB")
    assert code == 0
    lines = out.splitlines()
    assert any("CPU core 0" in line and "layers 0-3" in line for line in lines)
    assert any("CPU core 1" in line and "layers 4-7" in line for line in lines)
    assert "The pair fits with 2,048 tokens; its context is 2,304." in lines
    (runs,) = [line for line in lines if line.startswith("Can run: ")]
    assert {"eagle", "hydra", "medusa", "parallelspec_eagle"} < set(
        runs.removeprefix("Can run: ").split(", ")
    )


def test_a_head_takes_memory_of_the_targets_last_device_only(tmp_path):
    pair = with_heads(Pair.find("bundled"), tmp_path / "heads")
    cores = tuple(Device(f"cpu:{i}", "", f"CPU core {i}", "cpu") for i in range(2))
    spans = (range(4), range(4, 8))

    def reason(*free: int) -> str:
        limits = {core.name: size for core, size in zip(cores, free, strict=True)}
        pool = LocalDevices(pair, Options("local-thread"), cores, spans, Memory(limits))
        return fit(pool).methods["medusa"]

    first, last, head = 25_300_000, 30_400_000, 2_200_000
    assert reason(first + 12_300_000, last + head) == ""
    assert "in the memory of cpu:1, of which 30.4 MB are free" in reason(first + 12_300_000, last)


def test_a_target_alone_lacks_drafter_and_heads(capsys):
    code, found = plan(capsys, "--target", str(PAIRS / "bundled" / "target"))
    assert code == 0
    reasons = {key: method["reason"] for key, method in found["methods"].items()}
    assert reasons["autoregressive"] is reasons["llma"] is None
    assert reasons["pearl"] == "needs a drafter: name one with --drafter"
    assert "no drafting head of kind eagle" in reasons["eagle"]


def test_what_does_not_fit_ends_with_one(capsys, monkeypatch):
    free(monkeypatch, 90_000_000)
    code, found = plan(capsys)
    assert (code, found["fits"]) == (1, False)
    assert 0 < found["tokens_that_fit"] < 2048
    free(monkeypatch, 60_000_000)
    code, found = plan(capsys)
    assert (code, found["tokens_that_fit"]) == (1, 0)
    assert (
        "needs 62.4 MB in the memory of this machine, of which 60.0 MB" in found["methods"]["pearl"]["reason"]
    )
    code, out, err = call(capsys, "plan", "--device", "cpu", "--memory", "0=20MB,1=20MB")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "no layer may be split; free are 0.0 MB on CPU core 0, 20.0 MB on CPU core 1" in err


def test_a_load_that_does_not_fit_is_one_line_before_a_worker_starts(capsys, db, monkeypatch):
    free(monkeypatch, 60_000_000)
    words = ["run", "--method", "pearl", "--prompt", "Hi", "--device", "cpu", *db]
    code, _, err = call(capsys, *words)
    assert (code, err.count("\n")) == (1, 1)
    assert (
        "the weights take 62.4 MB in the memory of this machine, of which 60.0 MB are free; --dtype bfloat16"
        in err
    )
