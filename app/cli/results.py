"""A run as the commands print it: one JSON object, and one line."""

from __future__ import annotations

from typing import Any

from specscope.engine.trace.trace import Trace


def result_of(trace: Trace) -> dict[str, Any]:
    """Return a run's JSON object; for several prompts, `sequences` has one object per prompt."""
    from specscope.traces.facts.metrics import measure
    from specscope.traces.facts.settings import models_text
    from specscope.traces.judge.health import health

    header = trace.header
    sequences = [_sequence(trace, i) for i in range(len(header.prompt_ids))]
    result = {
        "run_id": header.run_id,
        "method": header.method,
        "config": header.config,
        "planned": header.environment.get("planned"),
        "lossless": header.lossless,
        **sequences[0],
        "models": models_text(header),
        "target_path": header.target_path,
        "drafter_path": header.drafter_path,
        "metrics": measure(trace).to_dict(),
        "health": health(trace) or None,
        "runtime": header.runtime,
        "tp": header.environment.get("tp", 1),
        "drafter_tp": header.environment.get("drafter_tp", 1),
        "profile": header.profile or None,
        "status": trace.status,
        "sampling": header.sampling,
        "clock": header.clock,
    }
    return {**result, "sequences": sequences} if len(sequences) > 1 else result


def _sequence(trace: Trace, i: int) -> dict[str, Any]:
    footer = trace.footer
    return {
        "text": footer.texts[i] if footer and footer.texts else "",
        "token_ids": trace.token_ids(i),
        "prompt_ids": list(trace.header.prompt_ids[i]),
        "reason": footer.reasons[i] if footer and footer.reasons else "",
    }


def line_of(result: dict[str, Any]) -> str:
    m = result["metrics"]
    speed = f"{m['tokens_per_second']:.1f} tokens/s" if m["tokens_per_second"] else "no tokens"
    sequence = m["tokens_per_second_per_sequence"]
    if len(result.get("sequences", ())) > 1 and sequence:
        speed = f"throughput {speed} · {sequence:.1f} tokens/s per sequence"
    lossy = "" if result["lossless"] else " · lossy"
    where = f"{result['models']} · {result['clock']}"
    return f"[{result['method']}{lossy} · {m['tokens']} tokens · {speed} · {where} · run {result['run_id']}]"
