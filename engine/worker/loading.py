"""Loading a worker's models and drafting heads."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from specscope.engine.model.clock import Clock
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.fused import FusedDrafts
from specscope.engine.worker.jobs import Facts, LoadModel

if TYPE_CHECKING:
    from specscope.engine.heads.drafting import Head
    from specscope.engine.model.language import LanguageModel
    from specscope.engine.model.shard import Ranks
    from specscope.engine.worker.forwards import Forwards


def load_model(
    forwards: Forwards, job: LoadModel, groups: Mapping[str, Ranks], ranks: dict[str, Ranks]
) -> Facts:
    """Add a model, or a head beside its target, to `forwards`, unless it is there.

    `ranks` has those of each model that is split by tensors, which are one of the `groups`.
    """
    models, heads = forwards.models, forwards.heads
    if job.beside and job.model not in heads:
        forwards.target = job.beside
        head = cast("Callable[[LanguageModel], Head]", job.loader)(models[job.beside])
        for name, part in head.named(job.model).items():
            heads[name] = part
            if part.layer is not None:
                models[name] = part.layer.decoder
            if job.beside in ranks:
                ranks[name] = ranks[job.beside]
    elif not job.beside and job.model not in models:
        load = cast("Callable[..., LanguageModel]", job.loader)
        if job.group:
            ranks[job.model] = groups[job.group]
        models[job.model] = load(ranks=groups[job.group]) if job.group else load()
    model = models.get(job.model) or models[job.beside]
    if isinstance(model, Decoder):
        forwards.clock = Clock.of(model.device)
        if model.steps is not None and job.model not in ranks:
            _draft_statically(forwards, job.model, model)
    _return_freed_memory()
    forwards.clock.wait()
    return Facts(model.vocab_size, model.context, model.depth, forwards.clock.uncertainty)


def _draft_statically(forwards: Forwards, name: str, decoder: Decoder) -> None:
    head = forwards.heads.get(name)
    if head is None:
        forwards.fused[name] = FusedDrafts(decoder)
    elif head.keeps and not head.further:
        forwards.fused[name] = FusedDrafts(decoder, head.keeps, head.columns.tokens)


def _return_freed_memory() -> None:
    """Return the C library's freed memory to the system: 320 MB after loading 540 MB of weights."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
