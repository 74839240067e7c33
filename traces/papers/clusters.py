"""Published clusters as questions to `advise`, with the speed-ups that their sources print.

An acceptance rate is printed, or follows from printed numbers of tokens; each function says how.
Where nothing is printed it is unknown. No speed-up is used for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from specscope.engine.simulate.latency import Latency
from specscope.engine.simulate.profile import Profile
from specscope.engine.simulate.roofline import PublishedModel
from specscope.traces.advise.acceptance import MOST_RATE, UNKNOWN
from specscope.traces.facts.closed_forms import (
    bisect,
    pearl_tokens,
    rate_of_share,
    rate_of_tokens,
    speculative_tokens,
)
from specscope.traces.papers import pearl_speeds
from specscope.traces.papers.outside import NANO, shapes_of
from specscope.traces.papers.rows import numbers, parts, row_of

_PARALLEL = numbers("parallel")
_GAMMA = 5
"""Levels of EasySpec's drafts."""
_RUNS = ("Target Model (SD)", "Target Model (PEARL)")


class PublishedSpeeds(NamedTuple):
    """A pair with a data set in print."""

    name: str
    asked: Mapping[str, Any]
    """Keys of a `Question`, besides the source's."""
    speedups: Mapping[int, Mapping[str, float]]
    """Over plain decoding, by batch size and method."""
    plain: Mapping[int, float]
    """Printed tokens per second of plain decoding, by batch size."""
    longer: Mapping[int, float] = {}
    """Where prefill is in the printed speeds: tokens of a run over plain decoding's, by batch."""


def published(source: Mapping[str, Any]) -> Iterator[PublishedSpeeds]:
    """Yield what a source of `assets/papers/winners.toml` prints."""
    yield from _FORMULAS[source.get("formula", source["key"])](source)


def _asked(latency: Latency, rate: float | None, **more: Any) -> dict[str, Any]:
    """Return the keys of a question about a profile's pair; an unknown rate is None."""
    assert latency.drafter is not None
    rates = UNKNOWN if rate is None else (rate, rate)
    return {"target": _sizes(latency.target), "drafter": _sizes(latency.drafter), "rates": rates, **more}


def _sizes(model: PublishedModel) -> dict[str, Any]:
    keys = ("title", "layers", "dim", "ffn", "kv_heads", "vocab", "head_dim", "source", "gated", "tied")
    return {key: getattr(model, key) for key in keys}


def _apart(latency: Latency, rate: float | None) -> dict[str, Any]:
    """Return a question in which the drafter has one card beside the target's, as PEARL's."""
    cards = latency.target.gpus
    return _asked(latency, rate, target_cards=cards, count=cards + 1)


def _pearl(_: Mapping[str, Any]) -> Iterator[PublishedSpeeds]:
    data = numbers("pearl")
    keys = {"speculative": "Speculative Decoding", "pearl": "PEARL (ours)"}
    for pair in data["Table 1"]["columns"]:
        found = {key: row_of(data["Table 1"], row)[pair] for key, row in keys.items()}
        latency = pearl_speeds.latency(pair)
        plain = {1: latency.target.speed}
        yield PublishedSpeeds(f"{pair}, HumanEval", _apart(latency, _pearl_rate(pair)), {1: found}, plain)
    means = {"llama-2-7-70, GSM8K and MGSM": data["Table 2"] | {"Ours": data["Table 2"]["PEARL (ours)"]}}
    tables = dict(parts(data["Table 13"]))
    means["llama-2-7-70, MT-bench"] = tables["Llama 2 7B&70B"]
    means["llama-3.1-8-70, MT-bench"] = tables["Llama 3.1 8B&70B"]
    keys["pearl"] = "Ours"
    for name, table in means.items():
        found = {key: row_of(table, row)["Avg."] for key, row in keys.items()}
        latency = pearl_speeds.latency(name.partition(",")[0])
        yield PublishedSpeeds(name, _apart(latency, None), {1: found}, {})


def _pearl_rate(pair: str) -> float | None:
    """Return HumanEval's rate: by Table 7's mean runs, else by Table 11's numbers of target runs.

    PEARL needs more runs of the target than speculative decoding with as long drafts, by a factor
    that falls with the rate from 0.8 on.
    """
    data = numbers("pearl")
    if pair in data["Table 7"]["columns"]:
        return pearl_speeds.pair_of(pair).rate
    if pair not in data["Table 11"]["columns"]:
        return None
    runs, gamma = [row_of(data["Table 11"], row)[pair] for row in _RUNS], data["windows"][pair]

    def fewer(rate: float) -> float:
        return pearl_tokens(rate, gamma) / speculative_tokens(rate, gamma)

    return bisect(fewer, runs[0] / runs[1], 0.8, MOST_RATE)


