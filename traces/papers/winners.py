"""Published clusters as questions to `advise`: does it name the winner, are speed-ups in its ranges?

Nothing is fitted to a row. A row is a pair on a cluster with a data set and a batch size, and asks
only for methods that its source compares. A published number counts also where the roofline is no
model of its engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from specscope.engine.methods import BASELINE
from specscope.engine.simulate.profile import Profile, profiles
from specscope.engine.simulate.roofline import Model
from specscope.traces.advise.answer import Answer, Range, advise
from specscope.traces.advise.question import MOST_RATE, UNKNOWN, Question
from specscope.traces.facts.closed_forms import rate_of_share, speculative_tokens
from specscope.traces.papers import pearl_speeds
from specscope.traces.papers.rows import bisect, numbers

_DATA, _PARALLEL = numbers("winners"), numbers("parallel")
_GAMMA = 5
"""EasySpec's levels of a draft."""


class PublishedSpeeds(NamedTuple):
    """A pair with a data set in print; speed-ups by batch size and method, over plain decoding."""

    name: str
    asked: Mapping[str, Any]
    """Keys of a `Question`, besides the source's."""
    speedups: Mapping[int, Mapping[str, float]]
    plain: Mapping[int, float]
    """Printed tokens per second of plain decoding, by batch size."""


class WinnerRow(NamedTuple):
    """Published speed-ups and those of `advise`, by method."""

    name: str
    published: Mapping[str, float]
    advised: Mapping[str, Range]
    best: str
    """The method that `advise` names."""
    plain: float | None
    """Tokens per second of plain decoding, advised over published."""

    @property
    def winner(self) -> str:
        return max({BASELINE: 1.0, **self.published}.items(), key=lambda pair: pair[1])[0]

    @property
    def outside(self) -> list[str]:
        """The methods whose published speed-up is not in the range."""
        inside = {k: r.low <= self.published[k] <= r.high for k, r in self.advised.items()}
        return [key for key in self.published if not inside.get(key)]

    def reason(self) -> str:
        """Return what is off in a row that fails: plain decoding's time, or the method's."""
        words = [] if self.best == self.winner else [f"{self.best} is named"]
        for key in self.outside:
            if key not in self.advised:
                words.append(f"{key} is in no place")
                continue
            off = self.advised[key].mid / self.published[key] - 1
            parts = f"{key} {off:+.0%}"
            if self.plain is not None:
                parts += f" (its tokens/s {(1 + off) * self.plain - 1:+.0%}, plain decoding's {self.plain - 1:+.0%})"
            words.append(parts)
        return "; ".join(words)

    def to_dict(self) -> dict[str, Any]:
        ranges = {key: [round(x, 4) for x in found] for key, found in self.advised.items()}
        return {
            "row": self.name,
            "published": {key: round(x, 4) for key, x in self.published.items()},
            "advised": ranges,
            "winner": self.winner,
            "named": self.best,
            "reason": self.reason(),
        }


@dataclass(frozen=True, slots=True)
class WinnerTable:
    """The rows of a source."""

    title: str
    why: str
    rows: tuple[WinnerRow, ...]

    @property
    def named(self) -> int:
        return sum(row.best == row.winner for row in self.rows)

    @property
    def speedups(self) -> int:
        return sum(len(row.published) for row in self.rows)

    @property
    def inside(self) -> int:
        return self.speedups - sum(len(row.outside) for row in self.rows)

    @property
    def width(self) -> float:
        """The median of the highest over the lowest number of a range."""
        return median(found.width for row in self.rows for found in row.advised.values())

    def to_dict(self) -> dict[str, Any]:
        counts = {"named": self.named, "speedups": self.speedups, "inside": self.inside}
        rows = [row.to_dict() for row in self.rows]
        return {"source": self.title, **counts, "width": round(self.width, 4), "why": self.why, "rows": rows}


def winner_tables(keys: Iterable[str] = ()) -> Iterator[WinnerTable]:
    """Yield each source with its rows, as soon as they are computed; all sources without keys."""
    for source in _DATA["sources"]:
        if not keys or source["key"] in keys:
            rows = [row for one in _SOURCES[source["key"]](source) for row in compared(source, one)]
            yield WinnerTable(source["title"], source["why"], tuple(rows))


