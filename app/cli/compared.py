"""The table that `specscope compare` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.trace.trace import Trace


def print_comparison(result: dict[str, Any]) -> None:
    """Print a row per method; `result` is the JSON object of the command."""
    prompts = f"{result['prompts']} prompt{'' if result['prompts'] == 1 else 's'}"
    print(" · ".join([result["models"], prompts, result["clock"]]))
    for row in result["skipped"]:
        category = f" ({row['category']})" if row["category"] else ""
        print(f"skipped: line {row['line']}{category}: {row['reason']}")
    accepted = "".join(f"{'acc/' + name:>13}" for name in ("drafted", "tested", "round"))
    print(f"{'method':20}{'tokens/s':>10}{'speed-up':>10}{'tokens':>8}{'tok/forward':>13}{accepted}  output")
    for key, m in result["methods"].items():
        same = "identical" if m["equal_to_autoregressive"] else "differs"
        same += "" if m["lossless"] else " (lossy)"
        cells = [_cell(m["tokens_per_second"], ".1f", 10), _cell(m["speedup"], ".2f", 10, "×")]
        cells += [_cell(m["tokens"], ",", 8), _cell(m["tokens_per_target_forward"], ".2f", 13)]
        cells += [_cell(m[name], ".0%", 13) for name in ("acceptance_rate", "acceptance_rate_tested")]
        cells += [_cell(m["accepted_per_round"], ".2f", 13)]
        print(f"{key:20}{''.join(cells)}  {' · '.join([same, *_notes(m)])}")
    for key, reason in result["left_out"].items():
        print(f"{key:20}left out: {reason}")
    print(
        "tok/forward counts the target's own token, acc (accepted drafts) does not; of a tree all nodes are drafted"
    )
    for key, m in result["methods"].items():
        if m["advice"]:
            print(f"{key:20}{m['advice']}")
    first = " ".join(m["runs"][0] for m in result["methods"].values())
    print(f"side by side: specscope report {first} -o report.html")


def advice_on(runs: Sequence[Trace], draft_forwards: int) -> str | None:
    """Return that a method's drafter is often wrong, and which one is wrong less often."""
    from traces.places import per_level_of
    from traces.verdict import wrong_drafter

    text = wrong_drafter(runs[0].header, draft_forwards, per_level_of(runs))
    return f"{text} The option is --drafter int4." if text else None


def _notes(figures: dict[str, Any]) -> list[str]:
    """Return the notes of a row: the speeds of a batch, and the reason for a missing speed-up."""
    notes = list[str]()
    if figures["batch"] > 1 and figures["tokens_per_second_per_sequence"]:
        speed = figures["tokens_per_second_per_sequence"]
        notes.append(f"throughput of up to {figures['batch']} sequences; {speed:.1f} tokens/s per sequence")
    if figures["spread"]:
        low, high = figures["spread"]
        mean = abs(figures["tokens_per_second"] - (low + high) / 2) < 1e-9
        notes.append(f"{'mean of' if mean else 'median pass,'} {low:.1f} to {high:.1f} tokens/s")
    if figures["not_comparable"]:
        notes.append(f"no speed-up: {figures['not_comparable']}")
    return notes


def _cell(value: float | None, form: str, width: int, unit: str = "") -> str:
    return f"{'-' if value is None else format(value, form) + unit:>{width}}"
