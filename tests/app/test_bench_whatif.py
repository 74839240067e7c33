"""The error of what-if by class: small versions of the published table."""

from __future__ import annotations

import json

from app.bench import whatif
from app.main import main

CLASSES = {c.name: c for c in whatif.CLASSES}


def test_predictions_are_exact_where_nothing_is_drawn_and_counted_where_something_is():
    names = ("same settings, T 1", "T 0, nothing drawn", "T 1, other rule: ratio to match")
    errors = whatif.measure(1, lambda _: None, tuple(CLASSES[name] for name in names), tokens=16)
    same, nothing, other = (error.to_dict() for error in errors)
    for exact in (same, nothing):
        assert (exact["n"], exact["drawn"], exact["least"], exact["most"]) == (3, 0, 0, 0)
        assert exact["decided"] > 0
    assert other["drawn"] > 0
    assert other["mean_absolute"] == abs(other["mean"])
    table = whatif.lines(errors)
    assert [line.split("  ")[0] for line in table[2:]] == list(names)


def test_the_command_prints_the_classes(capsys, monkeypatch):
    found = [whatif.Error("a class", (0.1, -0.2), 3, 1)]
    monkeypatch.setattr(whatif, "measure", lambda texts, note: found if texts == 6 else [])
    assert main(["bench", "--whatif", "--quick", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["classes"]
    assert row == found[0].to_dict()
    assert (row["mean"], row["mean_absolute"], row["least"], row["most"]) == (-0.05, 0.15, -0.2, 0.1)
