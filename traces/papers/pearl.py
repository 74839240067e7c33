"""PEARL: all tables from the four rates of Table 7, and the speeds of Table 10."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import NamedTuple

from engine.simulate.profile import Profile, profiles
from traces.closed_forms import pearl_tokens, speculative_tokens
from traces.papers.pearl_speeds import (
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
from traces.papers.rows import Paper, Row, cells, numbers, per_cell, published_only, rows

_DATA = numbers("pearl")
_SD, _OWN = "Speculative Decoding", "PEARL (ours)"
_KNOWN = _DATA["Table 7"]["columns"]
"""Pairs whose mean run of accepted tokens is printed."""
_RATES = (
    "Rate from Table 7, speeds from Table 10, 1.9 ms a step from Table 15; tokens are accepted independently."
)
_NAMED = "Needs the named models."
_RUNS = (
    "a rate that varies along a text is a part of it, as the rows of a varying rate in Tables 1 to 3 and 13 show; the "
    "rest is in the steps, which must be shorter than Tables 10 and 15 give."
)
_RECORDED = "The hard and easy parts of recorded texts (assets/papers/pearl-acceptance.toml), with "


def _table_1() -> Iterator[Row]:
    table = _DATA["Table 1"]
    for name, column, number in cells(table, _SD):
        fitted = column not in _KNOWN
        text = (
            "The rate is fitted to it, at the best gamma." if fitted else f"{_RATES} Best gamma of Table 14."
        )
        ours = at_printed_gamma(pair_of(column), column)
        yield Row(f"{name}, {column}", number, ours, "closed form", text, fitted=fitted)
    fit = "Rate fitted to speculative decoding's row of Table 1."
    why = "the assistant's own schedule and costs are not in the paper."
    for name, column, number in cells(table, "Assisted Generation", _OWN):
        own, reason = (pearl, _RUNS) if name == _OWN else (assisted, why)
        text = _RATES if column in _KNOWN else fit
        yield Row(f"{name}, {column}", number, own(pair_of(column)), "closed form", text, reason)
        if name == _OWN:
            yield from _varying(f"{name}, {column}", number, column)
    yield from published_only(table, _NAMED, "Ouroboros", "Lookahead Decoding")


def _varying(row: str, number: float, column: str) -> Iterator[Row]:
    """Yield PEARL at a rate that varies along a text; with Table 7's run also its upper bound."""
    pair, table = pair_of(column), _DATA["Table 7"]
    if column not in _KNOWN:
        speed_up = _DATA["Table 1"][_SD][_DATA["Table 1"]["columns"].index(column)]
        yield _fitted_varying(row, number, pair, speed_up)
        return
    mean = table["Ours"][table["columns"].index(column)]
    ours = pearl_varying(pair, runs_of_mean(mean))
    yield Row(f"{row}, varying rate", number, ours, "simulated", f"{_RECORDED}Table 7's mean run.", _RUNS)
    text = "Every pattern of acceptance with Table 7's mean run takes at least 1 + n / gamma steps a run, of Table 10's "
    text += (
        "and 15's times. The print is above it in each of the four pairs, so these tables contradict Table 1."
    )
    yield Row(f"{row}, most at any pattern", None, most_varying(pair, mean), "closed form", text)


def _fitted_varying(row: str, number: float, pair: Pair, speed_up: float) -> Row:
    ours = pearl_varying(pair, runs_of_speed(pair, float(speed_up)))
    text = f"{_RECORDED}as many rejections as give speculative decoding its printed speed-up."
    return Row(f"{row}, varying rate", number, ours, "simulated", text, _RUNS)


def _averages(item: str, pair: str, spec: str = _SD, own: str = _OWN, *others: str) -> Iterator[Row]:
    """Yield PEARL's mean from the mean of speculative decoding; the other cells as published."""
    table = _DATA[item]
    chosen = pair_of(pair, float(table[spec][-1]))
    fit = f"One rate for the data, fitted to the mean of {spec}; speeds of HumanEval (Table 10)."
    yield Row(f"{spec}, Avg.", table[spec][-1], best_speculative(chosen), "closed form", fit, fitted=True)
    yield Row(f"{own}, Avg.", table[own][-1], pearl(chosen), "closed form", fit, _RUNS)
    yield _fitted_varying(f"{own}, Avg.", table[own][-1], pair_of(pair), table[spec][-1])
    yield from (row for row in published_only(table, _NAMED, spec, own) if not row.row.endswith("Avg."))
    if others:
        yield from published_only(table, _NAMED, *others)


