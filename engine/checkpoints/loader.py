"""Load a decoder from safetensors; no other format is read, and remote code never runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from specscope.engine.checkpoints.checkpoint import Checkpoint, some
from specscope.engine.checkpoints.config import read_config
from specscope.engine.checkpoints.forms import split_form
from specscope.engine.checkpoints.sources import resolve
from specscope.engine.errors import ModelError
from specscope.engine.model.compiled import compile_layers
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.int8 import is_rotated, rotated_model
from specscope.engine.model.shape import ModelShape
from specscope.engine.model.shard import Ranks, Shard
from specscope.engine.model.stage import layer_stages
from specscope.engine.model.static import StaticSteps


def load(
    model: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    name: str = "target",
    stage: tuple[int, int] | range = (0, 1),
    ranks: Ranks | None = None,
    *,
    forward: str = "eager",
) -> Decoder:
    """Return the decoder of a model: directory, GGUF file, short name of the catalog, or hub id.

    Weights are read tensor by tensor: at most one layer is in memory twice. A directory's form
    (`specscope.engine.checkpoints.forms`) has its matrices in fewer bits. `name` is target or
    drafter, in spans. `stage` is the number of this stage and of all stages of a model split into
    equal parts, or the layers of this stage; only these are read. With the `ranks` of a model split
    by tensors, only this rank's part is read. `forward` is how forwards of few rows run: `eager`,
    `static` in fixed shapes (`specscope.engine.model.static`), or so with compiled layers (see
    `specscope.engine.model.compiled.compile_layers`).
    """
    decoder = _load(resolve(model), device, dtype, name, stage, ranks)
    if forward != "eager":
        decoder.steps = StaticSteps(decoder)
    if forward in ("auto", "compiled") and ranks is None:
        compile_layers(decoder, waits=forward == "compiled")
    return decoder


def _load(
    directory: Path,
    device: str | torch.device,
    dtype: torch.dtype,
    name: str,
    stage: tuple[int, int] | range,
    ranks: Ranks | None,
) -> Decoder:
    directory, bits = split_form(directory)
    shape = ModelShape.of(read_config(directory), directory / "config.json")
    checkpoint, place = Checkpoint(directory, shape=shape), torch.device(device)
    checkpoint.check(shape.tensors())
    if ranks is not None:
        return _load_shard(checkpoint, Shard(shape, ranks.rank, ranks.ways), ranks, place, dtype, name, bits)
    span = stage if isinstance(stage, range) else layer_stages(shape.layers, stage[1])[stage[0]]
    checkpoint.check_memory(shape.tensors(span), place, torch.int8 if bits else dtype)

    def take(key: str) -> torch.Tensor:
        return checkpoint.take(key, place, dtype)

    if is_rotated(shape, dtype, bits, on_cpu=place.type == "cpu"):
        return Decoder(*rotated_model(shape, take), name, span, bits=bits, rotate=True)
    return Decoder(shape, take, name, span, bits=bits)


def _load_shard(
    checkpoint: Checkpoint,
    shard: Shard,
    ranks: Ranks,
    device: torch.device,
    dtype: torch.dtype,
    name: str,
    bits: int,
) -> Decoder:
    shape = shard.shape
    checkpoint.check_memory(shape.tensors(), device, torch.int8 if bits else dtype)

    def take(key: str) -> torch.Tensor:
        return shard.take(key, lambda key, part: checkpoint.take(key, device, dtype, part))

    return Decoder(shape, take, name, bits=bits, shard=shard, ranks=ranks)


def load_reference(directory: str | Path, dtype: torch.dtype = torch.float32) -> Any:
    """Return a transformers model of local files; it would read int8 without the scales."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig  # takes a second

    directory = Path(directory)
    checkpoint = Checkpoint(directory)
    if not checkpoint.is_scaled:
        model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, local_files_only=True)
        return model.eval()
    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    tensors = {name: checkpoint.take(name, torch.device("cpu"), dtype) for name in checkpoint.shapes}
    missing, unknown = model.load_state_dict(tensors, strict=False)
    tied = ["lm_head.weight"] if config.tie_word_embeddings else []
    if wrong := [name for name in (*missing, *unknown) if name not in tied]:
        raise ModelError(f"{directory}: the weights differ from config.json in {some(wrong)}")
    if (directory / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(directory, local_files_only=True)
    return model.eval()
