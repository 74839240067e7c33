"""Every command of README.md and docs/ runs with and without SmolLM2; the notebook's cells run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest

import specscope
from specscope.app.cli import COMMANDS
from specscope.engine.checkpoints import catalog
from specscope.engine.checkpoints.catalog import PAIRS
from specscope.engine.errors import ModelError
from specscope.engine.trace.trace import Trace
from specscope.traces.database.store import Store
from specscope.traces.facts.metrics import measure
from tests.app.commands import call
from tests.docs.lines import NOWHERE, PAGES, furnish, named, reason, shortened
from tests.docs.notebook import FILE, executed, notebook
from tests.docs.test_docs import ROOT

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
ABSENT = "the hub is not asked in a test"
STORY = "compare --pair bundled --methods autoregressive"
"""The beginning of the tutorial's first line."""


@pytest.fixture
def machine(request, tmp_path, monkeypatch) -> bool:
    """Return whether this machine has SmolLM2: then a stand-in, the bundled drafter, is opened."""
    present = getattr(request, "param", "") == "with SmolLM2"
    stand_in = PAIRS / "bundled" / "drafter"

    def get(name: str, *_: object) -> Path:
        if not present:
            raise ModelError(ABSENT)
        return stand_in

    pairs = tmp_path / "pairs"  # without SmolLM2's heads, which fit no stand-in
    pairs.mkdir()
    (pairs / "bundled").symlink_to(PAIRS / "bundled")
    monkeypatch.setattr(catalog, "PAIRS", pairs)
    monkeypatch.setattr(catalog, "get", get)
    monkeypatch.setattr(catalog, "installed", lambda name: stand_in if present else None)
    return present


@pytest.fixture
def place(tmp_path, monkeypatch, machine) -> Path:
    """A folder with what the lines name."""
    furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECSCOPE_DB", str(tmp_path / "traces.db"))
    monkeypatch.setattr("specscope.app.web.server.serve", lambda **_: print("served") or 0)
    monkeypatch.setattr("specscope.engine.runtimes.forks.warm_up", lambda: None)
    return tmp_path


def test_every_line_is_run_or_has_a_reason():
    lines = [line for page in PAGES.values() for line in page]
    assert {line[0] for line in lines} <= set(COMMANDS)
    assert sum(not reason(line) for line in lines) > len(lines) / 2
    for pattern in NOWHERE:
        assert any(re.search(pattern, " ".join(line)) for line in lines), f"{pattern} is in no document"


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["without SmolLM2", "with SmolLM2"], indirect=True)
@pytest.mark.parametrize("page", PAGES)
def test_a_page(page, place, capsys, machine):
    check_page(page, place, capsys, present=machine)


def check_page(page: str, place: Path, capsys, *, present: bool) -> None:
    """Run the lines of a page in order; without SmolLM2 those that name it say how to get it."""
    speedups(capsys, line_of(STORY))  # the runs that lines name
    for words in (line for line in PAGES[page] if not reason(line)):
        line = shortened(named(words, place))
        code, out, err = call(capsys, *line)
        if "smollm2" in line and not present:
            assert (code in (1, 2), err.count("\n")) == (True, 1), line
            assert ABSENT in err or "specscope models get smollm2" in err, line
            continue
        assert code == 0, (line, err)
        assert out.strip() or "-o" in line, line


def speedups(capsys, line: list[str]) -> dict[str, str]:
    """Return the speed-up of each method of a comparison, as a text shows it."""
    code, out, err = call(capsys, *line, "--json")
    assert code == 0, err
    return {key: f"{one['speedup']:.2f}" for key, one in json.loads(out)["methods"].items()}


def line_of(start: str) -> list[str]:
    """Return the tutorial's line that begins with these words."""
    return next(line for line in PAGES["docs/tutorial.md"] if " ".join(line).startswith(start))


def faster(run: Trace, plain: Trace) -> str:
    speeds = [measure(trace).tokens_per_second for trace in (run, plain)]
    return f"{speeds[0] / speeds[1]:.2f}×"


