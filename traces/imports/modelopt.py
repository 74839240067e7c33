"""Acceptance profiles of NVIDIA Model Optimizer: `speculation_profile.json`, schema 1.0.

A profile sums up many requests: a histogram of the tokens put out per verification, the target's
own token included, and the marginal and conditional acceptance rate of each place in the draft.
All rates are shares of all verifications, as if each had the longest draft. Source: the module
`speculation_profile` of Model Optimizer's `specdec_bench`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specscope.engine.errors import UsageError, shown
from specscope.traces.facts.imported import Counts, origin
from specscope.traces.facts.places import reached
from specscope.traces.imports.request_trace import (
    LONGEST_DRAFT,
    FileForm,
    histogram,
    is_object,
    sum_of,
    text,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.engine.trace.trace import Trace

SCHEMA = "1.0"
_TOLERANCE = 2e-6
"""Rates are rounded to six digits."""


def _recognises(row: Any) -> bool:
    return is_object(row) and "schema_version" in row and "marginal_accept_rates" in row


def _read(row: dict[str, Any]) -> Trace | None:
    if row["schema_version"] != SCHEMA:
        raise ValueError(f"schema_version is {shown(row['schema_version'])}; expected {SCHEMA!r}")
    if row.get("measured") is not True:
        raise ValueError("the profile was not measured; expected one with measured: true")
    if row.get("verification_method") != "longest_prefix":
        raise ValueError(
            f"verification_method is {shown(row.get('verification_method'))}; expected 'longest_prefix'"
        )
    gamma = whole(row, "num_speculative_tokens", LONGEST_DRAFT)
    times = histogram(row, "acceptance_length_histogram", first=1)
    if len(times) > gamma + 1:
        raise ValueError(f"a verification put out {len(times)} tokens; expected at most {gamma + 1}")
    if not sum(times):
        raise ValueError("the profile counts no verification")
    _check_rates(row, times, gamma)
    counts, key = Counts(times, gamma * sum(times), gamma), text(row, "method", 40)
    return sum_of("a profile of Model Optimizer", counts, "Model Optimizer", key, row, _model(row))


def _check_rates(row: dict[str, Any], times: Sequence[int], gamma: int) -> None:
    """Check the marginal rates of the places whose length occurred in the histogram."""
    rates: Any = row["marginal_accept_rates"]
    if not isinstance(rates, list) or len(rates) != gamma:
        raise ValueError(f"marginal_accept_rates is {shown(rates)}; expected a list of {gamma} rates")
    for place, exact in enumerate(marginal_rates(times, gamma)):
        rate = rates[place]
        if type(rate) not in (int, float) or not 0 <= rate <= 1:
            raise ValueError(f"marginal_accept_rates contains {shown(rate)}; expected rates from 0 to 1")
        occurred = place + 1 < len(times) and times[place + 1]
        if occurred and abs(rate - exact) > _TOLERANCE:
            raise ValueError(f"marginal rate {place + 1} is {rate}, but the histogram gives {exact:.6f}")


def marginal_rates(times: Sequence[int], gamma: int) -> list[float]:
    """Return, for each of gamma places of the draft, the share of verifications that accepted it.

    `times[a]` is the number of verifications that accepted a tokens.
    """
    verifications, *accepted = reached(times, gamma)
    return [number / verifications for number in accepted]


def _model(row: dict[str, Any]) -> str:
    target = row.get("target_model")
    return text(target, "name") or text(target, "path") if is_object(target) else text(row, "target_model")


def profile_of(trace: Trace) -> dict[str, Any]:
    """Return the profile of a run's verifications that judged a draft of the longest length.

    Shorter drafts, which the end of the output cuts, are left out: the rates of a profile are about
    one draft length. UsageError if nothing was verified, or if drafts are trees or judged in parts.
    """
    times, gamma = _verifications(trace)
    marginal = marginal_rates(times, gamma)
    before = [1.0, *marginal]
    conditional = [m / b if b else 0.0 for m, b in zip(marginal, before, strict=False)]
    steps = sum(times)
    mean = sum((accepted + 1) * number for accepted, number in enumerate(times)) / steps
    implied = 1 + sum(marginal)
    return {
        "schema_version": SCHEMA,
        "measured": True,
        "method": None if origin(trace.header) else trace.header.method,
        "draft_checkpoint": None,
        "target_model": None,
        "num_speculative_tokens": gamma,
        "block_size": None,
        "max_supported_k": gamma,
        "verification_method": "longest_prefix",
        "conditional_accept_rates": [round(rate, 6) for rate in conditional],
        "marginal_accept_rates": [round(rate, 6) for rate in marginal],
        "mean_accept_length": round(mean, 6),
        "mean_accept_length_per_request": round(mean, 6),
        "accept_length_model": "measured_per_k",
        "accept_length_by_k": {str(gamma): round(mean, 6)},
        "acceptance_length_histogram": {str(a + 1): number for a, number in enumerate(times) if number},
        "per_category": None,
        "measurement_conditions": {"engine": "SpecScope", "run": trace.header.run_id},
        "validation": {
            "mean_consistency": {
                "implied_mean_accept_length": round(implied, 6),
                "reported_mean_accept_length": round(mean, 6),
                "abs_delta": round(abs(implied - mean), 6),
                "tolerance": 0.02,
                "passed": abs(implied - mean) <= 0.02,
            },
            "marginal_monotonicity": {"passed": True, "violations": []},
        },
    }


def _verifications(trace: Trace) -> tuple[list[int], int]:
    """Return the number of verifications by accepted tokens, and the draft length."""
    imported = origin(trace.header)
    if imported and imported.counts and imported.counts.gamma:
        return list(imported.counts.histogram), imported.counts.gamma
    judged = [r for r in trace.rounds if r.drafted]
    gamma = max((r.drafted for r in judged), default=0)
    if not gamma:
        raise UsageError(
            f"run {trace.header.run_id} verified no draft of a known length: a profile needs one"
        )
    if gamma > LONGEST_DRAFT:
        raise UsageError(f"a profile is about drafts of at most {LONGEST_DRAFT} tokens; this run has {gamma}")
    if any(r.mode != "verify" for r in judged):
        raise UsageError("a profile needs verifications of whole drafts; this run judged drafts in parts")
    if any(d.node >= 0 and d.parent != d.node - 1 for d in trace.decisions):
        raise UsageError("a profile describes chains of draft tokens; this run drafted trees")
    times = [0] * (gamma + 1)
    for r in judged:
        if r.drafted == gamma:
            times[r.accepted] += 1
    return times, gamma


MODELOPT = FileForm("a speculation_profile.json of Model Optimizer, schema 1.0", _recognises, _read)
