"""The command lines of docs/, where each one runs, and those that run nowhere with the reason."""

from __future__ import annotations

import re
from pathlib import Path

from specscope.engine.checkpoints.catalog import PAIRS
from specscope.engine.simulate.profile import FOLDER
from specscope.engine.trace.jsonl import write_jsonl
from specscope.traces.database.store import Store
from tests.docs.test_docs import DOCUMENTS, ROOT, command_lines
from tests.traces.samples import sample_trace

PAGES = {
    path.relative_to(ROOT).as_posix(): lines
    for path in DOCUMENTS
    if path.name == "README.md" or path.is_relative_to(ROOT / "docs")
    if (lines := command_lines(path.read_text(encoding="utf-8")))
}
"""Page, or README.md -> its lines, each as the arguments of `specscope`."""

NOWHERE = {
    r"^bench --cuda": "needs a GPU; tests/engine/gpu",
    r"^bench ": "measures for minutes; tests/app/test_bench.py",
    r"--server ": "asks a running server; tests/app/test_servers.py",
    r"--runtime ray|--ray": "starts a Ray cluster; tests/engine/runtimes/test_ray.py",
    r"^train ": "trains for minutes to hours; tests/engine/training",
    r"^models (get|remove)": "downloads and deletes a model; tests/engine/checkpoints/test_catalog.py",
    r"^papers --winners": "ten minutes; tests/traces/papers/test_winners.py",
    r"^map --seeds 5": "half an hour; the next line of that page is a part of it",
    r"^follow (server\.log|http|FOLDER)": "follows what runs elsewhere; tests/app/test_recordings.py",
    r"^follow .* --json": "waits for a file that grows; tests/app/test_recordings.py",
    r"^calibrate": "measures for minutes; tests/app/test_status.py",
}
"""Pattern of a line -> why no test runs it here, and which tests run such a command."""

SHORTER = {
    "run": "--max-new-tokens 12",
    "compare": "--max-new-tokens 12",
    "load": "--max-new-tokens 8",
    "sweep": "--max-new-tokens 12",
    "advise": "--methods speculative --max-new-tokens 16 --context 64 --batch 1",
    "map": "--seeds 1 --ratios 5 --rates 0.7 --devices 2",
}
"""Options by command; the last of two equal options is taken."""


def reason(line: list[str]) -> str:
    """Return why a line is run nowhere; empty if it is run."""
    text = " ".join(line)
    return next((why for pattern, why in NOWHERE.items() if re.search(pattern, text)), "")


def shortened(line: list[str]) -> list[str]:
    """Return a line with the options that make it shorter."""
    more = SHORTER.get(line[0], "").split()
    if line[0] == "load" and "--arrivals" not in line:
        more += ["--requests", "3"]
    if "--prompt-file" in line:
        more += ["--limit", "2"]
    if "--recorded" in line:  # it has the rates of its runs
        more = ["--seeds", "1", "--ratios", "5", "--devices", "2"]
    if "--context" in line:  # the models of these tests have 2,304 positions
        more += ["--context", "2048"]
    if "--passes" in line:
        more += ["--passes", "1"]
    if "drafter=int4,int8" in line:
        line = ["drafter=int4" if word == "drafter=int4,int8" else word for word in line]
    return [*line, *(more if "acceptance_rate" not in " ".join(line) else more[2:])]


def furnish(place: Path) -> None:
    """Make the files and folders that the lines name."""
    bundled = PAIRS / "bundled"
    for name, model in (("my-model", "target"), ("small", "drafter"), ("assets", "")):
        (place / name).symlink_to(bundled / model if model else ROOT / "assets")
    for name, model in (("big", "target"), ("little", "drafter")):
        (place / name).mkdir()
        config = (bundled / model / "config.json").read_text(encoding="utf-8")
        (place / name / "config.json").write_text(config, encoding="utf-8")
    rows = "".join(
        f'{{"prompt": "Why is the sky {colour}?", "category": "{colour}"}}\n' for colour in ("blue", "red")
    )
    (place / "spec-bench").mkdir()
    for name in ("prompts.jsonl", "questions.jsonl", "spec-bench/question.jsonl"):
        (place / name).write_text(rows, encoding="utf-8")
    (place / "trace.jsonl").write_text('{"arrival": 0}\n{"arrival": 0.5}\n', encoding="utf-8")
    for name in ("mine.jsonl", "assisted.jsonl"):
        with (place / name).open("w", encoding="utf-8") as file:
            write_jsonl(sample_trace("speculative"), file)
    for name, count in (("before.prom", 5), ("after.prom", 9)):
        counts = (
            f"vllm:spec_decode_num_{one}_total {count}\n"
            for one in ("drafts", "draft_tokens", "accepted_tokens")
        )
        (place / name).write_text("".join(counts), encoding="utf-8")
    responses = ROOT / "tests" / "traces" / "imported" / "vllm.jsonl"
    (place / "responses.jsonl").write_text(responses.read_text(encoding="utf-8"), encoding="utf-8")
    profile = (FOLDER / "pearl-3xA100.toml").read_text(encoding="utf-8")
    (place / "mine.toml").write_text(profile.replace('"pearl-3xA100"', '"mine"'), encoding="utf-8")


def named(line: list[str], place: Path) -> list[str]:
    """Return a line with the ids of stored runs in place of RUN, RUN1 and so on."""
    with Store(place / "traces.db", readonly=True) as store:
        runs = [run.header for run in store.runs(limit=200)[0]]
    pearl = next(h for h in runs if h.method == "pearl").run_id
    others = [h.run_id for h in runs if h.run_id != pearl]
    if {"--recorded", "gamma=0:16"} & {*line}:  # of a chain's run with 48 tokens or more
        pearl = [h.run_id for h in runs if h.method == "speculative"][-1]
    names = {"RUN": pearl, "RUN1": pearl, "RUN2": others[0], "RUN3": others[-1]}
    return [names.get(word, word) for word in line]