def compared(source: Mapping[str, Any], one: PublishedSpeeds) -> Iterator[WinnerRow]:
    batches = tuple(one.speedups)
    methods = tuple(dict.fromkeys(key for found in one.speedups.values() for key in found))
    answer = advise(Question(**source["question"], **one.asked, batches=batches, methods=methods))
    for batch, published in one.speedups.items():
        name = one.name if batches == (1,) else f"{one.name}, batch {batch}"
        yield _row(name, answer, batch, published, one.plain.get(batch))


def _row(
    name: str, answer: Answer, batch: int, published: Mapping[str, float], plain: float | None
) -> WinnerRow:
    options = answer.at(batch)
    best = {option.key: option for option in reversed(options)}
    advised = {key: best[key].speed for key in published if key in best}
    ratio = best[BASELINE].tokens_per_second / plain if plain else None
    return WinnerRow(name, published, advised, options[0].key, ratio)


def _sizes(model: Model) -> dict[str, Any]:
    """Return a profile's model as sizes that are typed."""
    keys = ("title", "layers", "dim", "ffn", "kv_heads", "vocab", "head_dim", "source", "gated", "tied")
    return {key: getattr(model, key) for key in keys}


def _columns(table: Mapping[str, Any], row: str) -> dict[str, float]:
    return dict(zip(table["columns"], table[row], strict=True))


def _pearl(_: Mapping[str, Any]) -> Iterator[PublishedSpeeds]:
    """Rates of four pairs are those of Table 7's mean runs; the others are unknown."""
    data, keys = numbers("pearl"), {"speculative": "Speculative Decoding", "pearl": "PEARL (ours)"}
    first = data["Table 1"]
    for pair in first["columns"]:
        rate = pearl_speeds.pair_of(pair).rate if pair in data["Table 7"]["columns"] else None
        yield _pearl_pair(f"{pair}, HumanEval", pair, rate, {k: _columns(first, row)[pair] for k, row in keys.items()})
    last = data["Table 13"]
    means = {"llama-2-7-70, GSM8K and MGSM": (data["Table 2"], keys)}
    ours = keys | {"pearl": "Ours"}
    means |= {"llama-2-7-70, MT-bench": (last["Llama 2 7B&70B"] | {"columns": last["columns"]}, ours)}
    means |= {"llama-3.1-8-70, MT-bench": (last["Llama 3.1 8B&70B"] | {"columns": last["columns"]}, ours)}
    for name, (table, rows) in means.items():
        found = {key: _columns(table, row)["Avg."] for key, row in rows.items()}
        yield _pearl_pair(name, name.split(",")[0], None, found)


def _pearl_pair(name: str, pair: str, rate: float | None, found: Mapping[str, float]) -> PublishedSpeeds:
    latency = pearl_speeds.latency(pair)
    assert latency.drafter is not None
    cards = latency.target.gpus
    asked = {"target": _sizes(latency.target), "drafter": _sizes(latency.drafter), "target_cards": cards}
    asked |= {"count": cards + 1, "rates": UNKNOWN if rate is None else (rate, rate)}
    speed = {1: latency.target.speed} if name.endswith("HumanEval") else {}
    return PublishedSpeeds(name, asked, {1: found}, speed)


def _easyspec(rows: Mapping[str, str], shares: Sequence[str]) -> Iterator[PublishedSpeeds]:
    """Rates at which a level of five is accepted as often as printed: the lowest and highest of the rows."""
    profile = Profile.load("8xA100")
    pairs = {"llama-3": "llama-3-8-70-tp8", "qwen2": "qwen2-7-72-tp8"}
    table = numbers("easyspec")["Table 2"]
    for name, part in table.items():
        if name == "columns":
            continue
        latency = profile.latency(pairs[name.split(",")[0]])
        assert latency.drafter is not None
        total, share = table["columns"].index("total"), table["columns"].index("alpha")
        rates = sorted(min(MOST_RATE, rate_of_share(part[row][share], _GAMMA)) for row in shares)
        asked = {"target": _sizes(latency.target), "drafter": _sizes(latency.drafter), "rates": (rates[0], rates[-1])}
        found = {key: part["TP"] / part[row][total] for key, row in rows.items()}
        yield PublishedSpeeds(name, asked, {1: found}, {1: 100 / part["TP"]})


