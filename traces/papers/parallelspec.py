"""ParallelSpec: speed-ups from accepted lengths and one round cost per method.

A speed-up is tau / r: tau tokens a round over r target forwards a round. r is fitted once per
method, to Vicuna 7B at temperature 0. A drafter's part of it, r - 1, is time that does not grow
with the target; in forwards of a 13B target it is smaller by T(7B) / T(13B) = 0.78, which DSI's
Table 2 prints for the same Vicuna models on an A100.

With a stub head: it is right at a level with that level's rate, if it was right at all levels
before. Drawn rounds give the accepted length. A round's time is that of the published shapes in the
profile A100-40G: five forwards of EAGLE's layer, one of Medusa's heads, or one of a layer over five
rows (ParallelSpec), then a verification. The rates are fitted to printed lengths; no speed-up is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.heads.work import Work
from engine.simulate.profile import Profile
from traces.closed_forms import speculative_tokens
from traces.papers.rows import Paper, Row, bisect, cells, numbers, published_only

_DATA = numbers("parallelspec")
_TAU, _AVERAGE = -1, -2
_BASE = "V 7B "
_COLD = ", temperature 0.0"
_TABLE = _DATA["Table 1"]
LEVELS = 5
"""Levels of a draft: the parallel group of section 5.1."""
_ROUNDS, _CONTEXT = 20_000, 500
_PAIRS = {
    "V 7B EAGLE, temperature 0.0": "EAGLE",
    "L2 7B EAGLE, temperature 0.0": "EAGLE",
    "V 7B EAGLE, temperature 1.0": "EAGLE",
    "L2 7B EAGLE, temperature 1.0": "EAGLE",
    "V 7B Medusa, temperature 0.0": "Medusa",
}
"""Rows of Table 1 with a row of ParallelSpec below them, on 7B targets."""
_HEADS = {
    "EAGLE": ((Work(1, 2), 1, LEVELS), (Work(1, 2), LEVELS, 1), 26),
    "Medusa": ((Work(0, LEVELS, LEVELS), 1, 1), (Work(1, 0), LEVELS, 1), 64),
}
"""Work, rows and number of the head's forwards, without and with ParallelSpec; rows verified."""
_WORK = (
    "the profile has forwards and judging only; the measured program also builds trees and masks in Python in each "
    "round, which the ratio of the two rows does not contain."
)


def round_cost(method: str, *, large: bool = False) -> float:
    """Return the target forwards that a round takes, from Vicuna 7B at temperature 0.

    The method is named as in Table 1 (`EAGLE +ParallelSpec`); a `large` target has 13B weights.
    """
    row = _DATA["Table 1"][f"{_BASE}{method}{_COLD}"]
    cost = row[_TAU] / row[_AVERAGE]
    return 1 + (cost - 1) * _scale() if large else cost


def _scale() -> float:
    """Return T(7B) / T(13B), the mean over DSI's two data sets."""
    table = numbers("dsi")["Table 2"]
    ratios = [table[f"Vicuna-7B {data}"][0] / table[f"Vicuna-13B {data}"][0] for data in ("CNN-DM", "Alpaca")]
    return sum(ratios) / len(ratios)


def _speeds(item: str) -> Iterator[Row]:
    text = "tau over the round's cost; the cost is fitted to Vicuna 7B at temperature 0."
    why = "tau is printed for the average only."
    table = _DATA[item]
    for name, column, number in cells(table):
        if item != "Table 1" and table[name] in _DATA["Table 1"].values():
            yield Row(f"{name}, {column}", number, None, "published only", "Repeats a row of Table 1.")
        elif column == "tau (tokens)":
            yield Row(f"{name}, {column}", number, None, "published only", "Needs the named models.")
        elif column != "Avg.":
            yield Row(f"{name}, {column}", number, None, "published only", why)
        else:
            method = _method(name)
            ours = table[name][_TAU] / round_cost(method, large="13B" in name)
            is_fit = name == f"{_BASE}{method}{_COLD}"
            yield Row(f"{name}, {column}", number, ours, "closed form", text, _reason(name), fitted=is_fit)


def _method(name: str) -> str:
    """Return the method of a row's name."""
    rest = name.partition(",")[0].replace("w/ ", "").removesuffix(" +self-distillation")
    return rest.split("B ", 1)[1]


def _reason(name: str) -> str:
    if "LLaMA 3" in name:
        return (
            "the cost is Vicuna's; Table 2's two Llama rows imply 1.48 (Llama 2) and 1.38 (Llama 3) for EAGLE, "
            "where Vicuna 7B has 1.64."
        )
    return (
        "the rows imply 1.30 target forwards a round for Medusa on 13B and 1.68 on 7B; the heads are 7 and 11 % "
        "of the target's weights, so their size does not explain it."
    )


