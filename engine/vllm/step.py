"""A step of vLLM: what its scheduler asked for, and what the runner made of it."""

from __future__ import annotations

from typing import Any

SETTINGS = ("temperature", "top_k", "top_p", "seed")


class Step:
    """What is known of a step; tensors are copies on the host that may still be under way."""

    def __init__(self, scheduled: Any) -> None:
        cached = scheduled.scheduled_cached_reqs
        context = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        context |= {new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs}
        self.said: dict[str, Any] = {
            "finished": [*scheduled.finished_req_ids],
            "new": [_request(new) for new in scheduled.scheduled_new_reqs if new.sampling_params],
            "known": dict(zip(cached.req_ids, cached.num_output_tokens, strict=True)),
            "fed": {name: (n, context.get(name, -1)) for name, n in scheduled.num_scheduled_tokens.items()},
            "names": [],
        }
        self.marks: list[tuple[str, Any, Any]] = []
        """Kind, begin and end of its parts, in order."""
        self.tensors: dict[str, Any] = {}
        self.done: Any = None
        """The clock's mark behind all copies."""


def _request(new: Any) -> dict[str, Any]:
    params = new.sampling_params
    stops = {params.eos_token_id, *(params.stop_token_ids or ())} - {None}
    return {
        "name": new.req_id,
        "prompt": [*(new.prompt_token_ids or ())],
        "known": len(new.prefill_token_ids or ()),
        "sampling": {name: getattr(params, name) for name in SETTINGS},
        "stops": sorted(stops),
        "hidden": bool(params.stop or params.repetition_detection),
        "most": params.max_tokens,
    }