def test_the_tutorials_comparison_and_what_if_give_its_figures(place, capsys):
    """The figures of the page's steps are those of the command lines below them."""
    found = speedups(capsys, line_of(STORY))
    table = dict(re.findall(r"\| (Speculative decoding|PEARL), gamma \d \| ([\d.]+)×", TUTORIAL))
    assert table == {"Speculative decoding": found["speculative"], "PEARL": found["pearl"]}
    with Store(place / "traces.db", readonly=True) as store:
        runs = {run.header.method: store.load(run.header.run_id) for run in store.runs()[0]}
    plain, words = runs["autoregressive"], " ".join(TUTORIAL.split())
    assert len({run.text for run in runs.values()}) == 1
    assert f"the same {measure(plain).tokens}\n" in TUTORIAL
    for name, key in (("Speculative decoding, gamma 5", "speculative"), ("PEARL, gamma 3", "pearl")):
        waits = measure(runs[key]).waiting
        shares = " | ".join(f"{100 * waits[side]:.0f} %" for side in ("both", "draft", "target"))
        assert f"| {name} | {faster(runs[key], plain)} | {shares} |" in TUTORIAL
    rejected = next(d for d in runs["speculative"].decisions if d.outcome == "rejected")
    assert f"p = {rejected.p:.3f} and q = {rejected.q:.3f}" in words
    (prompt,) = plain.header.prompts
    assert prompt in TUTORIAL
    with specscope.open("bundled", runtime="virtual", profile=plain.header.profile) as cluster:
        short = cluster.run("speculative", prompt, config={"gamma": 3})
    waits = f"{100 * measure(short).waiting['draft']:.0f} %"
    assert f"again: {faster(short, plain)}. The target now waits for {waits}" in words
    whatif = [runs["pearl"].header.run_id if word == "RUN" else word for word in line_of("whatif RUN")]
    code, out, err = call(capsys, *whatif)
    assert code == 0, err
    assert f"{re.search(r'Replay[*]: ([0-9.]+)×', TUTORIAL)[1]}×" in out


@pytest.mark.slow
def test_the_tutorials_race_of_parallel_methods_gives_its_figures(place, capsys):
    found = speedups(capsys, line_of("compare --pair bundled --methods speculative,pearl,ssd"))
    text = TUTORIAL[TUTORIAL.index("SSD is the fastest") :].partition(" With ")[0]
    said = {"ssd": re.search(r"fastest, ([\d.]+) times", text)[1]}
    said |= {
        name.split()[0].lower(): number
        for name, number in re.findall(r"(\w+|speculative decoding) \(([\d.]+)\)", text)
    }
    said["speculative"] = said.pop("decoding", said.get("speculative"))
    assert len(said) == 6
    assert said == {key: found[key] for key in said}
    assert next(iter(said)) == max(said, key=lambda key: float(said[key]))


MOST_BYTES = 700_000


def kinds(cells) -> list[list[str]]:
    """Return the kinds of output of each code cell, such as text/html."""
    code = (cell for cell in cells if cell.cell_type == "code")
    return [sorted(kind for output in cell.outputs for kind in output.data) for cell in code]


@pytest.mark.slow
def test_the_stored_notebook_has_the_cells_and_the_kinds_of_outputs_of_one_that_is_executed_now():
    stored, now = nbformat.read(FILE, 4), executed(notebook())
    assert [cell.source for cell in stored.cells] == [cell.source for cell in now.cells]
    assert kinds(stored.cells) == kinds(now.cells)
    assert sum("text/html" in found for found in kinds(now.cells)) >= 7


def test_the_stored_notebook_is_small_and_names_no_folder_of_a_machine():
    text = FILE.read_text(encoding="utf-8")
    assert len(text) < MOST_BYTES
    assert not [place for place in (str(FILE.parents[1]), str(Path.home()), "/tmp/") if place in text]
