"""PEARL: all tables from the four rates of Table 7, and the speeds of Table 10.

Table 7 prints the mean run n of accepted tokens between two rejections. If tokens are accepted
independently, n = a / (1 - a), so the acceptance rate a is n / (1 + n). A step costs what Table 15
prints besides forwards: 0.2 ms of communication and 1.7 ms of verification. For the Llama pairs the
paper prints no accepted tokens; their rate is fitted once to the row of speculative decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import ceil
from typing import NamedTuple

from engine.simulate.latency import Latency
from engine.simulate.profile import Profile, profiles
from traces.closed_forms import pearl_tokens, speculative_tokens
from traces.papers.rows import Paper, Row, bisect, cells, numbers, published_only

_DATA = numbers("pearl")
_LONGEST = 64
"""Longest draft of `assisted`, in tokens."""

_RATES = (
    "Rate from Table 7, speeds from Table 10, 1.9 ms a step from Table 15; tokens are accepted independently."
)
_NAMED = "Needs the named models."
_RUNS = (
    "the rate varies along a text. Half of it at 0.95 and half at 0.60 gives PEARL 7 % more than one rate "
    "that gives speculative decoding the same speed."
)


class Pair(NamedTuple):
    """Milliseconds of a pair, and its acceptance rate on HumanEval."""

    target: float
    drafter: float
    step: float
    rate: float

    @property
    def window(self) -> int:
        """PEARL's draft length: round(c)."""
        return round(self.target / self.drafter)


@cache
def latency(pair: str) -> Latency:
    """Return the times of a pair of the paper's two profiles."""
    for name in profiles():
        if name.startswith("pearl-") and pair in (profile := Profile.load(name)).pairs:
            return profile.latency(pair)
    raise KeyError(pair)


def pair_of(name: str, speed_up: float | None = None) -> Pair:
    """Return a pair with the rate of Table 7, or with the rate at which SD has a speed-up."""
    times = latency(name)
    assert times.drafter is not None
    step = (times.sample_us + times.communicate_us) / 1e3
    pair = Pair(1e3 / times.target.speed, 1e3 / times.drafter.speed, step, 0.0)
    table = _DATA["Table 7"]
    if speed_up is None and name in table["columns"]:
        run = table["Ours"][table["columns"].index(name)]
        return pair._replace(rate=run / (1 + run))
    if speed_up is None:
        first = _DATA["Table 1"]
        speed_up = float(first["Speculative Decoding"][first["columns"].index(name)])
    return pair._replace(rate=bisect(lambda a: best_speculative(pair._replace(rate=a)), speed_up, 0, 1))


def speculative(pair: Pair, gamma: int) -> float:
    """Return the speed-up of speculative decoding."""
    return (
        speculative_tokens(pair.rate, gamma) * pair.target / (gamma * pair.drafter + pair.target + pair.step)
    )


def best_speculative(pair: Pair) -> float:
    """Return it at the best gamma, as appendix D.2 does."""
    return max(speculative(pair, gamma) for gamma in range(1, 33))


def pearl(pair: Pair, gamma: int = 0) -> float:
    """Return the speed-up of PEARL; gamma 0 is round(c)."""
    gamma = gamma or pair.window
    return pearl_tokens(pair.rate, gamma) * pair.target / _together(pair, gamma)


def without_post_verify(pair: Pair) -> float:
    """Return the speed-up without post-verify.

    A pre-verify step adds a token; with probability a the other gamma - 1 are verified alone.
    """
    gamma, rate = pair.window, pair.rate
    tokens = 1 + rate * speculative_tokens(rate, gamma - 1)
    return tokens * pair.target / (_together(pair, gamma) + rate * (pair.target + pair.step))


def without_pre_verify(pair: Pair) -> float:
    """Return the speed-up without pre-verify.

    A chunk is drafted alone after each rejection. Then each step verifies a chunk and drafts the
    next; with probability a^gamma another such step follows.
    """
    gamma, rate = pair.window, pair.rate
    steps = 1 / (1 - rate**gamma)
    tokens = steps * speculative_tokens(rate, gamma - 1)
    return tokens * pair.target / (steps * _together(pair, gamma) + gamma * pair.drafter)


