"""The roofline's error against published forwards: the page's table, and that nothing is fitted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specscope.engine.simulate.roofline import PublishedModel
from specscope.engine.simulate.shapes import data
from specscope.traces.papers.forwards import forward_ms, sources
from tests.app.commands import call, refused

PAGE = (Path(__file__).parents[3] / "docs" / "advise.md").read_text(encoding="utf-8")


def test_the_page_has_the_command_s_table(capsys):
    code, out, _ = call(capsys, "papers", "--forwards", "--json")
    found = json.loads(out)["forwards"]
    assert code == 0
    assert len(found) == len(sources()) == 9
    for source in found:
        worst = source["worst"]["difference"]
        cells = source["source"], len(source["rows"]), f"{source['median']:.0%}", f"{worst:+.0%}"
        assert f"| {' | '.join(map(str, cells))} |" in PAGE
        assert max(abs(row["difference"]) for row in source["rows"]) == abs(worst)
    _, printed, _ = call(capsys, "papers", "--forwards", "--rows")
    assert sum(line.startswith("    ") and " ms" in line for line in printed.splitlines()) > 170
    assert "leave --paper and -o out" in refused(capsys, "papers", "--forwards", "--paper", "pearl")


def test_a_published_time_is_not_an_input(monkeypatch: pytest.MonkeyPatch):
    """With all published speeds doubled, the roofline's times are the same."""
    before = {(s.title, f.name): f.ours for s in sources() for f in s.forwards}

    def faster(model: PublishedModel, *rest: Any) -> float:
        return forward_ms(replace(model, speed=2 * model.speed), *rest)

    monkeypatch.setattr("specscope.traces.papers.forwards.forward_ms", faster)
    assert {(s.title, f.name): f.ours for s in sources() for f in s.forwards} == before


def test_the_engines_constants_follow_from_the_two_small_shapes_of_the_bench():
    """docs/bench.md: 160M and 1B over their floors, at 3,940 GB/s; the data sheet has 4,800."""
    found = data("gpus")["engines"]
    for engine, host, (small, large) in (("graphs", 300, (15.5, 3.58)), ("eager", 0, (113, 20.0))):
        layers = []
        for over, count, weights in ((small, 12, 137_822_208), (large, 16, 1_038_352_384)):
            floor, streaming = 2 * weights / 3.94e6, 2 * weights / 4.8e6
            layers.append((over * floor - streaming - host) / count)
        assert found[engine]["layer_us"] == pytest.approx(sum(layers) / 2, rel=0.02)
        assert found[engine]["host_us"] == host
