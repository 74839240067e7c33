"""PEARL: all tables from the four rates of Table 7, and the speeds of Table 10."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import NamedTuple

from specscope.engine.simulate.profile import Profile, profiles
from specscope.traces.closed_forms import pearl_tokens, speculative_tokens
from specscope.traces.papers.pearl_speeds import (
    Pair,
    assisted,
    at_printed_gamma,
    best_gamma,
    best_speculative,
    latency,
    most_varying,
    pair_of,
    pearl,
    pearl_varying,
    pipeline,
    runs_of_mean,
    runs_of_speed,
    speculative,
    together,
    without_post_verify,
    without_pre_verify,
)
from specscope.traces.papers.rows import Paper, Row, cells, numbers, per_cell

PAPER = Paper("pearl")
_DATA = PAPER.numbers
_SD, _OWN = "Speculative Decoding", "PEARL (ours)"
_KNOWN = _DATA["Table 7"]["columns"]
"""Pairs whose mean run of accepted tokens is printed."""


@PAPER.item("Table 1")
def _table_1() -> Iterator[Row]:
    table = _DATA["Table 1"]
    for name, column, number in cells(table, _SD):
        how = "best gamma" if column in _KNOWN else "rate fitted to the row"
        yield PAPER.row(f"{name}, {column}", number, at_printed_gamma(pair_of(column), column), how)
    for name, column, number in cells(table, "Assisted Generation", _OWN):
        own, why = (pearl, "runs") if name == _OWN else (assisted, "schedule")
        how = "rates" if column in _KNOWN else "rate fitted to Table 1"
        yield PAPER.row(f"{name}, {column}", number, own(pair_of(column)), how, why)
        if name == _OWN:
            yield from _varying(f"{name}, {column}", number, column)
    yield from PAPER.rows_of(per_cell(table, "Ouroboros", "Lookahead Decoding"), "named models")


def _varying(row: str, number: float, column: str) -> Iterator[Row]:
    """Yield PEARL at a rate that varies along a text; with Table 7's run also its upper bound."""
    pair, table = pair_of(column), _DATA["Table 7"]
    if column not in _KNOWN:
        speed_up = _DATA["Table 1"][_SD][_DATA["Table 1"]["columns"].index(column)]
        yield _fitted_varying(row, number, pair, speed_up)
        return
    mean = table["Ours"][table["columns"].index(column)]
    ours = pearl_varying(pair, runs_of_mean(mean))
    yield PAPER.row(f"{row}, varying rate", number, ours, "recorded texts, mean run")
    yield PAPER.row(f"{row}, most at any pattern", None, most_varying(pair, mean), "any pattern")


def _fitted_varying(row: str, number: float, pair: Pair, speed_up: float) -> Row:
    ours = pearl_varying(pair, runs_of_speed(pair, float(speed_up)))
    return PAPER.row(f"{row}, varying rate", number, ours, "recorded texts, speed-up")


def _averages(item: str, pair: str, spec: str, own: str) -> Iterator[Row]:
    """Yield PEARL's mean from the mean of speculative decoding; the other cells as published."""
    table = _DATA[item]
    chosen, spec_mean, own_mean = pair_of(pair, float(table[spec][-1])), table[spec][-1], table[own][-1]
    yield PAPER.row(
        f"{spec}, Avg.", spec_mean, best_speculative(chosen), "rate of the mean", fitted=True, row=spec
    )
    yield PAPER.row(f"{own}, Avg.", own_mean, pearl(chosen), "rate of the mean", "runs", row=spec)
    yield _fitted_varying(f"{own}, Avg.", own_mean, pair_of(pair), spec_mean)
    single = (entry for entry in per_cell(table, spec, own) if not entry[0].endswith("Avg."))
    yield from PAPER.rows_of(single, "named models")


@PAPER.item("Table 2", "Table 3")
def _of_llama(item: str) -> Iterator[Row]:
    yield from _averages(item, "llama-2-7-70", _SD, _OWN)
    others = per_cell(_DATA[item], "Ouroboros", "Lookahead Decoding", "Assisted Generation")
    yield from PAPER.rows_of(others, "named models")


@PAPER.item("Table 4")
def _table_4() -> Iterator[Row]:
    ways = {
        "PEARL w/o pre-verify": without_pre_verify,
        "PEARL w/o post-verify": without_post_verify,
        "PEARL": pearl,
    }
    for name, column, number in cells(_DATA["Table 4"]):
        llama = column.startswith("llama")
        chosen = pair_of(column, float(_DATA["Table 2"][_SD][0]) if llama else None)
        how, why = ("rate of GSM8K", "GSM8K twice") if llama else ("rates", "slower runs")
        yield PAPER.row(f"{name}, {column}", number, ways[name](chosen), how, why)


def _speed(way: Callable[[Pair, int], float], pair: Pair, gamma: object) -> float:
    return way(pair, int(str(gamma))) * 1e3 / pair.target


