"""EasySpec: Tables 1 to 6 from four times per model, fitted to Table 2 on MMLU at temperature 0.

A round drafts five levels. The paper does not define its acceptance alpha; its times per 100 tokens
show that it is accepted levels over drafted ones, so a round gives 5 alpha + 1 tokens. Its drafting
takes five ordinary forwards, or one (the calibration) and four fuzzy ones; its verification one
forward of the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from specscope.engine.model.fuzzy import layer_groups
from specscope.engine.simulate.profile import Profile
from specscope.traces.papers.rows import Paper, TableCell, numbers

_DATA = numbers("easyspec")
LEVELS = 5
_FITTED_ON = "temperature 0, MMLU"
_METHODS = ("+sd", "+tree", "EasySpec")
_PROFILE_PAIRS = {"L3": "llama-3-8-70-tp", "Q2": "qwen2-7-72-tp"}
_SPEEDS = {"llama-3": "L3-70B", "qwen2": "Q2-72B"}


class ForwardTimes(NamedTuple):
    """Seconds of one forward of each kind; `verify` and `verify_tree` include judging."""

    exact: float
    fuzzy: float
    verify: float
    verify_tree: float

    def drafting(self, method: str) -> float:
        return self.exact + (LEVELS - 1) * (self.fuzzy if method == "EasySpec" else self.exact)

    def verification(self, method: str) -> float:
        return self.verify if method == "+sd" else self.verify_tree


def rounds(alpha: float) -> float:
    return 100 / (LEVELS * alpha + 1)


def fitted(model: str) -> ForwardTimes:
    """Return the times of a model pair from its rows on MMLU at temperature 0."""
    table = _DATA["Table 2"][f"{model}, {_FITTED_ON}"]
    chain, tree, easy = (table[method] for method in _METHODS)
    exact = chain[0] / rounds(chain[3]) / LEVELS
    fuzzy = (easy[0] / rounds(easy[3]) - exact) / (LEVELS - 1)
    return ForwardTimes(exact, fuzzy, chain[1] / rounds(chain[3]), tree[1] / rounds(tree[3]))


def _model(cell: TableCell) -> str:
    return "llama-3" if cell.part.startswith("llama-3") else "qwen2"


def _times(cell: TableCell) -> float:
    times, count = fitted(_model(cell)), rounds(cell.others["alpha"])
    drafting, verification = count * times.drafting(cell.row), count * times.verification(cell.row)
    return {"d": drafting, "v": verification, "total": drafting + verification}[cell.column]


def _plain(cell: TableCell) -> float:
    return 100 / _DATA["Table 1"][_SPEEDS[_model(cell)]][3 if cell.row == "TP" else 0]


def _split_drafter(cell: TableCell) -> float:
    gpus, profile = int(cell.column.removeprefix("TP=")), Profile.load("8xA100")
    drafter, hardware = (
        profile.latency(f"{_PROFILE_PAIRS[cell.row[:2]]}{max(2, gpus)}").drafter,
        profile.hardware,
    )
    assert drafter is not None
    saved = hardware.stream_us(drafter.weights * drafter.element) * (1 - 1 / gpus)
    waits = 2 * drafter.layers * hardware.known("collective_us") if gpus > 1 else 0
    return 1e6 / (1e6 / drafter.speed - saved + waits)


def _target(cell: TableCell) -> float:
    pair = f"{_PROFILE_PAIRS[cell.row[:2]]}{cell.column.removeprefix('TP=')}"
    return Profile.load("8xA100").latency(pair).target.speed


def _throughput(cell: TableCell) -> float:
    times = fitted("llama-3")
    seconds = times.drafting("EasySpec") + times.verification("EasySpec")
    return 100 / rounds(cell.others["own alpha"]) / seconds


def _last_layer(cell: TableCell) -> float | None:
    model, _, size = cell.part.partition(", N = ")
    groups = layer_groups(_DATA["layers"][model], int(size))
    return {group.start: group.stop - 1 for group in groups}.get(int(cell.column))


def _fuzzy_forward(cell: TableCell) -> float:
    """Return milliseconds by width, layer-parallel size and calibration (section 4.4).

    The figure's points are not in the text, only what they show.
    """
    pair = _PROFILE_PAIRS["L3" if cell.part.startswith("Llama 3") else "Q2"]
    latency = Profile.load("8xA100").latency(f"{pair}8")
    return latency.parallel("drafter", int(cell.row), 500, int(cell.column)) / 1e3


def _recorded(cell: TableCell) -> Mapping[str, Any]:
    """Return SmolLM2's with `int4`, on the clock of 8xA100; recorded, as it takes minutes."""
    return {"ours": cell.number, "command": _DATA["SmolLM2"]["command"]}


def _combinations(cell: TableCell) -> Mapping[str, Any]:
    found = _DATA["SmolLM2"]
    with_it, without = (found[f"{kind}, {cell.row}"] for kind in ("calibrated", "not calibrated"))
    pairs = [pair for w in with_it for pair in list(zip(with_it[w], without[w], strict=True))[1:]]
    return {"ours": sum(a > b for a, b in pairs), "count": len(pairs), "command": found["command"]}


_SETS = [table for table in _DATA["Table 2"].values() if isinstance(table, dict)]
PAPER = Paper(
    "easyspec",
    {
        "split drafter": _split_drafter,
        "profile's target": _target,
        "plain decoding": _plain,
        "times": _times,
        "largest acceleration": lambda _: max(t["+tree"][0] / t["EasySpec"][0] for t in _SETS),
        "largest speed-up": lambda _: round(
            max(t["vanilla"] / t["EasySpec"][2] for t in _SETS if "vanilla" in t), 2
        ),
        "largest drop": lambda _: round(max(t["+tree"][3] - t["EasySpec"][3] for t in _SETS), 2),
        "tokens/s": _throughput,
        "last layer": _last_layer,
        "fuzzy forward": _fuzzy_forward,
        "recorded": _recorded,
        "combinations": _combinations,
    },
)