def assisted(pair: Pair) -> float:
    """Return the speed-up of assisted generation: 2 drafts more when all are accepted, else 1 less.

    The draft length is a Markov chain; its stationary shares are found by repeated steps.
    """
    shares = [0.0] * (_LONGEST + 1)
    shares[5] = 1.0
    for _ in range(2000):
        after = [0.0] * (_LONGEST + 1)
        for length, share in enumerate(shares):
            if share:
                all_right = pair.rate**length
                after[min(_LONGEST, length + 2)] += share * all_right
                after[max(1, length - 1)] += share * (1 - all_right)
        shares = [(old + new) / 2 for old, new in zip(shares, after, strict=True)]
    tokens = sum(s * speculative_tokens(pair.rate, n) for n, s in enumerate(shares) if s)
    time = sum(s * (n * pair.drafter + pair.target + pair.step) for n, s in enumerate(shares) if s)
    return tokens * pair.target / time


def _together(pair: Pair, gamma: int) -> float:
    """Return the milliseconds of a step that drafts and verifies at once."""
    return max(gamma * pair.drafter, pair.target) + pair.step


def _best_gamma(name: str) -> int:
    """Return the best gamma of Table 14."""
    table = _DATA["Table 14"]
    return table["gamma"][name][table["speed"][name].index(max(table["speed"][name]))]


def _at_printed_gamma(pair: Pair, name: str) -> float:
    """Return speculative decoding's speed-up at the best gamma, of Table 14 if it has the pair."""
    if name in _DATA["Table 14"]["gamma"]:
        return speculative(pair, _best_gamma(name))
    return best_speculative(pair)


def _table_1() -> Iterator[Row]:
    table = _DATA["Table 1"]
    for name, column, number in cells(table, "Speculative Decoding"):
        fitted = column not in _DATA["Table 7"]["columns"]
        text = (
            "The rate is fitted to it, at the best gamma." if fitted else f"{_RATES} Best gamma of Table 14."
        )
        ours = _at_printed_gamma(pair_of(column), column)
        yield Row(f"{name}, {column}", number, ours, "closed form", text, fitted=fitted)
    for method, own in (
        ("Assisted Generation", assisted),
        ("PEARL (ours)", pearl),
    ):
        for name, column, number in cells(table, method):
            fitted = column not in _DATA["Table 7"]["columns"]
            text = "Rate fitted to speculative decoding's row of Table 1." if fitted else _RATES
            reason = (
                "the assistant's own schedule and costs are not in the paper." if own is assisted else _RUNS
            )
            yield Row(
                f"{name}, {column}",
                number,
                own(pair_of(column)),
                "closed form",
                text,
                reason,
            )
    yield from published_only(table, _NAMED, "Ouroboros", "Lookahead Decoding")


def _averages(item: str, pair: str, spec: str, own: str) -> Iterator[Row]:
    """Yield PEARL's mean from the mean of speculative decoding; the other cells as published."""
    table = _DATA[item]
    chosen = pair_of(pair, float(table[spec][-1]))
    fit = f"One rate for the data, fitted to the mean of {spec}; speeds of HumanEval (Table 10)."
    yield Row(f"{spec}, Avg.", table[spec][-1], best_speculative(chosen), "closed form", fit, fitted=True)
    yield Row(f"{own}, Avg.", table[own][-1], pearl(chosen), "closed form", fit, _RUNS)
    for row in published_only(table, _NAMED, spec, own):
        if not row.row.endswith("Avg."):
            yield row


def _table_2() -> Iterator[Row]:
    yield from _averages("Table 2", "llama-2-7-70", "Speculative Decoding", "PEARL (ours)")
    yield from published_only(
        _DATA["Table 2"], _NAMED, "Ouroboros", "Lookahead Decoding", "Assisted Generation"
    )