def _easyspec(source: Mapping[str, Any]) -> Iterator[PublishedSpeeds]:
    """Rates at which one of five levels is accepted as often as printed, from all methods."""
    profile, table = Profile.load("8xA100"), numbers("easyspec")["Table 2"]
    pairs = {"llama-3": "llama-3-8-70-tp8", "qwen2": "qwen2-7-72-tp8"}
    for name, part in parts(table):
        cells = {key: row_of(part, row) for key, row in source["methods"].items()}
        rates = [min(MOST_RATE, rate_of_share(cell["alpha"], _GAMMA)) for cell in cells.values()]
        asked = _asked(profile.latency(pairs[name.partition(",")[0]]), None)
        asked["rates"] = min(rates), max(rates)
        found = {key: part["TP"] / cell["total"] for key, cell in cells.items()}
        yield PublishedSpeeds(name, asked, {1: found}, {1: 100 / part["TP"]})


def _nano_pearl(source: Mapping[str, Any]) -> Iterator[PublishedSpeeds]:
    """Rates are 1 - 1 / MAT: the lowest and highest of a pair's batch sizes with a data set."""
    for (pair, data), group in groupby(NANO.values(), lambda row: (row.pair, row.data)):
        rows = {row.batch: row for row in group}
        drafter, target = shapes_of(pair)
        rates = [1 - 1 / row.accepted for row in rows.values()]
        asked = {"target": target, "drafter": drafter, "rates": (min(rates), max(rates))}
        asked["context"] = source["contexts"][data]
        speedups = {batch: {"pearl": row.speedup} for batch, row in rows.items()}
        plain = {batch: row.plain for batch, row in rows.items()}
        longer = {batch: row.longer for batch, row in rows.items()}
        yield PublishedSpeeds(f"{pair}, {data}", asked, speedups, plain, longer)


def _ssd(source: Mapping[str, Any]) -> Iterator[PublishedSpeeds]:
    printed, rates = _PARALLEL[source["table"]], _ssd_rates(source["family"])
    target, drafter = source["models"]
    for i, data in enumerate(printed["columns"]):
        plain = printed["plain"][i] if isinstance(printed["plain"], list) else printed["plain"]
        found = {"speculative": printed["SD"][i] / plain, "ssd": printed["SSD"][i] / plain}
        asked = {"target": target, "drafter": drafter, "rates": (rates[data], rates[data])}
        yield PublishedSpeeds(f"{target}, {data}", asked, {1: found}, {1: plain})


def _ssd_rates(family: str) -> dict[str, float]:
    """Return the rate of each data set: one from a round's time and speed, others by SD's speeds.

    A round of speculative decoding takes as long with all data, so its tokens are proportional to
    its speed.
    """
    known, gamma = _PARALLEL["rounds"][family], _PARALLEL["settings"]["SD"]
    speeds = row_of(_PARALLEL[known["speeds"]], "SD")
    rate = rate_of_tokens(known["speed"] * known["ms"] / 1e3, known["gamma"])
    tokens = speculative_tokens(rate, gamma) / speeds[known["data"]]
    return {data: rate_of_tokens(tokens * speed, gamma) for data, speed in speeds.items()}


def _specbranch(source: Mapping[str, Any]) -> Iterator[PublishedSpeeds]:
    """The rate of DeepSeek-Coder on HumanEval is PEARL's; the others are unknown."""
    table, rows = _PARALLEL["SpecBranch, speed-ups"], {"pearl": "PEARL", "specbranch": "SpecBranch"}
    for pair, (profile, key) in source["pairs"].items():
        for data in table["columns"]:
            known = key in numbers("pearl")["Table 7"]["columns"] and data == "HumanEval"
            asked = _apart(Profile.load(profile).latency(key), _pearl_rate(key) if known else None)
            found = {method: row_of(table, f"{pair}, {row}")[data] for method, row in rows.items()}
            yield PublishedSpeeds(f"{pair}, {data}", asked, {1: found}, {})


_FORMULAS = {
    "pearl": _pearl,
    "easyspec": _easyspec,
    "nano-pearl": _nano_pearl,
    "ssd": _ssd,
    "specbranch": _specbranch,
}
