"""The definition of each metric, as the page, the report and docs/methods/metrics.md show it."""

from __future__ import annotations

DEFINITIONS: dict[str, str] = {
    "tokens": "Tokens of the output, over all sequences.",
    "seconds": "Time from the run's start to its end, prefill included.",
    "decode_seconds": "Time from the end of prefill to the last committed token.",
    "tokens_per_second": (
        "Tokens / decode seconds, so without prefill; of a batch the throughput, over all sequences. "
        "Speed-ups compare this."
    ),
    "tokens_per_second_per_sequence": (
        "Tokens / seconds that sequences decode, each from the end of its prefill to its last token; "
        "equal to tokens/s in a run of one sequence."
    ),
    "tokens_per_second_with_prefill": "Tokens / seconds of the whole run, prefill included.",
    "ttft_ms": (
        "Time to first token: from the run's start to its first committed token. That is the prefill without the "
        "prompt's last token, and the first round with its drafts; a serving engine, and a run under load, draws the "
        "first token from the prefill."
    ),
    "tpot_ms": (
        "Time per output token: (last commit - first commit) / (tokens - 1), the mean over the sequences."
    ),
    "target_forwards": "Forwards of the target while decoding, cancelled ones included.",
    "draft_forwards": "Forwards of the drafter while decoding, cancelled ones included.",
    "drafted": "Draft tokens: accepted, rejected and discarded ones.",
    "accepted": "Draft tokens the target accepted.",
    "rejected": "Draft tokens the target tested and rejected.",
    "discarded": (
        "Draft tokens dropped untested, because a token before them was rejected, another one "
        "was kept in their place, or the text ended."
    ),
    "acceptance_rate": (
        "Accepted / drafted, discarded tokens included. Of a tree's nodes at most one path can be accepted, so "
        "the views show a tree's accepted tokens per round beside it."
    ),
    "acceptance_rate_tested": (
        "Accepted / tested, where tested is accepted + rejected: discarded tokens are left out."
    ),
    "dsi_acceptance": (
        "1 - 1/(1 + n), where n is the run length. DSI's n is the mean length of each prompt's first run only: the "
        "same if tokens are accepted independently."
    ),
    "tokens_per_target_forward": (
        "Tokens / target forwards. The target's own token of each round is included (the + 1), so it is 1 for "
        "autoregressive decoding."
    ),
    "mean_accepted_length": (
        "Accepted draft tokens per round that verifies a draft, without the target's own token."
    ),
    "acceptance_length": (
        "EMS-SD's average acceptance length: tokens per verification, the target's own included."
    ),
    "least_acceptance_length": (
        "EMS-SD's minimum average acceptance length (its section 4.4): of each batch the smallest acceptance "
        "length of a sequence, the mean over the batches. A batch lasts as long as its slowest sequence."
    ),
    "padding_ratio": (
        "EMS-SD's average padding ratio (its figure 4): a sequence's padding / its tokens, the mean over the "
        "sequences. The padding of a round: the tokens that a sequence gained fewer than the one that gained most; "
        "none for a sequence that ends with the round. The vanilla method pads KV caches by that."
    ),
    "padding_share": (
        "Padding / (padding + tokens), both summed over all sequences: the share of padding in the KV rows that "
        "the vanilla method adds."
    ),
    "attention_cells": (
        "Query-key cells that target forwards computed while decoding, in one layer and one "
        "head, padding included."
    ),
    "run_length": (
        "PEARL's mean accepted tokens: accepted between two rejections, over any number of verifications."
    ),
    "per_position": (
        "Acceptance by place in the draft: conditional is accepted / tested, unconditional is "
        "accepted / drafted."
    ),
    "per_level": (
        "Acceptance by level of the draft: rounds that accepted a token of the level / rounds that reached the "
        "level, with all levels above accepted. Of chains the conditional rate by place; of trees siblings count once."
    ),
    "draft_seconds_per_100_tokens": (
        "Seconds of drafter forwards per 100 output tokens; a forward shared by several devices counts once."
    ),
    "verify_seconds_per_100_tokens": (
        "Seconds of target forwards per 100 output tokens; a forward shared by several devices counts once."
    ),
    "c": (
        "Median time of a target forward / median time of a drafter forward, with the numbers "
        "of rows of this run."
    ),
    "waiting": (
        "Shares of decoding. both, draft, target, none: the sides that work at the same time; "
        "they sum to 1. drafter_waits is target, and target_waits is draft, where the drafter has a "
        "device of its own."
    ),
    "occupancy": "Share of decoding in which each device works, from the spans.",
    "measured_occupancy": (
        "Mean load of each device while decoding, measured by psutil or NVML: of the whole "
        "device, other programs included."
    ),
    "sp_degree": (
        "DSI's speculation parallelism: the most target devices that worked at the same time while decoding."
    ),
    "wasted_device_seconds": (
        "Device seconds of cancelled forwards, and of drafts of which no token was accepted."
    ),
    "preempted_device_seconds": (
        "The part of the wasted seconds that was cancelled because a draft was wrong or the text ended."
    ),
}
"""Keys are the fields of `traces.metrics.Metrics`."""
