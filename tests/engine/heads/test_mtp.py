"""MTP: the layer in a target's checkpoint drafts what transformers' generator drafts with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.candidate_generator import MTPCandidateGenerator
from transformers.modeling_layers import MtpModel

import specscope
from specscope import Load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import ModelError, UsageError
from specscope.engine.types import Limits, Sampling
from tests.app.commands import answer, refused
from tests.engine.checkpoints.gguf_files import write
from tests.engine.methods.head_runs import PROMPT, drafts, drifting
from tests.engine.methods.pairs import save_with_tokenizer

OURS = {"post_norm": "shared_head.norm"}
DECLARED = {"num_nextn_predict_layers": 1}


def declaring(model: torch.nn.Module, layers: int = 1) -> torch.nn.Module:
    """Let transformers know of the layers, as it does in the families that have some."""
    model.config.num_mtp_layers = layers
    model.config.mtp_layer_types = ["full_attention"] * layers
    model._keys_to_ignore_on_load_unexpected = [r"model\.layers\.[3-9]\..*"]
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
def expected(target: torch.nn.Module, x: list[int]) -> list[int]:
    """Return the tokens that transformers' generator drafts after x, one for each layer."""
    generator = MTPCandidateGenerator(target, GenerationConfig(do_sample=False), {})
    ids = torch.tensor([x])
    read = target(ids[:, :-1], output_hidden_states=True)
    inputs = {"position_ids": torch.arange(len(x))[None]}
    found, _ = generator.get_candidates(ids, inputs, read, is_first_iteration=False, n_last_matches=0)
    return found[0, len(x) :].tolist()


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen2"])
def test_a_targets_own_layer_drafts_as_in_transformers(tmp_path, family):
    folder = publish(family, tmp_path / "target")
    with specscope.open(Pair.of(folder), runtime="local-thread", device="cpu") as cluster:
        assert "declares" not in cluster.note, "the layer is there"
        longest = cluster.run("mtp", PROMPT, config={"gamma": 32}, limits=Limits(40))
        assert len(drafts(longest)[1]) == 32
        trace = cluster.run("mtp", PROMPT, config={"gamma": 3}, limits=Limits(16))
    target = declaring(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())
    x, done = list(PROMPT), trace.token_ids()
    for r, (_, nodes) in zip(trace.rounds, drafts(trace).items(), strict=True):
        if nodes:
            assert [nodes[0].token] == expected(target, x)
        x += done[len(x) - len(PROMPT) :][: r.emitted]
    assert max(len(nodes) for nodes in drafts(trace).values()) == 3, "the layer is repeated"


@pytest.mark.parametrize(("family", "layers"), [("llama", 2), ("qwen3", 3), ("qwen2", 3)])
def test_each_of_several_layers_drafts_its_place_as_in_transformers(tmp_path, family, layers):
    folder = publish(family, tmp_path / "target", layers)
    with specscope.open(Pair.of(folder), runtime="local-thread", device="cpu") as cluster:
        trace = cluster.run("mtp", PROMPT, limits=Limits(24))
        plain = cluster.run("autoregressive", PROMPT, limits=Limits(24))
        with pytest.raises(UsageError, match=f"gamma is {layers + 1}; it must be .* at most {layers}"):
            cluster.run("mtp", PROMPT, config={"gamma": layers + 1}, limits=Limits(24))
    assert trace.token_ids() == plain.token_ids()
    target = declaring(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), layers)
    x, done, whole = list(PROMPT), trace.token_ids(), 0
    for r, (_, nodes) in zip(trace.rounds, drafts(trace).items(), strict=True):
        if nodes:
            assert [node.token for node in nodes] == expected(target, x)[: len(nodes)]
        x += done[len(x) - len(PROMPT) :][: r.emitted]
        whole += len(nodes) == layers
    assert whole > len(trace.rounds) / 2
    assert trace.header.config["gamma"] == layers


@torch.no_grad()
def chances(target: torch.nn.Module, x: list[int], drafted: list[int]) -> list[float]:
    """Return q of drafted tokens after x: of each one under transformers' layer of its place."""
    generator = MTPCandidateGenerator(target, GenerationConfig(do_sample=False), {})
    states = target(torch.tensor([x[:-1]]), output_hidden_states=True).hidden_states[-1]
    ids, places, found = torch.tensor([x[1:]]), torch.arange(1, len(x))[None], list[float]()
    for layer, token in enumerate(drafted):
        states = generator.mtp_model.forward_layer(layer, states, places, generator.mtp_cache, input_ids=ids)
        found.append(float(target.lm_head(states[0, -1]).softmax(-1)[token]))
        ids, places = torch.cat([ids[:, 1:], torch.tensor([[token]])], 1), places + 1
    return found


