"""MTP: the layer in a target's checkpoint drafts what transformers' generator drafts with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.candidate_generator import MTPCandidateGenerator
from transformers.modeling_layers import MtpModel

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import ModelError, UsageError
from specscope.engine.types import Limits
from tests.app.commands import answer, refused
from tests.engine.methods.head_runs import PROMPT, drafts, drifting
from tests.engine.methods.pairs import save_with_tokenizer

OURS = {"post_norm": "shared_head.norm"}
DECLARED = {"num_nextn_predict_layers": 1}


def declaring(model: torch.nn.Module) -> torch.nn.Module:
    """Let transformers know of the layer, as it does in the families that have one."""
    model.config.num_mtp_layers = 1
    model.config.mtp_layer_types = ["full_attention"]
    model._keys_to_ignore_on_load_unexpected = [r"model\.layers\.3\..*"]
    return model


def publish(family: str, folder: Path, layers: int = 1) -> Path:
    """Write a target whose checkpoint has layers for drafting, in DeepSeek's form."""
    model = drifting(family)
    save_with_tokenizer(model, folder)
    torch.manual_seed(6)
    own = MtpModel(declaring(model), 1).layers[0].state_dict()
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in own.items():
        part, _, kind = name.removeprefix("mtp_block.").rpartition(".")
        for i in range(3, 3 + layers):
            noise = torch.randn_like(tensor) * 0.2
            tensors[f"model.layers.{i}.{OURS.get(part, part)}.{kind}"] = noise + ("norm" in name)
    tensors["model.layers.3.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, file, {"format": "pt"})
    declare(folder, **DECLARED)
    return folder


def declare(folder: Path, **fields: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@torch.no_grad()
def expected(target: torch.nn.Module, x: list[int]) -> int:
    """Return the token that transformers' generator drafts after x."""
    generator = MTPCandidateGenerator(target, GenerationConfig(do_sample=False), {})
    ids = torch.tensor([x])
    read = target(ids[:, :-1], output_hidden_states=True)
    inputs = {"position_ids": torch.arange(len(x))[None]}
    found, _ = generator.get_candidates(ids, inputs, read, is_first_iteration=False, n_last_matches=0)
    return int(found[0, -1])


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen2"])
def test_a_targets_own_layer_drafts_as_in_transformers(tmp_path, family):
    folder = publish(family, tmp_path / "target")
    with specscope.open(Pair.of(folder), runtime="local-thread", device="cpu") as cluster:
        assert "declares" not in cluster.note, "the layer is there"
        trace = cluster.run("mtp", PROMPT, config={"gamma": 3}, limits=Limits(16))
    target = declaring(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())
    x, done = list(PROMPT), trace.token_ids()
    for r, (_, nodes) in zip(trace.rounds, drafts(trace).items(), strict=True):
        if nodes:
            assert nodes[0].token == expected(target, x)
        x += done[len(x) - len(PROMPT) :][: r.emitted]
    assert max(len(nodes) for nodes in drafts(trace).values()) == 3, "the layer is repeated"


def test_a_config_that_declares_layers_without_weights_is_refused(tmp_path):
    save_with_tokenizer(drifting("llama"), tmp_path / "target")
    pair = Pair.of(tmp_path / "target")
    with specscope.open(pair, runtime="local-thread", device="cpu") as cluster:
        with pytest.raises(
            UsageError, match="has no drafting head of kind mtp; name one with --head, or train it"
        ):
            cluster.run("mtp", PROMPT, limits=Limits(3))
        declare(tmp_path / "target", **DECLARED)
        with pytest.raises(
            UsageError, match="declares num_nextn_predict_layers = 1, but the weights hold no such"
        ):
            cluster.run("mtp", PROMPT, limits=Limits(3))


@pytest.mark.parametrize(
    ("family", "layers", "message"),
    [("llama", 2, "has 2 layers for drafting"), ("llama-gqa-tied-bias", 1, "bias is unknown to a layer")],
)
def test_layers_that_cannot_be_run_are_refused_and_the_target_runs(tmp_path, family, layers, message):
    folder = publish(family, tmp_path / "target", layers)
    with specscope.open(Pair.of(folder), runtime="local-thread", device="cpu") as cluster:
        assert len(cluster.run("autoregressive", PROMPT, limits=Limits(3)).token_ids()) == 3
        with pytest.raises(ModelError, match=message):
            cluster.run("mtp", PROMPT, limits=Limits(3))


def test_tensors_of_further_layers_that_draft_nothing_are_refused(tmp_path):
    folder = publish("llama", tmp_path / "target")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.3.enorm.weight"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ModelError, match="unknown to config"):
        specscope.open(Pair.of(folder), runtime="local-thread", device="cpu")


def test_the_command_runs_a_target_with_the_layer_and_names_one_without(tmp_path, capsys):
    words = ["run", "--method", "mtp", "--target", str(publish("llama", tmp_path / "target"))]
    place = [
        "--prompt",
        "once",
        "--max-new-tokens",
        "6",
        "--runtime",
        "local-thread",
        "--db",
        str(tmp_path / "a.db"),
    ]
    found = answer(capsys, *words, *place, "--json")
    assert (found["method"], found["metrics"]["tokens"]) == ("mtp", 6)
    assert found["metrics"]["drafted"] > 0
    save_with_tokenizer(drifting("llama"), tmp_path / "plain")
    words[-1] = str(tmp_path / "plain")
    assert "needs a drafting head of kind mtp" in refused(capsys, *words, *place)
    declare(tmp_path / "plain", **DECLARED)
    assert "train them (specscope train mtp), or name a head with --head" in refused(capsys, *words, *place)
