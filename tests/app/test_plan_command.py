"""`specscope plan`: sizes before loading, what fits, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from specscope.engine.checkpoints.catalog import PAIRS
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.fit import fit
from specscope.engine.cluster.local_devices import local_devices
from specscope.engine.cluster.memory import Memory
from specscope.engine.cluster.options import Options
from specscope.engine.methods import METHODS
from specscope.engine.runtimes.process import ProcessWorker
from specscope.engine.trace.events import Device
from specscope.engine.worker import memory as worker_memory
from tests.app.commands import call, refused
from tests.engine.heads.random_heads import with_heads

CPU = ("--device", "cpu")
TARGET = str(PAIRS / "bundled" / "target")


@pytest.fixture(autouse=True)
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a worker starts: a plan loads nothing."""
    monkeypatch.setattr(ProcessWorker, "__init__", lambda *_: pytest.fail("a worker was started"))
    free(monkeypatch, 10**9)


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Leave the machine `size` free bytes."""
    monkeypatch.setattr(worker_memory, "_container", lambda: [size])


def plan(capsys, *words: str) -> tuple[int, dict]:
    code, out, _ = call(capsys, "plan", *words, "--json")
    return code, json.loads(out)


def test_the_bundled_pair_fits_all_methods_run_and_a_drafter_in_fewer_bits_counts_its_bytes(capsys):
    code, found = plan(capsys, *CPU, "--context", "100")
    (use,) = found["memory"]
    assert (code, found["fits"]) == (0, True)
    assert [(p["model"], p["part"]) for p in found["parts"]] == [("drafter", "all"), ("target", "all")]
    assert all(part["kv_cache"] == 100 * part["kv_per_token"] for part in found["parts"])
    assert use["weights"] == sum(part["weights"] for part in found["parts"])
    assert use["tokens_that_fit"] == found["tokens_that_fit"] > 100
    assert {head["kind"] for head in found["heads"]} >= {"eagle", "medusa", "hydra"}
    assert {key for key, method in found["methods"].items() if method["runs"]} == {*METHODS}
    found = dict[str, int]()
    for drafter in (TARGET, "int8", "int4"):
        _, document = plan(capsys, *CPU, "--target", TARGET, "--drafter", drafter)
        assert document["methods"]["speculative"]["runs"]
        found[drafter] = next(p["weights"] for p in document["parts"] if p["model"] == "drafter")
    assert found["int4"] < found["int8"] < 0.4 * found[TARGET]
    code, alone = plan(capsys, *CPU, "--target", TARGET)
    reasons = {key: method["reason"] for key, method in alone["methods"].items()}
    assert (code, reasons["autoregressive"], reasons["llma"]) == (0, None, None)
    assert reasons["pearl"] == "needs a drafter: name one with --drafter"
    assert "no drafting head of kind eagle" in reasons["eagle"]


def test_a_head_takes_memory_of_the_targets_last_device_only(tmp_path):
    pair = with_heads(Pair.find("bundled"), tmp_path / "heads")
    cores = tuple(Device(f"cpu:{i}", "", f"CPU core {i}", "cpu") for i in range(2))
    spans = (range(4), range(4, 8))

    def reason(*free: int) -> str:
        limits = {core.name: size for core, size in zip(cores, free, strict=True)}
        pool = local_devices(pair, Options("local-thread"), cores, spans, Memory(limits))
        return fit(pool).methods["medusa"]

    first, last, head = 25_300_000, 30_400_000, 2_200_000
    assert reason(first + 12_300_000, last + head) == ""
    assert "in the memory of cpu:1, of which 30.4 MB are free" in reason(first + 12_300_000, last)


def test_what_does_not_fit_ends_with_one_and_one_line_before_a_worker_starts(capsys, db, monkeypatch):
    free(monkeypatch, 90_000_000)
    code, found = plan(capsys, *CPU)
    assert (code, found["fits"], 0 < found["tokens_that_fit"] < 2048) == (1, False, True)
    free(monkeypatch, 60_000_000)
    code, found = plan(capsys, *CPU)
    needs = "62.4 MB in the memory of this machine, of which 60.0 MB"
    assert (code, found["tokens_that_fit"]) == (1, 0)
    assert f"needs {needs}" in found["methods"]["pearl"]["reason"]
    error = refused(capsys, "run", "--method", "pearl", "--prompt", "Hi", *CPU, *db, code=1)
    assert f"the weights take {needs} are free; --dtype bfloat16" in error


LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": False, "eos_token_id": 128001,
}  # fmt: skip
LLAMA_8B = LLAMA_70B | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}  # fmt: skip


def config_alone(folder: Path, config: dict) -> Path:
    """Write a folder with a config.json and nothing else; return it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_a_config_alone_is_planned_for_gpus_that_are_not_here(capsys, tmp_path):
    big, small = config_alone(tmp_path / "l70", LLAMA_70B), config_alone(tmp_path / "l8", LLAMA_8B)
    gpus = ("--device", "cuda", "--memory", "0=80GB,1=80GB,2=80GB")
    code, found = plan(capsys, "--target", str(big), "--drafter", str(small), *gpus)
    parts = [part for part in found["parts"] if part["model"] == "target"]
    assert (code, found["models"], found["dtype"]) == (0, "l70 + l8", "bfloat16")
    assert 70.5e9 * 2 < sum(part["weights"] for part in parts) < 71e9 * 2, "Llama 3 70B has 70.6 billion"
    assert sum(part["kv_per_token"] for part in parts) == 80 * 2 * 8 * 128 * 2
    assert [part["device"] for part in found["parts"]] == ["cuda:0", "cuda:1", "cuda:2"]
    assert found["methods"]["pearl"]["runs"]
    assert any("config.json alone" in line for line in found["assumed"])
    named = ("--target", str(big / "config.json"), "--drafter", str(small / "config.json"))
    assert plan(capsys, *named, *gpus) == (0, found), "the file names the model as well"
    code, out, _ = call(capsys, "plan", *named, "--device", "cuda", "--memory", "0=80GB")
    assert (code, "GPU 0 (not here)" in out, "The pair does not fit" in out) == (1, True, True)
    error = refused(capsys, "plan", *named, "--device", "cuda", "--memory", "0=80GB,1=20GB", code=1)
    assert "no layer may be split; free are 63.7 GB on GPU 0 (not here), 20.0 GB on GPU 1" in error