def _table_3() -> Iterator[Row]:
    yield from _averages("Table 3", "llama-2-7-70", "Speculative Decoding", "PEARL (ours)")
    yield from published_only(
        _DATA["Table 3"], _NAMED, "Ouroboros", "Lookahead Decoding", "Assisted Generation"
    )


def _table_4() -> Iterator[Row]:
    ways = {
        "PEARL w/o pre-verify": without_pre_verify,
        "PEARL w/o post-verify": without_post_verify,
        "PEARL": pearl,
    }
    for name, column, number in cells(_DATA["Table 4"]):
        llama = column.startswith("llama")
        chosen = pair_of(column, float(_DATA["Table 2"]["Speculative Decoding"][0]) if llama else None)
        text = "Rate fitted to speculative decoding on GSM8K (Table 2)." if llama else _RATES
        reason = (
            "Table 2 prints 3.82 for PEARL on GSM8K where this table prints 2.87, so the two are different runs."
            if llama
            else "the table's runs of CodeLlama are 5 to 14 % slower than Table 1's."
        )
        yield Row(f"{name}, {column}", number, ways[name](chosen), "closed form", text, reason)


def _by_gamma(item: str) -> Iterator[Row]:
    reason = "the paper's step is slower at a gamma other than round(c) than its parts are in Table 10."
    for gamma, column, number in cells(_DATA[item]):
        chosen = pair_of(column)
        ours = pearl(chosen, int(gamma)) * 1e3 / chosen.target
        yield Row(f"gamma {gamma}, {column}", number, ours, "closed form", _RATES, reason)


def _table_5() -> Iterator[Row]:
    return _by_gamma("Table 5")


def _table_6() -> Iterator[Row]:
    fits = {
        "HumanEval": ("Table 1", _DATA["Table 1"]["Speculative Decoding"][2]),
        "GSM8K": ("Table 2", _DATA["Table 2"]["Speculative Decoding"][0]),
        "MT-Bench": ("Table 3", _DATA["Table 3"]["Speculative Decoding"][-1]),
    }
    for gamma, column, number in cells(_DATA["Table 6"]):
        where, speed_up = fits[column]
        chosen = pair_of("llama-2-7-70", float(speed_up))
        ours = pearl(chosen, int(gamma)) * 1e3 / chosen.target
        text = f"Rate fitted to speculative decoding on the same data ({where})."
        contradicts = "Table 2's speed-up on GSM8K (3.82) contradicts this table's (26.47 / 9.22 = 2.87)."
        reason = contradicts if column == "GSM8K" else _RUNS
        yield Row(f"gamma {gamma}, {column}", number, ours, "closed form", text, reason)


def _table_7() -> Iterator[Row]:
    table = _DATA["Table 7"]
    for name, column, number in cells(table, "Speculative Decoding"):
        ours = speculative_tokens(pair_of(column).rate, _best_gamma(column)) - 1
        text = "Rate from PEARL's row; gamma is the best one of Table 14."
        yield Row(f"{name}, {column}", number, ours, "closed form", text)
    for name, column, number in cells(table, "Ours"):
        rate = pair_of(column).rate
        yield Row(
            f"{name}, {column}",
            number,
            rate / (1 - rate),
            "closed form",
            "The rate is fitted to it.",
            fitted=True,
        )


def pipeline(name: str) -> float:
    """Return the speed that PEARL keeps when its drafter shares the target's GPUs (appendix G)."""
    times, pair = latency(name), pair_of(name)
    move = times.move_us("drafter", ceil(pair.window / 2)) / 1e3
    return _together(pair, pair.window) / (max(pair.window * pair.drafter + move, pair.target) + pair.step)


def _competition(item: str) -> Iterator[Row]:
    for name, table in numbers("pearl-rc").items():
        if isinstance(table, dict):
            rows = table[item]
            for column, alone, shared in zip(
                rows["columns"], rows["separate"], rows["pipeline"], strict=True
            ):
                text = "The only cost of sharing is moving new KV rows once a step (Table 16)."
                yield Row(
                    f"{name}, {column}, RC over no RC", shared / alone, pipeline(name), "closed form", text
                )


