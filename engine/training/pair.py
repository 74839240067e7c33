"""Train a pair: a new target with its drafter, or a better drafter for a pair.

    train_pair(PairOptions(data=Path("corpus"), out=Path("pair")))

Every random number is a function of the seed and the step, so a resumed training ends with the same
bits as an uninterrupted one (on the same machine, with the same number of threads).

    options = DistilOptions(
        data=Path("corpus"), out=Path("better"), pair=Path("pair"), feed_forward=384
    )
    distil_drafter(options)

In use, a drafter reads the target's own answers, which differ from the corpus; so a better drafter
minimises KL(p || q) on such answers (on-policy for the target).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import nn
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

from specscope.engine.checkpoints.config import read_config
from specscope.engine.checkpoints.loader import load_reference
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import UsageError
from specscope.engine.model.shape import ModelShape
from specscope.engine.training import data
from specscope.engine.training.loop import Control, Training, read_facts, write_facts
from specscope.engine.training.settings import DistilOptions, PairOptions, Shape
from specscope.engine.training.step import Phase, pick_device, plan, text_losses
from specscope.engine.training.target_text import FILE, check_lengths, read_text, write_text

ROLES = ("target", "drafter")
SHARD = "14MB"
"""Largest file of weights; with its header it stays below 15 MB."""
_CALIBRATION = 8192
"""Tokens of the corpus that the units' scores are computed on."""


def train_pair(options: PairOptions, **control: Unpack[Control]) -> Path:
    """Train a pair; write `target`, `drafter` and `loss.jsonl`, every step's loss, to `out`."""
    text, training = data.TrainingText.of(options), Training(options, **control)
    with training.execution.main_first():
        if training.is_main and not training.state.tokenizer:
            training.begin("tokenizer")
            tokenizer = data.train_tokenizer(text.documents, options.vocabulary, options.context)
            for role in ROLES:
                tokenizer.save_pretrained(options.out / role)
            training.state.tokenizer = True
            training.save()
    tokenizer = AutoTokenizer.from_pretrained(options.out / "target")
    corpus = training.read_corpus(text, tokenizer)
    _run_phases(options, training, data.TokenStream(corpus, options.seed), len(tokenizer))
    if training.is_main:
        write_facts(options.out, _pair_facts(options, training, text.mixture))
    return options.out


def _run_phases(options: PairOptions, training: Training, stream: data.TokenStream, vocabulary: int) -> None:
    """Run the remaining phases; save each model after its last phase."""
    phases, state = plan(options), training.state
    model: Any = None
    teacher: nn.Module | None = None
    for index in range(state.phase, len(phases)):
        phase = phases[index]
        if model is None:
            shape = options.target if phase.role == "target" else options.drafter
            model = new_model(shape, vocabulary, options.context, options.seed).to(training.device)
            if phase.role == "drafter":
                teacher = _teacher(training, options.out)
        if index > state.phase:
            state.phase, state.step = index, 0
        training.fit(phase, model, text_losses(stream, phase, model, teacher, options.token_loss))
        if index + 1 == len(phases) or phases[index + 1].role != phase.role:
            with training.execution.main_first():
                if training.is_main:
                    save_model(model, options.out / phase.role)
            model = None


def _pair_facts(options: PairOptions, training: Training, mixture: Mapping[str, int]) -> dict[str, Any]:
    return {
        "sources": {name: count for name, count in mixture.items() if count},
        "sequence": options.sequence,
        "held_out": options.held_out,
        "phases": [training.facts(phase) for phase in plan(options)],
        "method": (
            f"{options.optimizer} for the matrices and AdamW for the rest, learning rate {options.learning_rate:g} after "
            f"{options.warmup} steps of warm-up, linear decay over the last {options.decay:.0%}, "
            f"seed {options.seed}, on {pick_device(options.device).type}. The drafter minimises "
            f"{1 - options.token_loss:g} KL(p || q) from the target + {options.token_loss:g} cross-entropy."
        ),
        "options": options.fixed(),
    }


