"""ParallelSpec's group size: heads of a folder in virtual and in measured time, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from app.bench import groups
from app.bench.plan import QUICK, Plan
from app.main import main
from engine.errors import UsageError
from engine.pairs.pair import Pair
from tests.engine.heads.random_heads import make_head

SMALL = Plan(1, 1, 1.0, 1, 12, 1, 100, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random heads with K = 0, 2 and 6."""
    folder, target = tmp_path_factory.mktemp("heads"), Pair.find().target_path
    for masks in (2, 6, 0):
        make_head(folder / f"k{masks}", "parallelspec_eagle", target, masks=masks)
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> groups.Report:
    return groups.measure(folder, SMALL, lambda _: None, "8xA100")


def test_every_head_drafts_a_chain_and_a_tree_of_its_group(report: groups.Report):
    assert [(g.masks, g.shape, g.nodes) for g in report.groups] == [
        (0, "chain", 1),
        (0, "tree", 4),
        (2, "chain", 3),
        (2, "tree", 20),
        (6, "chain", 7),
        (6, "tree", 27),
    ]
    assert report.clock == "virtual · 8xA100 · llama-3-8-70-tp2"
    assert all(group.speedup.valid for group in report.groups), "the same tokens with every head"
    assert all(1 <= group.tokens <= group.masks + 2 for group in report.groups)


def test_below_its_last_level_the_tree_continues_as_a_chain():
    nodes = groups.SHAPES["tree"](9)
    assert sorted(path for path in nodes if len(path) > 5) == [(0,) * n for n in (6, 7, 8, 9)]
    assert {path for path in nodes if len(path) <= 5} == set(groups.SHAPES["tree"](5))


def test_a_report_as_text_json_and_chart(report: groups.Report):
    text = report.lines()
    assert (
        text[0] == "parallelspec_eagle · virtual · 8xA100 · llama-3-8-70-tp2 · speed-up over autoregressive"
    )
    assert text[2].split()[:3] == ["0", "chain", "1"]
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["groups"][1]["nodes"] == 4
    paths = [e for e in ElementTree.fromstring(report.chart()).iter() if e.tag.endswith("path")]
    assert len(paths) == 8, "two panels with two curves, and their keys"


def test_this_machine_is_measured_over_autoregressive(folder: Path, tmp_path: Path):
    (tmp_path / "k2").symlink_to(folder / "k2")
    report = groups.measure(tmp_path, Plan(1, 1, 1.0, 1, 4, 1, 100, 1), lambda _: None)
    assert report.clock == "measured · local-thread"
    assert all(g.speedup.valid and len(g.speedup.values) == 1 for g in report.groups)


def test_other_kinds_and_equal_k_are_refused(folder: Path, tmp_path: Path):
    pair = Pair.find()
    with pytest.raises(UsageError, match="has no subfolders with heads"):
        groups.find(tmp_path, pair)
    make_head(tmp_path / "a", "parallelspec_eagle", pair.target_path, masks=2)
    make_head(tmp_path / "b", "parallelspec_eagle", pair.target_path, masks=2)
    with pytest.raises(UsageError, match=r"has two heads with K = 2; give one for each K$"):
        groups.find(tmp_path, pair)
    make_head(tmp_path / "c", "medusa", pair.target_path)
    with pytest.raises(UsageError, match="has heads of kind medusa, parallelspec_eagle; all must be"):
        groups.find(tmp_path, pair)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--heads . --placements", "--placements and --heads exclude each other; choose one"),
        ("-o k.svg", "--output k.svg needs --heads, whose chart it is; give both or neither"),
        ("--heads . -o nowhere/k.svg", "the folder of the output nowhere/k.svg does not exist"),
    ],
)
def test_options_that_exclude_each_other(words: str, message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["bench", *words.split()]) == 2
    assert message in capsys.readouterr().err


def test_the_command_draws_the_chart(
    report: groups.Report, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
):
    calls: list[tuple] = []
    monkeypatch.setattr(groups, "measure", lambda *args: calls.append(args) or report)
    chart = tmp_path / "k.svg"
    words = ["bench", "--heads", str(folder), "--quick", "--profile", "8xA100", "-o", str(chart), "--json"]
    assert main(words) == 0
    assert [(call[0], call[1], call[3]) for call in calls] == [(folder, QUICK, "8xA100")]
    assert len(json.loads(capsys.readouterr().out)["groups"]) == 6
    assert chart.read_text(encoding="utf-8").startswith("<svg")