def _table_9() -> Iterator[Row]:
    table = _DATA["Table 9"]
    columns = (table[key] for key in ("judged", "accepted", "added", "post"))
    for number, (judged, accepted, added, post) in enumerate(zip(*columns, strict=True)):
        ours = accepted if accepted == judged else accepted + 1
        yield Row(f"step {number}, tokens added", added, ours, "exact", "Algorithm 2.")
        yield Row(f"step {number}, post-verify is next", post, accepted == judged, "exact", "Algorithm 2.")


def _table_10() -> Iterator[Row]:
    models = {}
    for name in profiles():
        if name.startswith("pearl-"):
            models |= Profile.load(name).models
    for name, column, number in cells(_DATA["Table 10"]):
        yield Row(f"{name}, {column}", number, models[column].speed, "exact", "The profile's input.")
    for pair, window in _DATA["windows"].items():
        yield Row(f"round(c), {pair}", window, pair_of(pair).window, "exact", "c is the ratio of the speeds.")


def _table_11() -> Iterator[Row]:
    table = _DATA["Table 11"]
    for kind in ("SD", "PEARL"):
        for (_, column, drafts), (_, _, targets) in zip(
            cells(table, f"Draft Model ({kind})"), cells(table, f"Target Model ({kind})"), strict=True
        ):
            text = "Draft runs are round(c) times the printed target runs."
            ours = pair_of(column).window * targets
            yield Row(f"Draft Model ({kind}), {column}", drafts, ours, "exact", text)
    for name, column, number in cells(table, "Draft Model (PEARL) ratio", "Target Model (PEARL) ratio"):
        chosen = pair_of(column)
        ours = speculative_tokens(chosen.rate, chosen.window) / pearl_tokens(chosen.rate, chosen.window)
        text = "Tokens of a run of SD over those of a run of PEARL, both at gamma = round(c)."
        yield Row(f"{name}, {column}", number, ours, "closed form", text)
    counts = "A count needs the number of tokens generated, which is not printed; its ratio is above."
    yield from published_only(table, counts, "Target Model (SD)", "Target Model (PEARL)")


def _table_12() -> Iterator[Row]:
    why = "Repeats Table 2, which is another pair; nothing to predict."
    yield from published_only(_DATA["Table 12"], why)


def _table_13() -> Iterator[Row]:
    for model, pair in (("Llama 2 7B&70B", "llama-2-7-70"), ("Llama 3.1 8B&70B", "llama-3.1-8-70")):
        yield from _averages("Table 13", pair, f"{model} Speculative Decoding", f"{model} Ours")


def _table_14() -> Iterator[Row]:
    table = _DATA["Table 14"]
    for pair, gammas in table["gamma"].items():
        chosen = pair_of(pair)
        for gamma, number in zip(gammas, table["speed"][pair], strict=True):
            ours = speculative(chosen, gamma) * 1e3 / chosen.target
            reason = "a long draft costs the paper more than gamma times Table 10's forward."
            yield Row(f"{pair}, gamma {gamma}", number, ours, "closed form", _RATES, reason)


def _table_15() -> Iterator[Row]:
    table = _DATA["Table 15"]
    for name, column, number in cells(table, "communication", "verify"):
        times = latency(column)
        ours = (times.sample_us if name == "verify" else times.communicate_us) / 1e3
        text = "The profile has the median of the three pairs."
        yield Row(f"{name}, {column}", number, ours, "closed form", text, fitted=True)
    for name, column, number in cells(table, "draft", "target"):
        chosen = pair_of(column)
        ours = chosen.window * chosen.drafter if name == "draft" else chosen.target
        text = "round(c) drafts, or one target forward, at Table 10's speeds."
        reason = "Table 15 is slower than Table 10 for this pair, an inconsistency of the paper."
        yield Row(f"{name}, {column}", number, ours, "closed form", text, reason)


