"""The parts of a training step: the loss, the optimisers and the learning rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from statistics import mean
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import AutocastKwargs, GradientAccumulationPlugin, InitProcessGroupKwargs
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Muon, Optimizer

from specscope.engine.errors import UsageError
from specscope.engine.training.data import Mixed, TokenStream
from specscope.engine.training.settings import PairOptions, Recipe

MAX_NORM = 1.0
"""Largest norm of the gradient; longer gradients are scaled down to it."""


class Phase(NamedTuple):
    """A stretch of training with one model, one length of sequences and one schedule."""

    name: str
    role: str
    """`target`, or `drafter`, which is distilled from the finished target."""
    steps: int
    rows: int
    length: int
    rate: float
    position: int
    """Index of its first token in the stream: each phase continues where the previous one ended."""

    @property
    def tokens(self) -> int:
        return self.rows * self.length


LONG_RATE = 0.3
"""Share of the learning rate in the long-context phases, which only adapt the model."""


def plan(options: PairOptions) -> tuple[Phase, ...]:
    parts = options.accumulate
    long_rows = parts * max(1, options.batch * options.sequence // (options.context * parts))
    phases, position = list[Phase](), 0
    for role, steps in (("target", options.steps), ("drafter", options.drafter_steps)):
        short = (role, role, steps, options.batch, options.sequence, options.learning_rate)
        long = (
            f"{role}-long",
            role,
            options.long_steps,
            long_rows,
            options.context,
            options.learning_rate * LONG_RATE,
        )
        for fields in (short, long):
            phase = Phase(*fields, position)
            if phase.steps:
                phases.append(phase)
                position += phase.steps * phase.tokens
    return tuple(phases)


def learning_rate(phase: Phase, step: int, options: Recipe) -> float:
    """Return the learning rate of a step: linear warm-up, constant, linear decay to zero."""
    rise = (step + 1) / (options.warmup + 1)
    falling = options.decay * phase.steps
    fall = (phase.steps - step) / falling if falling else 1.0
    return phase.rate * min(1.0, rise, fall)


def make_optimisers(model: nn.Module, options: Recipe) -> tuple[Optimizer, ...]:
    """Return the optimisers: Muon or AdamW for matrices, AdamW for all other parameters."""
    tables = (m for m in model.modules() if isinstance(m, nn.Embedding | nn.ParameterDict))
    embeddings = {id(p) for table in tables for p in table.parameters()}
    matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in embeddings]
    others = [p for p in model.parameters() if p.ndim != 2 or id(p) in embeddings]
    rate, decay, betas = options.learning_rate, options.weight_decay, (0.9, options.beta2)
    plain = {"params": others, "weight_decay": 0.0}
    if options.optimizer == "adamw":
        return (AdamW([plain, {"params": matrices, "weight_decay": decay}], lr=rate, betas=betas),)
    # updates as large as AdamW's, so that both can use one learning rate
    muon = Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    return AdamW([plain], lr=rate, betas=betas), muon


class Losses(NamedTuple):
    """Losses of one batch in nats per token."""

    total: torch.Tensor
    tokens: float
    divergence: float | None
    """KL(p || q) from the target; None for the target itself."""
    places: tuple[float, ...] = ()
    """Cross-entropy or divergence at each place of a drafting head's draft."""


LossesOf = Callable[[int, slice], Losses]
"""(step, rows) -> the losses of these rows of the step's batch; steps count from 0."""


def losses(
    model: nn.Module, teacher: nn.Module | None, inputs: torch.Tensor, labels: torch.Tensor, token_loss: float
) -> Losses:
    """Return the losses of one batch; inputs and labels, the token after each, are (B, L).

    `model` is the drafter, q, with its teacher the target, p; or the target, without a teacher.
    `token_loss` is the weight of the cross-entropy; the rest is the divergence.
    """
    logits = model(input_ids=inputs, use_cache=False).logits.float().flatten(0, 1)
    with torch.no_grad():
        target = None if teacher is None else teacher(input_ids=inputs, use_cache=False).logits
    tokens = functional.cross_entropy(logits, labels.flatten())
    if target is None:
        return Losses(tokens, tokens.item(), None)
    log_p = target.float().flatten(0, 1).log_softmax(-1)
    divergence = functional.kl_div(logits.log_softmax(-1), log_p, log_target=True, reduction="batchmean")
    total = token_loss * tokens + (1 - token_loss) * divergence
    return Losses(total, tokens.item(), divergence.item())


def text_losses(
    stream: TokenStream | Mixed, phase: Phase, model: nn.Module, teacher: nn.Module | None, token_loss: float
) -> LossesOf:
    """Return the function that computes the losses of a phase's steps; see `losses`."""
    device = next(model.parameters()).device

    def of(step: int, rows: slice) -> Losses:
        batch = stream.batch(phase.position + step * phase.tokens, phase.rows, phase.length)
        inputs, labels = (torch.from_numpy(part[rows]).to(device) for part in batch)
        return losses(model, teacher, inputs, labels, token_loss)

    return of


_PATIENCE = timedelta(days=7)
"""Longest wait for another process: the main process alone writes the target's text."""


def pick_device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("device is cuda, but torch finds no CUDA device; use cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def pick_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype of a precision; `auto` is bf16 where matrix units compute it."""
    if precision == "auto":
        amx = torch.cpu._is_amx_tile_supported()  # pyright: ignore[reportPrivateUsage]
        precision = "bf16" if device.type == "cuda" or amx else "fp32"
    return torch.bfloat16 if precision == "bf16" else torch.float32


class TrainingDevices:
    """The device, the precision and the processes of a training."""

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
        # cuDNN plans every shape, for a second each on an H200, and with it a loss became nan.
        torch.backends.cuda.enable_cudnn_sdp(False)
        if self.device.type != device.type:
            raise UsageError(
                f"device is {device.type}, but this process has trained on {self.device.type}; start another process"
            )

    @property
    def is_main(self) -> bool:
        """Whether this process writes files, logs and progress."""
        return self._accelerator.is_main_process

    def main_first(self) -> AbstractContextManager[None]:
        """Run the block in the main process, then in all others."""
        return self._accelerator.main_process_first()

    def any_process(self, condition: bool) -> bool:
        if self._accelerator.num_processes == 1:
            return condition
        return bool(self._average(torch.tensor(float(condition), device=self.device)))

    def parts(self, rows: int) -> list[slice]:
        """Return the equal parts of a batch that this process computes, one after the other."""
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
        """Update the model once; return the mean losses of the batch."""
        computed, precision = list[Losses](), AutocastKwargs(enabled=self.dtype == torch.bfloat16)
        for part in self.parts(rows):
            with self._accelerator.autocast(precision):
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
        if self._accelerator.num_processes == 1:
            return
        for p in model.parameters():
            p.grad = self._average(torch.zeros_like(p) if p.grad is None else p.grad)

    def _average(self, tensor: Tensor) -> Tensor:
        average: Any = self._accelerator.reduce(tensor, "mean")
        return average

    def _mean(self, parts: Sequence[Losses]) -> Losses:
        if len(parts) == self._accelerator.num_processes == 1:
            return parts[0]
        rows = [[p.total.item(), p.tokens, p.divergence or 0.0, *p.places] for p in parts]
        own = torch.tensor([mean(column) for column in zip(*rows, strict=True)], device=self.device)
        total, tokens, divergence, *places = self._average(own).tolist()
        known = parts[0].divergence is not None
        return Losses(torch.tensor(total), tokens, divergence if known else None, tuple(places))