def _of_llama(item: str) -> Iterator[Row]:
    others = ("Ouroboros", "Lookahead Decoding", "Assisted Generation")
    return _averages(item, "llama-2-7-70", _SD, _OWN, *others)


def _table_4() -> Iterator[Row]:
    ways = {
        "PEARL w/o pre-verify": without_pre_verify,
        "PEARL w/o post-verify": without_post_verify,
        "PEARL": pearl,
    }
    for name, column, number in cells(_DATA["Table 4"]):
        llama = column.startswith("llama")
        chosen = pair_of(column, float(_DATA["Table 2"][_SD][0]) if llama else None)
        text = "Rate fitted to speculative decoding on GSM8K (Table 2)." if llama else _RATES
        reason = (
            "Table 2 prints 3.82 for PEARL on GSM8K where this table prints 2.87, so the two are different runs."
            if llama
            else "the table's runs of CodeLlama are 5 to 14 % slower than Table 1's."
        )
        yield Row(f"{name}, {column}", number, ways[name](chosen), "closed form", text, reason)


def _speed(way: Callable[[Pair, int], float], pair: Pair, gamma: object) -> float:
    """Return the tokens per second of a way to decode at a draft length."""
    return way(pair, int(str(gamma))) * 1e3 / pair.target


def _table_5() -> Iterator[Row]:
    entries = per_cell(
        _DATA["Table 5"], ours=lambda gamma, pair: _speed(pearl, pair_of(pair), gamma), label="gamma {}, {}"
    )
    reason = "the paper's step is slower at a gamma other than round(c) than its parts are in Table 10."
    return rows(entries, "closed form", _RATES, reason)


def _table_6() -> Iterator[Row]:
    fits = {"HumanEval": ("Table 1", 2), "GSM8K": ("Table 2", 0), "MT-Bench": ("Table 3", -1)}
    for gamma, column, number in cells(_DATA["Table 6"]):
        where, at = fits[column]
        ours = _speed(pearl, pair_of("llama-2-7-70", float(_DATA[where][_SD][at])), gamma)
        text = f"Rate fitted to speculative decoding on the same data ({where})."
        contradicts = "Table 2's speed-up on GSM8K (3.82) contradicts this table's (26.47 / 9.22 = 2.87)."
        reason = contradicts if column == "GSM8K" else _RUNS
        yield Row(f"gamma {gamma}, {column}", number, ours, "closed form", text, reason)


def _table_7() -> Iterator[Row]:
    table = _DATA["Table 7"]

    def ours(_: str, pair: str) -> float:
        return speculative_tokens(pair_of(pair).rate, best_gamma(pair)) - 1

    text = "Rate from PEARL's row; gamma is the best one of Table 14."
    yield from rows(per_cell(table, _SD, ours=ours), "closed form", text)
    own = per_cell(table, "Ours", ours=lambda _, pair: pair_of(pair).rate / (1 - pair_of(pair).rate))
    yield from rows(own, "closed form", "The rate is fitted to it.", fitted=True)


def _competition(item: str) -> Iterator[Row]:
    text = (
        "The only cost of sharing is moving new KV rows once a step (Table 16): ours is 0.99 to 1. All "
        "printed ratios are from 0.89 to 1, so the row can hardly miss."
    )
    for name, tables in numbers("pearl-rc").items():
        if isinstance(tables, dict):
            table, ours = tables[item], pipeline(name)
            ratios = zip(table["columns"], table["separate"], table["pipeline"], strict=True)
            entries = (
                (f"{name}, {column}, RC over no RC", shared / alone, ours) for column, alone, shared in ratios
            )
            yield from rows(entries, "closed form", text, easy=True)


