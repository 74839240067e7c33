"""Decode the same prompts with several methods: `specscope compare` and `specscope.compare`.

A method for batches decodes all prompts in one run, or one run per block of rows of a category, and
brings batched plain decoding, its baseline; other methods have one run per prompt. Passes over the
methods alternate.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from specscope.app.experiments.doubt import orders, ranked
from specscope.app.experiments.figures import Traces, median_pass, summaries_of, texts_of
from specscope.app.experiments.floors import digests
from specscope.app.named import MAX_PASSES, PromptRow, seeded
from specscope.app.render.html import text
from specscope.app.render.shown import output, viewer
from specscope.app.render.table import Column, Table, frame
from specscope.engine.drafting.suffix import Finished
from specscope.engine.errors import UsageError
from specscope.engine.methods import BASELINE, find
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling, check_range
from specscope.traces.facts.settings import models_text
from specscope.traces.judge.race import alternating

if TYPE_CHECKING:
    import pandas

SHORT = 32
"""Tokens of an answer below which a speed-up says little about longer ones."""
SPEEDS = (
    Column("tokens_per_second", "tokens/s", ".1f", width=10),
    Column("speedup", "speed-up", ".2f", "×", 10),
    Column("tokens", "tokens", ",", width=8),
)
ACCEPTED = (
    Column("acceptance_rate", "acc/drafted", ".0%", width=13),
    Column("acceptance_rate_tested", "acc/tested", ".0%", width=13),
    Column("accepted_per_round", "acc/round", ".2f", width=13),
)
PRINTED = (
    Column("method", "method", width=-20),
    *SPEEDS,
    Column("tokens_per_target_forward", "tok/forward", ".2f", width=13),
    *ACCEPTED,
    Column("notes", "  output"),
)
"""Columns of `specscope compare`."""
SHOWN = (
    Column("method", "method"),
    Column("settings", "settings"),
    *SPEEDS[:2],
    Column("range", "its range"),
    SPEEDS[2],
    Column("tokens_per_target_forward", "tokens / forward", ".2f"),
    Column("acceptance_rate", "accepted", ".0%"),
    Column("output", "output"),
)
"""Columns in a notebook."""
FRAME = (
    *("method", "settings", "speedup", "speedup_low", "speedup_high", "speedup_from"),
    *("tokens_per_second", "tokens_per_second_per_sequence", "batch", "tokens"),
    *("target_forwards", "draft_forwards", "tokens_per_target_forward", "drafted"),
    *("acceptance_rate", "acceptance_rate_tested", "rollback_rate", "accepted_per_round", "hit_rate"),
    *("both_busy", "lossless", "equal_to_autoregressive", "not_comparable", "runs"),
)
"""Columns of a data frame: the figures of the JSON object."""
Runner: TypeAlias = Callable[[str, list[Any], dict[str, Any]], Trace]
"""Decodes prompts with a method; takes its key, the prompts, and arguments of `Cluster.run`."""


@dataclass(frozen=True, slots=True)
class RacePlan:
    """What to compare: prompts with their rows, and the settings of each method, baseline first."""

    rows: Sequence[PromptRow]
    prompts: Sequence[Any]
    configs: Mapping[str, Mapping[str, Any]]
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    passes: int = 1

    @property
    def entries(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Name -> (method, config) of each row; `KEY plain` decodes a method's batch plainly."""
        entries = dict[str, tuple[str, dict[str, Any]]]()
        for key, given in self.configs.items():
            config, plain = dict(given), {**given, **find(key).plain}
            if plain != config and any(len(part) > 1 for part in self.parts(key).values()):
                entries[f"{key} plain"] = (key, plain)
            entries[key] = (key, config)
        return entries

    @property
    def runs(self) -> int:
        return self.passes * sum(len(self.parts(key)) for key, _ in self.entries.values())

    def check(self, *, measured: bool) -> None:
        check_range("the number of passes", self.passes, 1, MAX_PASSES)
        if not measured and self.passes > 1:
            raise UsageError(f"passes is {self.passes}; virtual times do not vary, so it must be 1")

    def parts(self, method: str) -> dict[int, list[int]]:
        """Return the prompts of each run by the first one; a batch has the rows of one category."""
        numbers = range(len(self.rows))
        if not find(method).batched:
            return {i: [i] for i in numbers}
        blocks = [list(b) for _, b in itertools.groupby(numbers, key=lambda i: self.rows[i].category)]
        return {block[0]: block for block in blocks}


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Runs of the same prompts with several methods, and their figures."""

    race: RacePlan
    passes: Sequence[Traces]
    skipped: Sequence[Mapping[str, Any]] = ()
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    warning: str = ""

    @property
    def traces(self) -> Traces:
        """The runs of each method's median pass, by name and by number of the first prompt."""
        return median_pass(self.passes)[0]

    @property
    def short_answers(self) -> str:
        return short_answers([len(ids) for ids in texts_of([*self.passes[0][BASELINE].values()])])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of `specscope compare`."""
        traces, speeds = median_pass(self.passes)
        first, passes = traces[BASELINE][0].header, len(self.passes)
        found = summaries_of(traces, self.race.rows, self.passes)
        spreads = {key: [min(speed), max(speed)] if passes > 1 else None for key, speed in speeds.items()}
        methods = {key: {**figures, "spread": spreads[key]} for key, figures in found.items()}
        return {
            "prompts": len(self.race.rows),
            "skipped": [*self.skipped],
            "models": models_text(first),
            "runtime": first.runtime,
            "profile": first.profile or None,
            "clock": first.clock,
            "passes": passes,
            "warning": self.warning or None,
            "short_answers": self.short_answers or None,
            "conditions": digests([*traces[BASELINE].values()]),
            "methods": methods,
            "ranking": ranked(methods),
            "orders": orders(methods),
            "left_out": dict(self.left_out),
        }

    def frame(self) -> pandas.DataFrame:
        """Return a row per method; docs/notebook.md has the columns."""
        rows = [{**m, "method": key} for key, m in self.to_dict()["methods"].items()]
        return frame(FRAME, [[row[name] for name in FRAME] for row in rows])

    def __repr__(self) -> str:
        found = self.to_dict()
        speeds = [f"{key} {SPEEDS[1].text(found['methods'][key]['speedup'])}" for key in found["ranking"]]
        return f"Comparison({', '.join(speeds)}; {found['prompts']} prompts, {found['clock']})"

    def _repr_html_(self) -> str:
        found, runs = self.to_dict(), [mine[0] for mine in self.traces.values() if 0 in mine]
        left_out = [f"{key} is left out: {reason}" for key, reason in self.left_out.items()]
        notes = [*filter(None, (self.warning, self.short_answers)), *doubt_lines(found), *left_out]
        if found["prompts"] > 1:
            notes.append(
                f"The timeline has the first of {found['prompts']} prompts; the figures are those of all."
            )
        html = [f"<p>{text(note)}</p>" for note in notes]
        return output(line_of(found), Table(SHOWN, rows_of(found)).notebook(), *html, viewer(runs))


def line_of(result: Mapping[str, Any]) -> str:
    """Return models, number of prompts and clock."""
    prompts = f"{result['prompts']} prompt{'' if result['prompts'] == 1 else 's'}"
    return f"{result['models']} · {prompts} · {result['clock']}"


def rows_of(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the figures of each method, the fastest first."""
    rows = list[dict[str, Any]]()
    for key in result["ranking"]:
        m = result["methods"][key]
        same = "identical" if m["equal_to_autoregressive"] else "differs"
        same += "" if m["lossless"] else " (lossy)"
        notes = f"  {' · '.join([same, *_notes(m)])}"
        rows.append({**m, "method": key, "output": same, "range": range_text(m), "notes": notes})
    return rows


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield what `specscope compare` prints."""
    yield line_of(result)
    for row in result["skipped"]:
        category = f" ({row['category']})" if row["category"] else ""
        yield f"skipped: line {row['line']}{category}: {row['reason']}"
    yield from Table(PRINTED, rows_of(result)).lines()
    yield from doubt_lines(result)
    for key, reason in result["left_out"].items():
        yield f"{key:20}left out: {reason}"
    yield "tok/forward counts the target's own token; acc counts drafted tokens only: in a tree, every node"
    yield from (f"{key:20}{m['advice']}" for key, m in result["methods"].items() if m["advice"])
    yield from (f"{key:20}{_health(m['health'])}" for key, m in result["methods"].items() if m["health"])
    first = " ".join(m["runs"][0] for m in result["methods"].values())
    yield f"side by side: specscope report {first} -o report.html"


def _health(notes: dict[str, str]) -> str:
    """Return the first note with its run, and how many other runs have one."""
    run, note = next(iter(notes.items()))
    more = f" Notes on {len(notes) - 1} more runs: --json." if len(notes) > 1 else ""
    return f"run {run}: {note}{more}"


def _notes(figures: dict[str, Any]) -> list[str]:
    notes = [*filter(None, (figures["settings"], range_text(figures)))]
    if figures["hit_rate"] is not None:
        notes.append(f"hit rate {figures['hit_rate']:.0%}")
    if figures["batch"] > 1 and figures["tokens_per_second_per_sequence"]:
        speed = figures["tokens_per_second_per_sequence"]
        notes.append(f"throughput of up to {figures['batch']} sequences; {speed:.1f} tokens/s per sequence")
    if figures["spread"]:
        low, high = figures["spread"]
        mean = abs(figures["tokens_per_second"] - (low + high) / 2) < 1e-9
        notes.append(f"{'mean of' if mean else 'median pass,'} {low:.1f} to {high:.1f} tokens/s")
    if figures["not_comparable"]:
        notes.append(f"no speed-up: {figures['not_comparable']}")
    return notes


def range_text(figures: Mapping[str, Any]) -> str:
    """Return the range of a speed-up; empty without one."""
    low, high = figures["speedup_low"], figures["speedup_high"]
    return "" if low is None else f"{low:.2f} to {high:.2f}×"


def doubt_lines(result: Mapping[str, Any]) -> list[str]:
    """Return how the ranges of a comparison arose, and on how many prompts its order holds."""
    methods = result["methods"]
    sources = dict.fromkeys(m["speedup_from"] for m in methods.values() if m["speedup_from"])
    lines = [
        f"range of the speed-up ({', '.join(k for k, m in methods.items() if m['speedup_from'] == source)}): {source}"
        for source in sources
    ]
    if not sources and len(methods) > 1:
        lines.append("the speed-ups have no range: one prompt in virtual time; give several prompts")
    if result["orders"]:
        words = [
            f"{o['first']} over {o['second']} on {o['faster']} of {o['prompts']}" for o in result["orders"]
        ]
        lines.append(f"faster by prompt: {', '.join(words)}")
    return lines


def decode_all(race: RacePlan, run: Runner, **more: Any) -> Comparison:
    """Decode all prompts with all methods; `more` are facts of the comparison."""
    entries = race.entries
    parts = {name: race.parts(key) for name, (key, _) in entries.items()}
    passes: list[Traces] = [{name: {} for name in entries} for _ in range(race.passes)]
    finished = [{name: Finished() for name in entries} for _ in range(race.passes)]
    for i in range(len(race.rows)):
        sampling, group = seeded(race.sampling, i), uuid.uuid4().hex[:12]
        for turn, name in alternating(list(entries), race.passes):
            key, config = entries[name]
            if part := parts[name].get(i):
                given = {"sampling": sampling, "limits": race.limits, "group": group}
                given |= {"config": config, "finished": finished[turn][name]}
                passes[turn][name][i] = run(key, [race.prompts[k] for k in part], given)
    return Comparison(race, passes, **more)


def short_answers(answers: Sequence[int]) -> str:
    """Return the warning of short answers (in tokens), else nothing."""
    mean = sum(answers) / len(answers)
    if mean >= SHORT:
        return ""
    tokens = f"The answer has {answers[0]}" if len(answers) == 1 else f"The answers have {mean:.0f}"
    return (
        f"{tokens} tokens, and a speed-up over fewer than {SHORT} depends on the first rounds; give a prompt with a "
        "longer answer, or raise --max-new-tokens"
    )
