from __future__ import annotations

import json
import shutil
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch

from specscope.engine.checkpoints.config import read_config
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import UsageError
from specscope.engine.heads.files import HeadWeights, read_head
from specscope.engine.model.shape import ModelShape
from specscope.engine.plot import Line, Panel, draw
from specscope.engine.training.heads.card import chained, make_heads_card, restore
from specscope.engine.training.heads.losses import DraftAcceptance
from specscope.engine.training.heads.train import train_head, training_curves
from specscope.engine.training.settings import CardSettings, HeadOptions
from tests.engine.training.tiny import HEAD, train

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def pair(trained, corpus, tmp_path_factory):
    """The toy pair with two heads."""
    folder = tmp_path_factory.mktemp("pair") / "toy"
    shutil.copytree(trained, folder)
    shared = {"data": corpus, "target": trained / "target", "target_name": trained.name}
    sizes, text = HEAD | {"steps": 10, "checkpoint_every": 5}, None
    for kind in ("eagle", "parallelspec_medusa"):
        options = HeadOptions.of(kind, out=folder / "heads" / kind, text=text, **shared, **sizes)
        out = train_head(options)
        text = text or out / "written.safetensors"
    return folder


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "questions" / "question.jsonl"
    path.parent.mkdir()
    lines = [{"turns": [f"Do you like the {thing}?"]} for thing in ("ball", "kite", "dog" * 100)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_chains_begin_at_every_token_and_end_at_the_first_mismatch():
    assert chained([True, False, True, True], 3) == DraftAcceptance((4, 2, 0), (3, 1, 0))
    assert chained([], 2) == DraftAcceptance((0, 0), (0, 0))


def test_the_card_has_the_trainings_and_the_measurements(pair, prompts):
    torch.set_num_threads(1)
    settings = CardSettings(prompts=(prompts,), window=96, new_tokens=24)
    loaded = Pair.of(pair / "target", pair / "drafter")
    card = make_heads_card(loaded, pair, settings)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in card.splitlines() if line[:1] == "|"
    ]
    trained = {row[0]: row for row in rows if row[0] in ("eagle", "parallelspec_medusa")}
    for kind, row in trained.items():
        tensors = read_head(pair / "heads" / kind).tensors
        facts = json.loads((pair / "heads" / kind / "training.json").read_text())
        assert row[1] == f"{sum(t.numel() for t in tensors.values()) / 1e6:.2f} M"
        assert row[3:5] == ["10", f"{facts['phase']['tokens']:,}"]
    assert trained["eagle"][7] == "KL(p, q) + 10 smooth L1"
    assert trained["parallelspec_medusa"][6:8] == ["0.8^k", "KL(p, q)"]
    measured = [row for row in rows if row[0] in ("questions", "**all**")]
    assert [row[1:3] for row in measured[:3]] == [
        ["2", "eagle"],
        ["2", "parallelspec_medusa"],
        ["2", "the pair's drafter"],
    ]
    assert [row[2:] for row in measured[:3]] == [row[2:] for row in measured[3:]]
    for row in measured:
        rates = [float(cell) for cell in row[3:8] if cell]
        assert all(0 <= rate <= 1 for rate in rates)
        alive, total = 1.0, 1.0
        for rate in rates:
            alive *= rate
            total += alive
        assert float(row[8]) == pytest.approx(total, abs=0.01)
    assert "half of the answers greedy" in card


def test_missing_heads_and_untrainable_heads_are_refused(pair, tmp_path):
    loaded = Pair.of(pair / "target", pair / "drafter")
    with pytest.raises(UsageError, match="heads holds no head; specscope train medusa"):
        make_heads_card(loaded, tmp_path, CardSettings())
    shape = ModelShape.of(read_config(pair / "target"), pair)
    head = read_head(pair / "heads" / "eagle")
    with pytest.raises(UsageError, match="kind eagle with own LM heads, biases or more layers cannot be"):
        restore(HeadWeights(replace(head.config, biased=True), head.tensors), shape)


def test_prompts_that_do_not_fit_are_refused(pair, tmp_path):
    file = tmp_path / "questions" / "question.jsonl"
    file.parent.mkdir()
    file.write_text(json.dumps({"turns": ["dog" * 100]}))
    settings = CardSettings(prompts=(file,), window=96, new_tokens=24)
    with pytest.raises(UsageError, match="questions: no prompt with an answer fits into 96 tokens"):
        make_heads_card(Pair.of(pair / "target", pair / "drafter"), pair, settings)


def test_the_command_line_writes_the_card(pair, prompts, tmp_path, capsys):
    output = tmp_path / "card.md"
    assert train(f"heads --pair {pair} --prompts {prompts} --count 1 --window 96 -o {output}") == 0
    assert capsys.readouterr().out == f"wrote {output}\n"
    assert output.read_text().startswith("# Card: drafting heads of this pair")


def test_the_curves_have_every_measurement(pair):
    out = pair / "heads" / "parallelspec_medusa"
    assert (out / "curves.svg").read_text() == training_curves(out)
    root = ElementTree.fromstring((out / "curves.svg").read_text())
    loss, accepted = root.findall(f"{SVG}g")
    titles = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "t"]
    assert titles == ["parallelspec_medusa: loss", "acceptance of token k"]
    paths = [path.get("d", "") for path in loss.iter(f"{SVG}path")]
    assert paths[0].count(",") == 10
    assert 1 <= len([p for p in accepted.iter(f"{SVG}path") if p.get("d", "").count(",") == 2]) <= 5


def test_a_line_is_drawn_at_its_points():
    root = ElementTree.fromstring(draw([Panel("a < b", "x", [Line("l", [(0, 0.0), (10, 1.0)])])]))
    line_path = next(root.iter(f"{SVG}path")).get("d", "")
    (x0, y0), (x1, y1) = (map(float, point.split(",")) for point in line_path.strip("M").split())
    assert (x0, x1) == (52, 460)
    assert (y0, y1) == (240, 34)
    labels = [text.text for text in root.iter(f"{SVG}text")]
    assert {"a < b", "0", "1", "10", "l"} <= set(labels)
    assert draw([Panel("empty", "x", [])]).count("<path") == 0