def _table_9() -> Iterator[Row]:
    """Yield tokens and modes of the steps of appendix B."""
    table, about = _DATA["Table 9"], "Algorithm 2 on the printed drafts and the printed text."
    steps = followed([draft.split() for draft in table["drafts"]], table["text"].split())
    for number, (printed, post, step) in enumerate(zip(table["added"], table["post"], steps, strict=True)):
        yield Row(f"step {number}, tokens added", printed, step.added, "exact", about)
        yield Row(f"step {number}, post-verify is next", post, step.post, "exact", about)


def _table_10() -> Iterator[Row]:
    models = {
        k: v for name in profiles() if name[:6] == "pearl-" for k, v in Profile.load(name).models.items()
    }
    speeds = per_cell(_DATA["Table 10"], ours=lambda _, model: models[model].speed)
    yield from rows(speeds, "copied", "The profile's input.")
    windows = ((f"round(c), {pair}", n, pair_of(pair).window) for pair, n in _DATA["windows"].items())
    yield from rows(windows, "exact", "c is the ratio of the speeds.")


def _table_11() -> Iterator[Row]:
    table = _DATA["Table 11"]
    for kind in ("SD", "PEARL"):
        name = f"Draft Model ({kind})"
        both = zip(cells(table, name), cells(table, f"Target Model ({kind})"), strict=True)
        entries = (
            (f"{name}, {column}", drafts, pair_of(column).window * targets)
            for (_, column, drafts), (_, _, targets) in both
        )
        yield from rows(entries, "arithmetic", "Draft runs are round(c) times the printed target runs.")

    def ours(_: str, pair: str) -> float:
        rate, window = pair_of(pair).rate, pair_of(pair).window
        return speculative_tokens(rate, window) / pearl_tokens(rate, window)

    ratios = per_cell(table, "Draft Model (PEARL) ratio", "Target Model (PEARL) ratio", ours=ours)
    text = "Tokens of a run of SD over those of a run of PEARL, both at gamma = round(c)."
    yield from rows(ratios, "closed form", text)
    counts = "A count needs the number of tokens generated, which is not printed; its ratio is above."
    yield from published_only(table, counts, "Target Model (SD)", "Target Model (PEARL)")


def _table_13() -> Iterator[Row]:
    for model, pair in (("Llama 2 7B&70B", "llama-2-7-70"), ("Llama 3.1 8B&70B", "llama-3.1-8-70")):
        yield from _averages("Table 13", pair, f"{model} {_SD}", f"{model} Ours")


def _table_14() -> Iterator[Row]:
    table = _DATA["Table 14"]
    entries = (
        (f"{pair}, gamma {gamma}", number, _speed(speculative, pair_of(pair), gamma))
        for pair, gammas in table["gamma"].items()
        for gamma, number in zip(gammas, table["speed"][pair], strict=True)
    )
    reason = "a long draft costs the paper more than gamma times Table 10's forward."
    return rows(entries, "closed form", _RATES, reason)


def _table_15() -> Iterator[Row]:
    """Yield the milliseconds of a step's parts."""

    def step(name: str, pair: str) -> float:
        times = latency(pair)
        return (times.sample_us if name == "verify" else times.communicate_us) / 1e3

    def forward(name: str, pair: str) -> float:
        chosen = pair_of(pair)
        return chosen.window * chosen.drafter if name == "draft" else chosen.target

    table = _DATA["Table 15"]
    steps = per_cell(table, "communication", "verify", ours=step)
    yield from rows(steps, "closed form", "The profile has the median of the three pairs.", fitted=True)
    forwards = per_cell(table, "draft", "target", ours=forward)
    text = "round(c) drafts, or one target forward, at Table 10's speeds."
    reason = "Table 15 is slower than Table 10 for this pair, an inconsistency of the paper."
    yield from rows(forwards, "closed form", text, reason)


def _table_16() -> Iterator[Row]:
    """Yield the milliseconds to move a KV cache."""
    move = latency("llama-3.1-8-70").move_us
    entries = per_cell(
        _DATA["Table 16"], ours=lambda _, n: move("drafter", int(n)) / 1e3, label="{}, {} tokens"
    )
    text = "Bytes over 300 GB/s and one start; the start is the median over the four lengths."
    return rows(entries, "closed form", text, fitted=True)


