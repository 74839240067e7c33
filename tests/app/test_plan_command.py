"""`specscope plan`: sizes before loading, what fits, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

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


def test_the_bundled_pair_fits_all_methods_run_and_a_drafter_in_fewer_bits_counts_its_bytes(capsys):
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
    found = dict[str, int]()
    target = str(PAIRS / "bundled" / "target")
    for drafter in (target, "int8", "int4"):
        _, document = plan(capsys, "--target", target, "--drafter", drafter)
        assert document["methods"]["speculative"]["runs"]
        found[drafter] = next(p["weights"] for p in document["parts"] if p["model"] == "drafter")
    assert found["int4"] < found["int8"] < 0.4 * found[target]


def test_the_table_names_devices_parts_and_reasons_and_a_target_alone_lacks_drafter_and_heads(capsys):
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
    code, found = plan(capsys, "--target", str(PAIRS / "bundled" / "target"))
    assert code == 0
    reasons = {key: method["reason"] for key, method in found["methods"].items()}
    assert reasons["autoregressive"] is reasons["llma"] is None
    assert reasons["pearl"] == "needs a drafter: name one with --drafter"
    assert "no drafting head of kind eagle" in reasons["eagle"]


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


LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 128001,
    "hidden_act": "silu",
}
LLAMA_8B = LLAMA_70B | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}


def config_alone(folder: Path, config: dict) -> Path:
    """Write a folder with a config.json and nothing else; return it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_a_config_alone_is_planned_for_gpus_that_are_not_here(capsys, tmp_path):
    big, small = config_alone(tmp_path / "l70", LLAMA_70B), config_alone(tmp_path / "l8", LLAMA_8B)
    gpus = ("--device", "cuda", "--memory", "0=80GB,1=80GB,2=80GB")
    code, out, _ = call(capsys, "plan", "--target", str(big), "--drafter", str(small), *gpus, "--json")
    found = json.loads(out)
    assert (code, found["models"], found["dtype"]) == (0, "l70 + l8", "bfloat16")
    target = sum(part["weights"] for part in found["parts"] if part["model"] == "target")
    assert 70.5e9 * 2 < target < 71e9 * 2, "Llama 3 70B has 70.6 billion weights"
    assert [part["device"] for part in found["parts"]] == ["cuda:0", "cuda:1", "cuda:2"]
    assert (
        sum(part["kv_per_token"] for part in found["parts"] if part["model"] == "target")
        == 80 * 2 * 8 * 128 * 2
    )
    assert found["methods"]["pearl"]["runs"]
    assert any("config.json alone" in line for line in found["assumed"])
    named = ("--target", str(big / "config.json"), "--drafter", str(small / "config.json"))
    assert call(capsys, "plan", *named, *gpus, "--json")[1] == out, "the file names the model as well"
    code, out, _ = call(capsys, "plan", *named, "--device", "cuda", "--memory", "0=80GB")
    assert (code, "GPU 0 (not here)" in out, "The pair does not fit" in out) == (1, True, True)
    code, _, err = call(capsys, "plan", *named, "--device", "cuda", "--memory", "0=80GB,1=20GB")
    assert (code, err.count("\n")) == (1, 1)
    assert "no layer may be split; free are 63.7 GB on GPU 0 (not here), 20.0 GB on GPU 1" in err


@pytest.mark.parametrize("drafter", ["int4", "l8/int4", "l8/config.json/int4"])
def test_a_large_and_a_small_gpu_hold_target_and_drafter(capsys, tmp_path, monkeypatch, drafter):
    monkeypatch.chdir(tmp_path)
    config_alone(tmp_path / "l8", LLAMA_8B)
    limits = ("--memory", "0=24GB,1=12GB", "--device", "cuda")
    code, out, _ = call(capsys, "plan", "--target", "l8", "--drafter", drafter, *limits, "--json")
    assert code == 0
    assert [(p["model"], p["device"]) for p in json.loads(out)["parts"]] == [
        ("drafter", "cuda:1"),
        ("target", "cuda:0"),
    ]


def test_devices_beyond_this_machines_are_gpus_that_are_not_here(capsys, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=16 * 10**9))
    for memory in ("0=24GB,1=12GB", ",".join(f"{i}=100MB" for i in range(4000))):
        code, out, _ = call(capsys, "plan", "--memory", memory, "--json")
        found = json.loads(out)
        assert (code, found["memory"][0]["name"]) == (0, "cuda:0")
        assert found["assumed"] == ["The GPUs are not here; their memory is taken as named, all of it free."]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--device", "cuda"), "to plan for GPUs that are not here, name their memory, as in --memory"),
        (("--device", "cuda", "--memory", "1=12GB"), "GPU 0 is not here: name its memory too"),
        (("--memory", "0=1GB,99999=1GB"), "GPU 1 is not here: name its memory too"),
        (("--memory", "9999999999=1GB"), "must name a device and its size"),
        (("--device", "cpu", "--memory", "99999=1GB"), "99999 must name a device from 0 to"),
        (("--target", "no-one/Llama-70B"), "a plan downloads nothing; give the path of its config.json"),
        (("--target", "no-one/Llama-70B/int4"), "there is no such directory"),
        (("--pair", "smollm2"), "smollm2 is not downloaded; `specscope models get smollm2`"),
        (("--target", "smollm2"), "smollm2 is not downloaded; `specscope models get smollm2`"),
    ],
)
def test_what_is_not_here_is_refused_with_the_way_out_and_nothing_is_downloaded(
    capsys, monkeypatch, words, message
):
    monkeypatch.setattr("specscope.engine.checkpoints.hub.download", lambda *_: pytest.fail("a download"))
    monkeypatch.setattr("specscope.engine.checkpoints.catalog.get", lambda *_: pytest.fail("a download"))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    code, _, err = call(capsys, "plan", *words)
    assert code in (1, 2)
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128}, "is a mixture of experts (num_experts is 128)"),
        ({"architectures": ["GptOssForCausalLM"], "num_local_experts": 32}, "is a mixture of experts"),
        (LLAMA_8B | {"num_local_experts": 8}, "'LlamaForCausalLM' is a mixture of experts"),
        ({"architectures": ["Qwen3_5ForConditionalGeneration"]}, "it reads more than text"),
        ({"architectures": ["MambaForCausalLM"]}, "architecture 'MambaForCausalLM' is not supported"),
    ],
)  # fmt: skip
def test_a_model_that_is_not_supported_has_a_way_out(capsys, tmp_path, config, message):
    folder = config_alone(tmp_path / "model", config)
    for words in (
        ("plan", "--target", str(folder)),
        ("run", "--method", "llma", "--prompt", "Hi", "--target", str(folder)),
    ):
        code, _, err = call(capsys, *words)
        assert (code, err.count("\n")) == (1, 1)
        assert message in err
        assert "specscope.watch records transformers' own generate()" in err
