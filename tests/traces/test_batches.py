"""The two batches of a MineDraft run, as the timeline shows them."""

from __future__ import annotations

from itertools import pairwise

import specscope
from specscope.engine.types import Limits
from specscope.traces.view.document import view_model
from specscope.traces.view.packed import packed


def test_drafts_and_verifications_of_a_batch_have_its_number():
    load = specscope.Load((0.0,) * 4, batch=2, policy="minedraft")
    with specscope.open("bundled", runtime="virtual", profile="pearl-4xA100") as cluster:
        trace = cluster.run("speculative", *"abcd", config={"gamma": 2}, limits=Limits(12), load=load)
        fixed = cluster.run("speculative", "a", limits=Limits(4), load=specscope.Load((0.0,)))
    (run,) = view_model([trace])["runs"]
    assert run["config"] == "γ 2 · minedraft"
    spans = [(track["spans"], i) for track in run["tracks"] for i in range(len(track["spans"]["id"]))]
    batch = {columns["id"][i]: columns["batch"][i] for columns, i in spans if "batch" in columns}
    kinds = {s.id: s.kind for s in trace.spans}
    assert all((number >= 0) == (kinds[span] in ("draft", "verify")) for span, number in batch.items())
    drafted = {d.draft_span: d for d in trace.decisions if min(d.draft_span, d.verify_span) >= 0}
    assert drafted
    for span, d in drafted.items():
        assert batch[span] == batch[d.verify_span], "a draft is verified with its batch"
    own = [{batch[r.span] for r in trace.rounds if r.sequence == i and r.drafted} for i in range(4)]
    assert sorted(own, key=min) == [{0}, {0}, {1}, {1}]
    verified = [batch[s.id] for s in trace.spans if s.kind == "verify"]
    assert all(a != b for a, b in pairwise(verified[:4]))

    tracks = packed(view_model([trace]))["runs"][0]["tracks"]
    assert all("batch" in track["spans"] for track in tracks if track["role"] != "requests")
    assert all("batch" not in track["spans"] for track in view_model([fixed])["runs"][0]["tracks"])
