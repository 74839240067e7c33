"""EasySpec: Tables 1 to 6 from four times per model, fitted to Table 2 on MMLU at temperature 0.

A round drafts five levels. The paper does not define its acceptance alpha; its times per 100 tokens
show that it is accepted levels over drafted ones, so a round gives 5 alpha + 1 tokens. Its drafting
takes five ordinary forwards, or one (the calibration) and four fuzzy ones; its verification one
forward of the target.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from specscope.engine.model.fuzzy import layer_groups
from specscope.engine.simulate.profile import Profile
from specscope.traces.papers.rows import Paper, Row, cells, numbers, per_cell

PAPER = Paper("easyspec")
_DATA = PAPER.numbers
LEVELS = 5
_FITTED_ON = "temperature 0, MMLU"
_METHODS = ("+sd", "+tree", "EasySpec")
_PROFILE_PAIRS = {"L3": "llama-3-8-70-tp", "Q2": "qwen2-7-72-tp"}
_SPEEDS = {"llama-3": "L3-70B", "qwen2": "Q2-72B"}


class Times(NamedTuple):
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


def fitted(model: str) -> Times:
    """Return the times of a model pair from its rows on MMLU at temperature 0."""
    table = _DATA["Table 2"][f"{model}, {_FITTED_ON}"]
    chain, tree, easy = (table[method] for method in _METHODS)
    exact = chain[0] / rounds(chain[3]) / LEVELS
    fuzzy = (easy[0] / rounds(easy[3]) - exact) / (LEVELS - 1)
    return Times(exact, fuzzy, chain[1] / rounds(chain[3]), tree[1] / rounds(tree[3]))


def _stages(values: list[float], method: str, times: Times) -> Iterator[tuple[str, float, float]]:
    count = rounds(values[3])
    ours = (count * times.drafting(method), count * times.verification(method))
    yield from zip(("d", "v", "total"), values, (*ours, sum(ours)), strict=False)


@PAPER.item("Table 1")
def _table_1() -> Iterator[Row]:
    profile = Profile.load("8xA100")
    for name, column, number in cells(_DATA["Table 1"]):
        row, gpus = f"{name}, {column}", int(column.removeprefix("TP="))
        latency = profile.latency(f"{_PROFILE_PAIRS[name[:2]]}{max(2, gpus)}")
        if not name.endswith(("70B", "72B")):
            drafter, hardware = latency.drafter, profile.hardware
            assert drafter is not None
            saved = hardware.stream_us(drafter.weights * drafter.element) * (1 - 1 / gpus)
            waits = 2 * drafter.layers * hardware.known("collective_us") if gpus > 1 else 0
            ours = 1e6 / (1e6 / drafter.speed - saved + waits)
            yield PAPER.row(row, number, ours, "split drafter", fitted=gpus > 1)
        elif gpus > 1:
            yield PAPER.row(row, number, latency.target.speed, "profile")
        else:
            yield PAPER.row(row, number, None, "one A100")


@PAPER.item("Table 2")
def _table_2() -> Iterator[Row]:
    for name, table in _DATA["Table 2"].items():
        model = name.partition(",")[0]
        times, plain = fitted(model), _DATA["Table 1"][_SPEEDS[model]]
        for label, speed in (("vanilla", plain[0]), ("TP", plain[3])):
            if label in table:
                yield PAPER.row(f"{name}, {label}", table[label], 100 / speed, "printed twice")
        for method in _METHODS:
            for stage, published, ours in _stages(table[method], method, times):
                is_fit = _FITTED_ON in name
                yield PAPER.row(f"{name}, {method} {stage}", published, ours, "four times", fitted=is_fit)
    yield from _claims()


def _claims() -> Iterator[Row]:
    tables, claims = _DATA["Table 2"].values(), _DATA["claims"]
    drafting = max(table["+tree"][0] / table["EasySpec"][0] for table in tables)
    vanilla = max(table["vanilla"] / table["EasySpec"][2] for table in tables if "vanilla" in table)
    drop = max(table["+tree"][3] - table["EasySpec"][3] for table in tables)
    yield PAPER.row("drafting accelerated by up to", claims["drafting"], drafting, "drafting times")
    yield PAPER.row("peak speed-up over vanilla", claims["vanilla"], round(vanilla, 2), "totals")
    yield PAPER.row("largest drop of acceptance", claims["drop"], round(drop, 2), "acceptances")


@PAPER.item("Table 3")
def _table_3() -> Iterator[Row]:
    times = fitted("qwen2")
    for name, table in _DATA["Table 3"].items():
        row, same_target = f"{name}, vanilla", "72B" in name
        if same_target:
            plain = _DATA["Table 1"]["Q2-72B"][0]
            yield PAPER.row(row, table["vanilla"], 100 / plain, "printed twice")
        else:
            yield PAPER.row(row, table["vanilla"], None, "32B target")
        for method in _METHODS[1:]:
            for stage, published, ours in _stages(table[method], method, times):
                known = same_target or stage == "d"
                how = "same shape" if known else "32B target"
                yield PAPER.row(f"{name}, {method} {stage}", published, ours if known else None, how)


@PAPER.item("Table 4")
def _table_4() -> Iterator[Row]:
    times = fitted("llama-3")
    seconds = times.drafting("EasySpec") + times.verification("EasySpec")
    for model, table in _DATA["Table 4"].items():
        for task, (eagle, alpha, easy, own) in table.items():
            yield PAPER.row(f"{model}, EAGLE-2, {task}", eagle, None, "EAGLE-2", alpha=alpha)
            ours = 100 / rounds(own) / seconds
            yield PAPER.row(f"{model}, EasySpec, {task}", easy, ours, "times on MMLU")


@PAPER.item("Table 5")
def _table_5() -> Iterator[Row]:
    return PAPER.rows_of(per_cell(_DATA["Table 5"]), "similarities")


@PAPER.item("Table 6")
def _table_6() -> Iterator[Row]:
    for name, printed in _DATA["Table 6"].items():
        model, _, size = name.partition(", N = ")
        last_of = {g.start: g.stop - 1 for g in layer_groups(_DATA["layers"][model], int(size))}
        for first, last in printed:
            row = f"{name}, last layer of the group at {first}"
            yield PAPER.row(row, last, last_of.get(first), "layer 0")


@PAPER.item("Figure 4")
def _figure_4() -> Iterator[Row]:
    """Costs and acceptance by width, layer-parallel size and calibration (section 4.4).

    The figure's points are not in the text, only what they show.
    """
    for name, pair in (("Llama 3 8B", "llama-3-8-70-tp8"), ("Qwen2 7B", "qwen2-7-72-tp8")):
        latency = Profile.load("8xA100").latency(pair)
        for width in (1, 4, 8, 12):
            for size in range(1, 6):
                ours = latency.parallel("drafter", width, 500, size) / 1e3
                yield PAPER.row(f"{name}, width {width}, LP size {size}, ms", None, ours, "fuzzy forward")
    yield from _trends()


def _trends() -> Iterator[Row]:
    """SmolLM2 with `int4`, on the clock of 8xA100; recorded, as it takes minutes."""
    found = numbers("easyspec-figure-4")
    widths, sizes, command = found["widths"], found["sizes"], found["command"]
    for calibration in ("calibrated", "not calibrated"):
        for figure, unit in (("accepted", "accepted tokens per round"), ("speed", "tokens/s, virtual")):
            for width in widths:
                for size, ours in zip(sizes, found[calibration][figure][f"width {width}"], strict=True):
                    if calibration == "calibrated" or size > 1:
                        name = f"SmolLM2, {calibration}, width {width}, LP size {size}, {unit}"
                        yield PAPER.row(name, None, ours, "SmolLM2", command=command)
    for figure in ("accepted", "speed"):
        with_it, without = (found[kind][figure] for kind in ("calibrated", "not calibrated"))
        pairs = [pair for w in with_it for pair in list(zip(with_it[w], without[w], strict=True))[1:]]
        name = f"combinations of width and LP size in which calibration raises {figure}"
        ours = sum(a > b for a, b in pairs)
        yield PAPER.row(name, None, ours, "combinations", number=len(pairs), command=command)
