"""EasySpec: Tables 1 to 6 from four times per model, fitted to Table 2 on MMLU at temperature 0.

A round drafts five levels. The paper does not define its acceptance alpha; its times per 100 tokens
show that it is accepted levels over drafted ones, so a round gives 5 alpha + 1 tokens. Its drafting
takes five ordinary forwards, or one (the calibration) and four fuzzy ones; its verification one
forward of the target.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from engine.model.fuzzy import layer_groups
from engine.simulate.profile import Profile
from traces.papers.rows import Paper, Row, cells, numbers, published_only, rows

_DATA = numbers("easyspec")
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
        """Return the drafting seconds of a round."""
        return self.exact + (LEVELS - 1) * (self.fuzzy if method == "EasySpec" else self.exact)

    def verification(self, method: str) -> float:
        """Return the verification seconds of a round."""
        return self.verify if method == "+sd" else self.verify_tree


def rounds(alpha: float) -> float:
    """Return the rounds of 100 tokens."""
    return 100 / (LEVELS * alpha + 1)


def fitted(model: str) -> Times:
    """Return the times of a model pair from its rows on MMLU at temperature 0."""
    table = _DATA["Table 2"][f"{model}, {_FITTED_ON}"]
    chain, tree, easy = (table[method] for method in _METHODS)
    exact = chain[0] / rounds(chain[3]) / LEVELS
    fuzzy = (easy[0] / rounds(easy[3]) - exact) / (LEVELS - 1)
    return Times(exact, fuzzy, chain[1] / rounds(chain[3]), tree[1] / rounds(tree[3]))


def _stages(values: list[float], method: str, times: Times) -> Iterator[tuple[str, float, float]]:
    """Yield (stage, published, ours) of a row of drafting, verification and total time."""
    count = rounds(values[3])
    ours = (count * times.drafting(method), count * times.verification(method))
    yield from zip(("d", "v", "total"), values, (*ours, sum(ours)), strict=False)


def _table_1() -> Iterator[Row]:
    table, profile = _DATA["Table 1"], Profile.load("8xA100")
    for name, column, number in cells(table):
        family, gpus = name[:2], int(column.removeprefix("TP="))
        pair = f"{_PROFILE_PAIRS[family]}{max(2, gpus)}"
        is_target = name.endswith(("70B", "72B"))
        if is_target and gpus > 1:
            ours = profile.latency(pair).target.speed
            yield Row(f"{name}, {column}", number, ours, "copied", "An input of the profile 8xA100.")
        elif is_target:
            why = "The model does not fit on one A100, and the paper does not give its split."
            yield Row(f"{name}, {column}", number, None, "published only", why)
        else:
            drafter, hardware = profile.latency(pair).drafter, profile.hardware
            assert drafter is not None
            saved = hardware.stream_us(drafter.weights * drafter.element) * (1 - 1 / gpus)
            waits = 2 * drafter.layers * hardware.known("collective_us") if gpus > 1 else 0
            ours = 1e6 / (1e6 / drafter.speed - saved + waits)
            text = "The profile's forward, fitted to Table 2's drafting times; streaming divided by the GPUs, and two "
            text += "collectives a layer, which are fitted to the rows with several GPUs."
            yield Row(f"{name}, {column}", number, ours, "closed form", text, fitted=gpus > 1)


def _table_2() -> Iterator[Row]:
    text = "Four times per model, fitted on MMLU at temperature 0, and the row's own acceptance; gamma = 5."
    reason = (
        "at this acceptance the row's own rounds are shorter than the five levels that the model assumes."
    )
    for name, table in _DATA["Table 2"].items():
        model = name.partition(",")[0]
        times, plain = fitted(model), _DATA["Table 1"][_SPEEDS[model]]
        for label, speed in (("vanilla", plain[0]), ("TP", plain[3])):
            if label in table:
                yield _printed_twice(f"{name}, {label}", table[label], speed)
        for method in _METHODS:
            for stage, published, ours in _stages(table[method], method, times):
                row = f"{name}, {method} {stage}"
                is_fit = _FITTED_ON in name
                yield Row(row, published, ours, "closed form", text, reason, fitted=is_fit)
    yield from _claims()


def _printed_twice(name: str, seconds: float, speed: float) -> Row:
    """Return the row of 100 tokens without drafts, whose speed Table 1 prints, too."""
    text = "100 tokens at Table 1's speed, measured on 40 items of MMLU: the same quantity, which can hardly miss."
    return Row(name, seconds, 100 / speed, "closed form", text, easy=True)


def _claims() -> Iterator[Row]:
    tables, claims = _DATA["Table 2"].values(), _DATA["claims"]
    drafting = max(table["+tree"][0] / table["EasySpec"][0] for table in tables)
    vanilla = max(table["vanilla"] / table["EasySpec"][2] for table in tables if "vanilla" in table)
    drop = max(table["+tree"][3] - table["EasySpec"][3] for table in tables)
    ratio, totals = "ratio of drafting times, +tree over EasySpec.", "ratio of totals."
    less = "difference of acceptance, +tree less EasySpec."
    for name, claim, ours, text in (
        ("drafting accelerated by up to", "drafting", drafting, ratio),
        ("peak speed-up over vanilla", "vanilla", round(vanilla, 2), totals),
        ("largest drop of acceptance", "drop", round(drop, 2), less),
    ):
        yield Row(name, claims[claim], ours, "arithmetic", f"Largest printed {text}")


def _table_3() -> Iterator[Row]:
    times, none = fitted("qwen2"), "No times of a 32B target."
    for name, table in _DATA["Table 3"].items():
        same_target = "72B" in name
        text = "Times of Qwen2 72B and 7B, fitted on MMLU; the model has the same shape."
        if same_target:
            yield _printed_twice(f"{name}, vanilla", table["vanilla"], _DATA["Table 1"]["Q2-72B"][0])
        else:
            yield Row(f"{name}, vanilla", table["vanilla"], None, "published only", none)
        for method in _METHODS[1:]:
            for stage, published, ours in _stages(table[method], method, times):
                row = f"{name}, {method} {stage}"
                if same_target or stage == "d":
                    yield Row(row, published, ours, "closed form", text)
                else:
                    yield Row(row, published, None, "published only", none)


def _table_4() -> Iterator[Row]:
    times = fitted("llama-3")
    text = "Times of Llama 3 fitted on MMLU, and the row's own acceptance."
    reason = "the prompts of Spec-Bench are shorter than those of MMLU, for which the times are fitted."
    for model, table in _DATA["Table 4"].items():
        for task, (eagle, alpha, easy, own) in table.items():
            why = f"EAGLE-2's times and tree are not printed. Acceptance {alpha}."
            yield Row(f"{model}, EAGLE-2, {task}", eagle, None, "published only", why)
            seconds = times.drafting("EasySpec") + times.verification("EasySpec")
            ours = 100 / rounds(own) / seconds
            yield Row(f"{model}, EasySpec, {task}", easy, ours, "closed form", text, reason)


def _table_6() -> Iterator[Row]:
    for name, printed in _DATA["Table 6"].items():
        model, _, size = name.partition(", N = ")
        last_of = {g.start: g.stop - 1 for g in layer_groups(_DATA["layers"][model], int(size))}
        groups = (
            (f"{name}, last layer of the group at {first}", last, last_of.get(first))
            for first, last in printed
        )
        yield from rows(groups, "exact", "Layer 0 alone, then N.")


def _figure_4() -> Iterator[Row]:
    """Costs and acceptance by width, layer-parallel size and calibration (section 4.4).

    The figure's points are not in the text, only what they show.
    """
    for name, pair in (("Llama 3 8B", "llama-3-8-70-tp8"), ("Qwen2 7B", "qwen2-7-72-tp8")):
        latency = Profile.load("8xA100").latency(pair)
        for width in (1, 4, 8, 12):
            for size in range(1, 6):
                ours = latency.parallel("drafter", width, 500, size) / 1e3
                text = "No numbers in the text. Milliseconds of a fuzzy forward of the profile 8xA100 at 500 cached rows."
                yield Row(f"{name}, width {width}, LP size {size}, ms", None, ours, "closed form", text)
    yield from _trends()


def _trends() -> Iterator[Row]:
    """SmolLM2 with `int4`, on the clock of 8xA100; recorded, as it takes minutes."""
    found, about = numbers("easyspec-figure-4"), "No numbers in the text. SmolLM2 and `int4`, gamma 4; "
    widths, sizes = found["widths"], found["sizes"]
    for calibration in ("calibrated", "not calibrated"):
        for figure, unit in (("accepted", "accepted tokens per round"), ("speed", "tokens/s, virtual")):
            for width in widths:
                for size, ours in zip(sizes, found[calibration][figure][f"width {width}"], strict=True):
                    name = f"SmolLM2, {calibration}, width {width}, LP size {size}, {unit}"
                    if calibration == "calibrated" or size > 1:
                        yield Row(name, None, ours, "simulated", about + found["command"])
    for figure in ("accepted", "speed"):
        with_it, without = (found[kind][figure] for kind in ("calibrated", "not calibrated"))
        pairs = [pair for w in with_it for pair in list(zip(with_it[w], without[w], strict=True))[1:]]
        name = f"combinations of width and LP size in which calibration raises {figure}"
        text = f"Section 4.4: every combination, here {len(pairs)}. {about}{found['command']}"
        yield Row(name, None, sum(a > b for a, b in pairs), "simulated", text)


PAPER = Paper(
    "easyspec",
    {
        "Table 1": _table_1,
        "Table 2": _table_2,
        "Table 3": _table_3,
        "Table 4": _table_4,
        "Table 5": lambda: published_only(
            _DATA["Table 5"],
            "Needs Llama 3 8B; `specscope bench` prints the same similarities of the models at hand.",
        ),
        "Table 6": _table_6,
        "Figure 4": _figure_4,
    },
)
