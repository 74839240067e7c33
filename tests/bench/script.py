"""A benchmark as a script: options, prompts, races, progress, and figures as table or JSON."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specscope.app.bench import speed
from specscope.app.bench.figures import Bar, BenchPlan, Measurement, Note
from specscope.app.cli import options as shared
from specscope.app.cli.bench import progress, report
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import SpecScopeError
from specscope.traces.facts.metrics import measure as metrics

if TYPE_CHECKING:
    from specscope import Cluster
    from specscope.engine.trace.trace import Trace

Measure = Callable[[argparse.Namespace, Note], tuple[Mapping[str, Measurement], Mapping[str, Any]]]
"""(options, progress) -> figures by name, and facts such as the device."""
PROMPTS = Path(__file__).parents[2] / "assets" / "prompts" / "categories.jsonl"
CATEGORIES = ("chat", "story", "code")


def prompts() -> list[str]:
    """Return the first prompt of each category."""
    rows = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    return [next(row["text"] for row in rows if row["category"] == name) for name in CATEGORIES]


class Contestant(NamedTuple):
    """A method with settings on an open cluster, and the traces of its runs."""

    cluster: Cluster
    method: str
    config: Mapping[str, Any]
    traces: list[Trace]


class Standing(NamedTuple):
    """A contestant's speed over that of another, whether both wrote the same, and its tokens/s."""

    ratios: tuple[float, ...]
    same: bool
    speed: float


def race(
    contestants: Mapping[str, Contestant], against: str, plan: BenchPlan, note: Note, *, virtual: bool
) -> dict[str, Standing]:
    """Decode the bench's prompts with each contestant.

    On this machine they take turns, and there is a ratio for each round, with prefill; in virtual
    time there is one for each prompt, without prefill.
    """
    ids = [Pair.find().encode(question) for question in plan.questions()]
    decode = {
        name: speed.decode(one.cluster, plan, one.method, one.traces, **one.config)
        for name, one in contestants.items()
    }
    if not virtual:
        run = speed.SpeedRace(decode, ids).run(plan.rounds, plan.seconds, lambda: note(""))
        return {
            name: Standing(run.ratio(name, against), run.same(name, against), run.speed(name))
            for name in contestants
        }
    for generate in decode.values():
        for prompt in ids:
            generate(prompt)
    alone = contestants[against].traces
    found = dict[str, Standing]()
    for name, one in contestants.items():
        pairs = list(zip(one.traces, alone, strict=True))
        ratios = tuple(decoding_speed(a) / decoding_speed(b) for a, b in pairs)
        same = all(a.token_ids() == b.token_ids() for a, b in pairs)
        found[name] = Standing(ratios, same, decoding_speed(*one.traces))
    return found


def decoding_speed(*traces: Trace) -> float:
    rows = [metrics(trace) for trace in traces]
    return sum(m.tokens for m in rows) / sum(m.decode_seconds or 0.0 for m in rows)


def options(doc: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    shared.add_options(parser, shared.JSON)
    return parser


def model_options(doc: str | None) -> argparse.ArgumentParser:
    """Return options that name models and prompts, besides those of every script."""
    parser = options(doc)
    parser.add_argument("--pair", metavar="NAME", help="bundled, or a model of `specscope models`")
    parser.add_argument("--target", metavar="PATH", help="a target, instead of --pair")
    parser.add_argument("--drafter", metavar="PATH", action="append", help="its drafter; repeatable")
    parser.add_argument("--prompt-file", metavar="F", type=Path, help="prompts, as for `specscope compare`")
    parser.add_argument("--limit", metavar="N", type=int, help="use N rows of the file")
    return parser


def main(parser: argparse.ArgumentParser, measure: Measure, bars: Mapping[str, Bar]) -> None:
    args, begun = parser.parse_args(), time.perf_counter()
    try:
        with progress() as note:
            figures, facts = measure(args, note)
    except SpecScopeError as error:
        parser.error(str(error))
    judged = bars if facts.get("on_gpu", True) else {}
    report(figures, judged, args, {**facts, "seconds": round(time.perf_counter() - begun, 1)})
