"""The outputs that must stay the same: a text for each name.

Virtual runs of scripted models have the same rows on every processor. Of the bundled pair, whose
floats differ in the last digits between processors, only texts, decisions and rounds are kept.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import specscope
from specscope.app.main import main
from specscope.engine.cluster.session import Cluster
from specscope.engine.errors import UsageError
from specscope.engine.methods import METHODS
from specscope.engine.run.serving import Load
from specscope.engine.simulate.profile import profiles
from specscope.engine.trace.jsonl import to_json
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.export.perfetto import to_perfetto
from specscope.traces.export.tables import write_csv
from specscope.traces.view.document import view_model
from specscope.traces.whatif.replay import Change, what_if

PROMPT = "Once upon a time there was a small town"
PROMPTS = (PROMPT, "The sea is salty because", "Hello, my name is")
TOKENS = "bernoulli:0.8"
NEW_TOKENS = 40
GREEDY, SAMPLED = Sampling(seed=3), Sampling(temperature=0.9, seed=3)
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLED}
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "pearl": [
        {"gamma": 3, "placement": "pipeline"},
        {"gamma": 3, "placement": "co-located"},
        {"gamma": 3, "guesses": 2},
        {"gamma": 3, "pre_verify": False},
        {"gamma": 3, "post_verify": False},
    ],
    "dsi": [{"acceptance": "rejection"}, {"drafts": "sampled"}],
    "ems": [{"base": "speculative", "batch": 3}, {"base": "speculative", "width": 2}, {"unpad_kv": False}],
    "easyspec": [{"size": 2, "width": 2, "gamma": 3}, {"calibrate": False}],
    "assisted": [{"schedule": "constant"}],
}
"""Settings besides the defaults."""
WHAT_IFS = {
    "gamma": Change(config={"gamma": 2}),
    "profile": Change(profile="pearl-4xA100"),
    "method": Change(method="pearl", config={"gamma": 3}),
}
SWEEP = "gamma=1:3 --over acceptance_rate=0.5,0.9"
COMMANDS = {
    "methods": "methods --json",
    "papers": "papers --json",
    "run": "run --method speculative --prompt Hi --pair bundled --profile 8xA100 --tokens bernoulli:0.8 --json",
    "compare": "compare --methods speculative,pearl,dsi --prompt Hi --pair bundled --profile 8xA100 "
    "--tokens bernoulli:0.8 --json",
    "sweep": f"sweep --method pearl --over {SWEEP} --profile pearl-3xA100 --max-new-tokens 32 --json",
    "load": "load --methods speculative,ems --rate 4 --requests 6 --pair bundled --profile A100-40G --tokens bernoulli:0.8 "
    "--max-new-tokens 24 --json",
    "policies": "load --methods speculative --policy by-batch,survival,minedraft --requests 6 --batch 2,4 --pair bundled "
    "--profile pearl-4xA100 --tokens bernoulli:0.8 --max-new-tokens 24 --json",
}
"""Commands whose JSON depends on no float of a model."""
PASSING = {"run_id", "created", "group", "environment", "version", "versions", "seconds", "runs", "run"}
"""Fields that differ between two equal runs, or with the version of a package."""


FULL = ("8xA100", "A100-40G")
"""Profiles, of eight devices and of one, on which methods run with `VARIANTS` and sampled, too."""


def _scripted() -> Iterator[tuple[str, str]]:
    for profile in profiles():
        with specscope.open("bundled", profile=profile, runtime="virtual", tokens=TOKENS) as cluster:
            for method, config in _cases(cluster):
                for name, sampling in SAMPLINGS.items():
                    if profile in FULL or not (config or sampling.temperature):
                        trace = _run(cluster, method, config, sampling)
                        title = f"{profile} {_title(method, config)} {name}"
                        yield from _of_trace(title, trace, whole=profile in FULL) if trace else ()


def _cases(cluster: Cluster) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the methods that a cluster can run, each with its defaults and its other settings."""
    for method in METHODS:
        with contextlib.suppress(UsageError):
            cluster.check(method)
            yield from ((method, config) for config in [{}, *VARIANTS.get(method, [])])


def _run(cluster: Cluster, method: str, config: dict[str, Any], sampling: Sampling) -> Trace | None:
    """Return a run; None if the cluster has too few devices for the settings."""
    prompts = PROMPTS if METHODS[method].batched else PROMPTS[:1]
    with contextlib.suppress(UsageError):
        return cluster.run(method, *prompts, config=config, sampling=sampling, limits=Limits(NEW_TOKENS))
    return None


