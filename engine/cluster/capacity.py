"""Whether the models of a profile fit into its cards' memory; nothing is loaded.

A virtual cluster computes its tokens with other models than the profile's. The profile's are
counted: weights, keys and values of all sequences, a drafting head, and the logits of a forward.
The CUDA context and the activations, about 1 GB of a card, are not: what just fits may not run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, prod
from typing import NamedTuple

from specscope.engine.checkpoints.progress import megabytes
from specscope.engine.checkpoints.sizes import Size, Split, stored_size
from specscope.engine.cluster.assignment import Assigned, Assignment
from specscope.engine.errors import OutOfMemory, plain_name
from specscope.engine.heads.config import HeadConfig
from specscope.engine.heads.kinds import KINDS
from specscope.engine.simulate.latency import Latency
from specscope.engine.simulate.roofline import COPIES, WEIGHT_BITS, PublishedModel
from specscope.engine.simulate.shapes import model_shape

LOGIT_ROWS = 8
"""Rows of logits of a sequence in one forward, in float32: a draft of seven and one more."""
SMALLER = ("fp8", "int4")
"""Weights of fewer bits that a refusal names."""


@dataclass(frozen=True, slots=True)
class Need:
    """The size of a run; by default the least that any run needs."""

    sequences: int = 1
    tokens: int = 1
    """Tokens of each sequence, with room for a draft."""
    head: HeadConfig | None = None


class Kept(NamedTuple):
    """What one model keeps on one card, in bytes."""

    model: PublishedModel
    weights: int
    cache: int
    logits: int
    head: int
    """The drafting head."""

    @property
    def named(self) -> str:
        return plain_name(self.model.title)

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.logits + self.head

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "keys and values": self.cache,
            "logits": self.logits,
            "head": self.head,
        }
        sums = " + ".join(f"{name} {megabytes(size)}" for name, size in parts.items() if size)
        return f"{self.named} in {self.model.dtype} ({sums})"


def check_capacity(latency: Latency, assigned: Assigned, need: Need) -> None:
    """Check that each card has room for its models, if the profile knows its cards' memory.

    Raises:
        OutOfMemory: A card has not; the message has the sums and what would fit.
    """
    if latency.hardware.memory_gib is None:
        return
    memory = int(latency.hardware.memory_gib * 2**30)
    cards = kept(latency, assigned, need)
    card, models = max(cards.items(), key=lambda item: _total(item[1]))
    if _total(models) > memory:
        size = (
            f"{need.sequences} × {need.tokens:,} tokens, drafts included" if need.tokens > 1 else "one token"
        )
        raise OutOfMemory(
            f"{card} would hold {' and '.join(map(str, models))} for {size}, {megabytes(_total(models))} in all; "
            f"{plain_name(latency.hardware.name)} has {megabytes(memory)}; {_advice(models, need, memory)}"
        )


def unchecked(latency: Latency | None) -> str:
    """Return that nothing checks a profile's models, where the memory of its cards is unknown.

    Models whose forwards were measured there fit.
    """
    if latency is None or latency.hardware.memory_gib is not None:
        return ""
    if all(model.measured for model in (latency.target, latency.drafter) if model):
        return ""
    return (
        f"the profile does not say how much memory {plain_name(latency.hardware.name)} has (hardware.memory_gib), so nothing checks "
        "whether its models fit"
    )


def kept(latency: Latency, assigned: Assigned, need: Need) -> dict[str, list[Kept]]:
    """Return card -> what each model keeps there, for the assignments of a layout."""
    cards = defaultdict[str, list[Kept]](list)
    models = {"target": latency.target} | ({"drafter": latency.drafter} if latency.drafter else {})
    for role, model in models.items():
        for assignment in assigned.get(role, ()):
            for card, part in _parts(role, model, assignment, need):
                cards[card].append(part)
    return cards


def _parts(
    role: str, model: PublishedModel, assignment: Assignment, need: Need
) -> Iterator[tuple[str, Kept]]:
    if assignment.split:
        names = [member.devices[0].name for member in assignment.members]
        sizes = spread(replace(model, split="layers"), len(names))
    elif assignment.lanes and role == "drafter":
        names = [device.name for device in assignment.devices_of(role)]
        sizes = (_layer_parallel(model, len(names)),) * len(names)
    else:
        names = [device.name for device in assignment.cards or assignment.devices_of(role)]
        if len(names) > model.gpus:  # a drafter on its target's cards: layers on all of them
            model = replace(model, split="layers")
        sizes = spread(model, len(names))
    for number, (name, size) in enumerate(zip(names, sizes, strict=False)):
        with_logits = model.split != "layers" or number == len(sizes) - 1
        head = head_bytes(model, need.head) if need.head and role == "target" and with_logits else 0
        yield name, _kept(model, size, need, with_logits=with_logits, head=head)


def _kept(model: PublishedModel, size: Size, need: Need, *, with_logits: bool, head: int) -> Kept:
    rows = need.sequences * LOGIT_ROWS if with_logits else 0
    cache = need.sequences * need.tokens * size.per_token
    return Kept(model, size.weights, cache, 4 * rows * model.vocab, head)


@lru_cache(maxsize=256)
def spread(model: PublishedModel, gpus: int) -> tuple[Size, ...]:
    """Return the bytes of a model on each of so many GPUs, split as the model says."""
    shape, bits = model_shape(model), WEIGHT_BITS[model.dtype]
    if model.split == COPIES:
        whole = stored_size(shape, bits, model.element, Split())
        return (whole._replace(per_token=ceil(whole.per_token / gpus)),) * gpus
    if model.split == "tensor":  # all ranks are of one size
        return (stored_size(shape, bits, model.element, Split(ways=gpus)),) * gpus
    count = min(gpus, model.layers)
    return tuple(stored_size(shape, bits, model.element, Split((i, count))) for i in range(count))


def _layer_parallel(model: PublishedModel, ranks: int) -> Size:
    """Return the bytes of a drafter on each device that shares its attention (EasySpec, 3.1).

    Each has all MLPs, and the attention of its own layers.
    """
    (whole,), own = spread(model, 1), ceil(model.layers / ranks)
    others = (model.layers - own) * model.attention_weights * WEIGHT_BITS[model.dtype] / 8
    return Size(whole.weights - int(others), ceil(whole.per_token * own / model.layers))


def head_bytes(model: PublishedModel, head: HeadConfig) -> int:
    """Return the bytes of a drafting head of this kind for a profile's target."""
    sizes = {"hidden_size": model.dim, "vocab_size": model.vocab}
    layer = {
        "hidden_size": model.dim,
        "intermediate_size": model.ffn,
        "num_attention_heads": model.attention_width // model.head_dim,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
    }
    shape = head.shape | layer if head.shape else head.shape
    tensors = KINDS[head.kind].tensors(replace(head, **sizes, shape=shape))
    return sum(map(prod, tensors.values())) * model.element


