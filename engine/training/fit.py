"""The parts of a training step: the loss, the optimisers and the learning rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.optim import AdamW, Muon, Optimizer

from engine.training.data import Mixed, Stream
from engine.training.options import PairOptions
from engine.training.recipe import Recipe

MAX_NORM = 1.0
"""Largest norm of the gradient; longer gradients are scaled down to it."""


class Phase(NamedTuple):
    """A stretch of training with one model, one length of sequences and one schedule."""

    name: str
    role: str
    """`target` or `drafter`; a drafter is distilled from the finished target."""
    steps: int
    rows: int
    """Sequences in a step."""
    length: int
    """Tokens in a sequence."""
    rate: float
    """Learning rate after the warm-up."""
    position: int
    """Index of its first token in the stream: each phase continues where the previous one ended."""

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.rows * self.length


LONG_RATE = 0.3
"""Share of the learning rate in the long-context phases, which only adapt the model."""


def plan(options: PairOptions) -> tuple[Phase, ...]:
    """Return all phases in order."""
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
    """The minimised loss, a scalar."""
    tokens: float
    """Cross-entropy to the text's tokens."""
    divergence: float | None
    """KL(p || q) from the target; None for the target itself."""
    places: tuple[float, ...] = ()
    """Cross-entropy or divergence at each place of a drafting head's draft."""


LossesOf = Callable[[int, slice], Losses]
"""(step, rows) -> the losses of these rows of the step's batch; steps count from 0."""


def losses(
    model: nn.Module, teacher: nn.Module | None, inputs: torch.Tensor, labels: torch.Tensor, token_loss: float
) -> Losses:
    """Return the losses of one batch.

    Args:
        model: The trained model: the drafter, q, or without a teacher the target, p.
        teacher: The target, p, if a drafter is distilled.
        inputs: Token ids, (B, L).
        labels: The token after each, (B, L).
        token_loss: Weight of the cross-entropy; the rest is the divergence.
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
    stream: Stream | Mixed, phase: Phase, model: nn.Module, teacher: nn.Module | None, token_loss: float
) -> LossesOf:
    """Return the function that computes the losses of a phase's steps; see `losses`."""
    device = next(model.parameters()).device

    def of(step: int, rows: slice) -> Losses:
        batch = stream.batch(phase.position + step * phase.tokens, phase.rows, phase.length)
        inputs, labels = (torch.from_numpy(part[rows]).to(device) for part in batch)
        return losses(model, teacher, inputs, labels, token_loss)

    return of
