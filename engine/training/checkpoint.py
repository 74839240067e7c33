"""Checkpoints: weights and optimiser state as safetensors, progress and settings as JSON.

The tensors are written first, the JSON that names them last, both under a temporary name and then
moved: whenever the machine stops, the folder holds a whole checkpoint or none. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import Optimizer

from engine.errors import ModelError, UsageError
from engine.training.recipe import Recipe

FOLDER = "checkpoints"
_STATE = "state.json"


@dataclass(slots=True)
class State:
    """Progress of a training."""

    phase: int = 0
    """Index of the phase."""
    step: int = 0
    """Finished steps of the phase."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Time spent in each phase, by its name."""
    tokenizer: bool = False
    """Whether the tokenizer is trained, or for `train distil` the pair's models are copied."""
    text_tokens: int = 0
    """Tokens of the training text, each document counted once; 0 before it is read."""
    tensors: str = ""
    """Name of the file of tensors; empty before the first checkpoint."""


def exists(out: Path) -> bool:
    """Return whether a folder has the state of a training."""
    return (out / FOLDER / _STATE).is_file()


def save(
    out: Path,
    state: State,
    options: Recipe,
    model: nn.Module | None = None,
    optimisers: Sequence[Optimizer] = (),
) -> None:
    """Write a checkpoint and remove the previous one."""
    folder = out / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    previous = folder / state.tensors
    if model is not None:
        state.tensors = f"{state.phase}-{state.step:07d}.safetensors"
        path = folder / f"{state.tensors}.part"
        save_file(_gather(model, optimisers), path)
        os.replace(path, folder / state.tensors)
    path = folder / f"{_STATE}.part"
    path.write_text(
        json.dumps({"state": asdict(state), "options": options.fixed()}, indent=1), encoding="utf-8"
    )
    os.replace(path, folder / _STATE)
    if previous.is_file() and previous.name != state.tensors:
        previous.unlink()


def load(out: Path, options: Recipe) -> State:
    """Return the state of the training in `out`.

    Raises:
        UsageError: It was started with other settings; the message names them.
        ModelError: The file is broken.
    """
    path = out / FOLDER / _STATE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        state, old = State(**content["state"]), content["options"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(
            f"{path} is not a checkpoint of a training ({error}); start again with another --out"
        ) from None
    new = options.fixed()
    if changed := [
        f"{name} {old.get(name)!r}, not {new[name]!r}" for name in new if old.get(name) != new[name]
    ]:
        raise UsageError(
            f"the training in {out} has {'; '.join(changed)}: use the same settings or another --out"
        )
    return state


def restore(out: Path, state: State, model: nn.Module, optimisers: Sequence[Optimizer]) -> None:
    """Copy the tensors of a checkpoint into the model and its optimisers.

    Raises:
        ModelError: The file is missing, broken or of another model.
    """
    path = out / FOLDER / state.tensors
    try:
        tensors = load_file(path)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(tensors[f"model/{name}"])
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise ModelError(f"{path} does not hold this model's checkpoint ({error}); start again") from None
    names = _names(model)
    for i, optimiser in enumerate(optimisers):
        for p in (p for group in optimiser.param_groups for p in group["params"]):
            prefix = f"optimiser/{i}/{names[p]}/"
            entries = {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}
            # AdamW counts its steps on the CPU, even if the weights are on CUDA
            optimiser.state[p] = {k: t if t.ndim == 0 else t.to(p.device) for k, t in entries.items()}


def _gather(model: nn.Module, optimisers: Sequence[Optimizer]) -> dict[str, torch.Tensor]:
    names = _names(model)
    tensors = {f"model/{name}": p.detach() for name, p in model.named_parameters()}
    for i, optimiser in enumerate(optimisers):
        for p, entries in optimiser.state.items():
            values: Mapping[str, Any] = entries
            tensors |= {f"optimiser/{i}/{names[p]}/{k}": t for k, t in values.items()}
    return {name: t.contiguous().cpu() for name, t in tensors.items()}


def _names(model: nn.Module) -> dict[torch.Tensor, str]:
    return {p: name for name, p in model.named_parameters()}