def _title(method: str, config: dict[str, Any]) -> str:
    return " ".join([method, *(f"{name}={value}" for name, value in config.items())])


def _of_trace(name: str, trace: Trace, *, whole: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the rows of a trace; with `whole` also the viewer's document and the exports."""
    lines = [json.loads(to_json(event)) for event in trace.events()]
    yield f"{name} · trace", "\n".join(map(_json, lines))
    if not whole:
        return
    document = {("shown" if key == "runs" else key): value for key, value in view_model([trace]).items()}
    yield f"{name} · view", _json(document).replace(trace.header.run_id, "")
    file = io.StringIO()
    write_csv(trace, "decisions", file)
    yield f"{name} · exports", _json(to_perfetto(trace)) + file.getvalue()


def _bundled() -> Iterator[tuple[str, str]]:
    """Yield what the bundled pair decides: for heads, which compute in int8, the greedy text."""
    with specscope.open("bundled", profile="8xA100", runtime="virtual") as cluster:
        for method, entry in METHODS.items():
            head = bool(entry.layout(entry.plan(entry.configure({}), cluster.situation)).head)
            for name, sampling in SAMPLINGS.items():
                trace = None if head and name == "sampled" else _run(cluster, method, {}, sampling)
                if trace is not None:
                    yield f"bundled {method} {name}", _json(_decided(trace, whole=not head))


def _decided(trace: Trace, *, whole: bool) -> dict[str, Any]:
    """Return the texts of a run; with `whole` its decisions and rounds, without floats."""
    texts = [trace.text] if len(trace.header.prompts) == 1 else [c.token for c in trace.commits]
    if not whole:
        return {"texts": texts}
    return {
        "texts": texts,
        "decisions": [_whole_numbers(asdict(d)) for d in trace.decisions],
        "rounds": [_whole_numbers(asdict(r)) for r in trace.rounds],
    }


def _whole_numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if isinstance(v, int | str) and k not in ("time", "start", "end")}


def _under_load() -> Iterator[tuple[str, str]]:
    load = Load((0.0, 0.01, 0.4), batch=2)
    with specscope.open("bundled", profile="A100-40G", runtime="virtual", tokens=TOKENS) as cluster:
        for method in METHODS:
            with contextlib.suppress(UsageError):
                cluster.check(method, load)
                trace = cluster.run(method, *PROMPTS, sampling=SAMPLED, limits=Limits(NEW_TOKENS), load=load)
                yield from _of_trace(f"load {method}", trace)


def _what_ifs() -> Iterator[tuple[str, str]]:
    with specscope.open("bundled", profile="pearl-3xA100", runtime="virtual", tokens=TOKENS) as cluster:
        trace = cluster.run("speculative", PROMPT, config={"gamma": 5}, limits=Limits(NEW_TOKENS))
        trace.header = replace(trace.header, run_id="recorded")
    for name, change in WHAT_IFS.items():
        yield from _of_trace(f"what-if {name}", what_if(trace, change).replay)


def _commands() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        for name, command in COMMANDS.items():
            stored = name in ("run", "compare", "sweep", "load", "policies")
            words = [*command.split(), *(["--db", str(Path(folder) / "runs.db")] if stored else [])]
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                code = _exit_code(words)
            assert code == 0, f"specscope {command} exited with {code}"
            yield f"specscope {name}", _json(json.loads(out.getvalue()))


def _exit_code(words: list[str]) -> Any:
    try:
        return main(words)
    except SystemExit as end:
        return end.code or 0


def _json(value: Any) -> str:
    return json.dumps(_lasting(value), sort_keys=True, ensure_ascii=False, indent=0)


def _lasting(value: Any) -> Any:
    """Return JSON values without passing fields, measured rows and the folder of the checkout."""
    if isinstance(value, dict):
        if value.get("kind") == "measured":
            return None
        return {str(k): _lasting(v) for k, v in value.items() if k not in PASSING}
    if isinstance(value, str):
        return value.replace(str(Path(__file__).parents[2]), "")
    if isinstance(value, Sequence):
        return [_lasting(v) for v in value]
    return value


GROUPS = {
    "scripted": _scripted,
    "bundled": _bundled,
    "load": _under_load,
    "what-if": _what_ifs,
    "commands": _commands,
}
"""Group -> its outputs, a text for each name."""