def test_a_config_alone_that_declares_layers_for_drafting_is_planned(capsys, tmp_path):
    declaring = config_alone(tmp_path / "a", LLAMA_8B | {"mtp_num_hidden_layers": 1})
    code, found = plan(capsys, "--target", str(declaring), "--device", "cuda", "--memory", "0=80GB")
    assert (code, found["methods"]["autoregressive"]["runs"]) == (0, True)
    assert "there is no model.safetensors" in found["methods"]["mtp"]["reason"]


@pytest.mark.parametrize("drafter", ["int4", "l8/int4", "l8/config.json/int4"])
def test_a_large_and_a_small_gpu_hold_target_and_drafter(capsys, tmp_path, monkeypatch, drafter):
    monkeypatch.chdir(tmp_path)
    config_alone(tmp_path / "l8", LLAMA_8B)
    words = ("--target", "l8", "--drafter", drafter, "--memory", "0=24GB,1=12GB", "--device", "cuda")
    parts = [(part["model"], part["device"]) for part in plan(capsys, *words)[1]["parts"]]
    assert parts == [("drafter", "cuda:1"), ("target", "cuda:0")]


def test_devices_beyond_this_machines_are_gpus_that_are_not_here(capsys, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=16 * 10**9))
    for memory in ("0=24GB,1=12GB", ",".join(f"{i}=100MB" for i in range(4000))):
        code, found = plan(capsys, "--memory", memory)
        assert (code, found["memory"][0]["name"]) == (0, "cuda:0")
        assert found["assumed"] == ["The GPUs are not here; their memory is taken as named, all of it free."]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["Glm4MoeForCausalLM"], "n_routed_experts": 128}, "is a mixture of experts (n_routed_experts is 128)"),
        ({"architectures": ["GptOssForCausalLM"], "num_local_experts": 32}, "is a mixture of experts"),
        (LLAMA_8B | {"num_local_experts": 8}, "'LlamaForCausalLM' is a mixture of experts"),
        ({"architectures": ["Qwen3_5ForConditionalGeneration"]}, "it reads more than text"),
        ({"architectures": ["MambaForCausalLM"]}, "'MambaForCausalLM' is not supported: it is a model with recurrent layers"),
        ({"architectures": ["Qwen3NextForCausalLM"]}, "it is a model with recurrent layers, whose state cannot drop"),
        ({"architectures": ["DFlashDraftModel"]}, "it is a block drafter, whose layers read states of its target"),
        ({"architectures": ["DeepSeekMTPModel"]}, "it is a head of multi-token prediction"),
    ],
)  # fmt: skip
def test_a_model_that_is_not_supported_has_a_way_out(capsys, tmp_path, config, message):
    folder = config_alone(tmp_path / "model", config)
    for words in (["plan"], ["run", "--method", "llma", "--prompt", "Hi"]):
        error = refused(capsys, *words, "--target", str(folder), code=1)
        assert message in error
        assert "specscope.watch records transformers' own generate()" in error
