"""Random recordings: a loop that the recorder takes is a trace that all views and files take."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

import specscope
from specscope.engine.errors import UsageError
from specscope.traces.export.perfetto import to_perfetto
from specscope.traces.export.report import render_report
from specscope.traces.imports.reading import read_traces
from specscope.traces.view.document import view_model
from specscope.traces.whatif.replay import Change, what_if

TOKENS, OWN = 5, 9


def draw_round(draw: random.Random) -> dict:
    """Return a chain or a tree of up to five tokens, and a path of it that is accepted."""
    size, tree = draw.randrange(6), draw.random() < 0.4
    drafted = [draw.randrange(TOKENS) for _ in range(size)]
    parents = [draw.randrange(-1, i) if tree and i else i - 1 for i in range(size)]
    path, node = [], -1
    while draw.random() < 0.6 and (children := [i for i in range(size) if parents[i] == node]):
        node = draw.choice(children)
        path.append(node)
    chances = [draw.random() for _ in drafted] if draw.random() < 0.5 else None
    emitted = [*(drafted[i] for i in path), OWN]
    return {"drafted": drafted, "parents": parents, "accepted": path, "emitted": emitted, "q": chances}


def record(draw: random.Random, path) -> None:
    rule, sequences, running = draw.choice(["", "ratio", "typical"]), draw.choice([1, 1, 2, 3]), set()
    with specscope.record(path, devices=["drafter", "target"], rule=rule) as rec:
        for sequence in range(sequences):
            rec.prompt(ids=[1, 2, 3][: draw.choice([0, 3])])
            running.add(sequence)
        if draw.random() < 0.5:
            with rec.span("prefill", "target", context=0, sequence=-1):
                rec.round(emitted=[7])
        for _ in range(draw.randrange(8)):
            for _ in range(draw.randrange(3)):
                with rec.span("draft", sequence=draw.choice([-1, 0])):
                    pass
            if draw.random() < 0.8:
                with rec.span(draw.choice(["verify", "pre-verify"]), rows=2, sequence=-1):
                    pass
            for sequence in sorted(running):
                given = draw_round(draw)
                if draw.random() < 0.1:
                    running.remove(sequence)
                    given |= {"emitted": given["emitted"][: draw.randrange(1, 7)], "reason": "eos"}
                rec.round(**given, sequence=sequence, draft=draw.choice([None, None, -1]))
            if draw.random() < 0.2:
                rec.discard([1, 2], ahead=draw.randrange(3))


@pytest.mark.parametrize("seed", range(20))
def test_all_views_and_files_take_a_random_recording(seed, tmp_path, store):
    draw, path = random.Random(seed), tmp_path / "random.jsonl"
    record(draw, path)
    (trace,) = read_traces(path).traces
    (run,) = view_model([trace])["runs"]
    assert len(run["tokens"]) == len(trace.commits)
    assert render_report([trace])
    if trace.spans:
        assert to_perfetto(trace)["traceEvents"]
    store.insert(trace)
    assert store.load(trace.header.run_id).token_ids() == trace.token_ids()
    with suppress(UsageError):  # a batch, or nothing was tested
        replayed = what_if(trace, Change(method="speculative", profile="pearl-3xA100")).replay
        assert replayed.token_ids() == trace.token_ids()
