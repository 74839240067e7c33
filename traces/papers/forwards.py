"""Published times of forwards beside the roofline's, which is fitted to none of them.

The roofline knows a card's data sheet, a model's shape and an engine's two constants
(`assets/gpus.toml`). Its constants come from two shapes that are in no source here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

from specscope.engine.simulate.profile import Profile
from specscope.engine.simulate.records import record
from specscope.engine.simulate.roofline import Hardware, PublishedModel
from specscope.engine.simulate.shapes import with_card
from specscope.traces.papers import pearl_speeds
from specscope.traces.papers.outside import NANO, shaped, shapes_of
from specscope.traces.papers.rows import numbers, row_of

_DATA = numbers("forwards")


class Forward(NamedTuple):
    """A published forward and the roofline's, in milliseconds."""

    name: str
    published: float
    ours: float

    @property
    def difference(self) -> float:
        return self.ours / self.published - 1


class _Case(NamedTuple):
    """A forward: rows of each sequence, and sequences; `engine` replaces the source's."""

    name: str
    model: PublishedModel
    published: float
    rows: int = 1
    batch: int = 1
    engine: str = ""


@dataclass(frozen=True, slots=True)
class ForwardTable:
    """The forwards of one table."""

    title: str
    why: str
    forwards: tuple[Forward, ...]

    @property
    def error(self) -> float:
        """The median of the absolute differences."""
        return median(abs(forward.difference) for forward in self.forwards)

    @property
    def worst(self) -> Forward:
        return max(self.forwards, key=lambda forward: abs(forward.difference))

    def to_dict(self) -> dict[str, Any]:
        rows = [f._asdict() | {"difference": round(f.difference, 6)} for f in self.forwards]
        worst = {"name": self.worst.name, "difference": round(self.worst.difference, 6)}
        return {
            "source": self.title,
            "median": round(self.error, 6),
            "worst": worst,
            "why": self.why,
            "rows": rows,
        }


def sources() -> list[ForwardTable]:
    return [_source(table) for table in _DATA["sources"]]


def forward_ms(model: PublishedModel, card: str, engine: str, rows: int, context: int, batch: int) -> float:
    """Return the milliseconds of a forward by the data sheet; rows and context per sequence."""
    hardware = record(Hardware, with_card({"card": card, "engine": engine}), "hardware.")
    plain = replace(model, measured=None, computed=True)
    plain = replace(plain, speed=1e6 / plain.computed_us(hardware))
    return plain.forward_us(hardware, rows * batch, context * batch, batch) / 1e3


def _source(table: Mapping[str, Any]) -> ForwardTable:
    def ours(case: _Case) -> float:
        engine = case.engine or table["engine"]
        return forward_ms(case.model, table["card"], engine, case.rows, table["context"], case.batch)

    cases = _CASES[table["key"]]()
    forwards = tuple(Forward(case.name, case.published, ours(case)) for case in cases)
    return ForwardTable(table["title"], table["why"], forwards)


def _pearl_speeds() -> Iterator[_Case]:
    for model in pearl_speeds.models().values():
        yield _Case(model.title, model, 1e3 / model.speed)


def _pearl_steps() -> Iterator[_Case]:
    table = numbers("pearl")["Table 15"]
    for pair, draft, target in zip(table["columns"], table["draft"], table["target"], strict=True):
        latency = pearl_speeds.latency(pair)
        gamma = round(latency.c)  # the paper's draft length
        assert latency.drafter is not None
        yield _Case(f"{pair}, a draft", latency.drafter, draft / gamma)
        yield _Case(f"{pair}, verification", latency.target, target, rows=gamma)


def _easyspec() -> Iterator[_Case]:
    table, profile = numbers("easyspec")["Table 1"], Profile.load("8xA100")
    rows = {"L3-8B": "llama-3-8-70-tp2", "L3-70B": "llama-3-8-70-tp2"}
    rows |= {"Q2-7B": "qwen2-7-72-tp2", "Q2-72B": "qwen2-7-72-tp2"}
    for name, pair in rows.items():
        latency = profile.latency(pair)
        model = latency.target if name.endswith(("70B", "72B")) else latency.drafter
        assert model is not None
        for column, speed in row_of(table, name).items():
            if speed == speed:  # one cell is empty
                gpus = int(column.removeprefix("TP="))
                yield _Case(f"{name}, {column}", replace(model, gpus=gpus), 1e3 / speed)


