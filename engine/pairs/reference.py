"""Models in transformers' own classes: for training, and as the baseline of measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from engine.errors import ModelError
from engine.pairs.checkpoint import Checkpoint, some


def load_reference(directory: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Return a model of transformers, from local files only, on the CPU and in evaluation mode.

    transformers would read matrices of int8 without their scales.

    Raises:
        ModelError: A file is missing or broken.
    """
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