def _table_16() -> Iterator[Row]:
    times = latency("llama-3.1-8-70")
    for name, column, number in cells(_DATA["Table 16"]):
        ours = times.move_us("drafter", int(column)) / 1e3
        text = "Bytes over 300 GB/s and one start; the start is the median over the four lengths."
        yield Row(f"{name}, {column} tokens", number, ours, "closed form", text, fitted=True)


def _figure_1() -> Iterator[Row]:
    """Figure 1's claim, that waiting ends, as the drafter's and the target's idle shares."""
    for name in _DATA["Table 7"]["columns"]:
        chosen, gamma = pair_of(name), _best_gamma(name)
        time = gamma * chosen.drafter + chosen.target + chosen.step
        together = _together(chosen, chosen.window)
        for method, idle in (
            ("SD", 1 - chosen.target / time),
            ("PEARL", 1 - chosen.target / together),
        ):
            text = "The figure prints no numbers: the share of a step in which the target waits."
            yield Row(f"{method}, target idle, {name}", None, idle, "closed form", text)


def _figure_2() -> Iterator[Row]:
    claim, chosen = _DATA["Figure 2"], pair_of("codellama-7-34")
    ratio = chosen.target / chosen.drafter
    yield Row(
        "(a) running speed, drafter over target",
        claim["speed_ratio"],
        ratio,
        "closed form",
        "Speeds of Table 10.",
    )
    drafting = claim["drafts"] / ratio
    yield Row(
        "(a) time of 6 drafts over one verification",
        claim["drafting"],
        drafting,
        "closed form",
        "Speeds of Table 10.",
    )
    for name in _DATA["Table 7"]["columns"]:
        spread = pair_of(name).rate ** 0.5 / (1 - pair_of(name).rate)
        text = (
            "No numbers printed: the best length of a step is the run of right drafts, a geometric variable."
        )
        yield Row(
            f"(b) standard deviation of the best draft length, {name}", None, spread, "closed form", text
        )


def _figure_3() -> Iterator[Row]:
    figure = _DATA["Figure 3"]
    ours = followed(figure["right"])
    for number, (published, tokens) in enumerate(zip(figure["added"], ours, strict=True), 1):
        yield Row(f"step {number}, tokens added", published, tokens, "exact", "Algorithm 2 at gamma = 3.")
    yield Row("tokens of four steps", figure["total"], sum(ours), "exact", "Algorithm 2 at gamma = 3.")


def followed(chunks: list[list[bool]]) -> list[int]:
    """Return the tokens that each step of PEARL adds (algorithm 2).

    Args:
        chunks: For each step, which tokens of the chunk drafted in it the target agrees with.
    """
    pending, added = list[bool](), list[int]()
    for chunk in chunks:
        judged = [*pending, chunk[0]]
        right = judged.index(False) if False in judged else len(judged)
        pending = chunk[1:] if right == len(judged) else []
        added.append(min(right + 1, len(judged)))
    return added


def _appendix_g() -> Iterator[Row]:
    data, times = _DATA["Appendix G"], latency("llama-3.1-8-70")
    assert times.drafter is not None
    size = times.drafter.kv_bytes * data["rows"] / 1e9
    yield Row(
        "KV cache of 1,024 tokens, GB", data["kv_gb"], round(size, 2), "exact", "Shape of Llama 3.1 8B."
    )
    move = data["kv_gb"] / times.hardware.link_gb_s * 1e3
    yield Row(
        "time over NVLink, ms", data["move_ms"], round(move, 2), "exact", "The printed 0.13 GB at 300 GB/s."
    )
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
        "Table 2": _table_2,
        "Table 3": _table_3,
        "Table 4": _table_4,
        "Table 5": _table_5,
        "Table 6": _table_6,
        "Table 7": _table_7,
        "Table 8": lambda: _competition("Table 8"),
        "Table 9": _table_9,
        "Table 10": _table_10,
        "Table 11": _table_11,
        "Table 12": _table_12,
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