def _nano_pearl(source: Mapping[str, Any]) -> Iterator[PublishedSpeeds]:
    """Rates are 1 - 1 / MAT: the lowest and highest of a pair's batch sizes with a data set."""
    outside, rows = numbers("outside"), dict[str, dict[int, list[float]]]()
    for name, row in outside["nano-PEARL, H200"].items():
        if name != "columns":
            start, _, batch = name.rpartition(", batch ")
            rows.setdefault(start, {})[int(batch)] = row
    for name, found in rows.items():
        pair, data = name.split(", ")
        family, _, models = pair.rpartition(" ")
        drafter, target = (outside["shapes"][family][model] for model in models.split("/"))
        rates = [1 - 1 / row[1] for row in found.values()]
        asked = {"target": target, "drafter": drafter, "rates": (min(rates), max(rates))}
        asked["context"] = source["contexts"][data]
        speedups = {batch: {"pearl": row[0]} for batch, row in found.items()}
        yield PublishedSpeeds(name, asked, speedups, {batch: row[2] for batch, row in found.items()})


def _ssd(_: Mapping[str, Any]) -> Iterator[PublishedSpeeds]:
    yield from _ssd_table("SSD, speeds", "Llama 3", "llama-3.1-70b", "llama-3.2-1b")
    yield from _ssd_table("SSD, Qwen3 speeds", "Qwen3", "qwen3-32b", "qwen3-0.6b")


def _ssd_table(key: str, family: str, target: str, drafter: str) -> Iterator[PublishedSpeeds]:
    table, rates = _PARALLEL[key], _ssd_rates(family)
    for i, data in enumerate(table["columns"]):
        plain = table["plain"][i] if isinstance(table["plain"], list) else table["plain"]
        found = {"speculative": table["SD"][i] / plain, "ssd": table["SSD"][i] / plain}
        asked = {"target": target, "drafter": drafter, "rates": (rates[data], rates[data])}
        yield PublishedSpeeds(f"{target}, {data}", asked, {1: found}, {1: plain})


def _ssd_rates(family: str) -> dict[str, float]:
    """Return the rate of each data set: one from a round's time and speed, others by SD's speeds.

    A round of speculative decoding takes the same time for all data, so its tokens are proportional
    to its speed. The speed-ups' level is no input.
    """
    known, gamma = _PARALLEL["rounds"][family], _PARALLEL["settings"]["SD"]
    sd = _columns(_PARALLEL[known["speeds"]], "SD")

    def rate(tokens: float, drafts: int) -> float:
        return bisect(lambda a: speculative_tokens(a, drafts), tokens, 0, 1)

    tokens = speculative_tokens(rate(known["speed"] * known["ms"] / 1e3, known["gamma"]), gamma)
    return {data: rate(tokens * speed / sd[known["data"]], gamma) for data, speed in sd.items()}


def _specbranch(source: Mapping[str, Any]) -> Iterator[PublishedSpeeds]:
    """The rate of DeepSeek-Coder on HumanEval is PEARL's, in its Table 7; the others are unknown."""
    table = _PARALLEL["SpecBranch, speed-ups"]
    for pair, place in source["pairs"].items():
        for data in table["columns"]:
            known = pair.startswith("DeepSeek") and data == "HumanEval"
            rate = pearl_speeds.pair_of("deepseek-1.3-33").rate
            asked = {"target": _sizes(models[target]), "drafter": _sizes(models[drafter])}
            asked |= {"count": cards + 1, "target_cards": cards, "rates": (rate, rate) if known else UNKNOWN}
            rows = {"pearl": "PEARL", "specbranch": "SpecBranch"}
            found = {key: _columns(table, f"{pair}, {row}")[data] for key, row in rows.items()}
            yield PublishedSpeeds(f"{pair}, {data}", asked, {1: found}, {})


_SOURCES = {
    "pearl": _pearl,
    "easyspec": lambda _: _easyspec({"speculative": "+tree", "easyspec": "EasySpec"}, ("+tree", "EasySpec")),
    "easyspec-chains": lambda _: _easyspec({"speculative": "+sd"}, ("+sd",)),
    "nano-pearl": _nano_pearl,
    "ssd": _ssd,
    "ssd-again": lambda _: _ssd_table("SSD, reproduced speeds", "Qwen3", "qwen3-32b", "qwen3-0.6b"),
    "specbranch": _specbranch,
}
