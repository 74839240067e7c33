"""The baselines: transformers' `generate` and assisted generation on the same checkpoints."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Generator, Sequence
from functools import cached_property
from typing import Any

import torch
import transformers

from app.bench.race import Generate
from engine.errors import UsageError
from engine.pairs.load import load_reference
from engine.pairs.pair import Pair


class Transformers:
    """A pair in transformers: fp32, on the CPU, other settings at their defaults.

    Args:
        pair: Pair to load, from local files only.
        new_tokens: Most tokens to generate.
    """

    def __init__(self, pair: Pair, new_tokens: int) -> None:
        self._pair = pair
        self._target = load_reference(pair.target_path)
        self._new_tokens = new_tokens

    def generate(self, ids: Sequence[int]) -> list[int]:
        """Return the output ids of greedy decoding."""
        return self._generate(ids)

    def assisted(self, gamma: int | None = None) -> Generate:
        """Return greedy assisted generation.

        Args:
            gamma: Constant draft length, without a confidence threshold; None keeps the defaults.

        Raises:
            UsageError: The pair has no drafter.
        """
        drafter = self._drafter
        settings = copy.deepcopy(self._settings)
        if gamma is not None:
            settings.num_assistant_tokens = gamma
            settings.num_assistant_tokens_schedule = "constant"
            settings.assistant_confidence_threshold = 0.0

        def generate(ids: Sequence[int]) -> list[int]:
            drafter.generation_config = settings
            return self._generate(ids, assistant_model=drafter)

        return generate

    @cached_property
    def _drafter(self) -> Any:
        if self._pair.drafter_path is None:
            raise UsageError(f"{self._pair.name} has no drafter; assisted generation needs one")
        return load_reference(self._pair.drafter_path)

    @cached_property
    def _settings(self) -> Any:
        return self._drafter.generation_config

    def _generate(self, ids: Sequence[int], **more: Any) -> list[int]:
        prompt = torch.tensor([list(ids)])
        out = self._target.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=self._new_tokens,
            **more,
        )
        return out[0, prompt.shape[1] :].tolist()


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Turn off hints and progress bars of transformers."""
    level, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.logging.enable_progress_bar()
