"""Bounds that a comparison must reach, for CI: named speed-ups, and an earlier comparison.

The figure decides, not its range. A range that holds the bound is said either way, because another
sample of prompts or passes could decide otherwise.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from specscope.engine.errors import UsageError, plain_name, shown
from specscope.engine.files import parse_json, read_text
from specscope.engine.schema import Range, fits
from specscope.engine.trace.trace import Trace
from specscope.traces.facts.comparable import conditions

MOST_BYTES = 64 << 20
FIGURES = {
    "speedup": "speed-up over plain decoding",
    "acceptance_rate": "accepted share of all drafted tokens",
    "acceptance_rate_tested": "accepted share of the tested drafts",
    "tokens_per_target_forward": "tokens per target forward",
}
"""Figures that are compared with an earlier comparison: ratios, which no absolute time enters."""
_Figure = Annotated[float, Range(0, sys.float_info.max)]
_SAME = ("models", "runtime", "profile", "prompts")
_OWN = frozenset({"target", "drafter", "machine", "threads"})
"""Conditions that may differ: paths, whose names are in `models`, and the machine of CI."""


class BoundVerdict(NamedTuple):
    """A figure beside its bound."""

    method: str
    figure: str
    value: float | None
    bound: float
    met: bool
    text: str
    """The whole in words."""
    doubtful: bool = False
    """Whether the figure's range holds the bound."""


def given_bounds(texts: Sequence[str], keys: Sequence[str], left_out: Mapping[str, str]) -> dict[str, float]:
    """Return METHOD=SPEEDUP texts as bounds by method."""
    found = dict[str, float]()
    for given in texts:
        key, _, number = given.partition("=")
        try:
            bound = float(number)
        except ValueError:
            bound = math.nan
        if not (math.isfinite(bound) and bound > 0):
            raise UsageError(
                f"--fail-below {shown(given)} is not METHOD=SPEEDUP; write for example pearl=1.3"
            )
        if key in left_out:
            raise UsageError(f"--fail-below names {key}, which is left out: {left_out[key]}")
        if key not in keys:
            raise UsageError(
                f"--fail-below names {shown(key)}, which is not compared; choose of {', '.join(keys)}"
            )
        if key in found:
            raise UsageError(f"--fail-below names {key} twice; give one bound")
        found[key] = bound
    return found


def above_bounds(result: Mapping[str, Any], bounds: Mapping[str, float]) -> Iterator[BoundVerdict]:
    for key, bound in bounds.items():
        figures = result["methods"][key]
        asked = f"--fail-below asks for at least {bound:g}"
        yield _verdict(key, "speedup", figures, bound, asked)


def above_baseline(
    result: Mapping[str, Any], baseline: Mapping[str, Any], tolerance: float
) -> Iterator[BoundVerdict]:
    """Compare every method that both have; each figure may be lower by the tolerance.

    The prompts are the same, so their range is no doubt in virtual time, which does not vary.
    """
    doubted = result["runtime"] != "virtual"
    for key, earlier in baseline["methods"].items():
        if key in result["left_out"]:
            words = f"{key} is left out, but not in the baseline: {result['left_out'][key]}"
            yield BoundVerdict(key, "left_out", None, 0.0, False, words)
        if key not in result["methods"]:
            continue
        mine = result["methods"][key]
        for name in FIGURES:
            if (before := earlier.get(name)) is not None:
                bound = before * (1 - tolerance)
                asked = f"the baseline has {before:.4g}, which with a tolerance of {tolerance:g} asks for at least {bound:.4g}"
                yield _verdict(key, name, mine, bound, asked, doubted=doubted)
        if earlier.get("equal_to_autoregressive") and not mine["equal_to_autoregressive"]:
            words = f"{key}: its text differs from plain decoding's; in the baseline it does not"
            yield BoundVerdict(key, "equal_to_autoregressive", 0.0, 1.0, False, words)


def _verdict(
    key: str, name: str, figures: Mapping[str, Any], bound: float, asked: str, *, doubted: bool = True
) -> BoundVerdict:
    value = figures[name]
    if value is None:
        reason = f" ({figures['not_comparable']})" if name == "speedup" and figures["not_comparable"] else ""
        return BoundVerdict(key, name, None, bound, False, f"{key} has no {FIGURES[name]}{reason}; {asked}")
    near = next((n for n in (3, 6, 9) if f"{value:.{n}g}" != f"{bound:.{n}g}"), 4)
    words = f"{key}: the {FIGURES[name]} is {value:.{near}g}; {asked}"
    ranged = doubted and name == "speedup" and figures["speedup_low"] is not None
    low = float(figures["speedup_low"] if ranged else value)
    high = float(figures["speedup_high"] if ranged else value)
    doubtful = bool(ranged and low < bound <= high)
    if doubtful:
        words += f"; its range of {low:.3g} to {high:.3g} ({figures['speedup_from']}) holds the bound"
    return BoundVerdict(key, name, value, bound, value >= bound, words, doubtful)


def read_baseline(path: Path) -> dict[str, Any]:
    """Return an earlier JSON object of `specscope compare`; UsageError for another file."""
    try:
        given = parse_json(read_text(path, MOST_BYTES))
        methods = {key: _figures(figures) for key, figures in given["methods"].items()}
        found = {name: given[name] for name in _SAME}
        known = {str(name): value for name, value in given.get("conditions", {}).items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"the baseline {path} is no output of `specscope compare --json`") from None
    return {**found, "methods": methods, "conditions": known}


def _figures(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the compared figures of a method; ValueError for what is no number."""
    found = dict[str, Any]()
    for name in FIGURES:
        value = given.get(name)
        if not fits(value, _Figure | None):
            raise ValueError(f"{name} is {shown(value)}")
        found[name] = value if value is None else float(value)
    return {**found, "equal_to_autoregressive": given.get("equal_to_autoregressive") is True}


def check_baseline(path: Path, baseline: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    """Return the methods that only one of them has; UsageError if they were made differently."""
    other = [name for name in _SAME if baseline[name] != result[name]]
    known = baseline["conditions"]
    mine: dict[str, str] = result["conditions"]
    other += [name for name in mine if name in known and known[name] != mine[name]]
    if other:
        raise UsageError(
            f"the baseline {path} was made with other {', '.join(other)}; make it again with this command and --json"
        )
    both = [key for key in baseline["methods"] if key in result["methods"]]
    if not any(result["methods"][key]["drafted"] for key in both):
        raise UsageError(f"the baseline {path} has none of the compared methods; make it again with --json")
    lines = [f"{plain_name(key)} is in the baseline only" for key in baseline["methods"] if key not in both]
    return [*lines, *(f"{key} is not in the baseline" for key in result["methods"] if key not in both)]


def digests(group: Sequence[Trace]) -> dict[str, str]:
    """Return the conditions of plain decoding's runs as short hashes, to be compared."""
    found = {name: value for name, value in conditions(group).items() if name not in _OWN}
    found["limits"] = [trace.header.limits for trace in group]
    found["sampling"] = [trace.header.sampling for trace in group]  # scripted tokens depend on the seed
    return {
        name: blake2b(json.dumps(value, default=str).encode(), digest_size=6).hexdigest()
        for name, value in found.items()
    }