def _table_1() -> Iterator[Row]:
    yield from _speeds("Table 1")
    table, claims = _DATA["Table 1"], _DATA["claims"]
    own, base = (
        table[f"V 7B {name}, temperature 0.0"][_AVERAGE] for name in ("Medusa +ParallelSpec", "Medusa")
    )
    percent, group = round(100 * (own / base - 1), 1), claims["masks"] + 1
    gain, size = "improvement of Vicuna 7B Medusa, %", "size of the parallel group"
    yield Row(gain, claims["improvement"], percent, "arithmetic", "2.31 over 1.42.")
    yield Row(size, claims["group"], group, "arithmetic", "A token and k masks.")


def _figure_1() -> Iterator[Row]:
    for base in ("Medusa", "EAGLE"):
        for method in (base, f"{base} +ParallelSpec"):
            ours = round_cost(method) - 1
            text = "No numbers printed: target forwards that a round spends besides its verification (Vicuna 7B)."
            yield Row(f"{method}, drafting and overhead", None, ours, "closed form", text)


def _figure_4() -> Iterator[Row]:
    """Speed-up over the number of masks, with acceptance that falls with the distance."""
    table = _DATA["Table 1"]
    tau = table[f"{_BASE}EAGLE +ParallelSpec{_COLD}"][_TAU]
    rate = bisect(lambda a: speculative_tokens(a, _DATA["claims"]["group"]), tau, 0, 1)
    for masks in range(1, 9):
        tokens = speculative_tokens(rate, masks + 1)
        text = "No numbers in the text: one rate for all levels, fitted to tau at four masks."
        yield Row(f"tau with {masks} masks", None, tokens, "closed form", text)


def _figure_5() -> Iterator[Row]:
    figure = _DATA["Figure 5"]
    base, own = figure["accepted"]
    ours = base / own * round_cost("Medusa +ParallelSpec") / round_cost("Medusa")
    text = "The printed accepted lengths, and Table 1's round costs of Vicuna 7B."
    reason = "the figure counts forwards of drafter and target only; Table 1's costs include all other work of a round."
    name = "time of the text, with over without ParallelSpec"
    yield Row(name, figure["time"], ours, "closed form", text, reason)


def _stub_head() -> Iterator[Row]:
    """Yield lengths and speed-ups without and with ParallelSpec, and the gain between them."""
    fit = f"Drawn lengths of {_ROUNDS} rounds; one rate for all five levels, fitted to tau."
    text = "The drawn length over the time of a round on the profile A100-40G."
    for name, method in _PAIRS.items():
        speeds, printed = list[float](), list[float]()
        for parallel in (False, True):
            row = name.replace(method, f"{method} +ParallelSpec") if parallel else name
            tau, speed = _TABLE[row][_TAU], _TABLE[row][_AVERAGE]
            drawn = accepted_length([rate_for(tau)] * LEVELS)
            speeds.append(drawn / stub_round_cost(method, parallel=parallel))
            printed.append(speed)
            yield Row(f"{row}, tau", tau, drawn, "simulated", fit, fitted=True)
            yield Row(f"{row}, speed-up", speed, speeds[-1], "simulated", text, _WORK)
        about = "The ratio of the two rows above: work that both ways have cancels out."
        gain, ours = printed[1] / printed[0], speeds[1] / speeds[0]
        yield Row(f"{name}, gain by ParallelSpec", gain, ours, "simulated", about, _WORK)


def rate_for(tau: float) -> float:
    """Return the rate of all levels at which a round has so many tokens on average."""
    return bisect(lambda rate: speculative_tokens(rate, LEVELS), tau, 0, 1)


def accepted_length(rates: Sequence[float]) -> float:
    """Return the mean tokens of drawn rounds, the target's own included; rates by level."""
    right = np.random.default_rng(0).random((_ROUNDS, len(rates))) < np.asarray(rates)
    return 1 + float(np.logical_and.accumulate(right, 1).sum(1).mean())


def stub_round_cost(method: str, *, parallel: bool) -> float:
    """Return a round's time in plain steps on the profile A100-40G."""
    latency, shapes = Profile.load("A100-40G").latency(), _HEADS[method]
    work, width, forwards = shapes[1] if parallel else shapes[0]
    drafting = forwards * latency.head(work, width, _CONTEXT)
    verification = latency("target", shapes[2], _CONTEXT) + latency.sample_us
    return (drafting + verification) / latency("target", 1, _CONTEXT)


PAPER = Paper(
    "parallelspec",
    {
        "Table 1": _table_1,
        "Table 2": lambda: _speeds("Table 2"),
        "Table 3": lambda: published_only(
            _DATA["Table 3"], "Settings of the authors' training; `specscope train` has its own."
        ),
        "Figure 1": _figure_1,
        "Figure 4": _figure_4,
        "Figure 5": _figure_5,
        "Stub head": _stub_head,
    },
)