@PAPER.item("Table 5")
def _table_5() -> Iterator[Row]:
    def ours(gamma: str, pair: str) -> float:
        return _speed(pearl, pair_of(pair), gamma)

    return PAPER.rows_of(per_cell(_DATA["Table 5"], ours=ours, label="gamma {}, {}"), "rates, other gamma")


@PAPER.item("Table 6")
def _table_6() -> Iterator[Row]:
    fits = {"HumanEval": ("Table 1", 2), "GSM8K": ("Table 2", 0), "MT-Bench": ("Table 3", -1)}
    for gamma, column, number in cells(_DATA["Table 6"]):
        where, at = fits[column]
        ours = _speed(pearl, pair_of("llama-2-7-70", float(_DATA[where][_SD][at])), gamma)
        why = "GSM8K contradicts" if column == "GSM8K" else "runs"
        yield PAPER.row(f"gamma {gamma}, {column}", number, ours, "rate of the data", why, table=where)


@PAPER.item("Table 7")
def _table_7() -> Iterator[Row]:
    def ours(_: str, pair: str) -> float:
        return speculative_tokens(pair_of(pair).rate, best_gamma(pair)) - 1

    yield from PAPER.rows_of(per_cell(_DATA["Table 7"], _SD, ours=ours), "rate of PEARL's row")
    own = per_cell(
        _DATA["Table 7"], "Ours", ours=lambda _, pair: pair_of(pair).rate / (1 - pair_of(pair).rate)
    )
    yield from PAPER.rows_of(own, "the rate itself")


@PAPER.item("Table 8", "Table 17", "Table 18")
def _competition(item: str) -> Iterator[Row]:
    for name, tables in numbers("pearl-rc").items():
        if isinstance(tables, dict):
            table, ours = tables[item], pipeline(name)
            ratios = zip(table["columns"], table["separate"], table["pipeline"], strict=True)
            for column, alone, shared in ratios:
                yield PAPER.row(f"{name}, {column}, RC over no RC", shared / alone, ours, "moved KV rows")


@PAPER.item("Table 9")
def _table_9() -> Iterator[Row]:
    table = _DATA["Table 9"]
    steps = followed([draft.split() for draft in table["drafts"]], table["text"].split())
    for number, (printed, post, step) in enumerate(zip(table["added"], table["post"], steps, strict=True)):
        yield PAPER.row(f"step {number}, tokens added", printed, step.added, "algorithm 2")
        yield PAPER.row(f"step {number}, post-verify is next", post, step.post, "algorithm 2")


@PAPER.item("Table 10")
def _table_10() -> Iterator[Row]:
    own = [Profile.load(name).models for name in profiles() if name.startswith("pearl-")]
    models = {name: model for each in own for name, model in each.items()}
    speeds = per_cell(_DATA["Table 10"], ours=lambda _, model: models[model].speed)
    yield from PAPER.rows_of(speeds, "profile")
    windows = ((f"round(c), {pair}", n, pair_of(pair).window) for pair, n in _DATA["windows"].items())
    yield from PAPER.rows_of(windows, "ratio of the speeds")


@PAPER.item("Table 11")
def _table_11() -> Iterator[Row]:
    table = _DATA["Table 11"]
    for kind in ("SD", "PEARL"):
        name = f"Draft Model ({kind})"
        both = zip(cells(table, name), cells(table, f"Target Model ({kind})"), strict=True)
        for (_, column, drafts), (_, _, targets) in both:
            yield PAPER.row(f"{name}, {column}", drafts, pair_of(column).window * targets, "draft runs")

    def ours(_: str, pair: str) -> float:
        rate, window = pair_of(pair).rate, pair_of(pair).window
        return speculative_tokens(rate, window) / pearl_tokens(rate, window)

    ratios = per_cell(table, "Draft Model (PEARL) ratio", "Target Model (PEARL) ratio", ours=ours)
    yield from PAPER.rows_of(ratios, "tokens of a run")
    yield from PAPER.rows_of(per_cell(table, "Target Model (SD)", "Target Model (PEARL)"), "counts")


@PAPER.item("Table 12")
def _table_12() -> Iterator[Row]:
    return PAPER.rows_of(per_cell(_DATA["Table 12"]), "repeats Table 2")


@PAPER.item("Table 13")
def _table_13() -> Iterator[Row]:
    for model, pair in (("Llama 2 7B&70B", "llama-2-7-70"), ("Llama 3.1 8B&70B", "llama-3.1-8-70")):
        yield from _averages("Table 13", pair, f"{model} {_SD}", f"{model} Ours")


@PAPER.item("Table 14")
def _table_14() -> Iterator[Row]:
    table = _DATA["Table 14"]
    for pair, gammas in table["gamma"].items():
        for gamma, number in zip(gammas, table["speed"][pair], strict=True):
            ours = _speed(speculative, pair_of(pair), gamma)
            yield PAPER.row(f"{pair}, gamma {gamma}", number, ours, "rates", "long drafts")


