"""Every command line of README.md runs, and its result is worth reading.

A few lines get options that make them shorter. The server, a download and a bench are replaced.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from specscope.app.bench import suite
from specscope.app.bench.figures import BARS, Figure
from specscope.app.cli import COMMANDS
from specscope.engine.checkpoints import catalog
from specscope.engine.methods import METHODS
from specscope.traces.store import Store
from tests.app.commands import call
from tests.docs.test_docs import README, ROOT, command_lines

SHORTER = {
    "compare": "--max-new-tokens 40",
    "sweep": "--max-new-tokens 32",
    "load": "--max-new-tokens 32 --requests 4",
    "train": "--written 400 --steps 2 --batch 2 --sequence 64 --threads 1",
}
"""Options by command."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the assets and a corpus, in which the lines are run."""
    (tmp_path / "assets").symlink_to(ROOT / "assets")
    (tmp_path / "corpus").mkdir()
    prompts = json.loads((ROOT / "assets/prompts/bench.json").read_text(encoding="utf-8"))["prompts"]
    chats = "\x1e".join(f"<|user|>{text}<|assistant|>{text} " + "It depends. " * 20 for text in prompts * 8)
    with lzma.open(tmp_path / "corpus" / "chats.txt.xz", "wt", encoding="utf-8") as file:
        file.write(chats)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECSCOPE_DB", str(tmp_path / "traces.db"))
    monkeypatch.setattr("specscope.app.server.serve", lambda **_: print("served") or 0)
    monkeypatch.setattr("specscope.engine.runtimes.forks.warm_up", lambda: None)
    monkeypatch.setattr(catalog, "get", lambda *_: tmp_path)
    figures = {key: Figure((1.5, 1.6, 1.7), "ratio") for key in BARS}
    monkeypatch.setattr(suite, "measure", lambda plan, note: figures)
    return tmp_path


def ids(place: Path) -> list[str]:
    """Return the ids of the comparison's runs, the baseline's first."""
    with Store(place / "traces.db", readonly=True) as store:
        runs = [run.header for run in store.runs(limit=200)[0]]
    group = next(h.group for h in runs if h.method == "hydra")
    return [h.run_id for h in reversed(runs) if h.group == group]


def rows(output: str, first: int, last: int | None = None) -> list[list[str]]:
    """Return the cells of lines `first` to `last` of a table."""
    return [line.split() for line in output.splitlines()[first:last]]


def check_run(output: str) -> None:
    text, _, line = output.strip().rpartition("\n")
    assert len(text) > 100
    assert int(re.search(r"^\[pearl · (\d+) tokens · ", line)[1]) > 60
    assert " · bundled · measured · local-process · run " in line


def check_compare(output: str) -> None:
    methods = rows(output, 2, 2 + len(METHODS))
    assert sorted(cells[0] for cells in methods) == sorted(METHODS), "none is left out"
    assert all(int(cells[3]) >= 32 and "identical" in cells for cells in methods)
    speedups = {cells[0]: float(cells[2].rstrip("×")) for cells in methods}
    assert speedups["autoregressive"] == 1
    assert len({*speedups.values()}) > len(METHODS) / 2
    assert max(speedups.values()) > 1.2


def check_sweep(output: str) -> None:
    cells = re.findall(r"([\d.]+)× ±([\d.]+)", output.splitlines()[2])
    assert len(cells) == 8
    assert len({speedup for speedup, _ in cells}) > 3
    assert any(float(spread) > 0 for _, spread in cells), "over the prompts"


def check_plan(output: str) -> None:
    assert re.search(r"^CPU core \d +target ", output, re.MULTILINE)
    assert "The pair fits with" in output
    assert "Can run: assisted, autoregressive, dsi" in output


def check_load(output: str) -> None:
    served = [cells for cells in rows(output, 2) if cells[0] in METHODS and cells[1].isdigit()]
    assert len(served) == 3 * 4, "methods and batch sizes"
    assert all(float(cells[2]) > 1 for cells in served)


def check_runs(output: str) -> None:
    assert len(rows(output, 1, -1)) == 20
    assert all(re.fullmatch(r"[0-9a-f]{12}", cells[0]) for cells in rows(output, 1, -1))


def check_whatif(output: str) -> None:
    assert output.startswith("DSI · ")
    assert "acceptance by definition:" in output


def check_diff(output: str) -> None:
    assert float(re.search(r"^sum +([-+][\d.]+)$", output, re.MULTILINE)[1])


def check_bench(output: str) -> None:
    assert set(json.loads(output)["bars"]) == set(BARS)


def check_papers(output: str) -> None:
    assert re.search(r"^  pearl +\d+ of \d+ within 15%", output, re.MULTILINE)


CHECKS: dict[str, Callable[[str], None]] = {
    name.removeprefix("check_"): check for name, check in vars().items() if name.startswith("check_")
}


def checked(command: str, output: str) -> str:
    """Check the output of a line; return the command."""
    assert output.strip(), command
    CHECKS.get(command, lambda _: None)(output)
    return command


@pytest.mark.slow
def test_every_line_runs_and_has_a_result(place, capsys):
    names, done = dict[str, str](), list[str]()
    for command, *words in command_lines(README):
        if command == "whatif":
            plain, method = ids(place)[:2]
            names = {"RUN": method, "RUN1": plain, "RUN2": method}
        line = [command, *(names.get(word, word) for word in words), *SHORTER.get(command, "").split()]
        code, out, err = call(capsys, *line)
        assert code == 0, (line, err)
        assert "answer has" not in err, (line, err)
        assert "answers have" not in err, (line, err)
        done.append(checked(command, out))
    assert set(done) == set(COMMANDS)
    assert {"story.html", "story.jsonl", "mine.toml", "other.db", "eagle"} <= {
        p.name for p in place.iterdir()
    }