def _dsi() -> Iterator[_Case]:
    profile = Profile.load("8xA100")
    for pair, latency in profile.latencies.items():
        if "DSI" in profile.pairs[pair].source:
            for model in filter(None, (latency.target, latency.drafter)):
                yield _Case(f"{pair}, {model.title}", model, 1e3 / model.speed)


def _ems() -> Iterator[_Case]:
    data, profile = numbers("ems"), Profile.load("A100-OPT")
    for item, key in (("Table 3", "opt-2.7b"), ("Table 4", "opt-6.7b"), ("Table 4", "opt-13b")):
        table, model = data[item][key], profile.latency(key).target
        for batch, speed in zip(table["columns"], table["Greedy Decoding"], strict=True):
            yield _Case(f"{key}, batch {batch}", model, 1e3 * batch / speed, batch=batch)
    figure, model = data["Figure 5"], profile.latency("opt-6.7b").target
    for rows, ms in zip(figure["columns"], figure["batch 16, ms"], strict=True):
        yield _Case(f"opt-6.7b, batch 16, {rows} rows each", model, ms, rows=rows, batch=16)


def _nano(*, short: bool) -> Iterator[_Case]:
    for row in NANO.values():
        if row.short == short:
            yield _Case(row.name, shaped(shapes_of(row.pair)[1], gpus=2), row.step_ms, batch=row.batch)


def _ssd() -> Iterator[_Case]:
    data = numbers("parallel")
    large, target, drafter = (
        shaped(name, gpus) for name, gpus in (("llama-3.1-70b", 4), ("qwen3-32b", 4), ("qwen3-0.6b", 1))
    )
    times = data["times"]
    yield _Case("SSD, Llama 3.1 70B, plain", large, 1e3 / data["SSD, speeds"]["plain"])
    yield _Case("SSD, Qwen3 32B, plain", target, 1e3 / data["SSD, Qwen3 speeds"]["plain"])
    yield _Case("reproduction, Qwen3 32B, plain", target, times["plain"])
    yield _Case("reproduction, Qwen3 32B, verification", target, times["verification"], rows=5)
    yield _Case("reproduction, Qwen3 0.6B, step", drafter, times["step"])


def _h200() -> Iterator[_Case]:
    data = _DATA["h200"]
    for engine, rows, ms in data["times"]:
        name = {"graphs": "static", "eager": "transformers"}[engine]
        yield _Case(f"7B, {name}, {rows} rows", shaped(data["shape"]), ms, rows=rows, engine=engine)


_CASES = {
    "pearl-10": _pearl_speeds,
    "pearl-15": _pearl_steps,
    "easyspec": _easyspec,
    "dsi": _dsi,
    "ems": _ems,
    "nano-short": lambda: _nano(short=True),
    "nano-long": lambda: _nano(short=False),
    "ssd": _ssd,
    "h200": _h200,
}


def table_lines(found: Sequence[ForwardTable], *, rows: bool) -> Iterator[str]:
    """Yield a line for each source, the reasons of large errors, and with `rows` each forward."""
    yield "The roofline's error, by source; nothing is fitted to these forwards"
    yield f"{'source':72}{'forwards':>9}{'median':>8}{'worst':>8}"
    for source in found:
        numbers_of = f"{len(source.forwards):>9}{source.error:>8.0%}{source.worst.difference:>+8.0%}"
        yield f"{source.title:72}{numbers_of}"
        yield from (
            [f"    {source.why}"] if source.error > LARGE or abs(source.worst.difference) > 2 * LARGE else []
        )
        for forward in source.forwards if rows else ():
            ms = f"{forward.published:>10.2f} ms{forward.ours:>10.2f} ms{forward.difference:>+8.0%}"
            yield f"    {forward.name:64}{ms}"


LARGE = 0.15
"""A median error above this, or a worst one twice as large, is shown with its reason."""