def _total(models: Sequence[Kept]) -> int:
    return sum(part.total for part in models)


def _advice(models: Sequence[Kept], need: Need, memory: int) -> str:
    """Return what would fit on a card: fewer tokens or sequences, fewer bits, more GPUs."""
    largest = max(models, key=lambda part: part.total)
    others, found = _total(models) - largest.total, list[str]()
    cache = sum(part.cache for part in models)
    left = memory - (_total(models) - cache)
    if need.tokens > 1 and (tokens := left * need.tokens // max(1, cache)) > 0:
        found.append(f"{need.sequences} × {tokens:,} tokens")
    if need.sequences > 1 and (sequences := left * need.sequences // max(1, cache)) > 0:
        found.append(f"{sequences} × {need.tokens:,} tokens")

    def fits(model: PublishedModel, gpus: int) -> bool:
        sizes = spread(model, gpus)
        return all(
            _kept(model, size, need, with_logits=True, head=largest.head).total + others <= memory
            for size in sizes
        )

    model = largest.model
    bits = WEIGHT_BITS[model.dtype]
    smaller = [name for name in SMALLER if WEIGHT_BITS[name] < bits]
    if name := next((name for name in smaller if fits(replace(model, dtype=name), model.gpus)), ""):
        found.append(f"{largest.named} in {name}")
    more = [n for n in (2, 4, 8, 16) if n > model.gpus]
    if gpus := next((n for n in more if fits(model, n)), 0):
        found.append(f"{largest.named} on {gpus} GPUs")
    return (
        f"what fits: {', or '.join(found)}" if found else "nothing smaller of it fits: take a smaller model"
    )