@pytest.mark.parametrize("seed", range(3))
def test_sampled_drafts_of_several_layers_have_their_chances_after_acceptance_and_rejection(tmp_path, seed):
    folder = publish("llama", tmp_path / "target", 3)
    with specscope.open(Pair.of(folder), runtime="local-thread", device="cpu") as cluster:
        trace = cluster.run("mtp", PROMPT, sampling=Sampling(1.0, seed=seed), limits=Limits(40))
    target = declaring(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), 3)
    x, done = list(PROMPT), trace.token_ids()
    for r in trace.rounds:
        drafted = sorted(
            (d for d in trace.decisions if d.step == r.step and d.node >= 0), key=lambda d: d.node
        )
        wanted = chances(target, x, [d.token for d in drafted])
        assert [d.q for d in drafted] == pytest.approx(wanted, rel=1e-3)
        x += done[len(x) - len(PROMPT) :][: r.emitted]
    assert len({r.accepted for r in trace.rounds}) >= 3


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=4)], ids=["greedy", "warm"])
@pytest.mark.parametrize("forward", ["eager", "static"])
def test_several_layers_draft_under_load_as_for_each_prompt_alone(tmp_path, sampling, forward):
    pair = Pair.of(publish("llama", tmp_path / "target", 3))
    prompts, load = [PROMPT, PROMPT[:2], PROMPT[1:]], Load((0.0, 0.0, 0.01), batch=2, chunk=3)
    place = {"runtime": "local-thread", "device": "cpu", "forward": forward}
    with specscope.open(pair, **place) as cluster:
        trace = cluster.run("mtp", *prompts, sampling=sampling, limits=Limits(12), load=load)
        for number, prompt in enumerate(prompts):
            one = replace(sampling, seed=sampling.seed + number)
            (first,) = cluster.run("autoregressive", prompt, sampling=one, limits=Limits(1)).token_ids()
            alone = cluster.run("mtp", (*prompt, first), sampling=one, limits=Limits(11))
            assert trace.token_ids(number) == [first, *alone.token_ids()]
            rounds = [r.accepted for r in trace.rounds if r.sequence == number]
            assert rounds == [0, *(r.accepted for r in alone.rounds)]


def test_several_layers_beside_a_split_target_draft_as_beside_a_whole_one(tmp_path):
    pair = Pair.of(publish("llama", tmp_path / "target", 2))
    found = list[Any]()
    for tp in (1, 2):
        with specscope.open(pair, runtime="local-process", device="cpu", tp=tp) as cluster:
            trace = cluster.run("mtp", PROMPT[:2], sampling=Sampling(1.0, seed=4), limits=Limits(12))
        found.append((trace.token_ids(), [(r.accepted, r.emitted) for r in trace.rounds]))
    assert found[0] == found[1]


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
    [
        ("llama", 2, "has 2 layers .*, among them model.layers.5."),
        ("llama-gqa-tied-bias", 1, "bias is unknown to a layer"),
    ],
)
def test_layers_that_cannot_be_run_are_refused_and_the_target_runs(tmp_path, family, layers, message):
    folder = publish(family, tmp_path / "target", layers)
    file = folder / "model.safetensors"
    moved = {name.replace("layers.4.", "layers.5."): tensor for name, tensor in load_file(file).items()}
    save_file(moved, file, {"format": "pt"})
    with specscope.open(Pair.of(folder), runtime="local-thread", device="cpu") as cluster:
        assert len(cluster.run("autoregressive", PROMPT, limits=Limits(3)).token_ids()) == 3
        with pytest.raises(ModelError, match=message):
            cluster.run("mtp", PROMPT, limits=Limits(3))


@pytest.mark.parametrize(
    ("arch", "what"), [("qwen35", "a model with recurrent"), ("dflash", "a block drafter")]
)
def test_a_gguf_file_that_cannot_be_run_is_named_for_what_it_is(tmp_path, capsys, arch, what):
    file = write(tmp_path / "a.gguf", arch=arch)
    told = refused(capsys, "run", "--method", "mtp", "--target", str(file), "--prompt", "hi", code=1)
    assert f"architecture '{arch}' is not supported: it is {what}" in told


def test_a_checkpoint_with_very_many_layers_is_refused_before_they_are_made(tmp_path):
    folder = publish("llama", tmp_path / "target", 2)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors |= {f"model.layers.{i}.enorm.weight": torch.ones(1) for i in range(5, 203)}
    save_file(tensors, file, {"format": "pt"})
    with specscope.open(Pair.of(folder), runtime="local-thread", device="cpu") as cluster:
        with pytest.raises(ModelError, match=r"has 200 layers for drafting \(MTP\); at most 64 can be run"):
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