def _figure_1() -> Iterator[Row]:
    """Yield the target's idle shares, which show Figure 1's claim that waiting ends."""
    text = "The figure prints no numbers: the share of a step in which the target waits."
    for name in _KNOWN:
        chosen = pair_of(name)
        serial = best_gamma(name) * chosen.drafter + chosen.target + chosen.step
        for method, time in (("SD", serial), ("PEARL", together(chosen, chosen.window))):
            idle = 1 - chosen.target / time
            yield Row(f"{method}, target idle, {name}", None, idle, "closed form", text)


def _figure_2() -> Iterator[Row]:
    """Yield the claims of section 3.1 about drafting, and the spread of the best draft length."""
    claim, chosen = _DATA["Figure 2"], pair_of("codellama-7-34")
    ratio = chosen.target / chosen.drafter
    claims = (
        ("(a) running speed, drafter over target", claim["speed_ratio"], ratio),
        ("(a) time of 6 drafts over one verification", claim["drafting"], claim["drafts"] / ratio),
    )
    yield from rows(claims, "closed form", "Speeds of Table 10.")
    spreads = (
        (
            f"(b) standard deviation of the best draft length, {name}",
            None,
            pair_of(name).rate ** 0.5 / (1 - pair_of(name).rate),
        )
        for name in _KNOWN
    )
    text = "No numbers printed: the best length of a step is the run of right drafts, a geometric variable."
    yield from rows(spreads, "closed form", text)


def _figure_3() -> Iterator[Row]:
    """Yield the tokens of the figure's four steps."""
    figure = _DATA["Figure 3"]
    ours = [step.added for step in followed(figure["right"], [True] * figure["total"])]
    steps = enumerate(zip(figure["added"], ours, strict=True), 1)
    entries = [(f"step {number}, tokens added", published, n) for number, (published, n) in steps]
    entries.append(("tokens of four steps", figure["total"], sum(ours)))
    return rows(entries, "exact", "Algorithm 2 at gamma = 3.")


class Step(NamedTuple):
    """A step of PEARL."""

    added: int
    """Tokens by which the output grows."""
    post: bool
    """Whether the next mode is post-verify."""


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


def _appendix_g() -> Iterator[Row]:
    """Yield the KV bytes and the GPU of each model in each sub-step."""
    data, times = _DATA["Appendix G"], latency("llama-3.1-8-70")
    assert times.drafter is not None
    size = round(times.drafter.kv_bytes * data["rows"] / 1e9, 2)
    yield Row("KV cache of 1,024 tokens, GB", data["kv_gb"], size, "exact", "Shape of Llama 3.1 8B.")
    move = round(data["kv_gb"] / times.hardware.link_gb_s * 1e3, 2)
    text = "The printed 0.13 GB at 300 GB/s."
    yield Row("time over NVLink, ms", data["move_ms"], move, "arithmetic", text)
    steps = data["gpus"] * data["c"]
    target = [step * data["gpus"] // steps for step in range(steps)]
    moved = ceil(data["c"] / 2) * data["gpus"]
    drafter = [data["gpus"] - 1 if step < moved else 0 for step in range(steps)]
    for name, ours in (("target", target), ("drafter", drafter)):
        for step, (published, gpu) in enumerate(zip(data[name], ours, strict=True)):
            yield Row(f"GPU of the {name} in sub-step {step}", published, gpu, "exact", "Equations 2 and 3.")


PAPER = Paper(
    "pearl",
    {
        "Table 1": _table_1,
        "Table 2": lambda: _of_llama("Table 2"),
        "Table 3": lambda: _of_llama("Table 3"),
        "Table 4": _table_4,
        "Table 5": _table_5,
        "Table 6": _table_6,
        "Table 7": _table_7,
        "Table 8": lambda: _competition("Table 8"),
        "Table 9": _table_9,
        "Table 10": _table_10,
        "Table 11": _table_11,
        "Table 12": lambda: published_only(
            _DATA["Table 12"], "Repeats Table 2, which is another pair; nothing to predict."
        ),
        "Table 13": _table_13,
        "Table 14": _table_14,
        "Table 15": _table_15,
        "Table 16": _table_16,
        "Table 17": lambda: _competition("Table 17"),
        "Table 18": lambda: _competition("Table 18"),
        "Figure 1": _figure_1,
        "Figure 2": _figure_2,
        "Figure 3": _figure_3,
        "Appendix G": _appendix_g,
    },
)