@PAPER.item("Table 15")
def _table_15() -> Iterator[Row]:
    def ours(name: str, pair: str) -> float:
        chosen, times = pair_of(pair), latency(pair)
        parts = {
            "communication": times.communicate_us / 1e3,
            "verify": times.sample_us / 1e3,
            "draft": chosen.window * chosen.drafter,
            "target": chosen.target,
        }
        return parts[name]

    steps, forwards = (("communication", "verify"), "median"), (("draft", "target"), "forwards of a step")
    for names, how in (steps, forwards):
        yield from PAPER.rows_of(per_cell(_DATA["Table 15"], *names, ours=ours), how)


@PAPER.item("Table 16")
def _table_16() -> Iterator[Row]:
    move = latency("llama-3.1-8-70").move_us
    entries = per_cell(
        _DATA["Table 16"], ours=lambda _, n: move("drafter", int(n)) / 1e3, label="{}, {} tokens"
    )
    return PAPER.rows_of(entries, "link")


@PAPER.item("Figure 1")
def _figure_1() -> Iterator[Row]:
    """Yield the target's idle shares, which show Figure 1's claim that waiting ends."""
    for name in _KNOWN:
        chosen = pair_of(name)
        serial = best_gamma(name) * chosen.drafter + chosen.target + chosen.step
        for method, time in (("SD", serial), ("PEARL", together(chosen, chosen.window))):
            yield PAPER.row(f"{method}, target idle, {name}", None, 1 - chosen.target / time, "idle")


@PAPER.item("Figure 2")
def _figure_2() -> Iterator[Row]:
    """Yield the claims of section 3.1 about drafting, and the spread of the best draft length."""
    claim, chosen = _DATA["Figure 2"], pair_of("codellama-7-34")
    ratio = chosen.target / chosen.drafter
    claims = (
        ("(a) running speed, drafter over target", claim["speed_ratio"], ratio),
        ("(a) time of 6 drafts over one verification", claim["drafting"], claim["drafts"] / ratio),
    )
    yield from PAPER.rows_of(claims, "speeds of Table 10")
    for name in _KNOWN:
        rate = pair_of(name).rate
        row = f"(b) standard deviation of the best draft length, {name}"
        yield PAPER.row(row, None, rate**0.5 / (1 - rate), "geometric")


@PAPER.item("Figure 3")
def _figure_3() -> Iterator[Row]:
    figure = _DATA["Figure 3"]
    ours = [step.added for step in followed(figure["right"], [True] * figure["total"])]
    for number, (published, added) in enumerate(zip(figure["added"], ours, strict=True), 1):
        yield PAPER.row(f"step {number}, tokens added", published, added, "algorithm 2, gamma 3")
    yield PAPER.row("tokens of four steps", figure["total"], sum(ours), "algorithm 2, gamma 3")


class Step(NamedTuple):
    """A step of PEARL: tokens by which the output grows, and whether post-verify is next."""

    added: int
    post: bool


def followed(chunks: Sequence[Sequence[object]], text: Sequence[object]) -> list[Step]:
    """Return the steps of PEARL (algorithm 2) for the drafts of each step and the target's text."""
    pending, length, steps = list[object](), 0, list[Step]()
    for chunk in chunks:
        judged = [*pending, chunk[0]]
        same = [a == b for a, b in zip(judged, text[length:], strict=False)]
        right = same.index(False) if False in same else len(judged)
        pending = [*chunk[1:]] if right == len(judged) else []
        steps.append(Step(min(right + 1, len(judged)), right == len(judged)))
        length += steps[-1].added
    return steps


@PAPER.item("Appendix G")
def _appendix_g() -> Iterator[Row]:
    data, times = _DATA["Appendix G"], latency("llama-3.1-8-70")
    assert times.drafter is not None
    size = round(times.drafter.kv_bytes * data["rows"] / 1e9, 2)
    yield PAPER.row("KV cache of 1,024 tokens, GB", data["kv_gb"], size, "shape")
    move = round(data["kv_gb"] / times.hardware.link_gb_s * 1e3, 2)
    yield PAPER.row("time over NVLink, ms", data["move_ms"], move, "NVLink")
    steps = data["gpus"] * data["c"]
    target = [step * data["gpus"] // steps for step in range(steps)]
    moved = ceil(data["c"] / 2) * data["gpus"]
    drafter = [data["gpus"] - 1 if step < moved else 0 for step in range(steps)]
    for name, ours in (("target", target), ("drafter", drafter)):
        for step, (published, gpu) in enumerate(zip(data[name], ours, strict=True)):
            yield PAPER.row(f"GPU of the {name} in sub-step {step}", published, gpu, "equations 2 and 3")
