"""How a training computes: its device, its precision, its processes, and one step of them.

`accelerate launch` starts several processes. Each computes the gradients of its own rows of a
batch, in `accumulate` parts; the gradients are averaged, and all processes make the same update.
The main process writes the files.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from statistics import mean
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import AutocastKwargs, GradientAccumulationPlugin, InitProcessGroupKwargs
from torch import Tensor, nn
from torch.optim import Optimizer

from engine.errors import UsageError
from engine.training.fit import MAX_NORM, Losses
from engine.training.recipe import Recipe

_PATIENCE = timedelta(days=7)
"""Longest wait for another process: the main process alone writes the target's text."""


def pick_device(name: str) -> torch.device:
    """Return the device of `auto`, `cpu` or `cuda`.

    Raises:
        UsageError: torch has no CUDA device.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device is cuda, but torch finds no CUDA device; use cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def pick_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype of `auto`, `fp32` or `bf16`.

    `auto` is bf16 where matrix units compute it: on CUDA and on CPUs with AMX.
    """
    if precision == "auto":
        amx = torch.cpu._is_amx_tile_supported()  # pyright: ignore[reportPrivateUsage]
        precision = "bf16" if device.type == "cuda" or amx else "fp32"
    return torch.bfloat16 if precision == "bf16" else torch.float32


class Execution:
    """The device, the precision and the processes of a training.

    Args:
        options: The settings.

    Raises:
        UsageError: The device is missing, or this process has trained on another one.
    """

    def __init__(self, options: Recipe) -> None:
        device = pick_device(options.device)
        self.dtype = pick_dtype(options.precision, device)
        """Dtype of forwards; trained weights are float32."""
        self._accelerator = Accelerator(
            cpu=device.type == "cpu",
            mixed_precision="bf16",  # fixed for the life of a process; `autocast` turns it on or off
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=options.accumulate),
            kwargs_handlers=[InitProcessGroupKwargs(timeout=_PATIENCE)],
        )
        self.device = self._accelerator.device
        if self.device.type != device.type:
            raise UsageError(
                f"device is {device.type}, but this process has trained on {self.device.type}; start another process"
            )

    @property
    def is_main(self) -> bool:
        """Whether this process writes files, logs and progress."""
        return self._accelerator.is_main_process

    @contextmanager
    def main_first(self) -> Generator[None]:
        """Run the block in the main process, then in all others."""
        with self._accelerator.main_process_first():
            yield

    def any_process(self, condition: bool) -> bool:
        """Return whether a condition holds in any process."""
        if self._accelerator.num_processes == 1:
            return condition
        return bool(self._average(torch.tensor(float(condition), device=self.device)))

    @contextmanager
    def autocast(self) -> Generator[None]:
        """Compute the block's matrix products in `dtype`."""
        with self._accelerator.autocast(AutocastKwargs(enabled=self.dtype == torch.bfloat16)):
            yield

    def parts(self, rows: int) -> list[slice]:
        """Return the parts of a batch that this process computes, one after the other.

        Raises:
            UsageError: The rows cannot be divided into equal parts.
        """
        accelerator = self._accelerator
        steps, count = accelerator.gradient_accumulation_steps, accelerator.num_processes
        if rows % (steps * count):
            raise UsageError(
                f"a batch of {rows} rows cannot be divided by {count} processes with accumulate {steps}; "
                f"choose a batch that is a multiple of {steps * count}"
            )
        size = rows // (steps * count)
        first = accelerator.process_index * steps
        return [slice(i * size, (i + 1) * size) for i in range(first, first + steps)]

    def update(
        self,
        model: nn.Module,
        optimisers: Sequence[Optimizer],
        losses_of: Callable[[slice], Losses],
        rows: int,
        rate: float,
    ) -> Losses:
        """Update the model once; return the mean losses of the batch.

        Args:
            model: The trained model.
            optimisers: Its optimisers.
            losses_of: Returns the losses of some rows of the batch.
            rows: Rows of the batch.
            rate: Learning rate.

        Raises:
            UsageError: The loss is not a finite number.
        """
        computed = list[Losses]()
        for part in self.parts(rows):
            with self.autocast():
                losses = losses_of(part)
            if not torch.isfinite(losses.total):
                raise UsageError(f"the loss is {losses.total.item():g}; lower learning_rate from {rate:g}")
            self._accelerator.backward(losses.total)
            computed.append(losses._replace(total=losses.total.detach()))
        self._average_gradients(model)
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        return self._mean(computed)

    def _average_gradients(self, model: nn.Module) -> None:
        """Give each parameter the mean of its gradients in all processes."""
        if self._accelerator.num_processes == 1:
            return
        for p in model.parameters():
            p.grad = self._average(torch.zeros_like(p) if p.grad is None else p.grad)

    def _average(self, tensor: Tensor) -> Tensor:
        """Return the mean of a tensor in all processes."""
        average: Any = self._accelerator.reduce(tensor, "mean")
        return average

    def _mean(self, parts: Sequence[Losses]) -> Losses:
        """Return the mean of the losses of all parts in all processes."""
        if len(parts) == self._accelerator.num_processes == 1:
            return parts[0]
        rows = [[p.total.item(), p.tokens, p.divergence or 0.0, *p.places] for p in parts]
        own = torch.tensor([mean(column) for column in zip(*rows, strict=True)], device=self.device)
        total, tokens, divergence, *places = self._average(own).tolist()
        known = parts[0].divergence is not None
        return Losses(torch.tensor(total), tokens, divergence if known else None, tuple(places))
