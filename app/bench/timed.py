"""Models of a Llama shape with random weights, whose forwards are timed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

from app.bench.figures import Figure
from engine.drafters.tree import Wide
from engine.model.cache import Cache
from engine.model.clock import Clock
from engine.model.decoder import Decoder
from engine.model.fused import FusedDrafts, Given
from engine.model.shape import ModelShape
from engine.model.slots import Rows
from engine.model.static import StaticSteps
from engine.types import Sampling

CACHED = 512
"""Cached rows before each timed forward."""
DRAFTS = 5
"""Drafted tokens, and forwards of a drafter beside one verification of DRAFTS + 1 rows."""


@dataclass(frozen=True, slots=True)
class Size:
    """A Llama shape."""

    name: str
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int

    def config(self) -> LlamaConfig:
        """Return the shape as transformers' config."""
        return LlamaConfig(
            vocab_size=32000,
            hidden_size=self.width,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=2048,
            architectures=["LlamaForCausalLM"],
        )


class Timed:
    """A model of one shape with random weights, in the engine and in transformers.

    Args:
        size: The shape.
        device: Takes it in bf16 on a GPU, in fp32 on a CPU.
    """

    def __init__(self, size: Size, device: torch.device) -> None:
        self.name = size.name
        config = size.config()
        with _default(device, torch.bfloat16 if device.type == "cuda" else torch.float32):
            self._reference = LlamaForCausalLM(config).eval()
        weights = self._reference.state_dict()
        self.bytes = (
            sum(weight.nbytes for weight in weights.values()) - weights["model.embed_tokens.weight"].nbytes
        )
        """Bytes that a forward reads: all weights without the embeddings."""
        self.decoder = Decoder(ModelShape.of(config, Path(size.name)), weights.__getitem__)
        self._cache = self.decoder.new_cache(1, CACHED + 64)
        self._static, self._fused = StaticSteps(self.decoder), FusedDrafts(self.decoder)
        assert isinstance(self._cache, Cache)
        self._clock = Clock.of(device)
        self._prefill()

    @torch.inference_mode()
    def _prefill(self) -> None:
        ids = np.ones(CACHED, dtype=np.int64)
        self.decoder.forward(self._cache, Rows.chain(0, ids, 0), np.empty(0, dtype=np.int64))
        self._past = DynamicCache()
        inputs = torch.ones((1, CACHED), dtype=torch.int64, device=self.decoder.device)
        self._reference(inputs, past_key_values=self._past, use_cache=True, logits_to_keep=1)

    def forward(self, rows: int) -> list[int]:
        """Forward `rows` rows after the cached ones; return the most probable next tokens."""
        self._cache.keep(0, np.arange(CACHED))
        chain = Rows.chain(0, np.ones(rows, dtype=np.int64), CACHED)
        return self.decoder.forward(self._cache, chain, np.arange(rows)).logits.argmax(-1).tolist()

    def static(self, rows: int) -> list[int]:
        """Forward as `forward` does, in a static step."""
        self.decoder.steps = self._static
        try:
            return self.forward(rows)
        finally:
            self.decoder.steps = None

    def drafts(self) -> list[int]:
        """Draft DRAFTS tokens by static forwards of one row; the host reads each token."""
        token, tokens = 1, list[int]()
        self._cache.keep(0, np.arange(CACHED))
        self.decoder.steps = self._static
        for step in range(DRAFTS):
            row = Rows.chain(0, [token], CACHED + step)
            token = self.decoder.forward(self._cache, row, np.arange(1)).logits.argmax(-1).item()
            tokens.append(int(token))
        self.decoder.steps = None
        return tokens

    def chain(self) -> list[int]:
        """Draft the same tokens in one step after the first forward (`engine.model.fused`)."""
        self._cache.keep(0, np.arange(CACHED))
        self.decoder.steps = self._static
        first = self.decoder.forward(self._cache, Rows.chain(0, [1], CACHED), np.arange(1)).logits
        self.decoder.steps = None
        plans, given = Wide(1, DRAFTS).plans(DRAFTS), Given([0], first, [])
        found = self._fused.draft(self._cache, plans, given, Sampling(), self._clock, argmax=True)
        self._clock.read()
        return [int(level.ids[0, 0, 0]) for level in found.levels]

    def chain_gain(self, repeats: int) -> Figure:
        """Return the time of DRAFTS forwards whose tokens the host reads over that of a chain."""
        same = [self.drafts(), self.chain(), self.chain()]  # to warm up
        times = [(seconds(self.drafts), seconds(self.chain)) for _ in range(repeats)]
        detail = {"drafter": self.name, "drafts": DRAFTS, "same_tokens": round(_agreement(same), 3)}
        return Figure(tuple(single / chain for single, chain in times), "x", detail=detail)

    @torch.inference_mode()
    def reference(self, rows: int) -> list[int]:
        """Forward as `forward` does, in transformers."""
        inputs = torch.ones((1, rows), dtype=torch.int64, device=self.decoder.device)
        logits = self._reference(inputs, past_key_values=self._past, use_cache=True).logits
        self._past.crop(-rows)
        return logits[0].argmax(-1).tolist()

    def over_floor(self, speed: float, repeats: int) -> dict[str, Figure]:
        """Return the times of forwards over the time of reading the weights once.

        Args:
            speed: Bytes per second.
            repeats: Timed forwards of each kind, in turn.
        """
        floor, figures = self.bytes / speed, dict[str, Figure]()
        kinds = {"decode": self.static, "eager": self.forward, "transformers": self.reference}
        for rows, suffix in ((1, ""), (16, "_16_rows")):
            texts = [forward(rows) for forward in kinds.values() for _ in range(2)]  # to warm up
            times: dict[str, list[float]] = {kind: [] for kind in kinds}
            for _ in range(repeats):
                for kind, forward in kinds.items():
                    times[kind].append(seconds(partial(forward, rows)))
            for kind, taken in times.items():
                detail = {
                    "ms": round(median(taken) * 1e3, 3),
                    "floor_ms": round(floor * 1e3, 3),
                    "same_tokens": round(_agreement(texts), 3),
                }
                values = tuple(each / floor for each in taken)
                figures[f"{kind}_over_floor{suffix}_{self.name}"] = Figure(values, "x", detail=detail)
        return figures


def _agreement(texts: list[list[int]]) -> float:
    """Return the share of tokens that equal those of the first text."""
    pairs = [a == b for text in texts for a, b in zip(texts[0], text, strict=True)]
    return sum(pairs) / len(pairs)


@contextlib.contextmanager
def _default(device: torch.device, dtype: torch.dtype) -> Generator[None]:
    """Make new tensors of this device and dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            torch.manual_seed(0)
            yield
    finally:
        torch.set_default_dtype(before)


def seconds(work: Callable[[], object]) -> float:
    """Return how long work takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
