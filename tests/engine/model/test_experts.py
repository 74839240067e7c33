"""A mixture of experts: rows grouped by expert, and how many experts a forward reads."""

import pytest
import torch

import specscope
from specscope.engine.checkpoints.loader import load
from specscope.engine.errors import UsageError
from specscope.engine.worker.jobs import Measure
from specscope.engine.worker.measuring import measure
from tests.engine.methods.pairs import make_pair
from tests.engine.model import tiny


def test_more_rows_read_more_experts_and_each_row_has_the_output_of_its_own(tmp_path):
    tiny.save(tiny.reference("mixtral", seed=2), tmp_path)
    experts = load(tmp_path).layers[0].down
    x = torch.randn(40, 32, generator=torch.Generator().manual_seed(0))
    read = []
    for count in (0, 1, 2, 40):
        together = experts(x[:count])
        read.append(experts.read)
        alone = [experts(row[None]) for row in x[:count]]
        torch.testing.assert_close(together, torch.cat(alone) if alone else x[:0])
    assert read[:2] == [0, 2]
    assert 2 <= read[2] <= 4
    assert read[3] == 5


def test_a_timed_forward_of_more_rows_reads_more_experts(tmp_path, monkeypatch):
    """Plans know the time of a verification from it; rows of one token would read one row's."""
    tiny.save(tiny.reference("mixtral", seed=2), tmp_path)
    model, read = load(tmp_path), []

    def forward(*args, **kwargs):
        out = type(model).forward(model, *args, **kwargs)
        read.append((len(args[1]), out.experts[0]))
        return out

    monkeypatch.setattr(model, "forward", forward)
    measure(model, Measure("target", context=8, repeats=1, rows=(1, 2, 8)), stopped=lambda: False)
    experts = dict(read[1:])
    assert experts[1] == 2 * len(model.layers)
    assert experts[1] < experts[2] < experts[8]


def test_options_that_a_mixture_cannot_follow_are_refused(tmp_path):
    pair, _ = make_pair(tmp_path, "qwen2-moe", "right")
    with pytest.raises(
        UsageError, match="a mixture of experts, which has eager forwards only; leave forward"
    ):
        specscope.open(pair, forward="static")
    with specscope.open(pair, runtime="local-thread") as cluster:
        trace = cluster.run("speculative", "once", config={"gamma": 3}, max_new_tokens=12)
    assert trace.header.environment["forward"] == "eager"
    forwards = {s.id: s.rows for s in trace.spans if s.kind == "verify"}
    read = {row.span: row.experts for row in trace.routed}
    assert forwards.keys() <= read.keys()
    assert {row.held for row in trace.routed} == {2 * 6}, "one of the three layers has the usual MLP"
    drafts = [s.id for s in trace.spans if s.kind == "draft" and s.rows == 1]
    assert {read[span] for span in drafts} == {2 * 2}, "one row, two experts in each layer"
    assert all(2 * 2 < read[span] <= 2 * min(6, 2 * rows) for span, rows in forwards.items() if rows > 1)
    tiny.save(tiny.reference("olmoe"), tmp_path / "olmoe")
    with pytest.raises(UsageError, match="norms the queries of all heads as one vector"):
        specscope.open(target=tmp_path / "olmoe", tp=2)
