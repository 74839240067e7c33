"""Begin a training with the tensors of a trained head: which are copied, left out and random."""

from __future__ import annotations

from typing import Any, NamedTuple

from engine.errors import UsageError
from engine.heads.config import INDEX_TENSORS, HeadConfig, TensorShapes
from engine.heads.files import check_head, read_head
from engine.heads.kinds import KINDS
from engine.heads.trainable import TrainableHead
from engine.pairs.checkpoint import some
from engine.training.card import read_facts
from engine.training.options import HeadOptions


class Start(NamedTuple):
    """Names of tensors; the tokens that a head drafts are a setting and not among them."""

    copied: list[str]
    """In both heads, with equal shapes."""
    left_out: list[str]
    """In the trained head only, or with another shape."""
    random: list[str]
    """In the new head only, or with another shape; they begin with random numbers."""


def compare(options: HeadOptions, config: HeadConfig) -> Start | None:
    """Compare the tensors of `options.start` with those of a new head; None without a start.

    Args:
        options: The settings.
        config: The new head's.

    Raises:
        UsageError: The trained head is for another target, none of its tensors fits, or some do not
            and `options.start_partial` is false.
        ModelError: The trained head is broken.
    """
    if options.start is None:
        return None
    trained, own = _trained(check_head(options.start, options.target)), _trained(config)
    copied = [name for name, shape in trained.items() if own.get(name) == shape]
    if not copied:
        raise UsageError(
            f"start is {options.start}, but no tensor of that head fits this one; leave out --start"
        )
    left_out = {name: shape for name, shape in trained.items() if name not in copied}
    if left_out and not options.start_partial:
        shown = [
            f"{name} ({list(shape)} instead of {list(own[name])})" if name in own else name
            for name, shape in left_out.items()
        ]
        raise UsageError(
            f"{options.start} has tensors without a place in this head: {some(shown)}; add --start-partial to leave "
            "them out"
        )
    return Start(copied, list(left_out), [name for name in own if name not in copied])


def copy(head: TrainableHead, options: HeadOptions, start: Start) -> dict[str, Any]:
    """Copy the tensors into a head; return the facts of the trained head, and `start`."""
    assert options.start is not None, "the comparison found one"
    tensors = head.from_file(read_head(options.start, options.target).tensors)
    head.module.load_state_dict({name: tensors[name] for name in start.copied}, strict=False)
    before = read_facts(options.start)
    return {name: before.get(name) for name in ("kind", "phase", "begun_from")} | start._asdict()


def _trained(config: HeadConfig) -> TensorShapes:
    """Return the tensors of a head that a training changes."""
    shapes = KINDS[config.kind].tensors(config)
    return {name: shape for name, shape in shapes.items() if name not in INDEX_TENSORS}