def distil_drafter(options: DistilOptions, **control: Unpack[Control]) -> Path:
    """Prune a pair's drafter and distil it on the target's own text; write the pair to `out`.

    `out` then has the unchanged `target`, the new `drafter`, and the target's text in
    `written.safetensors`. RunCancelled means that `cancel` was set; the training can be resumed.
    """
    pair, text = _checked_pair(options), data.TrainingText.of(options)
    training, out = Training(options, **control), options.out
    with training.execution.main_first():
        if training.is_main and not training.state.tokenizer:
            for role in ROLES:
                shutil.copytree(options.pair / role, out / role, dirs_exist_ok=True)
            training.state.tokenizer = True
            training.save()
        corpus = training.read_corpus(text, pair.tokenizer)
        written = _written(options, corpus, training)
    stream = data.TokenStream(corpus, options.seed)
    model = load_reference(options.pair / "drafter")  # that of `out` becomes the distilled one
    if options.feed_forward:
        prune(model, options.feed_forward, stream.batch(0, _CALIBRATION // 256, 256)[0])
    rows = (options.batch, options.sequence)
    phase = Phase("distil", "drafter", options.steps, *rows, options.learning_rate, 0)
    mixed = data.Mixed(data.TokenStream(written, options.seed), stream, options.share)
    model, teacher = model.to(training.device), _teacher(training, out)
    training.fit(phase, model, text_losses(mixed, phase, model, teacher, options.token_loss))
    if training.is_main:
        save_model(model, out / "drafter")
        write_facts(out, _distil_facts(options, training.facts(phase), text.mixture, written))
    return out


def _checked_pair(options: DistilOptions) -> Pair:
    folders = [options.pair / role for role in ROLES]
    if not all(folder.is_dir() for folder in folders):
        raise UsageError(f"pair is {options.pair}; it must be a folder with target and drafter in it")
    pair = Pair.of(*folders)
    target, drafter = map(_shape, folders)
    if target.vocab != drafter.vocab:
        raise UsageError(
            f"{options.pair} has vocabularies of {target.vocab} and {drafter.vocab}; training takes pairs with the same"
        )
    if options.feed_forward > drafter.inner:
        raise UsageError(
            f"feed_forward is {options.feed_forward}; it must be at most the {drafter.inner} of the drafter"
        )
    check_lengths(options, pair.context, "the pair")
    return pair


def _shape(folder: Path) -> ModelShape:
    return ModelShape.of(read_config(folder), folder / "config.json")


def _written(options: DistilOptions, corpus: data.Corpus, training: Training) -> data.Corpus:
    """Return the target's own text: stored in `out`, given, or written now."""
    path, folder = options.out / FILE, options.out / "target"
    if not path.is_file() and options.text is not None:
        read_text(options.text, folder)
        shutil.copyfile(options.text, path)
    if not path.is_file():
        write_text(path, Pair.of(folder), options, training, corpus)
    return read_text(path, folder)


def _distil_facts(
    options: DistilOptions, phase: dict[str, Any], mixture: Mapping[str, int], written: data.Corpus
) -> dict[str, Any]:
    facts, before = read_facts(options.pair), _shape(options.pair / "drafter").inner
    cut = f"cut from {before} to {options.feed_forward} units in each feed-forward layer and "
    sources = ", ".join(f"{name} {count}x" for name, count in mixture.items() if count)
    facts["method"] = (
        f"{facts.get('method', '')} Then (phase {phase['name']}) the drafter was {cut if options.feed_forward else ''}"
        f"distilled further, {options.share:.0%} of the sequences on {len(written.repeats):,} answers of the target itself "
        f"({len(written.ids):,} tokens with their prompts, which were cut from the corpus; half of the answers greedy, "
        f"half at temperature 1), the rest on corpus text ({sources}): {options.optimizer}, learning rate "
        f"{options.learning_rate:g}, batches of {options.batch}, linear decay over the last {options.decay:.0%}, seed "
        f"{options.seed}. The target was not changed."
    ).strip()
    facts["phases"] = [*facts.get("phases", []), phase]
    # with --text, the settings `written` and `answer` were not used
    facts["drafter_options"] = {k: v for k, v in options.fixed().items() if k not in ("written", "answer")}
    return facts


def new_model(shape: Shape, vocabulary: int, context: int, seed: int) -> Any:
    """Return an untrained model; its weights are a function of the seed."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        pad_token_id=data.PAD,
        bos_token_id=data.BOS,
        eos_token_id=data.EOS,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        pad_token_id=data.PAD, bos_token_id=data.BOS, eos_token_id=[data.EOS, data.USER]
    )
    return model


def save_model(model: Any, folder: Path) -> None:
    """Write a model as bf16 safetensors in shards; converts the model itself to bf16."""
    model.to(dtype=torch.bfloat16).save_pretrained(folder, max_shard_size=SHARD)


def _teacher(training: Training, out: Path) -> nn.Module:
    """Return the target as it was saved: a run uses these rounded weights, too."""
    return load_reference(out / "target", training.dtype).to(training.device).requires_grad_(False)


def prune(model: Any, width: int, tokens: np.ndarray) -> None:
    """Keep the `width` units of each feed-forward layer that add most to the residual stream.

    A unit adds a = silu(gate) * up times its column of the down matrix: its score is mean |a| over
    the tokens, (B, L), times that column's norm. The kept units stay in their order. The model, of
    transformers' Llama family, is changed in place.
    """
    mlps: list[Any] = [m for m in model.modules() if hasattr(m, "gate_proj")]
    sums: dict[nn.Module, torch.Tensor] = {mlp: torch.zeros(mlp.down_proj.in_features) for mlp in mlps}

    def watch(mlp: nn.Module) -> Any:
        def add(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            sums[mlp] += inputs[0].abs().flatten(0, -2).sum(0)

        return add

    hooks = [mlp.down_proj.register_forward_pre_hook(watch(mlp)) for mlp in mlps]
    with torch.no_grad():
        for row in tokens:
            model(input_ids=torch.from_numpy(row)[None], use_cache=False)
        for hook in hooks:
            hook.remove()
        for mlp in mlps:
            keep = (sums[mlp] * mlp.down_proj.weight.norm(dim=0)).topk(width).indices.sort().values
            _keep(mlp.gate_proj, keep, 0)
            _keep(mlp.up_proj, keep, 0)
            _keep(mlp.down_proj, keep, 1)
    model.config.intermediate_size = width


def _keep(linear: nn.Linear, units: torch.Tensor, dim: int) -> None:
    """Keep these rows (dim 0) or columns (dim 1) of a linear layer."""
    linear.weight = nn.Parameter(linear.weight.index_select(dim, units))
    linear.out_features, linear.in_features = linear.weight.shape
    if dim == 0 and linear.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
        linear.bias = nn.Parameter(linear.bias[units])
