"""What the objects of transformers' `generate` tell a recording: names, settings, rows."""

from __future__ import annotations

from typing import Any

from transformers.generation.candidate_generator import (
    AssistedCandidateGenerator,
    PromptLookupCandidateGenerator,
)

from specscope.engine.trace.recorder import LAYERS

TITLES = {
    "AssistedCandidateGenerator": "assisted generation",
    "AssistedCandidateGeneratorDifferentTokenizers": "universal assisted generation",
    "UniversalSpeculativeDecodingGenerator": "universal speculative decoding",
    "PromptLookupCandidateGenerator": "prompt lookup",
    "EarlyExitCandidateGenerator": "early exit",
    "MTPCandidateGenerator": "MTP",
    "SinglePositionMultiTokenCandidateGenerator": "MTP from one position",
    "DFlashTokenCandidateGenerator": "DFlash",
}
"""Class of a candidate generator -> the name of its decoding; of others the class is shown."""
UNDRAWN = frozenset({"SinglePositionMultiTokenCandidateGenerator"})
"""Generators that always draft the most probable token. In a sampled call transformers judges it as
if it had been drawn from q, so the text does not have the target's distribution."""
INPUTS = ("decoder_input_ids", "decoder_inputs_embeds", "input_ids", "inputs_embeds", "noise_embeds")
STATES = "context_hidden_states"
"""States of the target, rows that a DFlash drafter reads before its inputs."""
CACHES = ("cache", "past_key_values", "mtp_cache")
"""Arguments of a forward, in the versions of transformers."""
SHARED = "shared_kv_states"
"""The target's cache by layer, (keys, values), for a drafter without one: it reads no prompt."""
SETTINGS = {
    "num_assistant_tokens": "gamma",
    "num_output_tokens": "gamma",
    "num_mtp_layers": LAYERS,
    "block_size": "block_size",
    "max_matching_ngram_size": "ngram",
    "assistant_early_exit": "exit_after",
}
SCHEDULE = {"num_assistant_tokens_schedule": "schedule", "assistant_confidence_threshold": "threshold"}
"""Settings of a candidate generator, and of its assistant -> names in the trace."""


def layers_of(generator: Any) -> Any:
    """Return the target's own layers that draft (MTP), which the generator reads; None without."""
    return getattr(generator, "mtp_model", None)


def looks_up(generator: Any) -> bool:
    """Return whether drafts are copied, without a forward."""
    return isinstance(generator, PromptLookupCandidateGenerator)


def rule_of(settings: Any, generator: Any) -> tuple[str, bool]:
    """Return the rule of acceptance, and whether the text has the target's distribution."""
    name = type(generator).__name__
    if settings.assistant_ensemble_weight is not None:
        return "", False
    if looks_up(generator) or not settings.do_sample:
        return "match", True
    known = generator is None or name in TITLES
    return "ratio" if known else "", name not in UNDRAWN


def shape_of(args: Any, kwargs: Any) -> tuple[int, int]:
    """Return the sequences of a forward and the rows of each; -1 rows if they are unknown."""
    given = next((kwargs[name] for name in INPUTS if kwargs.get(name) is not None), None)
    given = args[0] if given is None and args else given
    if given is None:
        return 1, -1
    states = kwargs.get(STATES)
    return given.shape[0], given.shape[1] + (0 if states is None else states.shape[1])


def cached_of(model: Any, kwargs: Any) -> int:
    """Return the rows that a sequence has cached; -1 where layers keep a state in place of rows."""
    if model._is_stateful:
        return -1
    if shared := kwargs.get(SHARED):
        return max(keys.shape[-2] for keys, _ in shared.values())
    cache = next((kwargs[name] for name in CACHES if kwargs.get(name) is not None), None)
    return 0 if cache is None else int(cache.get_seq_length())


def title_of(generator: Any) -> str:
    name = type(generator).__name__
    return "generate" if generator is None else TITLES.get(name, name)


def sampling_of(settings: Any) -> dict[str, Any]:
    if not settings.do_sample:
        return {"temperature": 0}
    names = ("temperature", "top_k", "top_p")
    return {name: getattr(settings, name) for name in names if getattr(settings, name, None) is not None}


def config_of(generator: Any) -> dict[str, Any]:
    """Return the settings of the drafts at the call's start, for the title."""
    scheduled = isinstance(generator, AssistedCandidateGenerator)
    given = getattr(generator, "assistant_generation_config", None) if scheduled else None
    names = ((generator, SETTINGS), (given, SCHEDULE))
    found = [(ours, getattr(owner, theirs, None)) for owner, pairs in names for theirs, ours in pairs.items()]
    return {name: value for name, value in found if value}
